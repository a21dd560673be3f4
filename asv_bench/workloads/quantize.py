"""quantize_fp8 and swiglu_fp8: values in 8 bits with a scale a row or a block of columns."""

from __future__ import annotations

from functools import partial
from typing import Any

from bandwatch.measure import correctness
from bandwatch.measure.workload import Op, Tensors, Tolerance, Traffic, Workload, chosen

from .activations import activate_exactly
from .fp8 import in_blocks, quantised, require_nearest
from .shared import NO, YES, matrices, nbytes, randn

_BLOCK = {"block": ("none", "128")}
OPTIONS = {"quantize_fp8": _BLOCK, "swiglu_fp8": {**_BLOCK, "packed": (NO, YES)}}


def quantize_fp8(suite: Any) -> Op:
    """Each element is the nearest of its type, given a scale that is exact in float32."""
    return _op(
        suite, "quantize_fp8", "input / scale, scale = max(abs(input)) / 448", "3 M N / 2 + M"
    )


def swiglu_fp8(suite: Any) -> Op:
    """Elements may be one of two that are almost equally near."""
    return _op(suite, "swiglu_fp8", "quantize_fp8 of silu(gate) * up, in one pass", "5 M N / 2 + M")


OPS = (quantize_fp8, swiglu_fp8)


def _op(suite: Any, name: str, summary: str, formula: str) -> Op:
    def own(inputs: Tensors, workload: Workload) -> Any:
        block = chosen(OPTIONS[name], workload)["block"]
        given = {} if block == "none" else {"block": int(block)}
        return getattr(suite, name)(*inputs.values(), **given)

    return Op(
        name=name,
        make_inputs=partial(_make_inputs, name),
        reference=partial(_reference, name),
        providers={"membound": own, "eager": partial(_eager, name)},
        traffic=partial(_traffic, name),
        benchmarks=(
            *matrices(name, ("32768x4096", "16384x8192"), ("bfloat16",), options=OPTIONS[name]),
            *matrices(name, ("32768x4096",), ("bfloat16",), options=OPTIONS[name], block="128"),
        ),
        options=OPTIONS[name],
        check=partial(_check, name),
        takes_special=False,
        summary=summary,
        limits="N up to 1,048,576; blocks of 128 columns",
        formula=formula,
        source="OCP 8-bit floating point, e4m3; torch.float8_e4m3fn",
    )


def _make_inputs(name: str, workload: Workload, device: Any, generator: Any) -> Tensors:
    rows, columns = workload.shape
    if name == "quantize_fp8":
        return {"input": randn(workload.shape, workload.dtype, device, generator) * 4}
    if chosen(OPTIONS[name], workload)["packed"] == YES:
        return {"gate": randn((rows, 2 * columns), workload.dtype, device, generator) * 2}
    gate, up = (randn(workload.shape, workload.dtype, device, generator) for _ in range(2))
    return {"gate": gate * 2, "up": up}


def _exact(name: str, inputs: Tensors, workload: Workload) -> Any:
    """What is quantised, in float64 and blocks."""
    want = chosen(OPTIONS[name], workload)
    given = [value.double() for value in inputs.values()]
    if name == "quantize_fp8":
        values = given[0]
    else:
        gate, up = given if len(given) == 2 else given[0].chunk(2, -1)
        values = activate_exactly("silu", gate) * up
    block = values.shape[-1] if want["block"] == "none" else int(want["block"])
    return in_blocks(values, block)


def _reference(name: str, inputs: Tensors, workload: Workload) -> Any:
    q, scales = quantised(_exact(name, inputs, workload), workload.shape[-1])
    whole = chosen(OPTIONS[name], workload)["block"] == "none"
    return q, scales.squeeze(-1) if whole else scales


def _eager(name: str, inputs: Tensors, workload: Workload) -> Any:
    import torch

    given = list(inputs.values())
    if name == "quantize_fp8":
        values = given[0]
    else:
        gate, up = given if len(given) == 2 else given[0].chunk(2, -1)
        values = torch.nn.functional.silu(gate.float()) * up
    whole = chosen(OPTIONS[name], workload)["block"] == "none"
    block = values.shape[-1] if whole else 128
    q, scales = quantised(in_blocks(values.float(), block), workload.shape[-1])
    return q, scales.squeeze(-1) if whole else scales


def _check(name: str, outputs: tuple[Any, ...], inputs: Tensors, workload: Workload) -> None:
    expected = _reference(name, inputs, workload)
    if len(outputs) != 2:
        raise correctness.WrongResult(f"{len(outputs)} results, expected 2")
    for i, (output, like) in enumerate(zip(outputs, expected, strict=True)):
        correctness.require_form(output, like.shape, like.dtype, f"result {i}")
    tolerance = Tolerance(terms=2 if name == "quantize_fp8" else 64)
    correctness.compare(outputs[1], expected[1], tolerance, workload.dtype, what="scales")
    require_nearest(outputs[0], _exact(name, inputs, workload), outputs[1])


def _traffic(name: str, workload: Workload) -> Traffic:
    rows, columns = workload.shape
    whole = chosen(OPTIONS[name], workload)["block"] == "none"
    scales = 4 * rows * (1 if whole else -(-columns // 128))
    reads = nbytes(workload) * (1 if name == "quantize_fp8" else 2)
    return Traffic(reads, rows * columns + scales)
