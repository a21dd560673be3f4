"""embedding, gather_rows and permute_rows: rows picked by an index."""

from __future__ import annotations

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

from .shared import NO, YES, matrices, randint, randn

_INDEX = {"index": ("int64", "int32"), "checked": (YES, NO)}
_PICKED = {
    **_INDEX,
    # whether one row is picked much more often than the others
    "picks": ("even", "one often"),
}
OPTIONS = {
    "embedding": {**_PICKED, "padding": ("none", "1")},
    "gather_rows": _PICKED,
    "permute_rows": _INDEX,
}

#: Picks, rows and columns: more picks than rows and fewer, odd rows, one row for all, no picks.
_SHAPES = (
    (1000, 500, 1000),
    (777, 301, 1001),
    (1, 1, 1),
    (5000, 3, 8),
    (70_000, 7, 5),
    (3, 40_000, 1000),
    (20_000, 70, 257),
    (9, 4, 262_144),
    (0, 10, 64),
)
_PERMUTED = ((67, 1000), (66, 1001), (1, 1), (65_537, 1), (4097, 8), (3, 262_144), (0, 1000))


def embedding(suite: Any) -> Op:
    """embedding."""
    shapes = ("32768x50257x1024", "32768x128256x4096")

    def own(inputs: Tensors, workload: Workload) -> Any:
        want = chosen(OPTIONS["embedding"], workload)
        padding = None if want["padding"] == "none" else min(1, workload.shape[1] - 1)
        checked = want["checked"] == YES
        return suite.embedding(inputs["input"], inputs["weight"], padding, check_input=checked)

    def by_torch(inputs: Tensors, workload: Workload) -> Any:
        weight = inputs["weight"]
        if chosen(OPTIONS["embedding"], workload)["padding"] != "none":
            padding = min(1, workload.shape[1] - 1)
            fixed = weight.detach()[padding : padding + 1]
            weight = _joined(weight[:padding], fixed, weight[padding + 1 :])
        return _pick(weight, inputs["input"], workload)

    return _op(
        "embedding",
        own,
        by_torch,
        benchmarks=(
            *matrices("embedding", shapes, ("bfloat16",)),
            *matrices("embedding", shapes, ("bfloat16",), BACKWARD),
            *matrices(
                "embedding",
                shapes[:1],
                ("bfloat16",),
                BACKWARD,
                OPTIONS["embedding"],
                picks="one often",
            ),
        ),
        summary="row `input[i]` of the weight",
        limits="weight (V, D), any number of indices; D any",
        source="torch.nn.functional.embedding",
    )


def gather_rows(suite: Any) -> Op:
    """gather_rows."""

    def own(inputs: Tensors, workload: Workload) -> Any:
        checked = chosen(OPTIONS["gather_rows"], workload)["checked"] == YES
        return suite.gather_rows(inputs["weight"], inputs["input"], check_index=checked)

    def by_torch(inputs: Tensors, workload: Workload) -> Any:
        return _pick(inputs["weight"], inputs["input"], workload)

    return _op(
        "gather_rows",
        own,
        by_torch,
        benchmarks=(
            *matrices("gather_rows", ("65536x32768x4096",), ("bfloat16",)),
            *matrices("gather_rows", ("65536x32768x4096",), ("bfloat16",), BACKWARD),
        ),
        summary="row `index[i]` of the input",
        limits="input (M, N), any number of indices; N any",
        source="torch.index_select over the first dimension",
    )


def permute_rows(suite: Any) -> Op:
    """permute_rows."""

    def own(inputs: Tensors, workload: Workload) -> Any:
        checked = chosen(OPTIONS["permute_rows"], workload)["checked"] == YES
        return suite.permute_rows(inputs["weight"], inputs["input"], check_index=checked)

    def by_torch(inputs: Tensors, workload: Workload) -> Any:
        return inputs["weight"].index_select(0, inputs["input"])

    return _op(
        "permute_rows",
        own,
        by_torch,
        benchmarks=(
            *matrices("permute_rows", ("32768x4096", "32768x1001"), ("bfloat16",)),
            *matrices("permute_rows", ("32768x4096",), ("bfloat16",), BACKWARD),
        ),
        shapes=_PERMUTED,
        summary="row `index[i]` of the input, the index being a permutation",
        limits="input (M, N); N any",
        source="torch.index_select over the first dimension",
    )


OPS = (embedding, gather_rows, permute_rows)


def _op(name: str, own: Any, by_torch: Any, shapes: Any = _SHAPES, **described: Any) -> Op:
    def reference(inputs: Tensors, workload: Workload) -> Any:
        return by_torch({**inputs, "weight": inputs["weight"].double()}, workload)

    def magnitudes(inputs: Tensors, grads: tuple[Any, ...], workload: Workload) -> dict[str, Any]:
        """Sums of as many terms as a row was picked, in their size."""
        import torch

        leaf = torch.zeros(
            inputs["weight"].shape, dtype=torch.float64, device=grads[0].device, requires_grad=True
        )
        with torch.enable_grad():
            result = by_torch({**inputs, "weight": leaf}, workload)
        return {"weight": torch.autograd.grad(result, leaf, grads[0].double().abs())[0]}

    return Op(
        name=name,
        make_inputs=partial(_make_inputs, name),
        reference=reference,
        providers={"membound": own, "eager": by_torch},
        traffic=_traffic,
        options=OPTIONS[name],
        directions=(FORWARD, BACKWARD),
        differentiable=("weight",),
        tolerance=Tolerance(roundings=0, terms=0),
        gradient_tolerance=Tolerance(terms=512, baseline=64),
        magnitudes=magnitudes,
        shapes=shapes,
        rowwise=False,
        formula="2 K N + K, K picks of which no row is picked twice (backward K N + K + M N)",
        **described,
    )


def _joined(*rows: Any) -> Any:
    import torch

    return torch.cat(rows)


def _pick(weight: Any, index: Any, workload: Workload) -> Any:
    """Rows of the weight; zeros where an unchecked index tells none."""
    if workload.shape[0] == 0:
        return weight[:0]
    there = (index >= 0) & (index < weight.shape[0])
    picked = weight.index_select(0, index.clamp(0, weight.shape[0] - 1))
    return picked.where(there.unsqueeze(-1), 0)


def _make_inputs(name: str, workload: Workload, device: Any, generator: Any) -> Tensors:
    import torch

    want = chosen(OPTIONS[name], workload)
    *picks, rows, columns = workload.shape
    weight = randn((rows, columns), workload.dtype, device, generator)
    if not picks:
        index = torch.randperm(rows, device=device, generator=generator)
        return {"weight": weight, "input": index.to(getattr(torch, want["index"]))}
    index = randint(rows, (picks[0],), device, generator, want["index"])
    if want["picks"] == "one often":
        others = randint(8, (picks[0],), device, generator)
        index = index.where(others == 0, rows // 2)
    index[:1] = 0  # the first row is picked
    if want["checked"] == NO:
        index[1::7], index[2::7] = -1, rows
    return {"weight": weight, "input": index}


def _traffic(workload: Workload) -> Traffic:
    """Of picks that are evenly spread over the rows; what no pick needs is not read."""
    *picks, rows, columns = workload.shape
    count = picks[0] if picks else rows
    row, index = columns * DTYPE_BYTES[workload.dtype], 8 * count
    if workload.direction == BACKWARD:
        return Traffic(count * row + index, rows * row)
    return Traffic(min(count, rows) * row + index, count * row)
