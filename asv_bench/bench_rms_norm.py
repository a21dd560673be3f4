"""GPU time of rms_norm."""

from __future__ import annotations

from . import rows


class RmsNorm(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "rms_norm"
    track_time = rows.TimeRows.seconds
