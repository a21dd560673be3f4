"""What softmax and its kin are taken of: scaled values with masks, -inf where one hides a value."""

from __future__ import annotations

import math
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

LOG2_E = math.log2(math.e)


def exponential(x: Any) -> Any:
    """exp(x) by the hardware's base-2 exponential, within 2 units in the last place."""
    return cute.math.exp2(x * LOG2_E, fastmath=True)


class Scores:
    """``x * scale + mask``, or -inf where a boolean mask is 0 or a column lies ahead of its row."""

    def __init__(self, kernel: Any, rows: Any) -> None:
        self.rows = rows
        self.scaled = kernel.scaled
        self.mask = kernel.mask
        self.causal = kernel.causal

    @cute.jit
    def load(
        self,
        x: cute.Tensor,
        mask: cute.Tensor | None,
        row: Int32,
        exists: Any,
        lane: Int32,
        scale: Float32,
        queries: Int32,
    ) -> cute.TensorSSA:
        """A thread's part of the scores of ``row``, -inf where there is no column."""
        values = self.rows.fragment(x.element_type, -x.element_type.inf)
        if exists:
            self.rows.load(x[row, None], values, lane, -x.element_type.inf)
        scores = values.load().to(Float32)
        if const_expr(self.scaled or self.mask != "none" or self.causal):
            changed = self.rows.fragment(Float32, -Float32.inf)
            if const_expr(self.scaled):
                scores = scores * scale
            changed.store(scores)
            if exists:
                if const_expr(self.scaled):  # a scale that is not positive moves -inf elsewhere
                    self.rows.hide_rest(changed, x[row, None], lane, -Float32.inf)
                if const_expr(self.mask not in ("none", "bool")):
                    added = self.rows.load_shared(self._row(mask, row), x[row, None], lane)
                    changed.store(changed.load() + added.load().to(Float32))
                # last: what is hidden is -inf, NaN or not
                self.hide(changed, mask, x, row, lane, queries, -Float32.inf)
            scores = changed.load()
        return scores

    @cute.jit
    def hide(
        self,
        fragment: cute.Tensor,
        mask: cute.Tensor | None,
        x: cute.Tensor,
        row: Int32,
        lane: Int32,
        queries: Int32,
        fill: Any,
    ) -> None:
        """Put ``fill`` where a boolean mask or causality hides an element of ``x``'s row."""
        if const_expr(self.causal):
            self.rows.hide_from(fragment, x[row, None], lane, row % queries + 1, fill)
        if const_expr(self.mask == "bool"):
            shown = self.rows.load_shared(self._row(mask, row), x[row, None], lane)
            for i in cutlass.range_constexpr(cute.size(fragment)):
                if shown[i] == 0:
                    fragment[i] = fragment.element_type(fill)

    @cute.jit
    def _row(self, mask: cute.Tensor, row: Int32) -> cute.Tensor:
        rest, last = row // mask.shape[2], row % mask.shape[2]
        return mask[rest // mask.shape[1], rest % mask.shape[1], last, None]
