"""Softmax, its logarithm, and the logarithm of its divisor, over the last dimension."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, ClassVar

import torch
from torch.autograd.function import once_differentiable

from ..runtime import Kernel, empty, launch
from . import checks
from .layouts import Layout, fresh, layout
from .masks import mask_rows
from .registration import define, public
from .tiling import MAX_COLUMNS, RowTiling, row_tiling, shared_vector


@dataclasses.dataclass(frozen=True)
class _ScoresKernel(Kernel):
    form: str  # "softmax", "log_softmax" or "logsumexp"
    dtype: str
    out: str  # dtype of the result
    scaled: bool
    mask: str  # "none", "bool" or the dtype of what is added
    mask_vector: int  # elements of the mask that can be accessed at a time
    causal: bool
    tiling: RowTiling

    @property
    def threads(self) -> int:
        return self.tiling.threads

    @property
    def cluster(self) -> int:
        return self.tiling.cluster

    @property
    def full_width(self) -> bool:
        sizes = (getattr(torch, name).itemsize for name in (self.dtype, self.out))
        return self.mask == "none" and self.tiling.full_width(*sizes)


@dataclasses.dataclass(frozen=True)
class SoftmaxKernel(_ScoresKernel):
    module: ClassVar[str] = "softmax"

    @property
    def shared_bytes(self) -> int:
        return 2 * 4 * self.tiling.warp_slots  # float32, for the maximum and for the sum

    @property
    def scalar_accesses(self) -> int:
        return 2 if self.form == "logsumexp" else 0


@dataclasses.dataclass(frozen=True)
class SoftmaxBackwardKernel(_ScoresKernel):
    module: ClassVar[str] = "softmax_backward"

    @property
    def shared_bytes(self) -> int:
        return 4 * self.tiling.warp_slots  # float32, for the sum


@dataclasses.dataclass(frozen=True)
class LogsumexpBackwardKernel(_ScoresKernel):
    module: ClassVar[str] = "logsumexp_backward"

    @property
    def shared_bytes(self) -> int:
        return 0

    @property
    def scalar_accesses(self) -> int:
        return 2


@public
def softmax(
    input: torch.Tensor,
    dim: int = -1,
    *,
    scale: float = 1.0,
    mask: torch.Tensor | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """Softmax of ``input * scale + mask`` over the last dimension, computed in float32.

    Args:
        input: (..., N) tensor in bfloat16, float16 or float32 on a Hopper GPU, N up to 1,048,576.
            Rows may be strided; a tensor whose last dimension is strided is copied first.
        dim: the last dimension.
        scale: factor on input.
        mask: tensor that can be broadcast to input's shape. A boolean one shows where it is True
            and hides (-inf) where it is False; one in any of the three dtypes is added. A mask
            whose last dimension is broadcast or strided is copied first.
        causal: for an input (..., L, N): hide column j of row i where j > i.

    Returns:
        A tensor of input's shape and dtype. Rows of NaN, +inf or all -inf give what torch gives.
        Gradients flow to input and to an added mask.

    Raises:
        TypeError: input or mask is no tensor or of another dtype.
        ValueError: input is not on a GPU, has no columns or too many, dim is not the last
            dimension, or mask does not fit input.
    """
    return _call("softmax", input, dim, scale, mask, causal)


@public
def log_softmax(
    input: torch.Tensor,
    dim: int = -1,
    *,
    scale: float = 1.0,
    mask: torch.Tensor | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """Logarithm of :func:`softmax`, -inf where the mask hides; arguments and errors as there."""
    return _call("log_softmax", input, dim, scale, mask, causal)


@public
def logsumexp(
    input: torch.Tensor,
    dim: int = -1,
    keepdim: bool = False,
    *,
    scale: float = 1.0,
    mask: torch.Tensor | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """Logarithm of the sum of exp(input * scale + mask) over the last dimension.

    Arguments and errors are those of :func:`softmax`; ``keepdim`` keeps the last dimension, with
    one column. Returns a tensor of input's dtype.
    """
    result = _call("logsumexp", input, dim, scale, mask, causal)
    return result.unsqueeze(-1) if keepdim else result


def _call(
    form: str,
    x: torch.Tensor,
    dim: int,
    scale: float,
    mask: torch.Tensor | None,
    causal: bool,
) -> torch.Tensor:
    checks.row_input(form, "input", x)
    checks.last_dim(form, x, dim)
    checks.row_shape(form, x, x.shape[-1], MAX_COLUMNS)
    queries = 0
    if causal:
        if x.dim() < 2:
            raise ValueError(
                f"{form}: causal needs an input of at least two dimensions, "
                f"got shape {tuple(x.shape)}"
            )
        queries = x.shape[-2]
    if mask is not None:
        mask_rows(form, mask, x)
    if checks.needs_grad(x, mask):
        return _Gradient.apply(form, x, mask, scale, queries)
    return _forward(form, x, mask, scale, queries)[0]


def _forward(
    form: str, x: torch.Tensor, mask: torch.Tensor | None, scale: float, queries: int
) -> tuple[torch.Tensor, ...]:
    if form == "logsumexp":
        return _ops[form](x, mask, scale, queries)
    return (_ops[form](x, mask, scale, queries),)


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        form: str,
        x: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
        queries: int,
    ) -> torch.Tensor:
        out, *exact = _forward(form, x, mask, scale, queries)
        ctx.save_for_backward(*((x, *exact) if exact else (out,)), mask)
        ctx.form, ctx.scale, ctx.queries = form, scale, queries
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *saved, mask = ctx.saved_tensors
        _, to_x, to_mask, _, _ = ctx.needs_input_grad
        backward = _backward_ops[ctx.form]
        d_x = backward(grad, *saved, mask, ctx.scale, ctx.queries, False) if to_x else None
        d_mask = None
        if to_mask:
            of_scores = backward(grad, *saved, mask, ctx.scale, ctx.queries, True)
            d_mask = of_scores.sum_to_size(mask.shape).to(mask.dtype)
        return None, d_x, d_mask, None, None


_kernels: dict[tuple[Any, ...], _ScoresKernel] = {}


def _kernel(
    kind: type[_ScoresKernel],
    form: str,
    mask: torch.Tensor | None,
    scaled: bool,
    causal: bool,
    held: int,
    out: torch.dtype,
    *rows: Layout,
) -> _ScoresKernel:
    masked = None if mask is None else layout(mask)
    key = (kind, form, masked, scaled, causal, out, rows)
    kernel = _kernels.get(key)
    if kernel is None:
        x = rows[0]
        tiling = row_tiling(
            x.columns,
            *rows,
            fresh(x.columns, out),
            beside=masked is not None,
            held=held + (masked is not None),
        )
        name = "none" if mask is None else checks.dtype_name(mask).replace("uint8", "bool")
        kernel = _kernels[key] = kind(
            form=form,
            dtype=str(x.dtype).removeprefix("torch."),
            out=str(out).removeprefix("torch."),
            scaled=scaled,
            mask=name,
            mask_vector=1 if masked is None else shared_vector(masked, tiling),
            causal=causal,
            tiling=tiling,
        )
    return kernel


def _run(
    form: str, x: torch.Tensor, mask: torch.Tensor | None, scale: float, queries: int
) -> torch.Tensor:
    out = empty(x.shape, x.dtype, x.device)
    columns = x.shape[-1]
    if x.numel():
        rows = checks.as_rows(x, columns)
        shown = None if mask is None else mask_rows(form, mask, x)
        kernel = _kernel(
            SoftmaxKernel, form, shown, scale != 1.0, queries > 0, 1, x.dtype, layout(rows)
        )
        launch(kernel, rows, shown, checks.as_rows(out, columns), None, scale, max(queries, 1))
    return out


def _run_logsumexp(
    x: torch.Tensor, mask: torch.Tensor | None, scale: float, queries: int
) -> tuple[torch.Tensor, torch.Tensor]:
    out = empty(x.shape[:-1], x.dtype, x.device)
    exact = empty(x.shape[:-1], torch.float32, x.device)
    if x.numel():
        rows = checks.as_rows(x, x.shape[-1])
        shown = None if mask is None else mask_rows("logsumexp", mask, x)
        kernel = _kernel(
            SoftmaxKernel, "logsumexp", shown, scale != 1.0, queries > 0, 1, x.dtype, layout(rows)
        )
        launch(kernel, rows, shown, out.view(-1), exact.view(-1), scale, max(queries, 1))
    return out, exact


def _run_backward(
    form: str,
    grad: torch.Tensor,
    y: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    queries: int,
    of_scores: bool,
) -> torch.Tensor:
    out = empty(y.shape, torch.float32 if of_scores else y.dtype, y.device)
    columns = y.shape[-1]
    if y.numel():
        grads, rows = checks.as_rows(grad, columns), checks.as_rows(y, columns)
        # an added mask hides nothing from the gradient that the result does not tell
        hides = mask is not None and mask.dtype == torch.bool
        shown = mask_rows(form, mask, y) if hides else None
        kernel = _kernel(
            SoftmaxBackwardKernel,
            form,
            shown,
            False,
            queries > 0,
            2,
            out.dtype,
            layout(rows),
            layout(grads),
        )
        factor = 1.0 if of_scores else scale
        launch(kernel, grads, rows, shown, checks.as_rows(out, columns), factor, max(queries, 1))
    return out


def _run_logsumexp_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    exact: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    queries: int,
    of_scores: bool,
) -> torch.Tensor:
    out = empty(x.shape, torch.float32 if of_scores else x.dtype, x.device)
    columns = x.shape[-1]
    if x.numel():
        rows = checks.as_rows(x, columns)
        shown = None if mask is None else mask_rows("logsumexp", mask, x)
        kernel = _kernel(
            LogsumexpBackwardKernel,
            "logsumexp",
            shown,
            scale != 1.0,
            queries > 0,
            1,
            out.dtype,
            layout(rows),
        )
        launch(
            kernel,
            grad.reshape(-1).contiguous(),
            rows,
            exact.view(-1),
            shown,
            out.view(-1, columns),
            scale,
            1.0 if of_scores else scale,
            max(queries, 1),
        )
    return out


def _like(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _like_rows(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape[:-1]), x.new_empty(x.shape[:-1], dtype=torch.float32)


def _like_second(_: torch.Tensor, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    of_scores = rest[-1]
    return x.new_empty(x.shape, dtype=torch.float32 if of_scores else x.dtype)


_ARGUMENTS = "Tensor? mask, float scale, SymInt queries"
_BACKWARD_ARGUMENTS = f"{_ARGUMENTS}, bool of_scores) -> Tensor"
_ops = {
    "softmax": define(
        f"softmax(Tensor input, {_ARGUMENTS}) -> Tensor", partial(_run, "softmax"), _like
    ),
    "log_softmax": define(
        f"log_softmax(Tensor input, {_ARGUMENTS}) -> Tensor", partial(_run, "log_softmax"), _like
    ),
    "logsumexp": define(
        f"logsumexp(Tensor input, {_ARGUMENTS}) -> (Tensor, Tensor)", _run_logsumexp, _like_rows
    ),
}
_backward_ops = {
    "softmax": define(
        f"softmax_backward(Tensor grad, Tensor y, {_BACKWARD_ARGUMENTS}",
        partial(_run_backward, "softmax"),
        _like_second,
    ),
    "log_softmax": define(
        f"log_softmax_backward(Tensor grad, Tensor y, {_BACKWARD_ARGUMENTS}",
        partial(_run_backward, "log_softmax"),
        _like_second,
    ),
    "logsumexp": define(
        f"logsumexp_backward(Tensor grad, Tensor input, Tensor exact, {_BACKWARD_ARGUMENTS}",
        _run_logsumexp_backward,
        _like_second,
    ),
}
