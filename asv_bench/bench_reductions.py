"""GPU time of reductions over rows and columns."""

from __future__ import annotations

from . import rows


class Sum(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "sum"
    track_time = rows.TimeRows.seconds


class Mean(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "mean"
    track_time = rows.TimeRows.seconds


class Var(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "var"
    track_time = rows.TimeRows.seconds


class VarBackward(rows.TimeRows):
    """The input's gradient, given the results'."""

    op, direction = "var", "backward"
    track_time = rows.TimeRows.seconds


class Amax(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "amax"
    track_time = rows.TimeRows.seconds


class AmaxBackward(rows.TimeRows):
    """The input's gradient, given the results'."""

    op, direction = "amax", "backward"
    track_time = rows.TimeRows.seconds


class Argmax(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "argmax"
    track_time = rows.TimeRows.seconds


class Norm(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "norm"
    track_time = rows.TimeRows.seconds


class NormBackward(rows.TimeRows):
    """The input's gradient, given the results'."""

    op, direction = "norm", "backward"
    track_time = rows.TimeRows.seconds
