"""GPU time of embedding, gather_rows and permute_rows."""

from __future__ import annotations

from . import rows


class Embedding(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "embedding"
    track_time = rows.TimeRows.seconds


class EmbeddingBackward(rows.TimeRows):
    """The gradients, given the result's."""

    op, direction = "embedding", "backward"
    track_time = rows.TimeRows.seconds


class GatherRows(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "gather_rows"
    track_time = rows.TimeRows.seconds


class GatherRowsBackward(rows.TimeRows):
    """The gradients, given the result's."""

    op, direction = "gather_rows", "backward"
    track_time = rows.TimeRows.seconds


class PermuteRows(rows.TimeRows):
    """One row per dtype, shape and provider."""

    op = "permute_rows"
    track_time = rows.TimeRows.seconds


class PermuteRowsBackward(rows.TimeRows):
    """The gradients, given the result's."""

    op, direction = "permute_rows", "backward"
    track_time = rows.TimeRows.seconds
