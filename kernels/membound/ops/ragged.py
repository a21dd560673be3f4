"""Softmax, rms_norm and cross-entropy over rows of different lengths, one behind the other."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch.autograd.function import once_differentiable

from ..runtime import Kernel, empty, launch, multiprocessors
from . import checks
from .registration import define

#: Threads of a CTA, elements that each holds, and CTAs that stay on a multiprocessor.
_THREADS, _ELEMENTS = 256, 32
_CTAS = {1: 4, 2: 2}  # by the tensors that a thread holds a part of


@dataclasses.dataclass(frozen=True)
class RaggedKernel(Kernel):
    module: ClassVar[str] = "ragged"
    form: str  # "softmax", "rms_norm" or "cross_entropy", or one of these with "_backward"
    dtype: str
    cu_seqlens: str  # dtype
    target: str  # dtype, or "none"
    second: bool  # whether it goes through the tiles of long rows

    @property
    def threads(self) -> int:
        return _THREADS

    @property
    def shared_bytes(self) -> int:
        return 2 * 4 * _THREADS // 32 + 16  # two float32 a warp, and the next tile's number

    @property
    def full_width(self) -> bool:
        return False  # rows begin anywhere


def ragged_softmax(input: torch.Tensor, cu_seqlens: torch.Tensor | None = None) -> torch.Tensor:
    """Softmax of each row ``input[cu_seqlens[i]:cu_seqlens[i + 1]]``.

    Args:
        input: (T,) tensor in bfloat16, float16 or float32 on a Hopper GPU, the rows one behind the
            other; or a nested tensor (layout torch.jagged) of vectors, which has its own offsets.
            One that is strided, or not on a boundary of 16 bytes, is copied first.
        cu_seqlens: (rows + 1,) int32 or int64 on the same device: where rows begin, and T. Its
            values must not decrease, which is not checked. Rows may be empty.

    Returns:
        A tensor like input.

    Raises:
        TypeError: input or cu_seqlens is no tensor or of another dtype.
        ValueError: input is not on a GPU, or shapes or devices do not fit.
    """
    return _rows("softmax", input, cu_seqlens, 0.0)


def ragged_rms_norm(
    input: torch.Tensor, cu_seqlens: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps)`` of each row; arguments and errors of :func:`ragged_softmax`.

    ``eps`` is float32's machine epsilon by default, as in torch.
    """
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return _rows("rms_norm", input, cu_seqlens, eps)


def ragged_cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> torch.Tensor:
    """Cross-entropy of each row of logits with its target, a place in that row.

    Args:
        input, cu_seqlens: as for :func:`ragged_softmax`.
        target: (rows,) int64 or int32. Where it is neither in its row nor ``ignore_index``, loss
            and gradient are NaN.
        ignore_index: target of rows that do not count.
        reduction: "mean" over the rows that count, "sum" or "none".

    Returns:
        The loss in input's dtype, a scalar or, for "none", (rows,).

    Raises:
        TypeError: a tensor is none or of another dtype.
        ValueError: input is not on a GPU, shapes or devices do not fit, or reduction is another.
    """
    op = "ragged_cross_entropy"
    values, ends = _flat(op, input, cu_seqlens)
    if not isinstance(target, torch.Tensor) or target.dtype not in (torch.int64, torch.int32):
        found = target.dtype if isinstance(target, torch.Tensor) else type(target).__name__
        raise TypeError(f"{op}: target must be a torch.Tensor of int64 or int32, got {found}")
    if tuple(target.shape) != (ends.shape[0] - 1,):
        raise ValueError(
            f"{op}: target has shape {tuple(target.shape)}; expected ({ends.shape[0] - 1},)"
        )
    if target.device != values.device:
        raise ValueError(f"{op}: target is on {target.device}, input on {values.device}")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{op}: reduction is {reduction!r}; accepted are none, mean, sum")
    if checks.needs_grad(values):
        loss = _EntropyGradient.apply(values, target, ends, ignore_index)
    else:
        loss = _entropy(values, target, ends, ignore_index)[0]
    if reduction != "none":
        loss = loss.sum()
    if reduction == "mean":
        loss = loss / (target != ignore_index).sum()
    return loss.to(values.dtype)


def _rows(form: str, x: torch.Tensor, cu_seqlens: torch.Tensor | None, eps: float) -> torch.Tensor:
    values, ends = _flat(f"ragged_{form}", x, cu_seqlens)
    if checks.needs_grad(values):
        out = _Gradient.apply(form, values, ends, eps)
    else:
        out = _ops[form](values, ends, eps)
    if x.is_nested:
        return torch.nested.nested_tensor_from_jagged(out, x.offsets())
    return out


def _flat(
    op: str, x: torch.Tensor, cu_seqlens: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows' values and where they begin, checked."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{op}: input must be a torch.Tensor, got {type(x).__name__}")
    if x.is_nested:
        if cu_seqlens is not None:
            raise ValueError(
                f"{op}: input is nested and has its own offsets; cu_seqlens is one more"
            )
        if x.layout != torch.jagged or x.dim() != 2:
            raise ValueError(
                f"{op}: input is a nested tensor of {x.dim()} dimensions and layout {x.layout}; "
                "expected 2 and torch.jagged"
            )
        x, cu_seqlens = x.values(), x.offsets()
    if x.dtype not in checks.DTYPES:
        accepted = ", ".join(str(dtype).removeprefix("torch.") for dtype in checks.DTYPES)
        raise TypeError(f"{op}: input has dtype {x.dtype}; accepted are {accepted}")
    if x.dim() != 1:
        raise ValueError(f"{op}: input has shape {tuple(x.shape)}; expected (T,)")
    checks.on_device(op, "input", x)
    if not isinstance(cu_seqlens, torch.Tensor):
        raise TypeError(f"{op}: cu_seqlens must be a torch.Tensor, got {type(cu_seqlens).__name__}")
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{op}: cu_seqlens has dtype {cu_seqlens.dtype}; accepted are int32, int64")
    if cu_seqlens.dim() != 1 or not cu_seqlens.shape[0]:
        raise ValueError(
            f"{op}: cu_seqlens has shape {tuple(cu_seqlens.shape)}; expected (rows + 1,)"
        )
    if cu_seqlens.device != x.device:
        raise ValueError(f"{op}: cu_seqlens is on {cu_seqlens.device}, input on {x.device}")
    return x, cu_seqlens


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, form: str, values: torch.Tensor, ends: torch.Tensor, eps: float
    ) -> torch.Tensor:
        out = _ops[form](values, ends, eps)
        ctx.save_for_backward(out if form == "softmax" else values, ends)
        ctx.form, ctx.eps = form, eps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved, ends = ctx.saved_tensors
        return None, _backward_ops[ctx.form](grad, saved, ends, ctx.eps), None, None


class _EntropyGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, target: torch.Tensor, ends: torch.Tensor, ignored: int
    ) -> torch.Tensor:
        loss, lse = _entropy(values, target, ends, ignored)
        ctx.save_for_backward(values, target, ends, lse)
        ctx.ignored = ignored
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _entropy_backward(grad, *ctx.saved_tensors, ctx.ignored), None, None, None


def _aligned(flat: torch.Tensor) -> torch.Tensor:
    """``flat``, contiguous and on a boundary of 16 bytes."""
    flat = flat.contiguous()
    address = flat.storage_offset() * flat.element_size() if flat.is_meta else flat.data_ptr()
    return flat.clone() if address % 16 else flat


def _launch(
    form: str,
    x: torch.Tensor,
    grad: torch.Tensor | None,
    ends: torch.Tensor,
    target: torch.Tensor | None,
    out: torch.Tensor | None,
    loss: torch.Tensor | None,
    lse: torch.Tensor | None,
    ignored: int,
    eps: float,
) -> None:
    rows = ends.shape[0] - 1
    if not rows:
        return
    tile = _THREADS * _ELEMENTS - 16 // x.element_size()
    tiles = x.numel() // tile + rows
    counters = empty((3,), torch.int32, x.device).zero_()
    statistics = empty((tiles, 2), torch.float32, x.device)
    work = empty((tiles,), torch.int32, x.device)
    held = 2 if grad is not None and target is None else 1
    ctas = min(tiles, _CTAS[held] * multiprocessors(x.device))
    for second in (False, True):
        if second and (form == "cross_entropy_backward" or x.numel() <= tile):
            break
        kernel = _kernel(form, x, ends, target, second)
        tensors = (x, grad, ends.contiguous(), target, out, loss, lse, counters, statistics, work)
        launch(kernel, *tensors, ignored, eps, ctas)


_kernels: dict[tuple[Any, ...], RaggedKernel] = {}


def _kernel(
    form: str, x: torch.Tensor, ends: torch.Tensor, target: torch.Tensor | None, second: bool
) -> RaggedKernel:
    key = (form, x.dtype, ends.dtype, None if target is None else target.dtype, second)
    kernel = _kernels.get(key)
    if kernel is None:
        kernel = _kernels[key] = RaggedKernel(
            form=form,
            dtype=checks.dtype_name(x),
            cu_seqlens=checks.dtype_name(ends),
            target="none" if target is None else checks.dtype_name(target),
            second=second,
        )
    return kernel


def _run(form: str, x: torch.Tensor, ends: torch.Tensor, eps: float) -> torch.Tensor:
    out = empty(x.shape, x.dtype, x.device)
    if x.numel():
        _launch(form, _aligned(x), None, ends, None, out, None, None, 0, eps)
    return out


def _run_backward(
    form: str, grad: torch.Tensor, x: torch.Tensor, ends: torch.Tensor, eps: float
) -> torch.Tensor:
    out = empty(x.shape, x.dtype, x.device)
    if x.numel():
        grads = _aligned(grad)
        _launch(f"{form}_backward", _aligned(x), grads, ends, None, out, None, None, 0, eps)
    return out


def _run_entropy(
    x: torch.Tensor, target: torch.Tensor, ends: torch.Tensor, ignored: int
) -> tuple[torch.Tensor, torch.Tensor]:
    loss, lse = (empty(target.shape, torch.float32, x.device) for _ in range(2))
    target = target.contiguous()
    _launch("cross_entropy", _aligned(x), None, ends, target, None, loss, lse, ignored, 0.0)
    return loss, lse


def _run_entropy_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    ends: torch.Tensor,
    lse: torch.Tensor,
    ignored: int,
) -> torch.Tensor:
    out = empty(x.shape, x.dtype, x.device)
    if x.numel():
        given = (_aligned(x), grad.contiguous(), ends, target.contiguous())
        _launch("cross_entropy_backward", *given, out, None, lse, ignored, 0.0)
    return out


def _like(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _like_second(_: torch.Tensor, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    return _like(x)


def _like_rows(_: torch.Tensor, target: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    return tuple(target.new_empty(target.shape, dtype=torch.float32) for _ in range(2))


def _define(form: str) -> tuple[Any, Any]:
    def run(*args: Any) -> torch.Tensor:
        return _run(form, *args)

    def run_backward(*args: Any) -> torch.Tensor:
        return _run_backward(form, *args)

    rest = "Tensor cu_seqlens, float eps) -> Tensor"
    return (
        define(f"ragged_{form}(Tensor input, {rest}", run, _like),
        define(
            f"ragged_{form}_backward(Tensor grad, Tensor saved, {rest}", run_backward, _like_second
        ),
    )


_ops, _backward_ops = {}, {}
for _form in ("softmax", "rms_norm"):
    _ops[_form], _backward_ops[_form] = _define(_form)
_entropy = define(
    "ragged_cross_entropy(Tensor input, Tensor target, Tensor cu_seqlens, int ignored)"
    " -> (Tensor, Tensor)",
    _run_entropy,
    _like_rows,
)
_entropy_backward = define(
    "ragged_cross_entropy_backward(Tensor grad, Tensor input, Tensor target, Tensor cu_seqlens, "
    "Tensor lse, int ignored) -> Tensor",
    _run_entropy_backward,
    _like_second,
)
