"""swiglu, geglu and reglu: an activation of a gate times what it lets through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bandwatch.measure.workload import (
    BACKWARD,
    FORWARD,
    Op,
    Tensors,
    Tolerance,
    Traffic,
    Workload,
    chosen,
)

from .activations import activate, activate_exactly, slope_size
from .shared import matrices, nbytes, randn

#: Whether gate and up are two tensors, or the halves of each row of one.
_HALVES = {"halves": ("separate", "packed")}
OPTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "swiglu": _HALVES,
    "geglu": {**_HALVES, "approximate": ("none", "tanh")},
    "reglu": _HALVES,
}


def swiglu(suite: Any) -> Op:
    """swiglu."""
    shapes = ("32768x4096", "16384x14336", "32768x1001")
    return _op(
        suite,
        "swiglu",
        benchmarks=(
            *matrices("swiglu", shapes, ("bfloat16",)),
            *matrices("swiglu", ("16384x8192",), ("float32",)),
            *matrices("swiglu", ("16384x14336", "32768x1001"), ("bfloat16",), **_packed("swiglu")),
            *matrices("swiglu", shapes, ("bfloat16",), BACKWARD),
            *matrices("swiglu", ("16384x14336",), ("bfloat16",), BACKWARD, **_packed("swiglu")),
        ),
        source="silu(gate) * up; Shazeer, 2020",
    )


def geglu(suite: Any) -> Op:
    """geglu."""
    return _op(
        suite,
        "geglu",
        benchmarks=(
            *matrices("geglu", ("16384x8192",), ("bfloat16", "float32")),
            *matrices("geglu", ("16384x8192",), ("bfloat16",), BACKWARD),
        ),
        source="gelu(gate) * up, gelu as torch.nn.functional.gelu; Shazeer, 2020",
    )


def reglu(suite: Any) -> Op:
    """reglu."""
    return _op(
        suite,
        "reglu",
        benchmarks=(
            *matrices("reglu", ("16384x8192",), ("bfloat16",)),
            *matrices("reglu", ("16384x8192",), ("bfloat16",), BACKWARD),
        ),
        source="relu(gate) * up; Shazeer, 2020",
    )


OPS = (swiglu, geglu, reglu)


def _packed(name: str) -> dict[str, Any]:
    return {"options": OPTIONS[name], "halves": "packed"}


def _op(suite: Any, name: str, **described: Any) -> Op:
    options = OPTIONS[name]

    def own(inputs: Tensors, workload: Workload) -> Any:
        given = {}
        if chosen(options, workload).get("approximate") == "tanh":
            given["approximate"] = "tanh"
        return getattr(suite, name)(inputs["gate"], inputs.get("up"), **given)

    def activation(workload: Workload) -> str:
        if name == "geglu":
            tanh = chosen(options, workload)["approximate"] == "tanh"
            return "gelu_tanh" if tanh else "gelu"
        return {"swiglu": "silu", "reglu": "relu"}[name]

    def by_torch(inputs: Tensors, workload: Workload) -> Any:
        gate, up = _halves(inputs)
        return activate(activation(workload), gate) * up

    def reference(inputs: Tensors, workload: Workload) -> Any:
        gate, up = (half.double() for half in _halves(inputs))
        return activate_exactly(activation(workload), gate) * up

    def magnitudes(inputs: Tensors, grads: tuple[Any, ...], workload: Workload) -> dict[str, Any]:
        import torch

        gate, up = (half.double() for half in _halves(inputs))
        grad = grads[0].double().abs()
        of_gate = grad * up.abs() * slope_size(activation(workload), gate)
        of_up = grad * activate_exactly(activation(workload), gate).abs()
        if "up" in inputs:
            return {"gate": of_gate, "up": of_up}
        return {"gate": torch.cat((of_gate, of_up), -1)}

    def make_inputs(workload: Workload, device: Any, generator: Any) -> Tensors:
        rows, columns = workload.shape
        if chosen(options, workload)["halves"] == "packed":
            shape = rows, 2 * columns
            return {"gate": randn(shape, workload.dtype, device, generator) * 2}
        gate, up = (
            randn(workload.shape, workload.dtype, device, generator) for _ in ("gate", "up")
        )
        return {"gate": gate * 2, "up": up}

    return Op(
        name=name,
        make_inputs=make_inputs,
        reference=reference,
        special=reference,
        providers={"membound": own, "eager": by_torch},
        traffic=_traffic,
        options=options,
        directions=(FORWARD, BACKWARD),
        differentiable=("gate", "up"),
        # an exponent of up to about 100 carries its rounding into the result
        # the tail of an activation, lost where it is smallest, is multiplied by input and up
        tolerance=Tolerance(terms=256, flushed=128),
        gradient_tolerance=Tolerance(terms=512, flushed=128),
        magnitudes=magnitudes,
        summary="activation(gate) * up",
        formula="3 M N (backward 5 M N)",
        limits="any N",
        **described,
    )


def _halves(inputs: Tensors) -> tuple[Any, Any]:
    gate, up = inputs["gate"], inputs.get("up")
    return gate.chunk(2, -1) if up is None else (gate, up)


def _traffic(workload: Workload) -> Traffic:
    matrix = nbytes(workload)
    if workload.direction == BACKWARD:
        return Traffic(3 * matrix, 2 * matrix)
    return Traffic(2 * matrix, matrix)
