"""Softmax over the rows of a matrix: one CTA a row, read once and kept in registers."""

from __future__ import annotations

import math
import operator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32

from .arguments import current_stream, matrix
from .reduce import block_reduce
from .rows import fragment_shape, load_row, store_row

LOG2_E = math.log2(math.e)


class Softmax:
    def __init__(self, kernel: Any) -> None:
        self.columns = kernel.columns
        self.vector = kernel.vector
        self.threads = kernel.threads
        self.shared_bytes = kernel.shared_bytes

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, stream: Any) -> None:
        self.kernel(x, out).launch(
            grid=[x.shape[0], 1, 1],
            block=[self.threads, 1, 1],
            smem=self.shared_bytes,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, x: cute.Tensor, out: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        warps = cute.make_layout((self.threads // 32, 2))
        partial = cutlass.memory.SmemAllocator().allocate_tensor(Float32, warps)

        shape = fragment_shape(self.columns, self.threads, self.vector)
        values = cute.make_rmem_tensor(shape, x.element_type)
        values.fill(-x.element_type.inf)
        load_row(x[row, None], values, thread, self.threads)
        loaded = values.load().to(Float32)

        top = loaded.reduce(cute.ReductionOp.MAX, -Float32.inf, reduction_profile=0)
        top = block_reduce(top, cute.arch.fmax, -Float32.inf, partial[None, 0])
        powers = cute.math.exp2((loaded - top) * LOG2_E, fastmath=True)
        total = powers.reduce(cute.ReductionOp.ADD, 0.0, reduction_profile=0)
        total = block_reduce(total, operator.add, Float32(0.0), partial[None, 1])

        values.store((powers / total).to(out.element_type))
        store_row(values, out[row, None], thread, self.threads)


def trace(kernel: Any) -> tuple[Softmax, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows = cute.sym_int()
    x, out = (matrix(kernel.dtype, rows, kernel.columns, kernel.vector) for _ in range(2))
    return Softmax(kernel), (x, out, current_stream())
