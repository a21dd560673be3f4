"""rms_norm and layer_norm over the last dimension."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
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
)

from .fp8 import in_blocks, quantised, require_nearest
from .shared import NO, YES, matrices, nbytes, other_dtype, randint, randn, torch_dtype

#: Stabiliser, added to the mean square or the variance.
EPS = 1e-6

_COMMON = {
    "residual": ("none", "same", "other", "summed as input"),  # the last: other, sum in input's
    "offset": ("0", "1"),
    "dropout": ("0", "0.25"),
    "heads": (NO, YES),
    "statistics": (NO, YES),
}
OPTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "rms_norm": {
        "weight": ("same", "other", "none"),
        "bias": ("none", "same", "other"),
        **_COMMON,
    },
    "layer_norm": {
        "weight": ("same", "other", "none"),
        "bias": ("same", "other", "none"),
        **_COMMON,
    },
}

_BACKWARD_SHAPES = ("32768x1024", "32768x4096", "16384x8192", "4096x32768")


def rms_norm(suite: Any) -> Op:
    """rms_norm."""
    return _op(
        suite,
        "rms_norm",
        benchmarks=(
            *matrices("rms_norm"),
            *matrices("rms_norm", _BACKWARD_SHAPES, ("bfloat16",), BACKWARD),
            *matrices("rms_norm", ("16384x8192",), ("float32",), BACKWARD),
            *matrices(
                "rms_norm",
                ("32768x4096", "16384x8192"),
                ("bfloat16",),
                options=OPTIONS["rms_norm"],
                residual="same",
            ),
        ),
        summary="x / sqrt(mean(x^2) + eps) * weight, x = dropout(input) + residual",
        formula="2 M N + N (backward 3 M N + 2 N), a residual 2 M N more",
        source="torch.nn.functional.rms_norm; Zhang and Sennrich, 2019",
    )


def layer_norm(suite: Any) -> Op:
    """layer_norm."""
    shapes = ("32768x1024", "32768x1001", "32768x4096", "16384x8192", "4096x32768")
    return _op(
        suite,
        "layer_norm",
        benchmarks=(
            *matrices("layer_norm", shapes, ("bfloat16",)),
            *matrices("layer_norm", ("16384x8192",), ("float32",)),
            *matrices("layer_norm", _BACKWARD_SHAPES, ("bfloat16",), BACKWARD),
            *matrices("layer_norm", ("16384x8192",), ("float32",), BACKWARD),
        ),
        summary="(x - mean(x)) / sqrt(var(x) + eps) * weight + bias, x = dropout(input) + residual",
        formula="2 M N + 2 N (backward 3 M N + 3 N), a residual 2 M N more",
        source="torch.nn.functional.layer_norm; Ba, Kiros and Hinton, 2016",
    )


FP8_OPTIONS = {
    "block": ("none", "128"),
    "weight": ("same", "other", "none"),
    "residual": ("none", "same"),
    "offset": ("0", "1"),
}


def rms_norm_fp8(suite: Any) -> Op:
    """rms_norm_fp8: results are judged as what they stand for, quotients times scales."""

    def own(inputs: Tensors, workload: Workload) -> Any:
        want = chosen(FP8_OPTIONS, workload)
        x, given = inputs["input"], {}
        if "residual" in inputs:
            given["residual"] = inputs["residual"]
        if want["offset"] != "0":
            given["weight_offset"] = float(want["offset"])
        if want["block"] != "none":
            given["block"] = int(want["block"])
        return suite.rms_norm_fp8(x, x.shape[-1:], inputs.get("weight"), EPS, **given)

    def reference(inputs: Tensors, workload: Workload) -> Any:
        return _quantised({key: value.double() for key, value in inputs.items()}, workload)

    def eager(inputs: Tensors, workload: Workload) -> Any:
        """In float32: a result in 16 bits would be rounded twice."""
        return _quantised({key: value.float() for key, value in inputs.items()}, workload)

    return Op(
        name="rms_norm_fp8",
        make_inputs=_make_fp8_inputs,
        reference=reference,
        providers={"membound": own, "eager": eager},
        traffic=_fp8_traffic,
        benchmarks=(
            *matrices("rms_norm_fp8", ("32768x4096", "16384x8192"), ("bfloat16",)),
            *matrices(
                "rms_norm_fp8", ("32768x4096",), ("bfloat16",), options=FP8_OPTIONS, block="128"
            ),
        ),
        options=FP8_OPTIONS,
        check=_check_fp8,
        takes_special=False,
        summary="quantize_fp8(rms_norm(input)), with a scale for each row or block of 128 columns",
        limits="N up to 1,048,576",
        formula="1.5 M N + N in 16 bits, a residual 2 M N more",
        source="torch.nn.functional.rms_norm, then (y / scale).to(torch.float8_e4m3fn)",
    )


OPS = (rms_norm, layer_norm, rms_norm_fp8)


def _op(suite: Any, name: str, **described: Any) -> Op:
    options = OPTIONS[name]

    def own(inputs: Tensors, workload: Workload) -> Any:
        want = chosen(options, workload)
        x = inputs["input"]
        rows, columns = workload.shape
        given: dict[str, Any] = {}
        if "bias" in inputs:
            given["bias"] = inputs["bias"]
        if "residual" in inputs:
            given["residual"] = inputs["residual"]
        if want["residual"] == "summed as input":
            given["residual_dtype"] = torch_dtype(workload.dtype)
        if want["offset"] != "0":
            given["weight_offset"] = float(want["offset"])
        if "seed" in inputs:
            given |= {"dropout_p": float(want["dropout"]), "dropout_seed": inputs["seed"]}
        if want["statistics"] == YES:
            given["return_rstd" if name == "rms_norm" else "return_stats"] = True
        if want["heads"] == NO:
            norm = getattr(suite, name)
            return norm(x, x.shape[-1:], inputs.get("weight"), eps=EPS, **given)
        heads = (-1, _heads(rows))
        if "residual" in given:
            given["residual"] = given["residual"].unflatten(0, heads)
        results = getattr(suite, name)(
            x.unflatten(0, heads), (columns,), inputs.get("weight"), eps=EPS, **given
        )
        if not isinstance(results, tuple):
            return results.flatten(0, 1)
        return tuple(result.flatten(0, 1) for result in results)

    def reference(inputs: Tensors, workload: Workload) -> Any:
        return _results(name, {key: _double(value) for key, value in inputs.items()}, workload)

    def eager(inputs: Tensors, workload: Workload) -> Any:
        return _by_torch(name, inputs, workload)

    def by_steps(inputs: Tensors, workload: Workload) -> Any:
        """torch's kernel of rms_norm for columns that are no multiple of 4 makes a whole row NaN
        where its kernel for others, and the formula, leave zeros."""
        return _results(name, inputs, workload)

    return Op(
        name=name,
        make_inputs=partial(_make_inputs, name),
        reference=reference,
        providers={"membound": own, "eager": eager},
        traffic=partial(_traffic, name),
        options=options,
        directions=(FORWARD, BACKWARD),
        differentiable=("input", "weight", "bias", "residual"),
        # what is added to may cancel: a mean, a residual, a bias
        tolerance=Tolerance(terms=64, size="row", baseline=16),
        gradient_tolerance=Tolerance(terms=512, saved=2, size="row", baseline=16),
        magnitudes=partial(_magnitudes, name),
        result_dtypes=partial(_result_dtypes, name),
        accepts=partial(_accepts, name),
        special=by_steps,
        limits="N up to 1,048,576; dropout needs a residual",
        **described,
    )


def _accepts(name: str, workload: Workload) -> bool:
    want = chosen(OPTIONS[name], workload)
    return want["dropout"] == "0" or want["residual"] != "none"


def _heads(rows: int) -> int:
    """The fewest heads, more than one, that the rows can be dealt to."""
    return next((n for n in range(2, rows + 1) if rows % n == 0), 1)


def _dtype(kind: str, workload: Workload) -> str:
    return workload.dtype if kind == "same" else other_dtype(workload.dtype)


def _total_dtype(name: str, workload: Workload) -> str:
    """The dtype of the sum with the residual, which is what the backward reads."""
    kind = chosen(OPTIONS[name], workload)["residual"]
    return other_dtype(workload.dtype) if kind == "other" else workload.dtype


def _result_dtypes(name: str, workload: Workload) -> tuple[str, ...]:
    want = chosen(OPTIONS[name], workload)
    dtypes = [workload.dtype]
    if want["residual"] != "none":
        dtypes.append(_total_dtype(name, workload))
    if want["statistics"] == YES:
        dtypes += ["float32"] * (1 if name == "rms_norm" else 2)
    return tuple(dtypes)


def _make_inputs(name: str, workload: Workload, device: Any, generator: Any) -> Tensors:
    want = chosen(OPTIONS[name], workload)
    rows, columns = workload.shape
    shape = (_heads(rows), columns) if want["heads"] == YES else (columns,)
    inputs = {"input": randn(workload.shape, workload.dtype, device, generator)}
    for vector in ("weight", "bias"):
        if want[vector] != "none":
            inputs[vector] = randn(shape, _dtype(want[vector], workload), device, generator)
    if want["residual"] != "none":
        dtype = _dtype(want["residual"], workload)
        inputs["residual"] = randn(workload.shape, dtype, device, generator)
    if want["dropout"] != "0":
        inputs["seed"] = randint(1 << 62, (1,), device, generator)
    return inputs


def _double(value: Any) -> Any:
    return value.double() if value.is_floating_point() else value


def _sum(name: str, inputs: Tensors, workload: Workload) -> Any:
    """What is normalised."""
    x = inputs["input"]
    if "seed" in inputs:
        x = x * _kept(name, inputs, workload)
    return x + inputs["residual"] if "residual" in inputs else x


def _kept(name: str, inputs: Tensors, workload: Workload) -> Any:
    """What dropout multiplies the input with."""
    p = float(chosen(OPTIONS[name], workload)["dropout"])
    mask = keep(inputs["seed"], p, *inputs["input"].shape)
    return mask.to(inputs["input"].dtype) / (1 - p)


def _shared(name: str, inputs: Tensors, workload: Workload) -> tuple[Any, Any]:
    """Weight with its offset, and bias, a row for each of the input's or one for all."""
    want = chosen(OPTIONS[name], workload)
    weight, bias = inputs.get("weight"), inputs.get("bias")
    if weight is not None:
        weight = weight + float(want["offset"])
    if want["heads"] == YES:
        rows = len(inputs["input"])
        weight, bias = (
            None if one is None else one.repeat(rows // len(one), 1) for one in (weight, bias)
        )
    return weight, bias


def _results(name: str, inputs: Tensors, workload: Workload) -> Any:
    x = _sum(name, inputs, workload)
    mean = x.mean(-1, keepdim=True)
    differences = x - mean if name == "layer_norm" else x
    rstd = (differences.square().mean(-1, keepdim=True) + EPS).rsqrt()
    result = differences * rstd
    weight, bias = _shared(name, inputs, workload)
    result = result if weight is None else result * weight
    result = result if bias is None else result + bias
    return _all(name, workload, result, x, mean.squeeze(-1), rstd.squeeze(-1))


def _all(name: str, workload: Workload, result: Any, total: Any, mean: Any, rstd: Any) -> Any:
    want = chosen(OPTIONS[name], workload)
    results = [result]
    if want["residual"] != "none":
        results.append(total)
    if want["statistics"] == YES:
        results += [rstd.detach()] if name == "rms_norm" else [mean.detach(), rstd.detach()]
    return results[0] if len(results) == 1 else tuple(results)


def _by_torch(name: str, inputs: Tensors, workload: Workload) -> Any:
    import torch

    functional = torch.nn.functional
    x = _sum(name, inputs, workload)
    total = x.to(torch_dtype(_total_dtype(name, workload)))
    columns = x.shape[-1:]
    weight, bias = _shared(name, inputs, workload)
    after = chosen(OPTIONS[name], workload)["heads"] == YES or name == "rms_norm"
    dtype = torch_dtype(workload.dtype)
    if name == "rms_norm":
        fused = weight is not None and weight.dim() == 1
        fitting = weight.to(x.dtype) if fused else None
        result = functional.rms_norm(x, columns, fitting, EPS)
        if weight is not None and not fused:
            result = result * weight
    else:
        fitting = [None if one is None or after else one.to(x.dtype) for one in (weight, bias)]
        result = functional.layer_norm(x, columns, *fitting, EPS)
        if weight is not None and after:
            result = result * weight
    if bias is not None and after:
        result = result + bias
    wide = x.detach().float()
    mean = wide.mean(-1)
    squares = wide - mean.unsqueeze(-1) if name == "layer_norm" else wide
    want = chosen(OPTIONS[name], workload)
    rstd = (squares.square().mean(-1) + EPS).rsqrt() if want["statistics"] == YES else mean
    return _all(name, workload, result.to(dtype), total, mean, rstd)


def _magnitudes(
    name: str, inputs: Tensors, grads: tuple[Any, ...], workload: Workload
) -> dict[str, Any]:
    """The terms of the gradients; they hold x rounded to the dtype in which the sum is kept."""
    import torch

    given = {key: _double(value) for key, value in inputs.items()}
    x = _sum(name, given, workload)
    mean = x.mean(-1, keepdim=True) if name == "layer_norm" else torch.zeros_like(x[..., :1])
    rstd = ((x - mean).square().mean(-1, keepdim=True) + EPS).rsqrt()
    # what is kept of a sum that is hardly a number of its dtype has few digits
    tiny = torch.finfo(torch_dtype(_total_dtype(name, workload))).tiny
    normed = (x.abs().clamp(min=tiny) + mean.abs()) * rstd
    if "residual" in given:  # a sum that nearly cancels has the terms' rounding
        normed = normed + given["residual"].abs() * rstd * 2**-8
    grad = grads[0].double().abs()
    weight, bias = _shared(name, given, workload)
    scaled = grad if weight is None else grad * weight.abs()
    size = scaled + normed * (scaled * normed).mean(-1, keepdim=True)
    if name == "layer_norm":
        size = size + scaled.mean(-1, keepdim=True)
    size = size * rstd
    if len(grads) > 1:
        size = size + grads[1].double().abs()
    eps = {dtype: torch.finfo(torch_dtype(dtype)).eps for dtype in DTYPE_BYTES}
    coarser = max(1.0, eps[_total_dtype(name, workload)] / eps[workload.dtype])
    size, normed = size * coarser, normed * coarser
    found = {"input": size * _kept(name, given, workload) if "seed" in given else size}
    if "residual" in inputs:
        found["residual"] = size
    for vector, terms in (("weight", grad * normed), ("bias", grad)):
        if vector in inputs:
            heads = inputs[vector].shape[0] if inputs[vector].dim() > 1 else 1
            sums = terms.unflatten(0, (-1, heads)).sum(0)
            found[vector] = sums.view(inputs[vector].shape)
    return found


def _traffic(name: str, workload: Workload) -> Traffic:
    """Backward: gradients of the result and of the sum with the residual are read."""
    want = chosen(OPTIONS[name], workload)
    matrix, itemsize = nbytes(workload), DTYPE_BYTES[workload.dtype]
    residual = total = 0
    if want["residual"] != "none":
        residual = matrix // itemsize * DTYPE_BYTES[_dtype(want["residual"], workload)]
        if want["residual"] == "summed as input":
            residual = matrix // itemsize * DTYPE_BYTES[other_dtype(workload.dtype)]
        total = matrix // itemsize * DTYPE_BYTES[_total_dtype(name, workload)]
    columns = workload.shape[-1] * (_heads(workload.shape[0]) if want["heads"] == YES else 1)
    weight, bias = (
        0 if want[one] == "none" else columns * DTYPE_BYTES[_dtype(want[one], workload)]
        for one in ("weight", "bias")
    )
    if workload.direction == BACKWARD:
        normed = total or matrix
        same = residual == matrix and want["dropout"] == "0"  # and so is the gradient
        written = matrix + (0 if same else residual) + weight + bias
        return Traffic(read=matrix + normed + total + weight, written=written)
    streams = (2, 2) if residual == total == matrix else None
    return Traffic(matrix + residual + weight + bias, matrix + total, streams)


def _make_fp8_inputs(workload: Workload, device: Any, generator: Any) -> Tensors:
    want = chosen(FP8_OPTIONS, workload)
    inputs = {"input": randn(workload.shape, workload.dtype, device, generator)}
    if want["weight"] != "none":
        dtype = _dtype(want["weight"], workload)
        inputs["weight"] = randn(workload.shape[-1:], dtype, device, generator)
    if want["residual"] != "none":
        inputs["residual"] = randn(workload.shape, workload.dtype, device, generator)
    return inputs


def _normed_in_blocks(inputs: Tensors, workload: Workload) -> tuple[Any, Any]:
    """What is quantised as (rows, blocks, columns of a block), 0 behind the last column, and what
    is normalised."""

    want = chosen(FP8_OPTIONS, workload)
    x = inputs["input"]
    if "residual" in inputs:
        x = x + inputs["residual"]
    normed = x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
    if "weight" in inputs:
        normed = normed * (inputs["weight"] + float(want["offset"]))
    columns = x.shape[-1]
    block = columns if want["block"] == "none" else int(want["block"])
    return in_blocks(normed, block), x


def _quantised(inputs: Tensors, workload: Workload) -> Any:

    blocks, total = _normed_in_blocks(inputs, workload)
    result, scales = quantised(blocks, total.shape[-1])
    if chosen(FP8_OPTIONS, workload)["block"] == "none":
        scales = scales.squeeze(-1)
    results = (result, scales)
    return (*results, total.to(torch_dtype(workload.dtype))) if "residual" in inputs else results


def _check_fp8(outputs: tuple[Any, ...], inputs: Tensors, workload: Workload) -> None:
    """Scales are exact but for float32's arithmetic, and each element is the nearest of its type,
    or one of two that are almost equally near."""

    given = {key: value.double() for key, value in inputs.items()}
    expected = _quantised(given, workload)
    if len(outputs) != len(expected):
        raise correctness.WrongResult(f"{len(outputs)} results, expected {len(expected)}")
    for i, (output, like) in enumerate(zip(outputs, expected, strict=True)):
        correctness.require_form(output, like.shape, like.dtype, f"result {i}")
    correctness.compare(
        outputs[1], expected[1], Tolerance(terms=128), workload.dtype, what="scales"
    )
    if "residual" in inputs:
        total = given["input"] + given["residual"]
        correctness.compare(outputs[2], total, Tolerance(terms=2), workload.dtype, what="sum")
    blocks, _ = _normed_in_blocks(given, workload)
    require_nearest(outputs[0], blocks, outputs[1])


def _fp8_traffic(workload: Workload) -> Traffic:
    want = chosen(FP8_OPTIONS, workload)
    matrix = nbytes(workload)
    rows, columns = workload.shape
    scales = 4 * rows * (1 if want["block"] == "none" else -(-columns // int(want["block"])))
    weight = 0
    if want["weight"] != "none":
        weight = columns * DTYPE_BYTES[_dtype(want["weight"], workload)]
    more = matrix if want["residual"] != "none" else 0
    return Traffic(read=matrix + more + weight, written=rows * columns + scales + more)


def keep(seed: Any, p: float, rows: int, columns: int) -> Any:
    """The elements that dropout keeps: 24 bits of a Philox4x32-10 draw are at least ``p``.

    Four neighbouring columns share a draw; column, row and seed are counter and key (Salmon et
    al., 2011, "Parallel random numbers: as easy as 1, 2, 3").
    """
    import torch

    device, low = seed.device, (1 << 32) - 1
    quads = torch.arange(-(-columns // 4), device=device)
    zero = torch.zeros(rows, len(quads), dtype=torch.int64, device=device)
    a, b = zero + quads, zero + torch.arange(rows, device=device).unsqueeze(1)
    c, d = zero, zero
    first, second = seed & low, (seed >> 32) & low

    def product(x: Any, factor: int) -> tuple[Any, Any]:
        """The upper and the lower 32 bits of a product of 32-bit numbers."""
        high, rest = (x >> 16) * factor, (x & 0xFFFF) * factor
        middle = (high & 0xFFFF) * 0x10000 + rest
        return (high >> 16) + (middle >> 32), middle & low

    for _ in range(10):
        high_a, low_a = product(a, 0xD2511F53)
        high_c, low_c = product(c, 0xCD9E8D57)
        a, b, c, d = high_c ^ b ^ first, low_c, high_a ^ d ^ second, low_a
        first, second = (first + 0x9E3779B9) & low, (second + 0xBB67AE85) & low
    words = torch.stack((a, b, c, d), dim=-1).flatten(1)[:, :columns]
    return (words >> 8) >= round(p * (1 << 24))
