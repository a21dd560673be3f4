"""Memory for an op's results that shows what was left out, and what was written beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from membound import runtime

#: Bytes on each side of a tensor; a multiple of every access and of the allocator's boundary.
PAD = 1024
#: What lies there, and what lies in the tensor: all ones is NaN in floating types and -1 in others.
CANARY, POISON = 0x5A, 0xFF


class Guards:
    """Stands for the suite's allocator; :meth:`check` requires that the canaries live."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []

    def __call__(
        self, shape: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        if torch.device(device).type == "meta":
            return torch.empty(shape, dtype=dtype, device=device)
        size = math.prod(shape) * dtype.itemsize
        buffer = torch.full((size + 2 * PAD,), CANARY, dtype=torch.uint8, device=device)
        buffer[PAD : PAD + size].fill_(POISON)
        self._buffers.append(buffer)
        # no view, as what torch.empty returns is none
        tensor = torch.empty(0, dtype=dtype, device=device)
        return tensor.set_(buffer.untyped_storage(), PAD // dtype.itemsize, tuple(shape))

    def check(self) -> None:
        """Require that nothing was written before or behind any tensor."""
        for buffer in self._buffers:
            for where, guard in (("before", buffer[:PAD]), ("behind", buffer[-PAD:])):
                touched = int((guard != CANARY).sum())
                assert not touched, f"{touched} bytes {where} a result were written"


@contextmanager
def guarded(suite: Any = None) -> Iterator[Guards]:
    """What ``suite`` (membound by default) allocates meanwhile is poisoned and guarded."""
    guards = Guards()
    resources = (runtime if suite is None else suite.runtime).resources
    with mock.patch.object(resources, "allocate", guards):
        yield guards
