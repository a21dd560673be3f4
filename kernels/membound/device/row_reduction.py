"""Reductions over the columns of a matrix: a result for each row, which is read once."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, const_expr
from cutlass.cute.runtime import make_fake_tensor

from .arguments import current_stream, matrix, scalars
from .reductions import REDUCTIONS
from .row_kernel import RowKernel


class RowReduction(RowKernel):
    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel)
        self.reduction = REDUCTIONS[kernel.form]()
        tiling, rows = kernel.tiling, self.rows
        held = rows.count * rows.vector * tiling.row_threads * tiling.cluster * tiling.chunks
        self.whole = tiling.columns == held and not tiling.shifted

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        out: cute.Tensor,
        aside: cute.Tensor | None,
        divisor: Float32,
        stream: Any,
    ) -> None:
        self.kernel(x, out, aside, divisor).launch(**self.shape(x.shape[0], stream))

    @cute.kernel
    def kernel(
        self, x: cute.Tensor, out: cute.Tensor, aside: cute.Tensor | None, divisor: Float32
    ) -> None:
        thread, row, exists = self.place(x.shape[0])
        self.exchange.arrive()

        state = self.reduction.identity
        for chunk in cutlass.range_constexpr(self.tiling.chunks):
            lane = self.rows.lane(thread, chunk)
            more = self.gather(x, row, exists, lane)
            state = more if const_expr(chunk == 0) else self.reduction.join(state, more)
        state = self.over_warp(state, min(self.tiling.row_threads, 32))
        if const_expr(self.exchange.needed):
            gathered = self.exchange.share(state, self.reduction.identity)
            state = tuple([values[0] for values in gathered])
            for i in cutlass.range_constexpr(1, cute.size(gathered[0])):
                other = tuple([values[i] for values in gathered])
                state = self.reduction.join(state, other)
            state = self.over_warp(state, 32)

        if exists and self.first(thread):
            out[row] = self.reduction.finish(state, divisor).to(out.element_type)
            if const_expr(aside is not None):
                kept = self.reduction.aside(state)
                for s in cutlass.range_constexpr(len(kept)):
                    aside[s, row] = kept[s]

    @cute.jit
    def gather(self, x: cute.Tensor, row: Any, exists: Any, lane: Any) -> tuple:
        """The state of a thread's part of a row."""
        fill = self.reduction.fill
        loaded = self.rows.fragment(x.element_type, fill)
        if exists:
            self.rows.load(x[row, None], loaded, lane, fill)
        values, places = [], []
        for i in cutlass.range_constexpr(self.rows.count):
            first = self.rows.column(x[row, None], lane, i)
            for v in cutlass.range_constexpr(self.rows.vector):
                values.append(loaded[v, i].to(Float32))
                places.append(first + v)
        present = None
        if const_expr(not self.whole):
            ones = self.rows.fragment(Float32, 1.0)
            self.rows.hide_rest(ones, x[row, None], lane, 0.0)
            present = [ones[i] for i in range(cute.size(ones))]
        return self.reduction.gather(values, places, present)

    @cute.jit
    def over_warp(self, state: tuple, width: int) -> tuple:
        """Join the states of each ``width`` neighbouring lanes: all of them hold the result."""
        for bit in cutlass.range_constexpr(width.bit_length() - 1):
            other = tuple([cute.arch.shuffle_sync_bfly(value, offset=1 << bit) for value in state])
            state = self.reduction.join(state, other)
        return state


def trace(kernel: Any) -> tuple[RowReduction, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows = cute.sym_int()
    aside = None
    if kernel.aside:
        stride = cute.sym_int64()
        aside = make_fake_tensor(Float32, (kernel.aside, rows), (stride, 1), assumed_align=4)
    x, out = matrix(kernel.dtype, rows, kernel.tiling), scalars(kernel.out, rows)
    return RowReduction(kernel), (x, out, aside, Float32(1.0), current_stream())
