"""What a result must be: the registry's float64 references, within the registry's tolerances."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from asv_bench.workloads.cross_entropy import IGNORED
from bandwatch.measure import backward, correctness
from bandwatch.measure.workload import Op, Workload, chosen

from .cases import Ran

#: Elements of a matrix that are judged at a time: references take 8 bytes each, several times.
_CHUNK = 1 << 27


def assert_right(ran: Ran, op: Op | None = None) -> None:
    """Require every element of every result and gradient of ``ran`` to be right.

    Raises WrongResult.
    """
    op = op or ran.case.op
    workload = ran.case.workload
    for name, gradient in ran.gradients.items():
        like = ran.inputs[name]
        correctness.require_form(gradient, like.shape, like.dtype, f"gradient of {name}")
    if not (op.rowwise and torch.Size(workload.shape).numel() > _CHUNK):
        correctness.check(op, workload, ran.inputs, ran.outputs)
        if ran.gradients:
            expected = correctness.reference_gradients(op, workload, ran.inputs, ran.grads)
            sizes = correctness.magnitudes(op, workload, ran.inputs, ran.grads)
            _compare_gradients(op, workload, ran.gradients, expected, sizes)
        return
    _by_rows(op, workload, ran)


def _compare_gradients(op: Op, workload: Workload, actual: Any, expected: Any, sizes: Any) -> None:
    for name, gradient in actual.items():
        correctness.compare(
            gradient,
            expected[name],
            op.gradient_tolerance,
            workload.dtype,
            size=sizes.get(name),
            what=f"gradient of {name}",
        )


def _by_rows(op: Op, workload: Workload, ran: Ran) -> None:
    """Judge rows in parts; gradients of what all rows share are sums over the parts."""
    rows, columns = workload.shape
    step = max(1, _CHUNK // 4 // columns)
    sums: dict[str, torch.Tensor] = {}
    sizes: dict[str, torch.Tensor] = {}
    for begin in range(0, rows, step):
        part = slice(begin, begin + step)

        def of(tensor: torch.Tensor, part: slice = part) -> torch.Tensor:
            return tensor[part] if tensor.dim() and len(tensor) == rows else tensor

        inputs = {name: of(value) for name, value in ran.inputs.items()}
        few = dataclasses.replace(workload, shape=(min(step, rows - begin), columns))
        correctness.check(op, few, inputs, tuple(map(of, ran.outputs)))
        if not ran.gradients:
            continue
        grads = {i: of(grad) for i, grad in ran.grads.items()}
        expected = correctness.reference_gradients(op, few, inputs, grads)
        found = correctness.magnitudes(op, few, inputs, grads)
        own = {name: of(g) for name, g in ran.gradients.items() if of(g) is not g}
        _compare_gradients(op, few, own, expected, found)
        for name in ran.gradients.keys() - own.keys():
            sums[name] = sums.get(name, 0) + expected[name]
            if name in found:
                sizes[name] = sizes.get(name, 0) + found[name]
    shared = {name: ran.gradients[name] for name in sums}
    _compare_gradients(op, workload, shared, sums, sizes)


def special_result(op: Op, workload: Workload, inputs: dict[str, torch.Tensor]) -> tuple[Any, ...]:
    """What torch gives in float32 where rows hold NaN and infinities."""
    wide = {
        name: value.float() if value.is_floating_point() else value
        for name, value in inputs.items()
    }
    run = op.special or list(op.providers.values())[1]
    return backward.flat(run(wide, dataclasses.replace(workload, dtype="float32")))


def make_special(x: torch.Tensor, dtype: str) -> None:
    """Fill odd rows of (..., N), or odd elements of a vector, with what is no ordinary number.

    A number alone becomes infinite, as scaled losses make gradients. ``dtype`` is the workload's,
    of which a power of the large number is still one.
    """
    inf, nan, large = float("inf"), float("nan"), torch.finfo(getattr(torch, dtype)).max ** 0.4
    if not x.dim():
        x.fill_(inf)
        return
    rows = x.view(-1, x.shape[-1] if x.dim() > 1 else 1)  # slices: there may be fewer
    rows[1:2] = -inf
    rows[3:4] = nan
    rows[5:6] = inf
    rows[7:8, 0] = nan
    rows[9:10, -1] = nan
    rows[11:12, 0] = inf
    rows[13:14, -1] = inf
    rows[15:16, : rows.shape[1] // 2] = -inf
    rows[17:18, :-1] = -inf
    rows[19:20] = 0
    rows[21:22], rows[21:22, 0] = 0, large


def assert_right_where_special(
    op: Op,
    workload: Workload,
    inputs: dict[str, torch.Tensor],
    grads: dict[int, torch.Tensor],
    gradients: dict[str, torch.Tensor],
) -> None:
    """Require ``gradients`` to be finite where torch's are, and right there.

    ``inputs`` or ``grads``, those of the results by position, hold NaN and infinities. Whether what
    is not finite is NaN or infinite depends on what underflows, and is not judged. Where inputs
    leave the terms of a sum without a size, that it is finite is all. Raises WrongResult.
    """
    expected = correctness.reference_gradients(op, workload, inputs, grads)
    numbers = {i: grad.nan_to_num(0.0, 0.0, 0.0) for i, grad in grads.items()}
    sizes = correctness.magnitudes(op, workload, inputs, numbers)
    nan, inf = float("nan"), float("inf")
    for name, gradient in gradients.items():
        wanted, size = expected[name], sizes.get(name)
        if size is not None:
            size = size.expand(wanted.shape).nan_to_num(inf, inf, inf)
        if op.name == "cross_entropy":
            # rows that are ignored have no gradient, also where torch makes NaN of what they hold
            counts = inputs["target"] != IGNORED
            if chosen(op.options, workload)["lse"] == "no" and gradient[~counts].any():
                raise correctness.WrongResult(f"gradient of {name}: ignored rows have one")
            gradient, wanted, size = gradient[counts], wanted[counts], size[counts]
        finite = wanted.to(gradient.dtype).isfinite()
        correctness.compare(
            gradient.where(gradient.isfinite(), nan),
            wanted.where(finite, nan),
            op.gradient_tolerance,
            workload.dtype,
            size=size,
            what=f"gradient of {name}",
        )
