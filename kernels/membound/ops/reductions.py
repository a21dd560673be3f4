"""Reductions over the last dimensions of a tensor, or over its first."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch.autograd.function import once_differentiable

from ..runtime import Kernel, empty, launch
from . import checks
from .columns import STATES, reduce_columns
from .layouts import Layout, fresh, layout
from .registration import define, public
from .tiling import MAX_COLUMNS, RowTiling, row_tiling, shared_vector


@dataclasses.dataclass(frozen=True)
class RowReductionKernel(Kernel):
    module: ClassVar[str] = "row_reduction"
    form: str  # a key of STATES
    dtype: str
    out: str  # dtype of the result
    aside: int  # values a row that are kept for the gradient
    tiling: RowTiling

    @property
    def threads(self) -> int:
        return self.tiling.threads

    @property
    def cluster(self) -> int:
        return self.tiling.cluster

    @property
    def shared_bytes(self) -> int:
        return 4 * STATES[self.form][0] * self.tiling.warp_slots  # float32

    @property
    def full_width(self) -> bool:
        return self.tiling.full_width(getattr(torch, self.dtype).itemsize)

    @property
    def scalar_accesses(self) -> int:
        return 1 + self.aside


@dataclasses.dataclass(frozen=True)
class ReductionBackwardKernel(Kernel):
    module: ClassVar[str] = "reduction_backward"
    form: str
    dtype: str
    grad: str  # dtype of the results' gradients
    aside: int
    leading: bool  # whether results, and what is kept aside, belong to columns and not to rows
    vector: int  # elements of the results' gradients that can be accessed at a time
    tiling: RowTiling

    @property
    def threads(self) -> int:
        return self.tiling.threads

    @property
    def cluster(self) -> int:
        return self.tiling.cluster

    @property
    def shared_bytes(self) -> int:
        return 0

    @property
    def full_width(self) -> bool:
        sizes = [getattr(torch, name).itemsize for name in (self.dtype, self.grad)]
        shared = not self.leading or self.vector * min(sizes[1], 4) >= 16
        return self.tiling.full_width(sizes[0]) and shared

    @property
    def scalar_accesses(self) -> int:
        return 0 if self.leading else 1 + self.aside


@public
def sum(
    input: torch.Tensor,
    dim: int | Sequence[int],
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Sum over the last or the first dimensions, computed in float32.

    Args:
        input: tensor in bfloat16, float16 or float32 on a Hopper GPU, taken as a matrix (M, N): N
            elements of the last dimensions that are reduced, up to 1,048,576, or M of the first
            that are, and N up to 1,048,576 others. Rows of the matrix may be strided; a tensor
            that cannot be viewed so, or whose last dimension is strided, is copied first.
        dim: the last dimension, the first one, or several, all of them last or first.
        keepdim: whether the result keeps the dimensions that are reduced, of size 1.
        dtype: of the result: input's, which is the default, or float32.

    Returns:
        A tensor of the dimensions that are left. The order of the additions depends on the shape
        and the GPU's number of multiprocessors alone. Gradients flow to input.

    Raises:
        TypeError: input is no tensor or of another dtype, or dtype is another.
        ValueError: input is not on a GPU, has no or too many columns or rows, or dim names
            dimensions that are neither last nor first.
    """
    return _reduce("sum", "sum", input, dim, keepdim, dtype)


@public
def mean(
    input: torch.Tensor,
    dim: int | Sequence[int],
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Mean over the last or the first dimensions; arguments and errors as for :func:`sum`."""
    return _reduce("mean", "mean", input, dim, keepdim, dtype)


@public
def var(
    input: torch.Tensor,
    dim: int | Sequence[int],
    *,
    correction: float = 1,
    keepdim: bool = False,
) -> torch.Tensor:
    """Variance over the last or the first dimensions: squares about the mean of parts, joined.

    The sum of squares is divided by the number of elements less ``correction``, or by 0 where that
    is negative. Other arguments and errors as for :func:`sum`.
    """
    return _reduce("var", "var", input, dim, keepdim, None, float(correction))


@public
def amax(input: torch.Tensor, dim: int | Sequence[int], keepdim: bool = False) -> torch.Tensor:
    """Maximum over the last or the first dimensions, NaN where an element is NaN.

    Equal maxima share the gradient. Arguments and errors as for :func:`sum`, but there must be an
    element.
    """
    return _reduce("amax", "amax", input, dim, keepdim, None)


@public
def argmax(input: torch.Tensor, dim: int, keepdim: bool = False) -> torch.Tensor:
    """Index, in int64, of the maximum over the last or the first dimension.

    NaN is greater than all; of equal elements the first counts. Arguments and errors as for
    :func:`sum`, but there must be an element. No gradient flows through.
    """
    if not isinstance(dim, int):
        raise TypeError(f"argmax: dim must be an int, got {type(dim).__name__}")
    return _reduce("argmax", "argmax", input, dim, keepdim, torch.int64)


@public
def norm(
    input: torch.Tensor,
    p: float | str = "fro",
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Norm over the last or the first dimensions: the root of the sum of squares, or another.

    Args:
        input: as for :func:`sum`.
        p: 2 or "fro"; 1 for the sum of magnitudes; inf for the greatest.
        dim: as for :func:`sum`; it must be given.
        keepdim: as for :func:`sum`.
        dtype: as for :func:`sum`.

    Returns:
        As :func:`sum`; gradients are torch's, also for rows of zeros or with equal maxima.

    Raises:
        TypeError: as for :func:`sum`.
        ValueError: as for :func:`sum`, or p is another.
    """
    form = {"fro": "norm2", 1: "norm1", 2: "norm2", math.inf: "norm_inf"}.get(p)
    if form is None:
        raise ValueError(f'norm: p is {p!r}; accepted are 1, 2, inf and "fro"')
    return _reduce("norm", form, input, dim, keepdim, dtype)


#: Forms of which a gradient needs more, by those that do without.
_WITH_GRADIENT = {"amax": "amax_ties", "norm_inf": "norm_inf_ties"}


def _reduce(
    op: str,
    form: str,
    x: torch.Tensor,
    dim: int | Sequence[int] | None,
    keepdim: bool,
    dtype: torch.dtype | None,
    correction: float = 0.0,
) -> torch.Tensor:
    checks.row_input(op, "input", x)
    dims, leading = _dims(op, x, dim)
    columns = math.prod(x.shape[dims:] if leading else x.shape[-dims:])
    checks.row_shape(op, x, columns, MAX_COLUMNS)
    if leading and not x.numel() and form in ("amax", "argmax", "norm_inf"):
        raise ValueError(f"{op}: input has shape {tuple(x.shape)}; need an element to reduce")
    out = dtype or x.dtype
    if form != "argmax" and out not in (x.dtype, torch.float32):
        accepted = " or ".join(dict.fromkeys((str(x.dtype), "torch.float32")))
        raise TypeError(f"{op}: dtype is {out}; accepted for such an input is {accepted}")
    arguments = dims, leading, correction, str(out).removeprefix("torch.")
    if form == "argmax":
        result = _forward(x.detach(), form, *arguments)
    elif checks.needs_grad(x):
        result = _Gradient.apply(x, _WITH_GRADIENT.get(form, form), *arguments)
    else:
        result = _forward(x, form, *arguments)
    if keepdim:
        ones = (1,) * dims
        result = result.view((*ones, *x.shape[dims:]) if leading else (*x.shape[:-dims], *ones))
    return result


def _dims(op: str, x: torch.Tensor, dim: int | Sequence[int] | None) -> tuple[int, bool]:
    """How many dimensions are reduced, and whether they are the first and not the last."""
    given = (dim,) if isinstance(dim, int) else tuple(dim) if isinstance(dim, Sequence) else ()
    if not given or not all(isinstance(d, int) and -x.dim() <= d < x.dim() for d in given):
        raise ValueError(
            f"{op}: dim must be one or several of the {x.dim()} dimensions of input, got {dim!r}"
        )
    dims = sorted(d % x.dim() for d in given)
    count = len(dims)
    if dims == list(range(x.dim() - count, x.dim())):
        return count, False
    if dims == list(range(count)):
        return count, True
    raise ValueError(f"{op}: dim must be the last dimensions or the first, got {dim!r}")


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        form: str,
        dims: int,
        leading: bool,
        correction: float,
        dtype: str,
    ) -> torch.Tensor:
        ctx.form, ctx.dims, ctx.leading, ctx.correction = form, dims, leading, correction
        if form in ("sum", "mean"):
            ctx.shape, ctx.dtype = x.shape, x.dtype
            return _forward(x, form, dims, leading, correction, dtype)
        if form == "norm1":
            out, aside = _forward(x, form, dims, leading, correction, dtype), None
        else:
            out, aside = _forward_aside(x, form, dims, leading, correction, dtype)
        ctx.save_for_backward(x, aside)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.form in ("sum", "mean"):
            # a view, as in torch: nothing is written
            if ctx.form == "mean":
                reduced = ctx.shape[: ctx.dims] if ctx.leading else ctx.shape[-ctx.dims :]
                grad = grad / math.prod(reduced)
            if not ctx.leading:
                grad = grad.view(*grad.shape, *(1,) * ctx.dims)
            return grad.to(ctx.dtype).expand(ctx.shape), *(None,) * 5
        x, aside = ctx.saved_tensors
        result = _backward(grad, x, aside, ctx.form, ctx.dims, ctx.leading, ctx.correction)
        return result, *(None,) * 5


_kernels: dict[tuple[Any, ...], Kernel] = {}


def _row_kernel(form: str, x: Layout, out: str, aside: int) -> RowReductionKernel:
    key = (form, x, out, aside)
    kernel = _kernels.get(key)
    if kernel is None:
        # a variance also keeps which columns there are
        tiling = row_tiling(x.columns, x, held=2 if form == "var" else 1)
        dtype = str(x.dtype).removeprefix("torch.")
        kernel = _kernels[key] = RowReductionKernel(form, dtype, out, aside, tiling)
    return kernel


def _backward_kernel(
    form: str, leading: bool, aside: int, x: Layout, grad: Layout
) -> ReductionBackwardKernel:
    key = (form, leading, aside, x, grad)
    kernel = _kernels.get(key)
    if kernel is None:
        held = 2 + (1 + aside) * leading
        tiling = row_tiling(x.columns, x, fresh(x.columns, x.dtype), beside=leading, held=held)
        kernel = _kernels[key] = ReductionBackwardKernel(
            form=form,
            dtype=str(x.dtype).removeprefix("torch."),
            grad=str(grad.dtype).removeprefix("torch."),
            aside=aside,
            leading=leading,
            vector=shared_vector(grad, tiling) if leading else 1,
            tiling=tiling,
        )
    return kernel


def _matrix(x: torch.Tensor, dims: int, leading: bool) -> torch.Tensor:
    return checks.as_rows(x, math.prod(x.shape[dims:] if leading else x.shape[-dims:]))


def _left(x: torch.Tensor, dims: int, leading: bool) -> torch.Size:
    return x.shape[dims:] if leading else x.shape[:-dims]


def _divisor(form: str, count: int, correction: float) -> float:
    return max(count - correction, 0.0) if form == "var" else float(count)


def _launch(
    x: torch.Tensor,
    form: str,
    dims: int,
    leading: bool,
    correction: float,
    out: torch.Tensor,
    aside: torch.Tensor | None,
) -> None:
    rows = _matrix(x, dims, leading)
    divisor = _divisor(form, rows.shape[0 if leading else 1], correction)
    if leading:
        kept = None if aside is None else aside[:, : out.numel()]
        reduce_columns(form, rows, out.view(-1), kept, divisor)
    elif x.numel():
        kept = None if aside is None else aside[:, : out.numel()]
        count = 0 if aside is None else aside.shape[0]
        kernel = _row_kernel(form, layout(rows), checks.dtype_name(out), count)
        launch(kernel, rows, out.view(-1), kept, divisor)


def _run(
    x: torch.Tensor, form: str, dims: int, leading: bool, correction: float, dtype: str
) -> torch.Tensor:
    out = empty(_left(x, dims, leading), getattr(torch, dtype), x.device)
    _launch(x, form, dims, leading, correction, out, None)
    return out


def _run_aside(
    x: torch.Tensor, form: str, dims: int, leading: bool, correction: float, dtype: str
) -> tuple[torch.Tensor, torch.Tensor]:
    out = empty(_left(x, dims, leading), getattr(torch, dtype), x.device)
    aside = empty(_aside_shape(x, form, dims, leading), torch.float32, x.device)
    _launch(x, form, dims, leading, correction, out, aside)
    return out, aside


def _aside_shape(x: torch.Tensor, form: str, dims: int, leading: bool) -> tuple[int, int]:
    """A row for each value that is kept, padded so that all start on boundaries of 128 bits."""
    return STATES[form][1], -(-math.prod(_left(x, dims, leading)) // 4) * 4


def _run_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    aside: torch.Tensor | None,
    form: str,
    dims: int,
    leading: bool,
    correction: float,
) -> torch.Tensor:
    out = empty(x.shape, x.dtype, x.device)
    if x.numel():
        rows = _matrix(x, dims, leading)
        count = rows.shape[0 if leading else 1]
        grads = grad.reshape(-1).contiguous()
        scale = 1.0
        if form == "var":
            scale = 2.0 / (count - correction) if count != correction else math.inf
        kept = None if aside is None else aside[:, : grads.shape[0]]
        kernel = _backward_kernel(
            form, leading, 0 if kept is None else kept.shape[0], layout(rows), _shared(grads)
        )
        launch(kernel, rows, grads, kept, out.view(rows.shape), scale)
    return out


def _shared(grads: torch.Tensor) -> Layout:
    return layout(grads)


def _fake(
    x: torch.Tensor, form: str, dims: int, leading: bool, correction: float, dtype: str
) -> torch.Tensor:
    return x.new_empty(_left(x, dims, leading), dtype=getattr(torch, dtype))


def _fake_aside(
    x: torch.Tensor, form: str, dims: int, leading: bool, correction: float, dtype: str
) -> tuple[torch.Tensor, torch.Tensor]:
    aside = x.new_empty(_aside_shape(x, form, dims, leading), dtype=torch.float32)
    return _fake(x, form, dims, leading, correction, dtype), aside


def _fake_backward(grad: torch.Tensor, x: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


_ARGUMENTS = "str form, int dims, bool leading, float correction"
_forward = define(f"reduce(Tensor input, {_ARGUMENTS}, str dtype) -> Tensor", _run, _fake)
_forward_aside = define(
    f"reduce_aside(Tensor input, {_ARGUMENTS}, str dtype) -> (Tensor, Tensor)",
    _run_aside,
    _fake_aside,
)
_backward = define(
    f"reduce_backward(Tensor grad, Tensor input, Tensor? aside, {_ARGUMENTS}) -> Tensor",
    _run_backward,
    _fake_backward,
)
