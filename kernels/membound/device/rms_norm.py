"""Root-mean-square normalisation over the rows of a matrix: one CTA a row, two passes over it."""

from __future__ import annotations

import operator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, const_expr

from .arguments import current_stream, matrix, vector
from .reduce import block_reduce


class RmsNorm:
    def __init__(self, threads: int, shared_bytes: int) -> None:
        self.threads = threads
        self.shared_bytes = shared_bytes

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        weight: cute.Tensor | None,
        out: cute.Tensor,
        eps: Float32,
        stream: Any,
    ) -> None:
        self.kernel(x, weight, out, eps).launch(
            grid=[x.shape[0], 1, 1],
            block=[self.threads, 1, 1],
            smem=self.shared_bytes,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self, x: cute.Tensor, weight: cute.Tensor | None, out: cute.Tensor, eps: Float32
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        columns = x.shape[1]
        warps = cute.make_layout(self.threads // 32)
        partial = cutlass.memory.SmemAllocator().allocate_tensor(Float32, warps)

        total = Float32(0.0)
        for column in cutlass.range(thread, columns, self.threads):
            value = x[row, column].to(Float32)
            total += value * value
        total = block_reduce(total, operator.add, Float32(0.0), partial)
        scale = cute.math.rsqrt(total / columns + eps)

        for column in cutlass.range(thread, columns, self.threads):
            value = x[row, column].to(Float32) * scale
            if const_expr(weight is not None):
                value *= weight[column].to(Float32)
            out[row, column] = value.to(out.element_type)


def trace(kernel: Any) -> tuple[RmsNorm, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows, columns = cute.sym_int(), cute.sym_int()
    x, out = (matrix(kernel.dtype, rows, columns) for _ in range(2))
    weight = None if kernel.weight == "none" else vector(kernel.weight, columns)
    arguments = (x, weight, out, Float32(0.0), current_stream())
    return RmsNorm(kernel.threads, kernel.shared_bytes), arguments
