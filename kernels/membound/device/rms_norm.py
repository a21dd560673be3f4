"""Root-mean-square normalisation of a matrix's rows: one CTA a row, kept in registers."""

from __future__ import annotations

import operator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, const_expr

from .arguments import current_stream, matrix, vector
from .reduce import row_reduce
from .rows import fragment_shape, load_row, store_row


class RmsNorm:
    def __init__(self, kernel: Any) -> None:
        self.columns = kernel.columns
        self.vector = kernel.vector
        self.threads = kernel.threads
        self.shared_bytes = kernel.shared_bytes

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
        slots = cute.make_layout((1, self.threads // 32))
        totals = cutlass.memory.SmemAllocator().allocate_tensor(Float32, slots)

        shape = fragment_shape(self.columns, self.threads, self.vector)
        values = cute.make_rmem_tensor(shape, x.element_type)
        values.fill(0)
        load_row(x[row, None], values, thread, self.threads)
        loaded = values.load().to(Float32)

        total = (loaded * loaded).reduce(cute.ReductionOp.ADD, 0.0, reduction_profile=0)
        total = row_reduce(total, operator.add, Float32(0.0), self.threads, totals)
        normed = loaded * cute.math.rsqrt(total / self.columns + eps)

        if const_expr(weight is not None):
            weights = cute.make_rmem_tensor(shape, weight.element_type)
            weights.fill(0)
            load_row(weight, weights, thread, self.threads)
            normed *= weights.load().to(Float32)
        values.store(normed.to(out.element_type))
        store_row(values, out[row, None], thread, self.threads)


def trace(kernel: Any) -> tuple[RmsNorm, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows = cute.sym_int()
    x, out = (matrix(kernel.dtype, rows, kernel.columns, kernel.vector) for _ in range(2))
    weight = None
    if kernel.weight != "none":
        weight = vector(kernel.weight, kernel.columns, kernel.vector)
    return RmsNorm(kernel), (x, weight, out, Float32(0.0), current_stream())
