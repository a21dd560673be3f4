"""GPU time of bias_act."""

from __future__ import annotations

from . import rows


class BiasAct(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "bias_act"
    track_time = rows.TimeRows.seconds


class BiasActBackward(rows.TimeRows):
    """The gradients, given the result's."""

    op, direction = "bias_act", "backward"
    track_time = rows.TimeRows.seconds
