"""What an op takes from the device: memory for its results, and how much there is to fill."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from .launcher import recording, watched

#: Multiprocessors of an H100 SXM and an H200, for launches that are only recorded.
RECORDED_MULTIPROCESSORS = 132


def ordinary(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What makes outputs and workspaces unless :data:`allocate` is replaced."""
    return torch.empty(shape, dtype=dtype, device=device)


#: Makes every output and workspace; tests replace it to guard what is handed out.
allocate = ordinary


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A contiguous tensor with any content that starts on a boundary of 16 bytes or more."""
    made = allocate(shape, dtype=dtype, device=device)
    steps = watched()
    if steps is not None:
        steps.append(made)
    return made


def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors (SMs) of ``device``."""
    return RECORDED_MULTIPROCESSORS if recording() else _multiprocessors(device)


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
