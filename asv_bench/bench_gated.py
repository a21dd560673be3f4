"""GPU time of swiglu, geglu and reglu."""

from __future__ import annotations

from . import rows


class Swiglu(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "swiglu"
    track_time = rows.TimeRows.seconds


class SwigluBackward(rows.TimeRows):
    """The gradients, given the result's."""

    op, direction = "swiglu", "backward"
    track_time = rows.TimeRows.seconds


class Geglu(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "geglu"
    track_time = rows.TimeRows.seconds


class GegluBackward(rows.TimeRows):
    """The gradients, given the result's."""

    op, direction = "geglu", "backward"
    track_time = rows.TimeRows.seconds


class Reglu(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "reglu"
    track_time = rows.TimeRows.seconds


class RegluBackward(rows.TimeRows):
    """The gradients, given the result's."""

    op, direction = "reglu", "backward"
    track_time = rows.TimeRows.seconds
