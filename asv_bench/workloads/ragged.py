"""softmax, rms_norm and cross_entropy over rows of different lengths, one behind the other.

A workload's shape is its number of rows and the longest of them; the shortest are a hundredth as
long, and every thirteenth is empty.
"""

from __future__ import annotations

import functools
import random
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
    workload_of,
)

from .shared import randn

EPS = 1e-6
IGNORED = -100
OPTIONS = {"ends": ("int32", "int64")}
ENTROPY_OPTIONS = {"reduction": ("none", "mean"), **OPTIONS}

_SHAPES = ((67, 3000), (33, 40_000), (7, 50), (3, 300_000), (2000, 300), (1, 1))
_GRID = (("bfloat16", (4096, 16_384)), ("bfloat16", (32_768, 2048)), ("float32", (4096, 16_384)))


def ragged_softmax(suite: Any) -> Op:
    """Errors as of softmax; the gradient is computed from the rounded result."""
    return _op(
        suite,
        "ragged_softmax",
        tolerance=Tolerance(terms=512),
        gradient_tolerance=Tolerance(terms=1024, saved=2, baseline=64),
        summary="softmax of each row",
        formula="2 T (backward 3 T)",
    )


def ragged_rms_norm(suite: Any) -> Op:
    """Errors as of rms_norm."""
    return _op(
        suite,
        "ragged_rms_norm",
        tolerance=Tolerance(terms=128),
        gradient_tolerance=Tolerance(terms=1024, baseline=64),
        summary="x / sqrt(mean(x^2) + eps) of each row",
        formula="2 T (backward 3 T)",
    )


def ragged_cross_entropy(suite: Any) -> Op:
    """A loss is a difference of logits."""
    return _op(
        suite,
        "ragged_cross_entropy",
        tolerance=Tolerance(terms=512, size="row"),
        gradient_tolerance=Tolerance(terms=1024, baseline=64),
        summary="cross-entropy of each row of logits with its target",
        formula="T (backward 2 T)",
    )


OPS = (ragged_softmax, ragged_rms_norm, ragged_cross_entropy)


def _options(name: str) -> dict[str, tuple[str, ...]]:
    return ENTROPY_OPTIONS if name == "ragged_cross_entropy" else OPTIONS


def _op(suite: Any, name: str, **described: Any) -> Op:
    def own(inputs: Tensors, workload: Workload) -> Any:
        x, ends = inputs["input"], inputs["ends"]
        if name == "ragged_cross_entropy":
            reduction = chosen(ENTROPY_OPTIONS, workload)["reduction"]
            return suite.ragged_cross_entropy(
                x, inputs["target"], ends, IGNORED, reduction=reduction
            )
        extra = {"eps": EPS} if name == "ragged_rms_norm" else {}
        return getattr(suite, name)(x, ends, **extra)

    return Op(
        name=name,
        make_inputs=partial(_make_inputs, name),
        reference=partial(_reference, name),
        providers={"membound": own, "eager": partial(_padded, name)},
        traffic=partial(_traffic, name),
        benchmarks=tuple(
            workload_of(name, _options(name), dtype, shape, direction)
            for direction in (FORWARD, BACKWARD)
            for dtype, shape in _GRID
        ),
        options=_options(name),
        directions=(FORWARD, BACKWARD),
        differentiable=("input",),
        magnitudes=partial(_magnitudes, name),
        shapes=_SHAPES,
        rowwise=False,
        limits="(T,) with cu_seqlens, or a nested tensor of vectors",
        source="the op of that name, row by row",
        **described,
    )


def _lengths(workload: Workload) -> tuple[int, ...]:
    return _drawn(*workload.shape)


@functools.cache
def _drawn(rows: int, longest: int) -> tuple[int, ...]:
    """Kept, because a session makes a workload's inputs dozens of times."""
    draw = random.Random(rows * longest)
    lengths = [round(longest * 100 ** -draw.random()) for _ in range(rows)]
    lengths[0] = longest
    lengths[5::13] = [0] * len(lengths[5::13])
    return tuple(lengths)


@functools.cache
def _targets(lengths: tuple[int, ...]) -> tuple[int, ...]:
    draw = random.Random(1)
    return tuple(draw.randrange(length) if length else IGNORED for length in lengths)


def _make_inputs(name: str, workload: Workload, device: Any, generator: Any) -> Tensors:
    import torch

    lengths = _lengths(workload)
    ends = torch.tensor([0, *lengths]).cumsum(0)
    dtype = getattr(torch, chosen(_options(name), workload)["ends"])
    inputs = {
        "input": randn((int(ends[-1]),), workload.dtype, device, generator) * 4,
        "ends": ends.to(dtype).to(device),
    }
    if name == "ragged_cross_entropy":
        target = list(_targets(lengths))
        target[4::7] = [IGNORED] * len(target[4::7])
        inputs["target"] = torch.tensor(target).to(device)
    return inputs


def _places(inputs: Tensors) -> tuple[Any, Any, int]:
    """Row and place in it of each value, and the number of rows."""
    import torch

    ends = inputs["ends"].long()
    lengths = ends.diff()
    total = len(inputs["input"])  # given, so that the host need not wait for it
    places = torch.arange(len(lengths), device=ends.device)
    row = torch.repeat_interleave(places, lengths, output_size=total)
    return row, torch.arange(len(row), device=ends.device) - ends[row], len(lengths)


def _sums(values: Any, row: Any, rows: int) -> Any:
    """The sum of each row's values."""
    return values.new_zeros(rows).index_add(0, row, values)


def _reference(name: str, inputs: Tensors, workload: Workload) -> Any:
    x = inputs["input"].double()
    row, _, rows = _places(inputs)
    if name == "ragged_rms_norm":
        lengths = inputs["ends"].long().diff()
        return x * (_sums(x.square(), row, rows) / lengths + EPS).rsqrt()[row]
    top = x.detach().new_zeros(rows).scatter_reduce(0, row, x.detach(), "amax", include_self=False)
    powers = (x - top[row]).exp()
    total = _sums(powers, row, rows)
    if name == "ragged_softmax":
        return powers / total[row]
    target = inputs["target"]
    counts = target != IGNORED
    at = inputs["ends"].long()[:-1] + target.clamp(min=0)
    own = x[at.clamp(max=len(x) - 1)]
    loss = (total.log() + top - own).where(counts, x.new_zeros(()))
    if chosen(ENTROPY_OPTIONS, workload)["reduction"] == "mean":
        return loss.sum() / counts.sum()
    return loss


def _padded(name: str, inputs: Tensors, workload: Workload) -> Any:
    import torch

    functional = torch.nn.functional
    x = inputs["input"]
    row, place, rows = _places(inputs)
    fill = 0.0 if name == "ragged_rms_norm" else -torch.inf
    matrix = x.new_full((rows, workload.shape[1]), fill).index_put((row, place), x)
    if name == "ragged_rms_norm":
        lengths = inputs["ends"].long().diff().unsqueeze(-1)
        mean = matrix.float().square().sum(-1, keepdim=True) / lengths
        return (matrix * (mean + EPS).rsqrt())[row, place].to(x.dtype)
    if name == "ragged_softmax":
        return torch.softmax(matrix, -1)[row, place]
    reduction = chosen(ENTROPY_OPTIONS, workload)["reduction"]
    return functional.cross_entropy(
        matrix, inputs["target"], ignore_index=IGNORED, reduction=reduction
    )


def _magnitudes(
    name: str, inputs: Tensors, grads: tuple[Any, ...], workload: Workload
) -> dict[str, Any]:
    """The terms of the gradients, from those of whole rows."""
    import torch

    x = inputs["input"].double()
    row, _, rows = _places(inputs)
    with torch.no_grad():
        if name == "ragged_cross_entropy":
            counts = inputs["target"] != IGNORED
            grad = grads[0].double().abs() * counts
            if grads[0].dim() == 0:
                grad = grad / counts.sum()
            y = _reference("ragged_softmax", inputs, workload)
            size = y * grad[row]
            at = inputs["ends"].long()[:-1] + inputs["target"].clamp(min=0)
            size.index_add_(0, at[counts], grad[counts])
            return {"input": size}
        grad = grads[0].double().abs()
        y = _reference(name, inputs, workload).abs()
        if name == "ragged_softmax":
            tiny = torch.finfo(inputs["input"].dtype).tiny
            y = y.clamp(min=tiny)
            return {"input": y * (grad + _sums(y * grad, row, rows)[row])}
        lengths = inputs["ends"].long().diff()
        rstd = (_sums(x.square(), row, rows) / lengths + EPS).rsqrt()[row]
        share = (_sums(y * grad, row, rows) / lengths)[row]
        return {"input": (grad + y * share) * rstd}


def _traffic(name: str, workload: Workload) -> Traffic:
    total = sum(_lengths(workload)) * DTYPE_BYTES[workload.dtype]
    ends = (workload.shape[0] + 1) * (
        4 if chosen(_options(name), workload)["ends"] == "int32" else 8
    )
    backward = workload.direction == BACKWARD
    if name == "ragged_cross_entropy":
        rows = 8 * workload.shape[0]
        if backward:
            return Traffic(total + ends + rows, total)
        return Traffic(total + ends + rows, 4 * workload.shape[0])
    return Traffic((2 if backward else 1) * total + ends, total)
