"""GPU time of quantisation to fp8."""

from __future__ import annotations

from . import rows


class QuantizeFp8(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "quantize_fp8"
    track_time = rows.TimeRows.seconds


class SwigluFp8(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "swiglu_fp8"
    track_time = rows.TimeRows.seconds
