"""Cross-entropy of logits with target classes, with what training adds to it."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch.autograd.function import once_differentiable

from ..runtime import Kernel, empty, launch
from . import checks
from .layouts import Layout, layout
from .registration import define
from .tiling import MAX_COLUMNS, RowTiling, row_tiling, shared_vector

REDUCTIONS = ("none", "mean", "sum")


@dataclasses.dataclass(frozen=True)
class _LogitsKernel(Kernel):
    dtype: str
    target: str  # "int32" or "int64"
    weight: str  # dtype of the classes' weights, or "none"
    weight_vector: int  # weights that can be accessed at a time
    scaled: bool
    capped: bool
    smoothed: bool
    tiling: RowTiling

    @property
    def threads(self) -> int:
        return self.tiling.threads

    @property
    def cluster(self) -> int:
        return self.tiling.cluster

    @property
    def full_width(self) -> bool:
        size = getattr(torch, self.dtype).itemsize
        return self.weight == "none" and self.tiling.full_width(size)


@dataclasses.dataclass(frozen=True)
class CrossEntropyKernel(_LogitsKernel):
    module: ClassVar[str] = "cross_entropy"

    @property
    def shared_bytes(self) -> int:
        # float32, for the maximum, for the sum, and for the weighted sum of smoothing
        return 4 * (3 if self.smoothed else 2) * self.tiling.warp_slots

    @property
    def scalar_accesses(self) -> int:
        return 8  # target, its logit and weight, all weights' sum; loss, lse, weight, whether right


@dataclasses.dataclass(frozen=True)
class CrossEntropyBackwardKernel(_LogitsKernel):
    module: ClassVar[str] = "cross_entropy_backward"
    d_lse: bool  # whether a gradient flows into lse, too

    @property
    def shared_bytes(self) -> int:
        return 0

    @property
    def scalar_accesses(self) -> int:
        return 6  # target and its weight, all weights' sum; lse; both gradients


def cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    logit_scale: float = 1.0,
    return_lse: bool = False,
    return_accuracy: bool = False,
    inplace_backward: bool = False,
    check_target: bool = True,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Cross-entropy over the last dimension, as torch's, computed in float32.

    With ``z = softcap * tanh(input * logit_scale / softcap)``, or without a cap
    ``z = input * logit_scale``, and ``lse = logsumexp(z)``, a row's loss is::

        (1 - label_smoothing) * weight[target] * (lse - z[target])
        + label_smoothing / C * sum(weight * (lse - z)) + z_loss * lse^2

    and 0 where the target is ``ignore_index``.

    Args:
        input: (..., C) logits in bfloat16, float16 or float32 on a Hopper GPU, C up to 1,048,576.
            The classes are the last dimension, also where torch has them second. Rows may be
            strided; a tensor whose last dimension is strided is copied first.
        target: (...) class indices, int64 or int32.
        weight: (C,) weights of the classes in any of the three dtypes; no gradient.
        ignore_index: target of rows that do not count.
        reduction: "mean" divides the sum of the rows' losses by the sum of their targets'
            weights; "sum"; "none".
        label_smoothing: 0 to 1.
        z_loss: factor on lse^2 (PaLM, Chowdhery et al., 2022).
        softcap: bound on the logits (Gemma 2, 2024); 0 is none.
        logit_scale: factor on input.
        return_lse: also return lse, float32 of target's shape, which is differentiable.
        return_accuracy: also return the share of the rows that count whose target has the
            largest logit (ties count), float32; with "none", 1 or 0 for each row.
        inplace_backward: the backward writes the gradient into input's memory, so that logits are
            held once; input must not be used afterwards, and backward runs once.
        check_target: find targets that are no class and not ignored, which takes the host a wait
            for the GPU. Otherwise, and where the host cannot wait (while a CUDA graph is captured
            or torch compiles), such rows have the loss and the gradient NaN.

    Returns:
        The loss in input's dtype; a scalar, or of target's shape for "none". With ``return_lse``
        or ``return_accuracy`` a tuple of it and these.

    Raises:
        TypeError: input, target or weight is no tensor or of another dtype.
        ValueError: input is not on a GPU, has no columns or too many, shapes or devices do not
            fit, an option is outside its range, or a target is no class.
    """
    _check(input, target, weight, reduction, label_smoothing, softcap)
    if check_target and _host_can_wait(target):
        _check_classes(target, input.shape[-1], ignore_index)
    options = (ignore_index, label_smoothing, z_loss, softcap, logit_scale)
    if checks.needs_grad(input):
        found = _Gradient.apply(input, target, weight, *options, inplace_backward)
    else:
        found = _op(input, target, weight, *options)
    losses, lse, factors, correct = found
    if reduction == "none":
        loss = losses
    else:
        loss = losses.sum()
        if reduction == "mean":
            loss = loss / factors.sum()
    results = [loss.to(input.dtype)]
    if return_lse:
        results.append(lse)
    if return_accuracy:
        if reduction != "none":
            correct = correct.sum() / (target != ignore_index).sum()
        results.append(correct)
    return tuple(results) if len(results) > 1 else results[0]


def _check(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: str,
    smoothing: float,
    softcap: float,
) -> None:
    op = "cross_entropy"
    checks.row_input(op, "input", x)
    checks.row_shape(op, x, x.shape[-1], MAX_COLUMNS)
    if not isinstance(target, torch.Tensor):
        raise TypeError(f"{op}: target must be a torch.Tensor, got {type(target).__name__}")
    if target.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{op}: target has dtype {target.dtype}; accepted are int64, int32")
    if target.shape != x.shape[:-1]:
        raise ValueError(
            f"{op}: target has shape {tuple(target.shape)}; expected input's without the last "
            f"dimension, {tuple(x.shape[:-1])}"
        )
    if target.device != x.device:
        raise ValueError(f"{op}: target is on {target.device}, input on {x.device}")
    if weight is not None:
        checks.row_input(op, "weight", weight)
        if tuple(weight.shape) != (x.shape[-1],):
            raise ValueError(
                f"{op}: weight has shape {tuple(weight.shape)}; expected ({x.shape[-1]},)"
            )
        if weight.device != x.device:
            raise ValueError(f"{op}: weight is on {weight.device}, input on {x.device}")
        if weight.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{op}: weight requires a gradient, but has none; pass weight.detach()"
            )
    if reduction not in REDUCTIONS:
        raise ValueError(f"{op}: reduction is {reduction!r}; accepted are {', '.join(REDUCTIONS)}")
    if not 0.0 <= smoothing <= 1.0:
        raise ValueError(f"{op}: label_smoothing is {smoothing}; accepted is 0 to 1")
    if softcap < 0.0:
        raise ValueError(f"{op}: softcap is {softcap}; accepted are 0 (none) and positive numbers")


def _host_can_wait(target: torch.Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and type(target) is torch.Tensor
        and target.is_cuda
        and not torch.cuda.is_current_stream_capturing()
    )


def _check_classes(target: torch.Tensor, classes: int, ignore_index: int) -> None:
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if wrong.any():
        first = target[wrong][0].item()
        raise ValueError(
            f"cross_entropy: target holds {first} ({int(wrong.sum())} such values); accepted are "
            f"classes 0 to {classes - 1} and ignore_index {ignore_index}"
        )


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None,
        ignore_index: int,
        smoothing: float,
        z_loss: float,
        softcap: float,
        scale: float,
        in_place: bool,
    ) -> tuple[torch.Tensor, ...]:
        ctx.options = (ignore_index, smoothing, z_loss, softcap, scale)
        losses, lse, factors, correct = _op(x, target, weight, *ctx.options)
        ctx.save_for_backward(x, target, weight, lse)
        ctx.mark_non_differentiable(factors, correct)
        ctx.set_materialize_grads(False)
        ctx.in_place = in_place
        return losses, lse, factors, correct

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_losses: torch.Tensor | None, d_lse: torch.Tensor | None, *_: None
    ) -> tuple[torch.Tensor | None, ...]:
        x, target, weight, lse = ctx.saved_tensors
        rest = (None,) * 8
        if d_losses is None and d_lse is None:
            return None, *rest
        if d_losses is None:
            d_losses = torch.zeros_like(lse)
        given = (d_losses, d_lse, x, target, weight, lse, *ctx.options)
        if not ctx.in_place:
            return _backward_op(*given), *rest
        _backward_in_place(*given)
        # a second backward is then refused, as after any other write to what was saved
        torch.autograd.graph.increment_version(x)
        return x.detach(), *rest


_kernels: dict[tuple[Any, ...], _LogitsKernel] = {}


def _kernel(
    kind: type[_LogitsKernel],
    rows: Layout,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    scale: float,
    softcap: float,
    smoothing: float,
    *outputs: Layout,
    **more: bool,
) -> _LogitsKernel:
    shared = None if weight is None else layout(weight)
    flags = {"scaled": scale != 1.0, "capped": softcap != 0.0, "smoothed": smoothing != 0.0, **more}
    key = (kind, rows, target.dtype, shared, *flags.values(), outputs)
    kernel = _kernels.get(key)
    if kernel is None:
        read = smoothing != 0.0 and weight is not None
        # rows in chunks, and odd ones in float32, leave fewer registers to a backward
        long = rows.columns > (1 << 15 if rows.size == 4 else 1 << 18)
        held = 2 if any(flags.values()) or (outputs and long) else 1
        tiling = row_tiling(rows.columns, rows, *outputs, beside=read, held=held)
        kernel = _kernels[key] = kind(
            dtype=str(rows.dtype).removeprefix("torch."),
            target=checks.dtype_name(target),
            weight="none" if weight is None else checks.dtype_name(weight),
            weight_vector=1 if shared is None else shared_vector(shared, tiling),
            tiling=tiling,
            **flags,
        )
    return kernel


def _weights(
    weight: torch.Tensor | None, smoothing: float
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The weights, one behind the other, and their sum where smoothing needs it."""
    if weight is None:
        return None, None
    weight = weight.contiguous()
    return weight, weight.sum(dtype=torch.float32).view(1) if smoothing else None


def _run(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    smoothing: float,
    z_loss: float,
    softcap: float,
    scale: float,
) -> tuple[torch.Tensor, ...]:
    results = tuple(empty(target.shape, torch.float32, x.device) for _ in range(4))
    if x.numel():
        rows = checks.as_rows(x, x.shape[-1])
        weight, mass = _weights(weight, smoothing)
        kernel = _kernel(
            CrossEntropyKernel, layout(rows), target, weight, scale, softcap, smoothing
        )
        launch(
            kernel,
            rows,
            target.reshape(-1).contiguous(),
            weight,
            mass,
            *(result.view(-1) for result in results),
            ignore_index,
            scale,
            softcap,
            smoothing,
            z_loss,
        )
    return results


def _run_backward(
    d_losses: torch.Tensor,
    d_lse: torch.Tensor | None,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    lse: torch.Tensor,
    *options: Any,
) -> torch.Tensor:
    out = empty(x.shape, x.dtype, x.device)
    rows = checks.as_rows(x, x.shape[-1])
    _launch_backward(d_losses, d_lse, rows, target, weight, lse, out.view(rows.shape), *options)
    return out


def _run_backward_in_place(
    d_losses: torch.Tensor,
    d_lse: torch.Tensor | None,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    lse: torch.Tensor,
    *options: Any,
) -> None:
    rows = checks.as_rows(x, x.shape[-1])
    _launch_backward(d_losses, d_lse, rows, target, weight, lse, rows, *options)
    if x.numel() and rows.data_ptr() != x.data_ptr():  # rows that are no view of input
        x.copy_(rows.view(x.shape))


def _launch_backward(
    d_losses: torch.Tensor,
    d_lse: torch.Tensor | None,
    rows: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    lse: torch.Tensor,
    out: torch.Tensor,
    ignore_index: int,
    smoothing: float,
    z_loss: float,
    softcap: float,
    scale: float,
) -> None:
    if not rows.numel():
        return
    weight, mass = _weights(weight, smoothing)
    kernel = _kernel(
        CrossEntropyBackwardKernel,
        layout(rows),
        target,
        weight,
        scale,
        softcap,
        smoothing,
        layout(out),
        d_lse=d_lse is not None,
    )
    launch(
        kernel,
        d_losses.reshape(-1).contiguous(),
        None if d_lse is None else d_lse.reshape(-1).contiguous(),
        rows,
        target.reshape(-1).contiguous(),
        weight,
        mass,
        lse.reshape(-1),
        out,
        ignore_index,
        scale,
        softcap,
        smoothing,
        z_loss,
    )


def _like_rows(x: torch.Tensor, target: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
    return tuple(target.new_empty(target.shape, dtype=torch.float32) for _ in range(4))


def _like_logits(d_losses: Any, d_lse: Any, x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _nothing(*_: Any) -> None:
    return None


_OPTIONS = "int ignore_index, float smoothing, float z_loss, float softcap, float scale"
_SAVED = "Tensor d_losses, Tensor? d_lse, Tensor{} input, Tensor target, Tensor? weight, Tensor lse"
_op = define(
    f"cross_entropy(Tensor input, Tensor target, Tensor? weight, {_OPTIONS})"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _run,
    _like_rows,
)
_backward_op = define(
    f"cross_entropy_backward({_SAVED.format('')}, {_OPTIONS}) -> Tensor",
    _run_backward,
    _like_logits,
)
_backward_in_place = define(
    f"cross_entropy_backward_({_SAVED.format('(a!)')}, {_OPTIONS}) -> ()",
    _run_backward_in_place,
    _nothing,
)
