"""Checks a provider's result against the reference before it is timed: wrong is never fast."""

from __future__ import annotations

from typing import Any

from .backward import Prepared, flat, leaves
from .workload import Op, Tensors, Tolerance, Workload

#: Elements that are compared at a time: in float64 they take 8 bytes each, several times.
_CHUNK = 1 << 26
_ROUNDOFF = 2.0**-24  # of float32


class WrongResult(Exception):
    """A result has the wrong shape, dtype or values; the message is the reason."""


def poison(output: Any) -> None:
    """Overwrite a tensor so that elements a kernel leaves out are seen: NaN, or all ones."""
    integer = -1 if output.dtype.is_signed else 255
    output.fill_(float("nan") if output.is_floating_point() else integer)


def check(
    op: Op, workload: Workload, inputs: Tensors, result: Any, own: bool = True
) -> dict[str, float]:
    """Largest absolute and relative error of a forward ``result``, against ``op.reference``.

    ``own`` tells the suite's provider from the baselines, which may round more often. Raises
    :class:`WrongResult` where an element differs by more than ``op.tolerance`` allows, or where
    the number of results, a shape or a dtype is not the expected.
    """
    import torch

    outputs = flat(result)
    for output in outputs:
        require_written(output)
    if op.check is not None:
        op.check(outputs, inputs, workload)
        return {"max_abs": 0.0, "max_rel": 0.0}
    with torch.no_grad():
        expected = flat(op.reference(inputs, workload))
    if len(outputs) != len(expected):
        raise WrongResult(f"{len(outputs)} results, {len(expected)} were expected")
    dtypes = op.result_dtypes(workload)
    errors = []
    for i, (output, right) in enumerate(zip(outputs, expected, strict=True)):
        name = dtypes[i] if dtypes else workload.dtype
        dtype = getattr(torch, name) if right.is_floating_point() else right.dtype
        what = "result" if len(outputs) == 1 else f"result {i}"
        require_form(output, right.shape, dtype, what)
        errors.append(compare(output, right, op.tolerance, workload.dtype, own=own, what=what))
    return _worst(errors)


def check_gradients(
    op: Op, workload: Workload, prepared: Prepared, actual: tuple[Any, ...], own: bool = True
) -> dict[str, float]:
    """The same of the gradients ``actual`` of the leaves of ``prepared``, in their order."""
    expected = reference_gradients(op, workload, prepared.inputs, prepared.grads)
    sizes = magnitudes(op, workload, prepared.inputs, prepared.grads)
    errors = []
    for (name, leaf), gradient in zip(prepared.leaves.items(), actual, strict=True):
        what = f"gradient of {name}"
        require_form(gradient, leaf.shape, leaf.dtype, what)
        tolerance, size = op.gradient_tolerance, sizes.get(name)
        errors.append(
            compare(
                gradient, expected[name], tolerance, workload.dtype, size=size, own=own, what=what
            )
        )
    return _worst(errors)


def magnitudes(op: Op, workload: Workload, inputs: Tensors, grads: dict[int, Any]) -> Tensors:
    """The sizes of the terms of the gradients, by the input's name, where the op tells them."""
    import torch

    if op.magnitudes is None:
        return {}
    with torch.no_grad():
        return op.magnitudes(inputs, tuple(grads.values()), workload)


def reference_gradients(
    op: Op, workload: Workload, inputs: Tensors, grads: dict[int, Any]
) -> dict[str, Any]:
    """float64 gradients of the differentiable inputs, by autograd of the reference.

    ``grads`` holds the gradients of some of the results, by their position.
    """
    import torch

    doubles = {name: leaf.double().requires_grad_() for name, leaf in leaves(op, inputs).items()}
    with torch.enable_grad():
        outputs = flat(op.reference({**inputs, **doubles}, workload))
    found = torch.autograd.grad(
        [outputs[i] for i in grads],
        list(doubles.values()),
        [grad.double() for grad in grads.values()],
        allow_unused=True,
    )
    return {
        name: torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(doubles.items(), found, strict=True)
    }


def require_form(actual: Any, shape: Any, dtype: Any, what: str) -> None:
    """Raise :class:`WrongResult` unless ``actual`` has this shape and dtype."""
    if tuple(actual.shape) != tuple(shape) or actual.dtype != dtype:
        raise WrongResult(
            f"{what} is {actual.dtype} {tuple(actual.shape)}, {dtype} {tuple(shape)} was expected"
        )


def require_written(output: Any) -> None:
    """Raise :class:`WrongResult` if an element is NaN: not written, or computed as such."""
    import torch

    if output.is_floating_point() and bool(torch.isnan(output).any()):
        first = torch.isnan(output).nonzero()[0].tolist()
        raise WrongResult(f"result is NaN or was not written at {first}")


def compare(
    actual: Any,
    expected: Any,
    tolerance: Tolerance,
    dtype: str,
    *,
    size: Any = None,
    own: bool = True,
    what: str = "result",
) -> dict[str, float]:
    """Largest errors of ``actual``, of the same shape as ``expected``; see :class:`Tolerance`.

    Integers must be equal; NaN and infinities must be where they are expected. ``dtype`` is the
    workload's; ``size`` stands for the tolerance's where it is given. Raises :class:`WrongResult`.
    """
    import torch

    if not actual.numel():
        return {"max_abs": 0.0, "max_rel": 0.0}
    columns = expected.shape[-1] if expected.dim() else 1
    rows, right = actual.reshape(-1, columns), expected.reshape(-1, columns)
    if size is not None:
        size = size.expand(expected.shape).reshape(-1, columns)
    step = max(1, _CHUNK // columns)
    max_abs = max_rel = 0.0
    wrong, first = 0, None
    for begin in range(0, len(rows), step):
        part = slice(begin, begin + step)
        found, wanted = rows[part], right[part]
        if wanted.is_floating_point():
            bound = _bound(
                found, wanted, tolerance, dtype, None if size is None else size[part], own
            )
            same = found == wanted.to(found.dtype)  # what overflows the dtype, too
            difference = (found.double() - wanted.double()).abs()
            good = same | (difference <= bound) & wanted.isfinite()
            good |= found.isnan() & wanted.isnan()
            finite = difference.isfinite()
            difference = torch.where(finite, difference, 0)
            max_abs = max(max_abs, difference.max().item())
            # Below the smallest normal number a relative error says nothing.
            least = torch.finfo(found.dtype).tiny
            relative = difference / wanted.abs().clamp(min=least)
            max_rel = max(max_rel, torch.where(wanted.isfinite(), relative, 0).max().item())
        else:
            good, bound = found == wanted, torch.zeros_like(wanted)
        if first is None and not good.all():
            row, column = (~good).nonzero()[0].tolist()
            first = (
                begin + row,
                column,
                found[row, column].item(),
                wanted[row, column].item(),
                bound[row, column].item(),
            )
        wrong += int((~good).sum())
    if first is not None:
        row, column, got, want, bound = first
        place = torch.unravel_index(torch.tensor(row * columns + column), expected.shape)
        raise WrongResult(
            f"{what}: {wrong} of {right.numel()} checked values are wrong, first at "
            f"{[int(i) for i in place]}: {got:.9g}, expected {want:.9g} within {bound:.3g}"
        )
    return {"max_abs": max_abs, "max_rel": max_rel}


def _bound(found: Any, wanted: Any, tolerance: Tolerance, dtype: str, size: Any, own: bool) -> Any:
    """How far each element of the rows ``found`` may be from ``wanted``."""
    import torch

    form, saved = torch.finfo(found.dtype), torch.finfo(getattr(torch, dtype)).eps / 2
    wanted = wanted.abs().double()
    wanted = torch.where(wanted.isfinite(), wanted, 0)
    row = wanted.amax(-1, keepdim=True)
    if size is None:
        size = wanted if tolerance.size == "element" else row
    # 32-bit exponents lose their subnormal numbers in kernels, others keep them
    wide = found.dtype in (torch.float32, torch.bfloat16)
    smallest = form.tiny * (1 if wide else form.eps / 2)
    bound = tolerance.roundings * (form.eps / 2) * wanted
    bound += (tolerance.terms * _ROUNDOFF + tolerance.saved * saved) * size.double()
    if not own:
        bound += tolerance.baseline * saved * torch.maximum(row, size.double())
    return bound + tolerance.flushed * smallest


def _worst(errors: list[dict[str, float]]) -> dict[str, float]:
    return {name: max(error[name] for error in errors) for name in ("max_abs", "max_rel")}
