"""What a result must be: the registry's float64 references, within the registry's tolerances."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from bandwatch.measure import backward, correctness
from bandwatch.measure.workload import Op, Workload

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
