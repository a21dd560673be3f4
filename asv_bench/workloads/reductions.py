"""Reductions over the last dimension, or over the first: a result a row, or a column."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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

from .shared import matrices, nbytes, randn

NAMES = ("sum", "mean", "var", "amax", "argmax", "norm")
OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {name: {"dim": ("-1", "0")} for name in NAMES}
OPTIONS["var"]["correction"] = ("1", "0")
OPTIONS["norm"]["p"] = ("2", "1", "inf")

_SUMMARIES = {
    "sum": "sum of the elements",
    "mean": "mean of the elements",
    "var": "mean of the squared differences from the mean",
    "amax": "largest element, NaN if there is one; equal ones share the gradient",
    "argmax": "place of the largest element, the first of equal ones",
    "norm": "(sum(abs(x)^p))^(1 / p)",
}
_SOURCES = {"norm": "torch.norm"}
#: A sum over more elements has more roundings; the largest element has none.
_TERMS = {"sum": 64, "mean": 64, "var": 256, "amax": 1, "argmax": 1, "norm": 64}


def _describe(name: str) -> Callable[[Any], Op]:
    def describe(suite: Any) -> Op:
        return _op(suite, name)

    describe.__name__ = name
    describe.__doc__ = f"{name} over the last or the first dimension."
    return describe


OPS = tuple(_describe(name) for name in NAMES)


def _op(suite: Any, name: str) -> Op:
    options = OPTIONS[name]

    def own(inputs: Tensors, workload: Workload) -> Any:
        want = chosen(options, workload)
        function, x, dim = getattr(suite, name), inputs["input"], int(want["dim"])
        if name == "norm":
            return function(x, float(want["p"]), dim)
        if name == "var":
            return function(x, dim, correction=int(want["correction"]))
        return function(x, dim)

    # a sum's gradient is a view of its result's, as torch makes it: nothing is to be measured
    directions = (FORWARD,) if name in ("sum", "mean", "argmax") else (FORWARD, BACKWARD)
    return Op(
        name=name,
        # not about 0, where a sum would have no digits
        make_inputs=lambda workload, device, generator: {
            "input": randn(workload.shape, workload.dtype, device, generator) + 0.5
        },
        reference=partial(_reference, name),
        providers={"membound": own, "eager": partial(_eager, name)},
        traffic=partial(_traffic, name),
        benchmarks=_benchmarks(name, directions),
        options=options,
        directions=directions,
        differentiable=() if name == "argmax" else ("input",),
        tolerance=Tolerance(terms=_TERMS[name], size="row"),
        gradient_tolerance=Tolerance(terms=512, size="row"),
        accepts=partial(_accepts, name),
        rowwise=False,
        summary=f"{_SUMMARIES[name]}, of each row or column",
        limits="the last dimensions or the first; N up to 1,048,576",
        formula="M N + M, or M N + N (backward 2 M N and these)",
        source=_SOURCES.get(name, f"torch.{name}"),
    )


def _benchmarks(name: str, directions: tuple[str, ...]) -> tuple[Workload, ...]:
    return tuple(
        workload
        for direction in directions
        for dim in OPTIONS[name]["dim"]
        for workload in matrices(
            name, ("32768x4096",), ("bfloat16",), direction, OPTIONS[name], dim=dim
        )
    )


def _accepts(name: str, workload: Workload) -> bool:
    want = chosen(OPTIONS[name], workload)
    rows, columns = workload.shape
    reduced = columns if want["dim"] == "-1" else rows
    if not rows:
        return False
    return name != "var" or reduced > int(want["correction"])


def _reference(name: str, inputs: Tensors, workload: Workload) -> Any:
    return _by_torch(name, inputs["input"].double(), workload)


def _eager(name: str, inputs: Tensors, workload: Workload) -> Any:
    import torch

    x, want = inputs["input"], chosen(OPTIONS[name], workload)
    if name == "argmax":
        return torch.argmax(x, int(want["dim"]))
    return _by_torch(name, x, workload)


def _by_torch(name: str, x: Any, workload: Workload) -> Any:
    import torch

    want = chosen(OPTIONS[name], workload)
    dim = int(want["dim"])
    if name == "norm":
        return torch.linalg.vector_norm(x, float(want["p"]), dim)
    if name == "var":
        return torch.var(x, dim, correction=int(want["correction"]))
    if name == "argmax":  # torch does not say which of equal ones it takes
        count = x.shape[dim]
        place = torch.arange(count, device=x.device)
        place = place if dim else place.unsqueeze(-1)
        top = x.amax(dim, keepdim=True)
        return torch.where(x == top, place, count).amin(dim)
    return getattr(torch, name)(x, dim)


def _traffic(name: str, workload: Workload) -> Traffic:
    rows, columns = workload.shape
    matrix, size = nbytes(workload), DTYPE_BYTES[workload.dtype]
    results = rows if chosen(OPTIONS[name], workload)["dim"] == "-1" else columns
    if workload.direction == BACKWARD:
        return Traffic(matrix + results * (size + 4), matrix)
    return Traffic(matrix, results * (8 if name == "argmax" else size))
