"""Checks a provider's result against the reference before it is timed: wrong is never fast."""

from __future__ import annotations

from typing import Any

import numpy as np

from .workload import Op, Tensors, Workload

#: Rows compared with the float64 reference; every row is checked for being finite and written.
ROWS = 512


class WrongResult(Exception):
    """A provider's output has the wrong shape, dtype or values; the message is the reason."""


def choose_rows(total: int, rng: np.random.Generator) -> list[int]:
    """Sorted indices of at most :data:`ROWS` rows: the first, the last and random ones between."""
    if total <= ROWS:
        return list(range(total))
    inner = 1 + rng.choice(total - 2, size=ROWS - 2, replace=False)
    return [0, *sorted(int(i) for i in inner), total - 1]


def poison(output: Any) -> None:
    """Overwrite a tensor so that elements a kernel leaves out are seen: NaN, or -1 for integers."""
    output.fill_(float("nan") if output.is_floating_point() else -1)


def check(
    op: Op, workload: Workload, inputs: Tensors, output: Any, rows: list[int]
) -> dict[str, float]:
    """Largest absolute and relative error of ``output`` on ``rows``, against ``op.reference``.

    Inputs of the workload's shape are taken row by row, others (weights) whole. Raises
    :class:`WrongResult` where an element differs by more than ``op.tolerance`` allows, where any
    element of any row is not finite, or where shape or dtype are not the expected.
    """
    import torch

    total = workload.shape[0]
    dtype = getattr(torch, workload.dtype)
    index = torch.tensor(rows, device=output.device)
    picked = {
        name: value.index_select(0, index) if tuple(value.shape) == workload.shape else value
        for name, value in inputs.items()
    }
    expected = op.reference(picked)
    shape = (total, *expected.shape[1:])
    if tuple(output.shape) != shape or output.dtype != dtype:
        raise WrongResult(
            f"result is {output.dtype} {tuple(output.shape)}, {dtype} {shape} was expected"
        )
    require_finite(output)

    rtol, atol = op.tolerance(workload.dtype)
    difference = (output.index_select(0, index).double() - expected).abs()
    # Below the smallest normal number a relative error says nothing.
    relative = difference / expected.abs().clamp(min=torch.finfo(dtype).tiny)
    wrong = difference > atol + rtol * expected.abs()
    error = {"max_abs": difference.max().item(), "max_rel": relative.max().item()}
    if wrong.any():
        where = wrong.nonzero()[0].tolist()
        place = [rows[where[0]], *where[1:]]
        raise WrongResult(
            f"{int(wrong.sum())} of {wrong.numel()} checked values are wrong, first at {place}: "
            f"{output[tuple(place)].item():g}, expected {expected[tuple(where)].item():g} "
            f"within rtol {rtol:.2g}, atol {atol:.2g}"
        )
    return error


def require_finite(output: Any) -> None:
    """Raise :class:`WrongResult` if an element is NaN or infinite: not written, or overflowed."""
    import torch

    if not bool(torch.isfinite(output).all()):
        first = (~torch.isfinite(output)).nonzero()[0].tolist()
        raise WrongResult(f"result is not finite or was not written at {first}")
