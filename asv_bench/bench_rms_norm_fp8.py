"""GPU time of rms_norm_fp8."""

from __future__ import annotations

from . import rows


class RmsNormFp8(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "rms_norm_fp8"
    track_time = rows.TimeRows.seconds
