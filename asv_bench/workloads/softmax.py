"""softmax, log_softmax and logsumexp over the last dimension."""

from __future__ import annotations

from functools import partial
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

from .shared import NO, YES, matrices, nbytes, randn, torch_dtype

OPTIONS = {
    "scale": ("1", "0.125"),
    # of the input's shape, or one row for all; boolean, in the input's dtype, or in float32
    "mask": ("none", "bool", "bool row", "added", "added row", "float32"),
    "causal": (NO, YES),
}
_SCALES = {"1": 1.0, "0.125": 0.125}

_BACKWARD_SHAPES = ("32768x1024", "32768x4096", "4096x32768")


def softmax(suite: Any) -> Op:
    """Its errors are relative: exponents are taken from the row's maximum.

    An exponential carries the rounding of an exponent up to about 100, and the sum as many
    additions as a thread and a tree make. The gradient is computed from the rounded result.
    """
    return _op(
        suite,
        "softmax",
        tolerance=Tolerance(terms=512),
        gradient_tolerance=Tolerance(terms=512, saved=2, size="row"),
        summary="exp(x) / sum(exp(x)), x = input * scale + mask",
        formula="2 M N (backward 3 M N)",
    )


def log_softmax(suite: Any) -> Op:
    """Its values near 0 are differences of large ones; gradients are computed from the result."""
    return _op(
        suite,
        "log_softmax",
        tolerance=Tolerance(terms=64, size="row"),
        gradient_tolerance=Tolerance(terms=512, saved=2, size="row"),
        summary="x - log(sum(exp(x))), x = input * scale + mask",
        formula="2 M N (backward 3 M N)",
    )


def logsumexp(suite: Any) -> Op:
    """Near 0, its values are differences of larger ones.

    torch computes the gradient from the rounded result, an exponent of up to about 20.
    """
    return _op(
        suite,
        "logsumexp",
        tolerance=Tolerance(terms=64, size="row"),
        gradient_tolerance=Tolerance(terms=512, baseline=32),
        summary="log(sum(exp(x))), x = input * scale + mask",
        formula="M N + M (backward 2 M N + 2 M)",
    )


OPS = (softmax, log_softmax, logsumexp)


def _op(suite: Any, name: str, **described: Any) -> Op:
    def own(inputs: Tensors, workload: Workload) -> Any:
        options = chosen(OPTIONS, workload)
        given: dict[str, Any] = {}
        if options["scale"] != "1":
            given["scale"] = _SCALES[options["scale"]]
        if "mask" in inputs:
            given["mask"] = inputs["mask"]
        if options["causal"] == YES:
            given["causal"] = True
        return getattr(suite, name)(inputs["input"], dim=-1, **given)

    def reference(inputs: Tensors, workload: Workload) -> Any:
        return _by_torch(name, _scores(inputs["input"].double(), inputs, workload))

    def eager(inputs: Tensors, workload: Workload) -> Any:
        x = inputs["input"]
        return _by_torch(name, _scores(x, inputs, workload)).to(x.dtype)

    def traffic(workload: Workload) -> Traffic:
        matrix, column = nbytes(workload), nbytes(workload) // workload.shape[-1]
        backward = workload.direction == BACKWARD
        if name == "logsumexp":
            return Traffic(matrix + column, matrix) if backward else Traffic(matrix, column)
        return Traffic((2 if backward else 1) * matrix, matrix)

    return Op(
        name=name,
        make_inputs=_make_inputs,
        reference=reference,
        providers={"membound": own, "eager": eager},
        traffic=traffic,
        benchmarks=_benchmarks(name),
        options=OPTIONS,
        directions=(FORWARD, BACKWARD),
        differentiable=("input", "mask"),
        magnitudes=partial(_magnitudes, name),
        limits="last dimension, N up to 1,048,576",
        source=f"torch.{name}",
        **described,
    )


def _benchmarks(name: str) -> tuple[Workload, ...]:
    forward = matrices(name)
    if name != "softmax":
        forward = matrices(name, ("32768x4096", "4096x32768", "32768x1001"), ("bfloat16",))
        forward += matrices(name, ("16384x8192",), ("float32",))
    return (
        *forward,
        *matrices(name, _BACKWARD_SHAPES, ("bfloat16",), BACKWARD),
        *matrices(name, ("16384x8192",), ("float32",), BACKWARD),
    )


def _make_inputs(workload: Workload, device: Any, generator: Any) -> Tensors:
    rows, columns = workload.shape
    # Spread so that a row's exponentials differ by e^30: a lost maximum would overflow.
    inputs = {"input": randn(workload.shape, workload.dtype, device, generator) * 4}
    kind = chosen(OPTIONS, workload)["mask"]
    if kind != "none":
        dtype = "float32" if kind == "float32" else workload.dtype
        shape = (columns,) if kind.endswith("row") else (rows, columns)
        values = randn(shape, dtype, device, generator)
        if kind.startswith("bool"):
            values = values > -0.5
            values[..., 0] = True  # a row that is hidden whole is a special one
        inputs["mask"] = values
    return inputs


def _scores(x: Any, inputs: Tensors, workload: Workload) -> Any:
    """What the softmax is of: in x's dtype, or a wider mask's."""
    import torch

    options = chosen(OPTIONS, workload)
    scores = x * _SCALES[options["scale"]] if options["scale"] != "1" else x
    mask = inputs.get("mask")
    if mask is not None:
        hidden = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, -torch.inf) if hidden else scores + mask
    if options["causal"] == YES:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores


def _by_torch(name: str, scores: Any) -> Any:
    import torch

    return getattr(torch, name)(scores, -1)


def _magnitudes(
    name: str, inputs: Tensors, grads: tuple[Any, ...], workload: Workload
) -> dict[str, Any]:
    """What the gradients are differences of, given y = softmax: y g - y sum(y g) and so on."""
    import torch

    scores = _scores(inputs["input"].double(), inputs, workload)
    grad = grads[0].double().abs()
    # what is saved loses digits below the smallest normal number
    y = torch.softmax(scores, -1).clamp(min=torch.finfo(torch_dtype(workload.dtype)).tiny)
    if name == "softmax":
        size = y * (grad + (y * grad).sum(-1, keepdim=True))
    elif name == "log_softmax":
        total = grads[0].double().sum(-1, keepdim=True).abs() + grad.norm(dim=-1, keepdim=True)
        size = grad + y * (1 - y.log()) * total
    else:
        size = y * grad.unsqueeze(-1)
    found = {"input": size * _SCALES[chosen(OPTIONS, workload)["scale"]]}
    if "mask" in inputs:
        found["mask"] = size.sum_to_size(inputs["mask"].shape)
    return found
