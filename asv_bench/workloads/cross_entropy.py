"""cross_entropy of logits with target classes."""

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

from .shared import NO, YES, matrices, nbytes, other_dtype, randint, randn

IGNORED = -100
SOFTCAP, SCALE, Z_LOSS = 20.0, 0.5, 1e-3

OPTIONS = {
    "reduction": ("mean", "sum", "none"),
    "target": ("int64", "int32"),
    "weight": ("none", "same", "other"),
    "smoothing": ("0", "0.1"),
    "z_loss": (NO, YES),
    "softcap": (NO, YES),
    "scale": (NO, YES),
    "lse": (NO, YES),
    "accuracy": (NO, YES),
    "in_place": (NO, YES),
    "checked": (YES, NO),
}

_SHAPES = ("32768x1024", "32768x4096", "8192x32768", "4096x50257", "4096x128256")


def cross_entropy(suite: Any) -> Op:
    """A loss is a difference of logits; its gradient has the exponentials' relative errors."""

    def own(inputs: Tensors, workload: Workload) -> Any:
        want = chosen(OPTIONS, workload)
        given: dict[str, Any] = {}
        if want["z_loss"] == YES:
            given["z_loss"] = Z_LOSS
        if want["softcap"] == YES:
            given["softcap"] = SOFTCAP
        if want["scale"] == YES:
            given["logit_scale"] = SCALE
        given |= {
            "return_lse": want["lse"] == YES,
            "return_accuracy": want["accuracy"] == YES,
            "check_target": want["checked"] == YES,
        }
        logits = inputs["input"]
        if want["in_place"] == YES:
            # of a copy, so that what was given can be compared with what is given later
            given["inplace_backward"], logits = True, logits.clone()
        return suite.cross_entropy(
            logits,
            inputs["target"],
            inputs.get("weight"),
            IGNORED,
            want["reduction"],
            float(want["smoothing"]),
            **given,
        )

    return Op(
        name="cross_entropy",
        make_inputs=_make_inputs,
        reference=lambda inputs, workload: _by_torch(_double(inputs), workload),
        providers={"membound": own, "eager": _eager},
        traffic=_traffic,
        benchmarks=(
            *matrices("cross_entropy", _SHAPES, ("bfloat16",)),
            *matrices("cross_entropy", ("8192x32768",), ("float32",)),
            *matrices("cross_entropy", _SHAPES, ("bfloat16",), BACKWARD),
            *matrices("cross_entropy", ("8192x32768",), ("float32",), BACKWARD),
        ),
        options=OPTIONS,
        directions=(FORWARD, BACKWARD),
        differentiable=("input",),
        tolerance=Tolerance(terms=512, size="row"),
        gradient_tolerance=Tolerance(terms=1024, baseline=64),
        magnitudes=_magnitudes,
        result_dtypes=_result_dtypes,
        # the mean of no rows is NaN
        accepts=lambda workload: workload.shape[0] > 0,
        rowwise=False,
        summary="loss of target t: lse - x[t], lse = log(sum(exp(x))), with smoothing, z-loss, cap",
        limits="classes in the last dimension, up to 1,048,576",
        formula="M N (backward 2 M N)",
        source="torch.nn.functional.cross_entropy; z-loss: Chowdhery et al., 2022",
    )


OPS = (cross_entropy,)


def _make_inputs(workload: Workload, device: Any, generator: Any) -> Tensors:
    want = chosen(OPTIONS, workload)
    rows, columns = workload.shape
    target = randint(columns, (rows,), device, generator, want["target"])
    if rows > 2:
        target[1::7] = IGNORED
    inputs = {
        "input": randn(workload.shape, workload.dtype, device, generator) * 4,
        "target": target,
    }
    if want["weight"] != "none":
        same = want["weight"] == "same"
        dtype = workload.dtype if same else other_dtype(workload.dtype)
        inputs["weight"] = randn((columns,), dtype, device, generator).abs() + 0.25
    return inputs


def _double(inputs: Tensors) -> Tensors:
    return {k: v.double() if v.is_floating_point() else v.long() for k, v in inputs.items()}


def _logits(x: Any, workload: Workload) -> Any:
    want = chosen(OPTIONS, workload)
    if want["scale"] == YES:
        x = x * SCALE
    return SOFTCAP * (x / SOFTCAP).tanh() if want["softcap"] == YES else x


def _eager(inputs: Tensors, workload: Workload) -> Any:
    import torch

    given = dict(inputs, target=inputs["target"].long())
    if "weight" in given:
        given["weight"] = given["weight"].to(given["input"].dtype)
    results = _by_torch(given, workload)
    if isinstance(results, torch.Tensor):
        return results
    return tuple(r if i == 0 else r.float() for i, r in enumerate(results))


def _by_torch(inputs: Tensors, workload: Workload) -> Any:
    import torch

    want = chosen(OPTIONS, workload)
    target, weight = inputs["target"], inputs.get("weight")
    logits = _logits(inputs["input"], workload)
    loss = torch.nn.functional.cross_entropy(
        logits,
        target,
        weight,
        ignore_index=IGNORED,
        reduction=want["reduction"],
        label_smoothing=float(want["smoothing"]),
    )
    counts = target != IGNORED
    lse = torch.logsumexp(logits, -1)
    if want["z_loss"] == YES:
        extra = Z_LOSS * lse.square() * counts
        if want["reduction"] != "none":
            extra = extra.sum()
        if want["reduction"] == "mean":
            extra = extra / _share(target, weight, loss.dtype).sum()
        loss = loss + extra
    results = [loss]
    if want["lse"] == YES:
        results.append(lse)
    if want["accuracy"] == YES:
        x = inputs["input"]
        hit = (x.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1) >= x.amax(-1)) & counts
        hit = hit.to(x.dtype)
        results.append(hit if want["reduction"] == "none" else hit.sum() / counts.sum())
    return results[0] if len(results) == 1 else tuple(results)


def _share(target: Any, weight: Any, dtype: Any) -> Any:
    """The weight of each row's target, 0 where it is ignored."""
    counts = (target != IGNORED).to(dtype)
    return counts if weight is None else counts * weight[target.clamp(min=0)]


def _result_dtypes(workload: Workload) -> tuple[str, ...]:
    want = chosen(OPTIONS, workload)
    return (workload.dtype, *["float32"] * [want["lse"], want["accuracy"]].count(YES))


def _magnitudes(inputs: Tensors, grads: tuple[Any, ...], workload: Workload) -> dict[str, Any]:
    """The terms of the gradient: the softmax's, the smoothing's, and the target's."""
    import torch

    want = chosen(OPTIONS, workload)
    given = _double(inputs)
    with torch.no_grad():
        logits = _logits(given["input"], workload)
        lse = torch.logsumexp(logits, -1, keepdim=True)
        target, weight = given["target"], given.get("weight")
        share = _share(target, weight, logits.dtype)
        grad = grads[0].double().abs()
        if want["reduction"] == "mean":
            grad = grad / share.sum()
        counts = (target != IGNORED).double()
        smoothing = float(want["smoothing"])
        mass = logits.shape[-1] if weight is None else weight.sum()
        classes = torch.ones_like(logits[0]) if weight is None else weight
        each = counts * grad * smoothing / logits.shape[-1]
        whole = grad * share + each * mass
        if want["z_loss"] == YES:
            whole = whole + grad * counts * 2 * Z_LOSS * lse.squeeze(-1).abs()
        if want["lse"] == YES:
            whole = whole + grads[1].double().abs()
        size = (logits - lse).exp() * whole.unsqueeze(-1) + each.unsqueeze(-1) * classes
        own = (grad * share).unsqueeze(-1)
        size.scatter_add_(-1, target.clamp(min=0).unsqueeze(-1), own)
        if want["softcap"] == YES:
            # of 1 - tanh^2 only a part of the digits is left near the cap
            size = size * (1 - (logits / SOFTCAP).square() + 2**-6)
    return {"input": size * (SCALE if want["scale"] == YES else 1)}


def _traffic(workload: Workload) -> Traffic:
    want = chosen(OPTIONS, workload)
    matrix, rows = nbytes(workload), workload.shape[0]
    target = rows * (8 if want["target"] == "int64" else 4)
    if want["weight"] != "none":
        same = want["weight"] == "same"
        dtype = workload.dtype if same else other_dtype(workload.dtype)
        target += workload.shape[1] * DTYPE_BYTES[dtype]
    if workload.direction == BACKWARD:
        return Traffic(matrix + target + 4 * rows, matrix)
    return Traffic(matrix + target, DTYPE_BYTES[workload.dtype])
