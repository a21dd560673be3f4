"""Softmax over the rows of a matrix, each read once and kept in registers."""

from __future__ import annotations

import math
import operator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, const_expr

from .arguments import current_stream, matrix
from .reduce import row_reduce
from .rows import fragment_shape, load_row, store_row

LOG2_E = math.log2(math.e)


class Softmax:
    def __init__(self, kernel: Any) -> None:
        self.tiling = kernel.tiling
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
        tops, totals = None, None
        if const_expr(self.shared_bytes > 0):
            allocator = cutlass.memory.SmemAllocator()
            slots = cute.make_layout((self.tiling.rows, self.tiling.row_threads // 32))
            tops = allocator.allocate_tensor(Float32, slots)
            totals = allocator.allocate_tensor(Float32, slots)

        shape = fragment_shape(self.tiling)
        values = cute.make_rmem_tensor(shape, x.element_type)
        values.fill(-x.element_type.inf)
        if row < x.shape[0]:
            load_row(x[row, None], values, lane, self.tiling.row_threads)
        loaded = values.load().to(Float32)

        top = loaded.reduce(cute.ReductionOp.MAX, -Float32.inf, reduction_profile=0)
        top = row_reduce(top, cute.arch.fmax, -Float32.inf, self.tiling.row_threads, tops)
        powers = cute.math.exp2((loaded - top) * LOG2_E, fastmath=True)
        total = powers.reduce(cute.ReductionOp.ADD, 0.0, reduction_profile=0)
        total = row_reduce(total, operator.add, Float32(0.0), self.tiling.row_threads, totals)

        values.store((powers / total).to(out.element_type))
        if row < x.shape[0]:
            store_row(values, out[row, None], lane, self.tiling.row_threads)


def trace(kernel: Any) -> tuple[Softmax, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows = cute.sym_int()
    x, out = (
        matrix(kernel.dtype, rows, kernel.tiling.columns, kernel.tiling.vector) for _ in range(2)
    )
    return Softmax(kernel), (x, out, current_stream())
