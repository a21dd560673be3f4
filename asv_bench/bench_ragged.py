"""GPU time of the ops over ragged rows."""

from __future__ import annotations

from . import rows


class RaggedSoftmax(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "ragged_softmax"
    track_time = rows.TimeRows.seconds


class RaggedSoftmaxBackward(rows.TimeRows):
    """The input's gradient, given the result's."""

    op, direction = "ragged_softmax", "backward"
    track_time = rows.TimeRows.seconds


class RaggedRmsNorm(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "ragged_rms_norm"
    track_time = rows.TimeRows.seconds


class RaggedRmsNormBackward(rows.TimeRows):
    """The input's gradient, given the result's."""

    op, direction = "ragged_rms_norm", "backward"
    track_time = rows.TimeRows.seconds


class RaggedCrossEntropy(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "ragged_cross_entropy"
    track_time = rows.TimeRows.seconds


class RaggedCrossEntropyBackward(rows.TimeRows):
    """The input's gradient, given the result's."""

    op, direction = "ragged_cross_entropy", "backward"
    track_time = rows.TimeRows.seconds
