"""GPU time of cross_entropy."""

from __future__ import annotations

from . import rows


class CrossEntropy(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "cross_entropy"
    track_time = rows.TimeRows.seconds


class CrossEntropyBackward(rows.TimeRows):
    """The gradient of the logits, given the loss's."""

    op, direction = "cross_entropy", "backward"
    track_time = rows.TimeRows.seconds
