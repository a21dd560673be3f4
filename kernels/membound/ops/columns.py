"""Reductions over the rows of a matrix, a result for each column: which kernels run."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from ..runtime import Kernel, empty, launch, multiprocessors
from .checks import dtype_name
from .layouts import Layout, fresh, layout

#: How many values are kept of elements while they are reduced, and how many a gradient needs.
STATES = {
    "sum": (1, 0),
    "mean": (1, 0),
    "var": (3, 1),
    "amax": (1, 0),
    "amax_ties": (2, 2),
    "argmax": (2, 0),
    "norm1": (1, 0),
    "norm2": (1, 1),
    "norm_inf": (1, 0),
    "norm_inf_ties": (2, 2),
}

_THREADS = 256
#: Fewest rows of a thread where the rows are cut in parts, and CTAs for each multiprocessor then.
_PART_ROWS = 32
_CTAS = 8


@dataclasses.dataclass(frozen=True)
class ColumnsKernel(Kernel):
    module: ClassVar[str] = "columns"
    form: str  # a key of STATES
    dtype: str
    out: str  # dtype of the result
    aside: int  # values a column that are kept for the gradient
    stage: str  # "whole", or "parts" of the rows into states and then the "states" of the parts
    across: int  # threads across columns, a power of two
    shifted: bool  # whether rows may start between the boundaries of accesses

    @property
    def threads(self) -> int:
        return _THREADS

    @property
    def vector(self) -> int:
        """Elements per access of 128 bits."""
        return 16 // getattr(torch, self.dtype).itemsize

    @property
    def owned(self) -> int:
        """Columns of a CTA."""
        return (self.across - self.shifted) * self.vector

    @property
    def shared_bytes(self) -> int:
        values = STATES[self.form][0]
        return 4 * values * (self.threads // self.across) * self.owned

    @property
    def scalar_accesses(self) -> int:
        return STATES[self.form][0] if self.stage == "parts" else 1 + self.aside


def reduce_columns(
    form: str, x: torch.Tensor, out: torch.Tensor, aside: torch.Tensor | None, divisor: float
) -> None:
    """Reduce ``x`` (M, N), whose rows are contiguous, over M into ``out`` (N,).

    What the gradient needs goes into ``aside``, (k, N) in float32, unless that is None. The order
    of the additions depends on the shape and the GPU's number of multiprocessors alone.
    """
    columns = x.shape[1]
    kept = 0 if aside is None else aside.shape[0]
    sms = multiprocessors(x.device)
    rows = layout(x)
    shifted = _shifted(rows)
    across = _across(rows, x.shape[0], shifted, sms)
    stage, parts = "whole", _parts(rows, x.shape[0], across, shifted, sms)
    if parts > 1:
        kernel = ColumnsKernel(form, dtype_name(x), "float32", 0, "parts", across, shifted)
        width = STATES[form][0] * (-(-columns // 4) * 4)
        states = empty((parts, width), torch.float32, x.device)
        launch(kernel, x, states, None, columns, parts, divisor)
        x, stage, shifted = states, "states", False
        across = _across(fresh(columns, torch.float32), parts, shifted, sms)
    kernel = ColumnsKernel(form, dtype_name(x), dtype_name(out), kept, stage, across, shifted)
    launch(kernel, x, out, aside, columns, 1, divisor)


def sum_columns(partials: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The sums (N,) in ``dtype`` over the rows of ``partials``, (P, N) in float32.

    The order of the additions depends on the shape and the GPU's number of multiprocessors alone.
    """
    out = empty(partials.shape[1:], dtype, partials.device)
    reduce_columns("sum", partials, out, None, 1.0)
    return out


def _shifted(x: Layout) -> bool:
    """Whether rows may start between the boundaries of accesses."""
    return x.strides[0] * x.size % 16 != 0 or x.offset != 0


def _blocks(x: Layout, across: int, shifted: bool) -> int:
    return -(-x.columns // ((across - shifted) * (16 // x.size)))


def _across(x: Layout, rows: int, shifted: bool, sms: int) -> int:
    """Threads across columns: up to a warp, but no less than 128 bytes where CTAs are few."""
    vectors = -(-x.columns * x.size // 16)
    across = min(32, 1 << (vectors + shifted - 1).bit_length())
    while across > 8 and _blocks(x, across, shifted) < sms and rows * across > 8 * _THREADS:
        across //= 2
    return across


def _parts(x: Layout, rows: int, across: int, shifted: bool, sms: int) -> int:
    """Into how many parts the rows are cut, so that there is work for all multiprocessors."""
    most = rows * across // (_THREADS * _PART_ROWS)
    return max(1, min(most, _CTAS * sms // _blocks(x, across, shifted)))
