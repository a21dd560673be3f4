"""Gradients of a norm's weight and bias: sums over rows, taken for parts of the rows apart."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

from .arguments import current_stream, matrix, partial_sums, scalars


class NormColumns:
    """Threads take neighbouring vectors of columns, and one part of the rows or another."""

    def __init__(self, kernel: Any) -> None:
        self.tiling = kernel.tiling
        owned = kernel.tiling.column_threads * kernel.tiling.vector
        self.blocks = -(-kernel.tiling.columns // owned)
        self.centred = kernel.form == "layer_norm"

    @cute.jit
    def __call__(
        self,
        normed: cute.Tensor,
        grad: cute.Tensor,
        mean: cute.Tensor | None,
        rstd: cute.Tensor,
        of_weight: cute.Tensor | None,
        of_bias: cute.Tensor | None,
        stream: Any,
    ) -> None:
        sums = of_bias if const_expr(of_weight is None) else of_weight
        tiling = self.tiling
        self.kernel(normed, grad, mean, rstd, of_weight, of_bias).launch(
            grid=[
                self.blocks * sums.shape[1],
                cute.ceil_div(sums.shape[0], tiling.row_threads),
                1,
            ],
            block=[tiling.threads, 1, 1],
            smem=0,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        normed: cute.Tensor,
        grad: cute.Tensor,
        mean: cute.Tensor | None,
        rstd: cute.Tensor,
        of_weight: cute.Tensor | None,
        of_bias: cute.Tensor | None,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, group, _ = cute.arch.block_idx()
        head = block // self.blocks
        sums = of_bias if const_expr(of_weight is None) else of_weight
        parts, heads = sums.shape[0], sums.shape[1]
        index = (
            block % self.blocks * self.tiling.column_threads + thread % self.tiling.column_threads
        )
        part = group * self.tiling.row_threads + thread // self.tiling.column_threads
        vector = self.tiling.vector
        if index * vector < self.tiling.columns and part < parts:
            weights = cute.make_rmem_tensor((vector,), Float32)
            weights.fill(0.0)
            biases = cute.make_rmem_tensor((vector,), Float32)
            biases.fill(0.0)
            # rows of a head follow each other at a distance of as many rows as there are heads
            for i in cutlass.range(part, normed.shape[0] // heads, parts, unroll=4):
                row = i * heads + head
                grads = self.load(grad, row, index)
                if const_expr(of_weight is not None):
                    values = self.load(normed, row, index)
                    if const_expr(self.centred):
                        values = values - mean[row]
                    weights.store(weights.load() + grads * (values * rstd[row]))
                if const_expr(of_bias is not None):
                    biases.store(biases.load() + grads)
            self.store(weights, of_weight, part, head, index)
            self.store(biases, of_bias, part, head, index)

    @cute.jit
    def load(self, rows: cute.Tensor, row: Int32, index: Int32) -> cute.TensorSSA:
        vector = cute.make_rmem_tensor((self.tiling.vector,), rows.element_type)
        source = cute.local_tile(rows[row, None], (self.tiling.vector,), (index,))
        cute.autovec_copy(source, vector)
        return vector.load().to(Float32)

    @cute.jit
    def store(
        self, sums: cute.Tensor, to: cute.Tensor | None, part: Int32, head: Int32, index: Int32
    ) -> None:
        if const_expr(to is not None):
            target = cute.local_tile(to[part, head, None], (self.tiling.vector,), (index,))
            cute.autovec_copy(sums, target)


def trace(kernel: Any) -> tuple[NormColumns, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows, parts, heads = (cute.sym_int() for _ in range(3))

    def sums(wanted: bool) -> cute.Tensor | None:
        return partial_sums(parts, heads, kernel.tiling) if wanted else None

    arguments = (
        matrix(kernel.normed, rows, kernel.tiling),
        matrix(kernel.grad, rows, kernel.tiling),
        scalars("float32", rows) if kernel.form == "layer_norm" else None,
        scalars("float32", rows),
        sums(kernel.weight),
        sums(kernel.bias),
    )
    return NormColumns(kernel), (*arguments, current_stream())
