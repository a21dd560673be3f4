"""GPU time of layer_norm."""

from __future__ import annotations

from . import rows


class LayerNorm(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "layer_norm"
    track_time = rows.TimeRows.seconds


class LayerNormBackward(rows.TimeRows):
    """The gradients, given the result's."""

    op, direction = "layer_norm", "backward"
    track_time = rows.TimeRows.seconds
