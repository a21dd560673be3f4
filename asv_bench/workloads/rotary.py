"""rotary position embedding."""

from __future__ import annotations

import math
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

from .shared import NO, YES, nbytes, other_dtype, torch_dtype

OPTIONS = {
    "interleaved": (NO, YES),
    "turned": ("all", "half"),  # elements of a head
    "table": ("same", "other"),
    "offsets": ("0", "3", "each"),
    "packed": (NO, YES),  # sequences of different lengths, one behind the other
    "in_place": (NO, YES),
}
#: Positions that tables have beyond the tokens.
_SPARE = 5

_GRID = (
    ("bfloat16", (4, 4096, 32, 128), {}),
    ("bfloat16", (4, 4096, 32, 64), {}),
    ("bfloat16", (4, 4096, 32, 128), {"interleaved": YES}),
    ("bfloat16", (4, 4096, 32, 128), {"in_place": YES}),
    ("float32", (4, 4096, 16, 128), {}),
)


def rotary(suite: Any) -> Op:
    """The pairs' sums may cancel, within a head."""

    def own(inputs: Tensors, workload: Workload) -> Any:
        want = chosen(OPTIONS, workload)
        x = inputs["input"]
        if want["in_place"] == YES:
            x = x.clone()  # so that what was given can be compared with what is given later
        offsets = inputs["offsets"] if want["offsets"] == "each" else int(want["offsets"])
        packed = want["packed"] == YES
        out = suite.rotary(
            x.flatten(0, 1) if packed else x,
            inputs["cos"],
            inputs["sin"],
            interleaved=want["interleaved"] == YES,
            offsets=offsets,
            cu_seqlens=inputs.get("cu_seqlens"),
            inplace=want["in_place"] == YES,
        )
        return out.view(x.shape)

    return Op(
        name="rotary",
        make_inputs=_make_inputs,
        reference=lambda inputs, workload: _by_torch(_double(inputs), workload),
        providers={"membound": own, "eager": _eager},
        traffic=_traffic,
        benchmarks=tuple(
            workload_of("rotary", OPTIONS, dtype, shape, direction, **options)
            for direction in (FORWARD, BACKWARD)
            for dtype, shape, options in _GRID
            if direction == FORWARD or not options
        ),
        options=OPTIONS,
        directions=(FORWARD, BACKWARD),
        differentiable=("input",),
        tolerance=Tolerance(terms=8, size="row"),
        gradient_tolerance=Tolerance(terms=8, size="row"),
        shapes=((2, 33, 3, 128), (3, 7, 5, 66), (1, 1, 1, 2), (2, 1025, 4, 80), (2, 5, 3, 24)),
        accepts=_accepts,
        rowwise=False,
        summary="(a, b) becomes (a cos - b sin, a sin + b cos) for each pair of a head's elements",
        limits="(batch, tokens, heads, D), or (tokens, heads, D) with cu_seqlens",
        formula="2 B T H D + T D (backward the same)",
        source="Su et al., 2021",
    )


OPS = (rotary,)


def _accepts(workload: Workload) -> bool:
    want = chosen(OPTIONS, workload)
    return want["turned"] == "all" or workload.shape[-1] % 4 == 0


def _make_inputs(workload: Workload, device: Any, generator: Any) -> Tensors:
    import torch

    want = chosen(OPTIONS, workload)
    batch, tokens, _, width = workload.shape
    packed = want["packed"] == YES
    dtype = torch_dtype(workload.dtype)
    table = dtype if want["table"] == "same" else torch_dtype(other_dtype(workload.dtype))
    pairs = width // (2 if want["turned"] == "all" else 4)
    rows = (batch * tokens if packed else tokens) + _SPARE
    shape = workload.shape
    x = torch.randn(shape, dtype=dtype, device=device, generator=generator)
    angles = torch.rand((rows, pairs), device=device, generator=generator) * (2 * math.pi)
    inputs = {"input": x, "cos": angles.cos().to(table), "sin": angles.sin().to(table)}
    if packed:
        # a first sequence of one token, the rest in the other
        ends = [0, 1, batch * tokens] if batch * tokens > 1 else [0, batch * tokens]
        inputs["cu_seqlens"] = torch.tensor(ends, dtype=torch.int32, device=device)
    if want["offsets"] == "each":
        sequences = len(inputs["cu_seqlens"]) - 1 if packed else batch
        inputs["offsets"] = torch.arange(sequences, device=device) % _SPARE
    return inputs


def _double(inputs: Tensors) -> Tensors:
    return {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}


def _eager(inputs: Tensors, workload: Workload) -> Any:
    return _by_torch(inputs, workload).to(inputs["input"].dtype)


def _by_torch(inputs: Tensors, workload: Workload) -> Any:
    import torch

    want = chosen(OPTIONS, workload)
    x, cos, sin = inputs["input"], inputs["cos"], inputs["sin"]
    batch, tokens = x.shape[:2]
    position = torch.arange(tokens, device=x.device).expand(batch, tokens)
    sequence = torch.arange(batch, device=x.device).unsqueeze(-1).expand(batch, tokens)
    if want["packed"] == YES:
        ends = inputs["cu_seqlens"].long()
        token = torch.arange(batch * tokens, device=x.device)
        sequence = torch.searchsorted(ends, token, right=True) - 1
        position = (token - ends[sequence]).view(batch, tokens)
        sequence = sequence.view(batch, tokens)
    offsets = inputs["offsets"][sequence] if want["offsets"] == "each" else int(want["offsets"])
    position = position + offsets
    c, s = cos[position].unsqueeze(2), sin[position].unsqueeze(2)
    turned = 2 * cos.shape[1]
    head, rest = x[..., :turned], x[..., turned:]
    if want["interleaved"] == YES:
        a, b = head[..., 0::2], head[..., 1::2]
        head = torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)
    else:
        a, b = head.chunk(2, -1)
        head = torch.cat((a * c - b * s, a * s + b * c), -1)
    return torch.cat((head, rest.to(head.dtype)), -1)


def _traffic(workload: Workload) -> Traffic:
    want = chosen(OPTIONS, workload)
    matrix, tokens = nbytes(workload), workload.shape[1]
    share = 1 if want["turned"] == "all" else 2
    dtype = workload.dtype if want["table"] == "same" else other_dtype(workload.dtype)
    table = tokens * workload.shape[-1] // share * DTYPE_BYTES[dtype]
    if want["in_place"] == YES:
        matrix //= share
    return Traffic(matrix + table, matrix)
