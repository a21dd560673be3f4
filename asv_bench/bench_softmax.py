"""GPU time of softmax, log_softmax and logsumexp."""

from __future__ import annotations

from . import rows


class Softmax(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "softmax"
    track_time = rows.TimeRows.seconds


class SoftmaxBackward(rows.TimeRows):
    """The gradient, given the result's."""

    op, direction = "softmax", "backward"
    track_time = rows.TimeRows.seconds


class LogSoftmax(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "log_softmax"
    track_time = rows.TimeRows.seconds


class LogSoftmaxBackward(rows.TimeRows):
    """The gradient, given the result's."""

    op, direction = "log_softmax", "backward"
    track_time = rows.TimeRows.seconds


class Logsumexp(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "logsumexp"
    track_time = rows.TimeRows.seconds


class LogsumexpBackward(rows.TimeRows):
    """The gradient, given the result's."""

    op, direction = "logsumexp", "backward"
    track_time = rows.TimeRows.seconds
