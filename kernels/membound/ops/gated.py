"""Gated activations: an activation of one half of the input times the other half."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import torch
from torch.autograd.function import once_differentiable

from ..runtime import empty, launch
from . import checks
from .layouts import layout
from .registration import define, public
from .windows import MAX_COLUMNS, WindowKernel, WindowTiling, flat, window_tiling


@dataclasses.dataclass(frozen=True)
class GatedKernel(WindowKernel):
    module: ClassVar[str] = "gated"
    activation: str
    dtype: str
    packed: bool  # whether both halves lie in the same rows
    backward: bool
    to_gate: bool  # of the gradients, which are wanted
    to_up: bool
    tiling: WindowTiling


@public
def swiglu(gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
    """``silu(gate) * up`` (Shazeer, 2020), computed in float32.

    Args:
        gate: (..., N) tensor in bfloat16, float16 or float32 on a Hopper GPU. Without up (..., 2 N)
            with the gate in front and up behind it, as ``gate, up = x.chunk(2, -1)`` tells them
            apart; torch.nn.functional.glu has its gate behind. Rows may be strided; a tensor whose
            last dimension is strided is copied first.
        up: tensor of gate's shape and dtype, or None.

    Returns:
        A tensor (..., N) of gate's dtype. Gradients flow to both; that of a packed tensor is one
        packed tensor.

    Raises:
        TypeError: gate or up is no tensor or of another dtype.
        ValueError: they are not on one GPU or do not fit, or have no columns.
    """
    return _call("swiglu", "silu", gate, up)


@public
def geglu(
    gate: torch.Tensor, up: torch.Tensor | None = None, *, approximate: str = "none"
) -> torch.Tensor:
    """``gelu(gate) * up``; arguments and errors are those of :func:`swiglu`.

    ``approximate`` is "none" or "tanh" as in torch.nn.functional.gelu; ValueError otherwise.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"geglu: approximate is {approximate!r}; accepted are 'none' and 'tanh'")
    return _call("geglu", "gelu" if approximate == "none" else "gelu_tanh", gate, up)


@public
def reglu(gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
    """``relu(gate) * up``; arguments and errors are those of :func:`swiglu`."""
    return _call("reglu", "relu", gate, up)


def _call(op: str, activation: str, gate: torch.Tensor, up: torch.Tensor | None) -> torch.Tensor:
    checks.row_input(op, "gate", gate)
    columns = gate.shape[-1]
    if up is None:
        if columns % 2:
            raise ValueError(
                f"{op}: gate has {columns} columns and there is no up; "
                "expected an even number, two halves"
            )
        columns //= 2
    else:
        checks.row_input(op, "up", up)
        if up.dtype != gate.dtype:
            raise TypeError(f"{op}: up has dtype {up.dtype}; expected gate's, {gate.dtype}")
        if up.shape != gate.shape:
            raise ValueError(
                f"{op}: up has shape {tuple(up.shape)}; expected gate's, {tuple(gate.shape)}"
            )
        if up.device != gate.device:
            raise ValueError(f"{op}: up is on {up.device}, gate on {gate.device}")
    checks.row_shape(op, gate, gate.shape[-1], MAX_COLUMNS)
    if checks.needs_grad(gate, up):
        return _Gradient.apply(activation, gate, up)
    return _gated(gate, up, activation)


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, activation: str, gate: torch.Tensor, up: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        ctx.activation = activation
        return _gated(gate, up, activation)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        _, to_gate, to_up = ctx.needs_input_grad
        if up is None:
            return None, _packed_backward(grad, gate, ctx.activation), None
        if to_gate and to_up:
            return None, *_backward(grad, gate, up, ctx.activation)
        one = _one_backward(grad, gate, up, ctx.activation, to_gate)
        return (None, one, None) if to_gate else (None, None, one)


_kernel = functools.cache(GatedKernel)


def _run(gate: torch.Tensor, up: torch.Tensor | None, activation: str) -> torch.Tensor:
    out = empty(_shape(gate, up), gate.dtype, gate.device)
    if out.numel():
        columns = out.shape[-1]
        rows, result = checks.as_rows(gate, gate.shape[-1]), checks.as_rows(out, columns)
        others = None if up is None else checks.as_rows(up, columns)
        if up is not None:
            rows, others, result = flat(rows, others, result)
        tiling = _tiling(result, rows, others)
        name = checks.dtype_name(gate)
        kernel = _kernel(activation, name, up is None, False, False, False, tiling)
        launch(kernel, rows, others, result)
    return out


def _run_gradients(
    grad: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor | None,
    activation: str,
    to_gate: bool,
    to_up: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    d_gate = empty(gate.shape, gate.dtype, gate.device) if to_gate else None
    d_up = empty(gate.shape, gate.dtype, gate.device) if to_up and up is not None else None
    if gate.numel():
        columns = grad.shape[-1]
        grads = checks.as_rows(grad, columns)
        rows, others, of_gate, of_up = (
            None if one is None else checks.as_rows(one, one.shape[-1])
            for one in (gate, up, d_gate, d_up)
        )
        if up is not None:
            grads, rows, others, of_gate, of_up = flat(grads, rows, others, of_gate, of_up)
        tiling = _tiling(grads, rows, others, of_gate, of_up, count=1)
        name = checks.dtype_name(gate)
        kernel = _kernel(activation, name, up is None, True, to_gate, to_up, tiling)
        launch(kernel, grads, rows, others, of_gate, of_up)
    return d_gate, d_up


def _tiling(*matrices: torch.Tensor | None, count: int = 2) -> WindowTiling:
    """Of matrices of which the first is as long as the halves."""
    layouts = [layout(one) for one in matrices if one is not None]
    first = layouts[0]
    vector = 16 // first.size
    halves = [
        # where both halves lie in a row, the second begins behind the first
        one if one.columns == first.columns else one._replace(strides=(*one.strides, first.columns))
        for one in layouts
    ]
    return window_tiling(vector, *halves, count=count)


def _run_backward(
    grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return _run_gradients(grad, gate, up, activation, True, True)


def _run_one_backward(
    grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str, to_gate: bool
) -> torch.Tensor:
    gradients = _run_gradients(grad, gate, up, activation, to_gate, not to_gate)
    return gradients[0] if to_gate else gradients[1]


def _run_packed_backward(grad: torch.Tensor, x: torch.Tensor, activation: str) -> torch.Tensor:
    return _run_gradients(grad, x, None, activation, True, True)[0]


def _shape(gate: torch.Tensor, up: torch.Tensor | None) -> tuple[Any, ...]:
    return gate.shape if up is not None else (*gate.shape[:-1], gate.shape[-1] // 2)


def _fake(gate: torch.Tensor, up: torch.Tensor | None, _: str) -> torch.Tensor:
    return gate.new_empty(_shape(gate, up))


def _fake_one(_: torch.Tensor, gate: torch.Tensor, *__: Any) -> torch.Tensor:
    return gate.new_empty(gate.shape)


def _fake_two(_: torch.Tensor, gate: torch.Tensor, *__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return gate.new_empty(gate.shape), gate.new_empty(gate.shape)


_gated = define("gated(Tensor gate, Tensor? up, str activation) -> Tensor", _run, _fake)
_backward = define(
    "gated_backward(Tensor grad, Tensor gate, Tensor up, str activation) -> (Tensor, Tensor)",
    _run_backward,
    _fake_two,
)
_one_backward = define(
    "gated_one_backward(Tensor grad, Tensor gate, Tensor up, str activation, bool to_gate)"
    " -> Tensor",
    _run_one_backward,
    _fake_one,
)
_packed_backward = define(
    "gated_packed_backward(Tensor grad, Tensor input, str activation) -> Tensor",
    _run_packed_backward,
    _fake_one,
)
