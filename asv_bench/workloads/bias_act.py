"""bias_act: an activation of the input plus a bias."""

from __future__ import annotations

from typing import Any

from bandwatch.measure.workload import (
    BACKWARD,
    DTYPE_BYTES,
    FORWARD,
    Op,
    Tensors,
    Tolerance,
    Traffic,
    Workload,
    chosen,
)

from .activations import activate, activate_exactly, slope_size
from .shared import matrices, nbytes, other_dtype, randn

OPTIONS = {
    "activation": ("gelu", "gelu_tanh", "silu", "relu2", "relu"),
    "bias": ("same", "other", "none"),
}


def bias_act(suite: Any) -> Op:
    """bias_act."""
    shapes = ("32768x4096", "16384x8192", "32768x1001")

    def own(inputs: Tensors, workload: Workload) -> Any:
        activation = chosen(OPTIONS, workload)["activation"]
        return suite.bias_act(inputs["input"], inputs.get("bias"), activation=activation)

    def eager(inputs: Tensors, workload: Workload) -> Any:
        return _by_torch(inputs, workload).to(inputs["input"].dtype)

    return Op(
        name="bias_act",
        make_inputs=_make_inputs,
        reference=_reference,
        special=_reference,
        providers={"membound": own, "eager": eager},
        traffic=_traffic,
        benchmarks=(
            *matrices("bias_act", shapes, ("bfloat16",)),
            *matrices("bias_act", ("16384x8192",), ("float32",)),
            *matrices(
                "bias_act", ("16384x8192",), ("bfloat16",), options=OPTIONS, activation="silu"
            ),
            *matrices("bias_act", shapes, ("bfloat16",), BACKWARD),
            *matrices("bias_act", ("16384x8192",), ("float32",), BACKWARD),
        ),
        options=OPTIONS,
        directions=(FORWARD, BACKWARD),
        differentiable=("input", "bias"),
        # an exponent of up to about 100 carries its rounding into the result
        # the tail of an activation, lost where it is smallest, is multiplied by the input
        tolerance=Tolerance(terms=256, flushed=16, baseline=16),
        gradient_tolerance=Tolerance(terms=512, flushed=16, baseline=16),
        magnitudes=_magnitudes,
        summary="activation(input + bias)",
        formula="2 M N + N (backward 3 M N + 2 N)",
        limits="any N",
        source="torch.nn.functional.gelu, silu, relu; relu2 is relu squared (So et al., 2021)",
    )


OPS = (bias_act,)


def _make_inputs(workload: Workload, device: Any, generator: Any) -> Tensors:
    inputs = {"input": randn(workload.shape, workload.dtype, device, generator) * 2}
    kind = chosen(OPTIONS, workload)["bias"]
    if kind != "none":
        dtype = workload.dtype if kind == "same" else other_dtype(workload.dtype)
        inputs["bias"] = randn(workload.shape[-1:], dtype, device, generator)
    return inputs


def _sum(inputs: Tensors) -> Any:
    x = inputs["input"]
    return x + inputs["bias"] if "bias" in inputs else x


def _by_torch(inputs: Tensors, workload: Workload) -> Any:
    return activate(chosen(OPTIONS, workload)["activation"], _sum(inputs))


def _reference(inputs: Tensors, workload: Workload) -> Any:
    x = _sum({name: value.double() for name, value in inputs.items()})
    return activate_exactly(chosen(OPTIONS, workload)["activation"], x)


def _magnitudes(inputs: Tensors, grads: tuple[Any, ...], workload: Workload) -> dict[str, Any]:
    """The terms of the slopes; the bias's gradient is a sum over rows."""
    x = _sum({name: value.double() for name, value in inputs.items()})
    size = grads[0].double().abs() * slope_size(chosen(OPTIONS, workload)["activation"], x)
    found = {"input": size}
    if "bias" in inputs:
        found["bias"] = size.sum(0)
    return found


def _traffic(workload: Workload) -> Traffic:
    matrix, kind = nbytes(workload), chosen(OPTIONS, workload)["bias"]
    dtype = other_dtype(workload.dtype) if kind == "other" else workload.dtype
    vector = 0 if kind == "none" else workload.shape[-1] * DTYPE_BYTES[dtype]
    if workload.direction == BACKWARD:
        return Traffic(2 * matrix + vector, matrix + vector)
    return Traffic(matrix + vector, matrix)
