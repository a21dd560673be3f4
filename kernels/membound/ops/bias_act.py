"""An activation of the input plus a bias, whose gradient comes from the same pass."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import torch
from torch.autograd.function import once_differentiable

from ..runtime import empty, launch, multiprocessors
from . import checks
from .columns import sum_columns
from .layouts import layout
from .registration import define, public
from .windows import MAX_COLUMNS, WindowKernel, WindowTiling, flat, window_tiling

ACTIVATIONS = ("gelu", "gelu_tanh", "silu", "relu2", "relu")

#: CTAs for each multiprocessor where rows are summed over, and fewest rows of a thread then.
_CTAS, _THREAD_ROWS = 4, 8


@dataclasses.dataclass(frozen=True)
class BiasActKernel(WindowKernel):
    module: ClassVar[str] = "bias_act"
    activation: str
    dtype: str
    bias: str  # dtype or "none"
    backward: bool
    to_input: bool  # whether the gradient of the input is stored
    sums: bool  # whether that gradient is summed over rows
    tiling: WindowTiling

    @property
    def scalar_accesses(self) -> int:
        """Windows of a bias of narrower elements than the rows'."""
        narrower = self.bias != "none" and self.dtype == "float32" != self.bias
        return self.tiling.count if narrower else 0


@public
def bias_act(
    input: torch.Tensor, bias: torch.Tensor | None = None, activation: str = "gelu"
) -> torch.Tensor:
    """``activation(input + bias)``, computed in float32 without rounding the sum.

    Args:
        input: (..., N) tensor in bfloat16, float16 or float32 on a Hopper GPU. Rows may be strided;
            a tensor whose last dimension is strided is copied first.
        bias: (N,) tensor in any of the three dtypes, or None.
        activation: "gelu", "gelu_tanh" (its approximation by tanh), "silu", "relu2" (relu squared;
            So et al., 2021) or "relu".

    Returns:
        A tensor of input's shape and dtype. Gradients flow to input and bias; the bias's is the sum
        of the input's before it is rounded.

    Raises:
        TypeError: input or bias is no tensor or of another dtype.
        ValueError: activation is another; input is not on a GPU or has no columns; bias is of
            another shape or on another device.
    """
    if activation not in ACTIVATIONS:
        accepted = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"bias_act: activation is {activation!r}; accepted are {accepted}")
    checks.row_input("bias_act", "input", input)
    columns = input.shape[-1]
    checks.row_shape("bias_act", input, columns, MAX_COLUMNS)
    if bias is not None:
        checks.row_input("bias_act", "bias", bias)
        if bias.shape != (columns,):
            raise ValueError(f"bias_act: bias has shape {tuple(bias.shape)}; expected ({columns},)")
        if bias.device != input.device:
            raise ValueError(f"bias_act: bias is on {bias.device}, input on {input.device}")
    if checks.needs_grad(input, bias):
        return _Gradient.apply(input, bias, activation)
    return _forward(input, bias, activation)


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, bias: torch.Tensor | None, activation: str
    ) -> torch.Tensor:
        ctx.save_for_backward(x, bias)
        ctx.activation = activation
        return _forward(x, bias, activation)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, bias = ctx.saved_tensors
        to_x, to_bias, _ = ctx.needs_input_grad
        if not to_bias:
            return _backward(grad, x, bias, ctx.activation), None, None
        if to_x:
            return *_backward_both(grad, x, bias, ctx.activation), None
        return None, _backward_bias(grad, x, bias, ctx.activation), None


_kernel = functools.cache(BiasActKernel)


def _run(x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    return _elementwise(None, x, bias, activation)


def _run_backward(
    grad: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None, activation: str
) -> torch.Tensor:
    return _elementwise(grad, x, bias, activation)


def _elementwise(
    grad: torch.Tensor | None, x: torch.Tensor, bias: torch.Tensor | None, activation: str
) -> torch.Tensor:
    out = empty(x.shape, x.dtype, x.device)
    if x.numel():
        rows, grads, result = (
            None if one is None else checks.as_rows(one, x.shape[-1]) for one in (x, grad, out)
        )
        if bias is None:
            rows, grads, result = flat(rows, grads, result)
        shared = None if bias is None else bias.contiguous()
        kernel = _kernel(
            activation,
            checks.dtype_name(x),
            "none" if bias is None else checks.dtype_name(bias),
            grad is not None,
            grad is not None,
            False,
            _tiling(2, rows, grads, result, shared),
        )
        launch(kernel, rows, grads, shared, result)
    return out


def _tiling(count: int, rows: torch.Tensor, *others: torch.Tensor | None) -> WindowTiling:
    given = [layout(one) for one in (rows, *others) if one is not None]
    return window_tiling(16 // rows.element_size(), *given, count=count)


def _summed(
    grad: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, activation: str, to_x: bool
) -> tuple[torch.Tensor | None, torch.Tensor]:
    d_x = empty(x.shape, x.dtype, x.device) if to_x else None
    columns = x.shape[-1]
    if not x.numel():
        return d_x, sum_columns(empty((0, columns), torch.float32, x.device), bias.dtype)
    grads, rows = checks.as_rows(grad, columns), checks.as_rows(x, columns)
    result = None if d_x is None else checks.as_rows(d_x, columns)
    shared = bias.contiguous()
    tiling = _tiling(1, rows, grads, result, shared)
    parts = _parts(rows.shape[0], columns, tiling, multiprocessors(x.device))
    sums = empty((parts * tiling.down, columns), torch.float32, x.device)
    names = checks.dtype_name(x), checks.dtype_name(bias)
    kernel = _kernel(activation, *names, True, to_x, True, tiling)
    launch(kernel, rows, grads, shared, result, sums)
    return d_x, sum_columns(sums, bias.dtype)


def _parts(rows: int, columns: int, tiling: WindowTiling, sms: int) -> int:
    """How many groups of ``tiling.down`` rows of sums are made."""
    least = -(-rows // (tiling.down * _THREAD_ROWS))
    parts = max(1, min(least, _CTAS * sms // tiling.blocks(columns)))
    if tiling.shifted:  # from one row of a thread to its next there are whole windows
        step = max(1, tiling.vector // tiling.down)
        parts = -(-parts // step) * step
    return parts


def _run_both(
    grad: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return _summed(grad, x, bias, activation, True)


def _run_bias(
    grad: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, activation: str
) -> torch.Tensor:
    return _summed(grad, x, bias, activation, False)[1]


def _like(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


def _like_second(_: torch.Tensor, x: torch.Tensor, *__: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


def _like_both(
    _: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, __: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), bias.new_empty(bias.shape)


def _like_bias(_: torch.Tensor, __: torch.Tensor, bias: torch.Tensor, ___: str) -> torch.Tensor:
    return bias.new_empty(bias.shape)


_forward = define("bias_act(Tensor input, Tensor? bias, str activation) -> Tensor", _run, _like)
_backward = define(
    "bias_act_backward(Tensor grad, Tensor input, Tensor? bias, str activation) -> Tensor",
    _run_backward,
    _like_second,
)
_backward_both = define(
    "bias_act_backward_both(Tensor grad, Tensor input, Tensor bias, str activation)"
    " -> (Tensor, Tensor)",
    _run_both,
    _like_both,
)
_backward_bias = define(
    "bias_act_backward_bias(Tensor grad, Tensor input, Tensor bias, str activation) -> Tensor",
    _run_bias,
    _like_bias,
)
