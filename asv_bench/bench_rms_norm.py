"""GPU time of rms_norm."""

from __future__ import annotations

from . import rows


class RmsNorm(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "rms_norm"
    track_time = rows.TimeRows.seconds


class RmsNormBackward(rows.TimeRows):
    """The gradients, given the result's."""

    op, direction = "rms_norm", "backward"
    track_time = rows.TimeRows.seconds
