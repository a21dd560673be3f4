"""Softmax over the rows of a matrix, each read once and kept in registers."""

from __future__ import annotations

import math
import operator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, const_expr

from .arguments import current_stream, matrix
from .rows import Rows

LOG2_E = math.log2(math.e)


class Softmax:
    def __init__(self, kernel: Any) -> None:
        self.tiling = kernel.tiling
        self.rows = Rows(kernel.tiling)
        self.shared_bytes = kernel.shared_bytes

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, stream: Any) -> None:
        self.kernel(x, out).launch(
            grid=[cute.ceil_div(x.shape[0], self.tiling.rows), 1, 1],
            block=[self.tiling.threads, 1, 1],
            smem=self.shared_bytes,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, x: cute.Tensor, out: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row = block * self.tiling.rows + thread // self.tiling.row_threads
        lane = thread % self.tiling.row_threads

        values = self.rows.fragment(x.element_type, -x.element_type.inf)
        if row < x.shape[0]:
            self.rows.load(x[row, None], values, lane, -x.element_type.inf)
        loaded = values.load().to(Float32)

        # Each warp works relative to its own maximum, so that the warps of a row meet only once:
        # softmax = exp(x - warp's top) * exp(warp's top - row's top) / row's total
        width = min(self.tiling.row_threads, 32)
        top = loaded.reduce(cute.ReductionOp.MAX, -Float32.inf, reduction_profile=0)
        top = cute.arch.warp_reduction(top, cute.arch.fmax, threads_in_group=width)
        # a warp may hold nothing but -inf in a row with finite values
        origin = top if top > -Float32.inf else Float32(0.0)
        powers = cute.math.exp2((loaded - origin) * LOG2_E, fastmath=True)
        total = powers.reduce(cute.ReductionOp.ADD, 0.0, reduction_profile=0)
        total = cute.arch.warp_reduction(total, operator.add, threads_in_group=width)
        scale = Float32(1.0)
        if const_expr(self.shared_bytes > 0):
            row_top, total = self.combine(top, total)
            scale = cute.math.exp2((top - row_top) * LOG2_E, fastmath=True)

        values.store((powers * (scale / total)).to(out.element_type))
        if row < x.shape[0]:
            self.rows.store(values, out[row, None], lane)

    @cute.jit
    def combine(self, top: Float32, total: Float32) -> tuple[Float32, Float32]:
        """The row's maximum and sum from its warps' maxima and sums, relative to those."""
        warps = self.tiling.row_threads // 32
        allocator = cutlass.memory.SmemAllocator()
        slots = cute.make_layout((self.tiling.rows, warps))
        tops = allocator.allocate_tensor(Float32, slots)
        totals = allocator.allocate_tensor(Float32, slots)

        lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
        if lane == 0:
            tops[warp // warps, warp % warps] = top
            totals[warp // warps, warp % warps] = total
        cute.arch.barrier()
        top, total = -Float32.inf, Float32(0.0)
        if lane < warps:
            top, total = tops[warp // warps, lane], totals[warp // warps, lane]
        row_top = cute.arch.warp_reduction(top, cute.arch.fmax)
        total *= cute.math.exp2((top - row_top) * LOG2_E, fastmath=True)
        return row_top, cute.arch.warp_reduction(total, operator.add)


def trace(kernel: Any) -> tuple[Softmax, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows = cute.sym_int()
    x, out = (matrix(kernel.dtype, rows, kernel.tiling) for _ in range(2))
    return Softmax(kernel), (x, out, current_stream())
