"""What an op takes from the device: memory for its results, and how much there is to fill."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from .launcher import recording

#: Multiprocessors of an H100 SXM and an H200, for launches that are only recorded.
RECORDED_MULTIPROCESSORS = 132

#: Allocates on the current device without the dispatcher: a third of ``torch.empty``'s host time.
_empty_strided = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)


def allocate(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Make an output or a workspace; tests replace this to guard what is handed out."""
    if (
        _empty_strided is not None
        and device.type == "cuda"
        and device.index == torch._C._cuda_getDevice()
        and not torch._C._len_torch_dispatch_stack()
    ):
        return _empty_strided(shape, _contiguous(shape), dtype)
    return torch.empty(shape, dtype=dtype, device=device)


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A contiguous tensor with any content that starts on a boundary of 16 bytes or more."""
    return allocate(shape, dtype=dtype, device=device)


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(strides))


def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors (SMs) of ``device``."""
    return RECORDED_MULTIPROCESSORS if recording() else _multiprocessors(device)


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
