"""The k largest or smallest elements of each row."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch.autograd.function import once_differentiable

from ..runtime import Kernel, empty, launch
from . import checks
from .layouts import Layout, fresh, layout
from .registration import define, public
from .tiling import MAX_COLUMNS, RowTiling, row_tiling

#: Most elements that can be chosen.
MAX_K = 256


@dataclasses.dataclass(frozen=True)
class TopKKernel(Kernel):
    module: ClassVar[str] = "topk"
    dtype: str
    k: int
    largest: bool
    softmax: bool
    tiling: RowTiling

    @property
    def threads(self) -> int:
        return self.tiling.threads

    @property
    def sorted_size(self) -> int:
        """Places for the chosen, a power of two."""
        return max(2, 1 << (self.k - 1).bit_length())

    @property
    def shared_bytes(self) -> int:
        # the chosen, 8 bytes each; 4 for each digit's count; four facts of the digit
        return 8 * self.sorted_size + 4 * 256 + 4 * 4

    @property
    def full_width(self) -> bool:
        return self.tiling.full_width(getattr(torch, self.dtype).itemsize)

    @property
    def scalar_accesses(self) -> int:
        return 16  # the chosen values and their columns, in loops


@dataclasses.dataclass(frozen=True)
class TopKBackwardKernel(Kernel):
    module: ClassVar[str] = "topk_backward"
    dtype: str
    k: int
    softmax: bool
    tiling: RowTiling

    @property
    def threads(self) -> int:
        return self.tiling.threads

    @property
    def shared_bytes(self) -> int:
        return 0

    @property
    def full_width(self) -> bool:
        return self.tiling.full_width(getattr(torch, self.dtype).itemsize)

    @property
    def scalar_accesses(self) -> int:
        return 32  # the chosen values' gradients, in unrolled loops


@public
def topk(
    input: torch.Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    softmax: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest elements of each row, or the smallest, and their columns.

    Args:
        input: (..., N) tensor in bfloat16, float16 or float32 on a Hopper GPU, N up to 1,048,576.
            Rows may be strided; a tensor whose last dimension is strided is copied first.
        k: how many, 1 to 256 and up to N.
        dim: the last dimension.
        largest: take the largest; NaN is larger than any number, and both zeros are equal.
        sorted: the results are in order either way.
        softmax: return the softmax over the k values in their place, as routers of experts use.

    Returns:
        ``(values, indices)``, both (..., k): in input's dtype, exactly as in input, and int64. Of
        equal elements those of lower columns come first, and are chosen first.

    Raises:
        TypeError: input is no tensor or of another dtype, or k is no int.
        ValueError: input is not on a GPU, has no columns or too many, k is outside its range, or
            dim is not the last dimension.
    """
    checks.row_input("topk", "input", input)
    checks.last_dim("topk", input, dim)
    checks.row_shape("topk", input, input.shape[-1], MAX_COLUMNS)
    if not isinstance(k, int) or isinstance(k, bool):
        raise TypeError(f"topk: k must be an int, got {type(k).__name__}")
    most = min(MAX_K, input.shape[-1])
    if not 1 <= k <= most:
        raise ValueError(f"topk: k is {k}; accepted are 1 to {most} for rows of {input.shape[-1]}")
    if checks.needs_grad(input):
        return _Gradient.apply(input, k, largest, softmax)
    return _op(input, k, largest, softmax)


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, k: int, largest: bool, softmax: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values, indices = _op(x, k, largest, softmax)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(values, indices)
        ctx.columns, ctx.softmax = x.shape[-1], softmax
        return values, indices

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
        values, indices = ctx.saved_tensors
        return _backward_op(grad, values, indices, ctx.columns, ctx.softmax), None, None, None


_tilings: dict[tuple[Layout, ...], RowTiling] = {}


def _tiling(columns: int, *rows: Layout) -> RowTiling:
    """A row to a CTA of at least a warp: what exceeds its registers is taken in chunks."""
    tiling = _tilings.get(rows)
    if tiling is None:
        tiling = row_tiling(columns, *rows, held=4)  # values, and their 64-bit numbers
        tiling = _tilings[rows] = dataclasses.replace(
            tiling,
            row_threads=max(32, tiling.row_threads),
            rows=1,
            cluster=1,
            chunks=tiling.cluster * tiling.chunks,
        )
    return tiling


def _run(
    x: torch.Tensor, k: int, largest: bool, softmax: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    shape, columns = (*x.shape[:-1], k), x.shape[-1]
    values = empty(shape, x.dtype, x.device)
    indices = empty(shape, torch.int64, x.device)
    if x.numel():
        rows = checks.as_rows(x, columns)
        kernel = TopKKernel(
            dtype=checks.dtype_name(x),
            k=k,
            largest=largest,
            softmax=softmax,
            tiling=_tiling(columns, layout(rows)),
        )
        launch(kernel, rows, checks.as_rows(values, k), checks.as_rows(indices, k))
    return values, indices


def _run_backward(
    grad: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, columns: int, softmax: bool
) -> torch.Tensor:
    out = empty((*values.shape[:-1], columns), values.dtype, values.device)
    k = values.shape[-1]
    if out.numel():
        kernel = TopKBackwardKernel(
            dtype=checks.dtype_name(values),
            k=k,
            softmax=softmax,
            tiling=_tiling(columns, fresh(columns, values.dtype)),
        )
        picked = (checks.as_rows(one, k) for one in (grad, values, indices))
        launch(kernel, *picked, checks.as_rows(out, columns))
    return out


def _like(x: torch.Tensor, k: int, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (*x.shape[:-1], k)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


def _like_input(
    grad: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, columns: int, *_: Any
) -> torch.Tensor:
    return values.new_empty((*values.shape[:-1], columns))


_op = define(
    "topk(Tensor input, int k, bool largest, bool softmax) -> (Tensor, Tensor)", _run, _like
)
_backward_op = define(
    "topk_backward(Tensor grad, Tensor values, Tensor indices, SymInt columns, bool softmax)"
    " -> Tensor",
    _run_backward,
    _like_input,
)
