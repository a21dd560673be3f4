"""GPU time of rotary."""

from __future__ import annotations

from . import rows


class Rotary(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "rotary"
    track_time = rows.TimeRows.seconds


class RotaryBackward(rows.TimeRows):
    """The input's gradient, given the result's."""

    op, direction = "rotary", "backward"
    track_time = rows.TimeRows.seconds
