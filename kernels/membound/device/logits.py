"""What cross-entropy is taken of: scaled and capped logits."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr


class Logits:
    """``cap * tanh(x * scale / cap)``, or ``x * scale`` without a cap."""

    def __init__(self, kernel: Any, rows: Any) -> None:
        self.rows = rows
        self.scaled = kernel.scaled
        self.capped = kernel.capped

    @cute.jit
    def load(
        self,
        x: cute.Tensor,
        row: Int32,
        exists: Any,
        lane: Int32,
        scale: Float32,
        cap: Float32,
    ) -> cute.TensorSSA:
        """A thread's part of the logits of ``row``, -inf where there is no column."""
        values = self.rows.fragment(x.element_type, -x.element_type.inf)
        if exists:
            self.rows.load(x[row, None], values, lane, -x.element_type.inf)
        logits = values.load().to(Float32)
        if const_expr(self.scaled or self.capped):
            changed = self.rows.fragment(Float32, -Float32.inf)
            changed.store(self.of(logits, scale, cap))
            if exists:  # a cap, or a scale that is not positive, moves -inf elsewhere
                self.rows.hide_rest(changed, x[row, None], lane, -Float32.inf)
            logits = changed.load()
        return logits

    def of(self, x: Any, scale: Float32, cap: Float32) -> Any:
        """The logits of Float32 values."""
        if self.scaled:
            x = x * scale
        return cap * cute.math.tanh(x / cap) if self.capped else x

    def slope(self, logits: Any, scale: Float32, cap: Float32) -> Any:
        """The derivative by x, or None where it is 1."""
        slope = None
        if self.capped:
            share = logits / cap
            slope = 1.0 - share * share
        if self.scaled:
            slope = scale if slope is None else slope * scale
        return slope


@cute.jit
def target_of(
    target: cute.Tensor, weight: cute.Tensor | None, row: Int32, columns: int, ignored: Int64
) -> tuple:
    """A row's target class, whether it is one, and its weight: 0 for a row that is ignored.

    The weight is NaN for a row whose target is neither a class nor ignored.
    """
    index = Int64(target[row])
    counts = index >= 0 and index < columns and index != ignored
    factor = Float32(0.0)
    if counts:
        factor = Float32(1.0)
        if const_expr(weight is not None):
            factor = weight[Int32(index)].to(Float32)
    elif index != ignored:
        factor = Float32(float("nan"))
    return index, counts, factor
