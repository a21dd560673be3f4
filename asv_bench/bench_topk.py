"""GPU time of topk."""

from __future__ import annotations

from . import rows


class Topk(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "topk"
    track_time = rows.TimeRows.seconds


class TopkBackward(rows.TimeRows):
    """The input's gradient, given the values'."""

    op, direction = "topk", "backward"
    track_time = rows.TimeRows.seconds
