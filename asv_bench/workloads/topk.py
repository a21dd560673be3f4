"""topk: the k largest or smallest of each row."""

from __future__ import annotations

from typing import Any

from bandwatch.measure import correctness
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

from .shared import NO, YES, nbytes, randn, torch_dtype

OPTIONS = {"k": ("8", "1", "64", "256"), "largest": (YES, NO), "softmax": (NO, YES)}

_GRID = (
    ("bfloat16", (32_768, 256), {"softmax": YES}),
    ("bfloat16", (32_768, 1024), {}),
    ("bfloat16", (32_768, 4096), {}),
    ("bfloat16", (4096, 32_768), {"k": "64"}),
    ("float32", (16_384, 4096), {}),
)


def topk(suite: Any) -> Op:
    """The values are the input's, exactly; which of equal elements are chosen is free."""

    def own(inputs: Tensors, workload: Workload) -> Any:
        want = chosen(OPTIONS, workload)
        given = {"softmax": True} if want["softmax"] == YES else {}
        return suite.topk(inputs["input"], int(want["k"]), largest=want["largest"] == YES, **given)

    return Op(
        name="topk",
        make_inputs=lambda workload, device, generator: {
            "input": randn(workload.shape, workload.dtype, device, generator)
        },
        reference=lambda inputs, workload: _by_torch(inputs["input"].double(), workload),
        providers={"membound": own, "eager": _eager},
        traffic=_traffic,
        benchmarks=tuple(
            workload_of("topk", OPTIONS, dtype, shape, direction, **options)
            for direction in (FORWARD, BACKWARD)
            for dtype, shape, options in _GRID
            if direction == FORWARD or shape[1] in (256, 4096)
        ),
        options=OPTIONS,
        directions=(FORWARD, BACKWARD),
        differentiable=("input",),
        tolerance=Tolerance(terms=64),
        gradient_tolerance=Tolerance(terms=256, saved=2, size="row"),
        magnitudes=_magnitudes,
        check=_check,
        accepts=lambda workload: int(chosen(OPTIONS, workload)["k"]) <= workload.shape[-1],
        takes_special=False,  # tests of its own know what is chosen
        summary="the k largest elements of each row in order, and their columns",
        limits="k from 1 to 256; N up to 1,048,576",
        formula="M N + M k (backward M N + M k)",
        source="torch.topk",
    )


OPS = (topk,)


def _eager(inputs: Tensors, workload: Workload) -> Any:
    import torch

    x, want = inputs["input"], chosen(OPTIONS, workload)
    if workload.direction == BACKWARD:  # so that gradients reach the same of equal elements
        return _by_torch(x, workload)
    values, indices = torch.topk(x, int(want["k"]), -1, largest=want["largest"] == YES)
    return (values.softmax(-1) if want["softmax"] == YES else values), indices


def _by_torch(x: Any, workload: Workload) -> Any:
    """Of equal elements those of lower columns: a stable sort finds them."""
    import torch

    want = chosen(OPTIONS, workload)
    k, largest = int(want["k"]), want["largest"] == YES
    indices = torch.sort(x.detach(), dim=-1, descending=largest, stable=True).indices[..., :k]
    values = x.gather(-1, indices)
    return (values.softmax(-1) if want["softmax"] == YES else values), indices


def _check(outputs: tuple[Any, ...], inputs: Tensors, workload: Workload) -> None:
    """Columns are distinct and in range, and their elements are the k that torch chooses."""
    import torch

    want, x = chosen(OPTIONS, workload), inputs["input"]
    k = int(want["k"])
    shape = (*workload.shape[:-1], k)
    if len(outputs) != 2:
        raise correctness.WrongResult(f"{len(outputs)} results, expected 2")
    values, indices = outputs
    correctness.require_form(values, shape, torch_dtype(workload.dtype), "values")
    correctness.require_form(indices, shape, torch.int64, "indices")
    if not values.numel():
        return
    if indices.min() < 0 or indices.max() >= workload.shape[-1]:
        raise correctness.WrongResult(f"indices reach from {indices.min()} to {indices.max()}")
    ordered = indices.sort(-1).values
    if (ordered[..., 1:] == ordered[..., :-1]).any():
        raise correctness.WrongResult("a column is chosen twice in a row")
    picked = x.gather(-1, indices)
    best = torch.topk(x.double(), k, -1, largest=want["largest"] == YES).values
    wrong = (picked.double() != best).sum()
    if wrong:
        raise correctness.WrongResult(f"{int(wrong)} values are wrong: others are chosen")
    if want["softmax"] == YES:
        expected = picked.double().softmax(-1)
        correctness.compare(values, expected, Tolerance(terms=64), workload.dtype, what="softmax")
    elif not torch.equal(values, picked):
        raise correctness.WrongResult("values are wrong: not those of the columns")


def _magnitudes(inputs: Tensors, grads: tuple[Any, ...], workload: Workload) -> dict[str, Any]:
    """With softmax, a gradient is a difference of others, weighed by rounded values."""
    import torch

    with torch.no_grad():
        values, indices = _by_torch(inputs["input"].double(), workload)
        size = grads[0].double().abs()
        if chosen(OPTIONS, workload)["softmax"] == YES:
            size = values * (size + (values * size).sum(-1, keepdim=True))
        spread = torch.zeros(inputs["input"].shape, dtype=torch.float64, device=size.device)
        return {"input": spread.scatter(-1, indices, size)}


def _traffic(workload: Workload) -> Traffic:
    want = chosen(OPTIONS, workload)
    size = DTYPE_BYTES[workload.dtype]
    picks = workload.shape[0] * int(want["k"])
    if workload.direction == BACKWARD:
        more = size if want["softmax"] == YES else 0
        return Traffic(picks * (size + 8 + more), nbytes(workload))
    return Traffic(nbytes(workload), picks * (size + 8))
