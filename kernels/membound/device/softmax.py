"""Softmax over the rows of a matrix, each read once and kept in registers."""

from __future__ import annotations

import math
import operator
from typing import Any

import cutlass.cute as cute
from cutlass import Float32, const_expr

from .arguments import current_stream, matrix
from .reduce import RowExchange, reduce_fragment
from .rows import Rows

LOG2_E = math.log2(math.e)


def exponential(x: Any) -> Any:
    """exp(x) by the hardware's base-2 exponential, within 2 units in the last place."""
    return cute.math.exp2(x * LOG2_E, fastmath=True)


class Softmax:
    def __init__(self, kernel: Any) -> None:
        self.tiling = kernel.tiling
        self.rows = Rows(kernel.tiling)
        self.exchange = RowExchange(kernel.tiling)
        self.shared_bytes = kernel.shared_bytes

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, stream: Any) -> None:
        self.kernel(x, out).launch(
            grid=[cute.ceil_div(x.shape[0], self.tiling.rows), self.tiling.cluster, 1],
            block=[self.tiling.threads, 1, 1],
            cluster=[1, self.tiling.cluster, 1] if self.tiling.cluster > 1 else None,
            smem=self.shared_bytes,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, x: cute.Tensor, out: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row = block * self.tiling.rows + thread // self.tiling.row_threads
        # the last CTA may have rows to spare, unless a CTA has but one
        exists = const_expr(self.tiling.rows == 1) or row < x.shape[0]
        lane = self.rows.lane(thread)
        self.exchange.arrive()

        values = self.rows.fragment(x.element_type, -x.element_type.inf)
        if exists:
            self.rows.load(x[row, None], values, lane, -x.element_type.inf)
        loaded = values.load().to(Float32)

        # Each warp works relative to its own maximum, so that the warps of a row meet only once:
        # softmax = exp(x - warp's top) * exp(warp's top - row's top) / row's total
        width = min(self.tiling.row_threads, 32)
        top = loaded.reduce(cute.ReductionOp.MAX, -Float32.inf, reduction_profile=0)
        top = cute.arch.warp_reduction(top, cute.arch.fmax, threads_in_group=width)
        # a warp may hold nothing but -inf in a row with finite values
        origin = top if top > -Float32.inf else Float32(0.0)
        powers = exponential(loaded - origin)
        total = powers.reduce(cute.ReductionOp.ADD, 0.0, reduction_profile=0)
        total = cute.arch.warp_reduction(total, operator.add, threads_in_group=width)
        scale = Float32(1.0)
        if const_expr(self.exchange.needed):
            tops, totals = self.exchange.share((top, total), (-Float32.inf, 0.0))
            row_top = reduce_fragment(tops, cute.arch.fmax)
            totals.store(totals.load() * exponential(tops.load() - row_top))
            total = reduce_fragment(totals, operator.add)
            scale = exponential(top - row_top)

        values.store((powers * (scale / total)).to(out.element_type))
        if exists:
            self.rows.store(values, out[row, None], lane)


def trace(kernel: Any) -> tuple[Softmax, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows = cute.sym_int()
    x, out = (matrix(kernel.dtype, rows, kernel.tiling) for _ in range(2))
    return Softmax(kernel), (x, out, current_stream())
