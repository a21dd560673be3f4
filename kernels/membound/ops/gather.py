"""Rows of a matrix picked by an index, and the sums that are their gradient."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar

import torch
from torch.autograd.function import once_differentiable

from ..runtime import empty, launch, recording
from . import checks
from .layouts import layout
from .registration import define
from .windows import MAX_COLUMNS, WindowKernel, WindowTiling, window_tiling

#: Rows of a stretch that is summed up apart, fewest and most; and fewest stretches.
_SHORTEST, _LONGEST, _STRETCHES = 32, 4096, 4

#: Most values of an index.
_MAX_INDEX = (1 << 31) - (1 << 16)


@dataclasses.dataclass(frozen=True)
class GatherKernel(WindowKernel):
    module: ClassVar[str] = "gather"
    dtype: str
    index: str  # dtype
    send: bool  # whether the index tells where rows go to, and not where they come from
    tiling: WindowTiling

    @property
    def scalar_accesses(self) -> int:
        return 1  # of the index


@dataclasses.dataclass(frozen=True)
class ScatterAddKernel(WindowKernel):
    module: ClassVar[str] = "scatter_add"
    dtype: str
    index: str  # dtype of the index whose "stretches" are summed up, "none" for whole "rows"
    stage: str
    split: bool  # whether stretches that go to one row are summed up first
    tiling: WindowTiling

    @property
    def scalar_accesses(self) -> int:
        """A stretch's ends, or where a row begins and ends; and the order of four rows."""
        return 2 + 4


def gather_rows(
    input: torch.Tensor, index: torch.Tensor, *, check_index: bool = True
) -> torch.Tensor:
    """Row ``index[i]`` of the input as row i, as ``torch.index_select(input, 0, index)``.

    Args:
        input: (M, N) tensor in bfloat16, float16 or float32 on a Hopper GPU. Rows may be strided; a
            tensor whose last dimension is strided is copied first.
        index: (K,) int64 or int32 tensor of rows from 0 to M - 1, in any order and number.
        check_index: find values that are no row, which takes the host a wait for the GPU and is
            left out while a CUDA graph is captured or torch.compile traces. Unchecked, their rows
            are zeros and take part in no gradient.

    Returns:
        A (K, N) tensor of input's dtype. The gradient of a row is the sum, in float32 and in the
        order of the index, of those of the rows that were made of it.

    Raises:
        TypeError: input or index is no tensor or of another dtype.
        ValueError: they are not on one GPU or of other dimensions, or index holds what is no row.
    """
    _check("gather_rows", input, index)
    if check_index:
        check_rows("gather_rows", "index", index, input.shape[0])
    return gather(input, index)


def permute_rows(
    input: torch.Tensor, index: torch.Tensor, *, check_index: bool = True
) -> torch.Tensor:
    """Row ``index[i]`` of the input as row i, the index being a permutation.

    The gradient only moves rows, where :func:`gather_rows` must sum; arguments, result and errors
    are those of :func:`gather_rows`. index has M values, and that each is there once is checked
    like their range. Unchecked, gradients of rows that are left out are undefined.
    """
    _check("permute_rows", input, index)
    if index.shape[0] != input.shape[0]:
        raise ValueError(
            f"permute_rows: index has {index.shape[0]} values; "
            f"expected one for each of input's {input.shape[0]} rows"
        )
    if check_index:
        check_rows("permute_rows", "index", index, input.shape[0])
        if _host_can_wait(index):
            sorted_index = index.sort().values
            repeated = sorted_index[1:] == sorted_index[:-1]
            if repeated.any():
                raise ValueError(
                    f"permute_rows: index holds {sorted_index[1:][repeated][0].item()} more than "
                    "once; expected a permutation"
                )
    if checks.needs_grad(input):
        return _PermuteGradient.apply(input, index)
    return _gather(input, index)


def gather(x: torch.Tensor, index: torch.Tensor, padding: int = -1) -> torch.Tensor:
    """Rows of ``x``; of the gradient, row ``padding`` is 0."""
    if checks.needs_grad(x):
        return _GatherGradient.apply(x, index, padding)
    return _gather(x, index)


def check_rows(op: str, name: str, index: torch.Tensor, rows: int) -> None:
    """Require values from 0 to ``rows`` - 1, where the host can wait for them."""
    if index.numel() and _host_can_wait(index):
        low, high = torch.stack(torch.aminmax(index)).tolist()
        if low < 0 or high >= rows:
            wrong = low if low < 0 else high
            raise ValueError(f"{op}: {name} holds {wrong}; accepted are rows 0 to {rows - 1}")


def check_index_form(op: str, name: str, index: torch.Tensor, x: torch.Tensor) -> None:
    """Require an integer tensor on the device of ``x``."""
    if not isinstance(index, torch.Tensor):
        raise TypeError(f"{op}: {name} must be a torch.Tensor, got {type(index).__name__}")
    if index.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{op}: {name} has dtype {index.dtype}; accepted are int64, int32")
    if index.device != x.device:
        raise ValueError(f"{op}: {name} is on {index.device}, expected {x.device}")
    if index.numel() > _MAX_INDEX:
        raise ValueError(f"{op}: {name} has {index.numel()} values; supported are {_MAX_INDEX}")


def _check(op: str, x: torch.Tensor, index: torch.Tensor) -> None:
    checks.row_input(op, "input", x)
    if x.dim() != 2:
        raise ValueError(f"{op}: input has shape {tuple(x.shape)}; expected (rows, columns)")
    checks.row_shape(op, x, x.shape[1], MAX_COLUMNS)
    check_index_form(op, "index", index, x)
    if index.dim() != 1:
        raise ValueError(f"{op}: index has shape {tuple(index.shape)}; expected one dimension")


def _host_can_wait(index: torch.Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and not recording()
        and index.is_cuda
        and not torch.cuda.is_current_stream_capturing()
    )


class _GatherGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, index: torch.Tensor, padding: int) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.rows, ctx.padding = x.shape[0], padding
        return _gather(x, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        return _scatter_add(grad, index, ctx.rows, ctx.padding), None, None


class _PermuteGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(index)
        return _gather(x, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        return _send(grad, index), None


_gather_kernel = functools.cache(GatherKernel)
_scatter_add_kernel = functools.cache(ScatterAddKernel)


def _move(x: torch.Tensor, index: torch.Tensor, send: bool) -> torch.Tensor:
    columns = x.shape[-1]
    out = empty((*index.shape, columns), x.dtype, x.device)
    if out.numel():
        rows, result = checks.as_rows(x, columns), checks.as_rows(out, columns)
        tiling = window_tiling(16 // x.element_size(), layout(result), layout(rows))
        flat = index.reshape(-1).contiguous()
        names = checks.dtype_name(x), checks.dtype_name(index)
        launch(_gather_kernel(*names, send, tiling), rows, flat, result)
    return out


def _run(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return _move(x, index, False)


def _run_send(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return _move(x, index, True)


def _run_scatter_add(
    grad: torch.Tensor, index: torch.Tensor, rows: int, padding: int
) -> torch.Tensor:
    columns = grad.shape[-1]
    out = empty((rows, columns), grad.dtype, grad.device)
    if not rows:
        return out
    vector = 16 // grad.element_size()
    grads = checks.as_rows(grad, columns)
    tiling = window_tiling(vector, layout(out), layout(grads), count=1)
    found, order = torch.sort(index.reshape(-1), stable=True)
    results = torch.arange(rows + 1, dtype=index.dtype, device=index.device)
    begins = torch.searchsorted(found, results, out_int32=True)

    length = _stretch(len(found))
    stretches = len(found) // length
    split = stretches >= _STRETCHES
    dtype, sums = checks.dtype_name(grad), None
    if split:
        width = -(-columns // vector) * vector
        sums = empty((stretches, width), torch.float32, grad.device)[:, :columns]
        kernel = _scatter_add_kernel(dtype, checks.dtype_name(index), "stretches", split, tiling)
        launch(kernel, grads, found, order, sums, length)
    kernel = _scatter_add_kernel(dtype, "none", "rows", split, tiling)
    launch(kernel, grads, order, begins, sums, out, length, padding)
    return out


def _stretch(count: int) -> int:
    """How many of ``count`` rows are summed up at a time where they go to one row.

    About as many as there are stretches then: the longest row of the result takes the time of both.
    """
    length = 1 << math.isqrt(max(count - 1, 0)).bit_length()
    return max(_SHORTEST, min(length, _LONGEST))


def _fake(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.new_empty((*index.shape, x.shape[-1]))


def _fake_sums(grad: torch.Tensor, index: torch.Tensor, rows: Any, padding: int) -> torch.Tensor:
    return grad.new_empty((rows, grad.shape[-1]))


_gather = define("gather_rows(Tensor input, Tensor index) -> Tensor", _run, _fake)
_send = define("send_rows(Tensor input, Tensor index) -> Tensor", _run_send, _fake)
_scatter_add = define(
    "scatter_add_rows(Tensor grad, Tensor index, SymInt rows, int padding) -> Tensor",
    _run_scatter_add,
    _fake_sums,
)
