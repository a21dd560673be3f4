"""rms_norm over the last dimension."""

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

from .shared import matrices, nbytes, other_dtype, randn

#: Stabiliser of rms_norm, added to the mean square.
EPS = 1e-6

RMS_NORM_OPTIONS = {"weight": ("same", "other", "none")}


def rms_norm(suite: Any) -> Op:
    """rms_norm."""

    def own(inputs: Tensors, workload: Workload) -> Any:
        x = inputs["input"]
        return suite.rms_norm(x, x.shape[-1:], inputs.get("weight"), EPS)

    return Op(
        name="rms_norm",
        make_inputs=_make_inputs,
        reference=_reference,
        providers={"membound": own, "eager": _eager},
        traffic=_traffic,
        benchmarks=matrices("rms_norm"),
        options=RMS_NORM_OPTIONS,
        directions=(FORWARD,),
        differentiable=("input", "weight"),
        tolerance=Tolerance(terms=128),
        special=_by_steps,
        summary="x / sqrt(mean(x^2) + eps) * weight",
        limits="N up to 1,048,576",
        formula="2 M N + N",
        source="torch.nn.functional.rms_norm; Zhang and Sennrich, 2019",
    )


OPS = (rms_norm,)


def _make_inputs(workload: Workload, device: Any, generator: Any) -> Tensors:
    kind = chosen(RMS_NORM_OPTIONS, workload)["weight"]
    inputs = {"input": randn(workload.shape, workload.dtype, device, generator)}
    if kind != "none":
        dtype = workload.dtype if kind == "same" else other_dtype(workload.dtype)
        inputs["weight"] = randn(workload.shape[-1:], dtype, device, generator)
    return inputs


def _reference(inputs: Tensors, workload: Workload) -> Any:
    x = inputs["input"].double()
    normed = x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
    return normed * inputs["weight"].double() if "weight" in inputs else normed


def _eager(inputs: Tensors, workload: Workload) -> Any:
    import torch

    x, weight = inputs["input"], inputs.get("weight")
    if weight is not None:
        weight = weight.to(x.dtype)
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, EPS)


def _by_steps(inputs: Tensors, workload: Workload) -> Any:
    """torch's kernel for columns that are no multiple of 4 makes a whole row NaN where its kernel
    for others, and the formula, leave zeros."""
    x = inputs["input"]
    normed = x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
    return normed * inputs["weight"] if "weight" in inputs else normed


def _traffic(workload: Workload) -> Traffic:
    matrix = nbytes(workload)
    reads = 2 if workload.direction == BACKWARD else 1
    weight = _weight_bytes(workload)
    written = matrix + (weight if workload.direction == BACKWARD else 0)
    return Traffic(read=reads * matrix + weight, written=written)


def _weight_bytes(workload: Workload) -> int:
    kind = chosen(RMS_NORM_OPTIONS, workload)["weight"]
    if kind == "none":
        return 0
    dtype = workload.dtype if kind == "same" else other_dtype(workload.dtype)
    return workload.shape[-1] * DTYPE_BYTES[dtype]
