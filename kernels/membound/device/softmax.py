"""Softmax over the rows of a matrix: one CTA a row, three passes over it."""

from __future__ import annotations

import math
import operator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32

from .arguments import current_stream, matrix
from .reduce import block_reduce

LOG2_E = math.log2(math.e)


class Softmax:
    def __init__(self, threads: int, shared_bytes: int) -> None:
        self.threads = threads
        self.shared_bytes = shared_bytes

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
        columns = x.shape[1]
        warps = cute.make_layout((self.threads // 32, 2))
        partial = cutlass.memory.SmemAllocator().allocate_tensor(Float32, warps)

        top = -Float32.inf
        for column in cutlass.range(thread, columns, self.threads):
            top = cute.arch.fmax(top, x[row, column].to(Float32))
        top = block_reduce(top, cute.arch.fmax, -Float32.inf, partial[None, 0])

        total = Float32(0.0)
        for column in cutlass.range(thread, columns, self.threads):
            shifted = x[row, column].to(Float32) - top
            total += cute.math.exp2(shifted * LOG2_E, fastmath=True)
        total = block_reduce(total, operator.add, Float32(0.0), partial[None, 1])

        for column in cutlass.range(thread, columns, self.threads):
            shifted = x[row, column].to(Float32) - top
            value = cute.math.exp2(shifted * LOG2_E, fastmath=True) / total
            out[row, column] = value.to(out.element_type)


def trace(kernel: Any) -> tuple[Softmax, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows, columns = cute.sym_int(), cute.sym_int()
    x, out = (matrix(kernel.dtype, rows, columns) for _ in range(2))
    return Softmax(kernel.threads, kernel.shared_bytes), (x, out, current_stream())
