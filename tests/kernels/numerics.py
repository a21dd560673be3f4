"""What a result must be: float64 references, and bounds on the error of float32 arithmetic."""

from __future__ import annotations

import math

import torch

from .cases import PAD, SENTINEL, Call

#: Largest relative error of rounding to the dtype.
_ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
#: Largest absolute error below the normal numbers: float16 rounds there, the others flush to 0.
_FLUSHED = {torch.bfloat16: 2.0**-126, torch.float16: 2.0**-25, torch.float32: 2.0**-126}

#: Elements that are compared at a time: references take 8 bytes each, several times.
_CHUNK = 1 << 25


def tolerance(dtype: torch.dtype, columns: int, spread: float = 0.0) -> tuple[float, float]:
    """Relative and absolute bound on the error of a row of ``columns``, rounded once to ``dtype``.

    A sum takes at most 32 additions in a thread and then a tree. An exponent has the relative
    error of three roundings, which counts in proportion to its size: at most ``spread``, the
    largest distance from a row's maximum. 16 more are for the hardware's functions and products.
    """
    roundings = min(columns, 32) + math.log2(columns) + 3 * spread + 16
    return _ROUNDOFF[dtype] + roundings * 2.0**-24, _FLUSHED[dtype]


def reference(call: Call, x: torch.Tensor) -> torch.Tensor:
    """The float64 result for the rows ``x`` (M, columns) of ``call``'s input."""
    x = x.double()
    if call.op == "softmax":
        return torch.softmax(x, -1)
    eps = torch.finfo(torch.float32).eps if call.eps is None else call.eps
    normed = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    return normed if call.weight is None else normed * call.weight.reshape(-1).double()


def assert_right(call: Call, actual: torch.Tensor) -> None:
    """Require ``actual`` to be what ``call`` must return, every element of it."""
    assert actual.shape == call.x.shape
    assert actual.dtype == call.x.dtype
    assert actual.device.type == call.x.device.type
    assert actual.is_contiguous()
    if not call.x.numel():
        return
    results = actual.view(-1, call.columns)
    rows = call.x.reshape(-1, call.columns)
    step = max(1, _CHUNK // call.columns)
    for begin in range(0, len(rows), step):
        x = rows[begin : begin + step]
        top = x.amax(-1, keepdim=True).double()
        spread = (top - x).max().item() if call.op == "softmax" else 0.0
        assert_close(
            results[begin : begin + step],
            reference(call, x),
            *tolerance(call.x.dtype, call.columns, spread),
            first_row=begin,
        )


def assert_close(
    actual: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float, first_row: int = 0
) -> None:
    """Require |actual - expected| <= atol + rtol |expected|, and NaN and infinities alike."""
    assert actual.shape == expected.shape
    actual, expected = actual.double(), expected.double()
    right = (actual - expected).abs() <= atol + rtol * expected.abs()
    right &= expected.isfinite()
    right |= (actual == expected) | (actual.isnan() & expected.isnan())
    if not right.all():
        wrong = (~right).nonzero()
        row, column = wrong[0].tolist()
        raise AssertionError(
            f"{len(wrong)} of {right.numel()} values are wrong, first at row {row + first_row}, "
            f"column {column}: {actual[row, column].item():.9g}, expected "
            f"{expected[row, column].item():.9g} (rtol {rtol:.3g}, atol {atol:.3g})"
        )


def assert_guards_hold(buffer: torch.Tensor, offset: int = 0) -> None:
    """Require that nothing was written before or behind the output in a guarded buffer."""
    for where, guard in (("before", buffer[: PAD + offset]), ("behind", buffer[-PAD:])):
        touched = (guard != SENTINEL).nonzero()
        assert not len(touched), f"{len(touched)} elements {where} the output were written"
