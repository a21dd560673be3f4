"""Gradient of softmax and of log_softmax over the rows of a matrix, from the result's."""

from __future__ import annotations

import operator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

from .arguments import broadcast, current_stream, matrix
from .reduce import reduce_fragment
from .row_kernel import RowKernel
from .scores import Scores, exponential


class SoftmaxBackward(RowKernel):
    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel)
        self.form = kernel.form
        self.scores = Scores(kernel, self.rows)

    @cute.jit
    def __call__(
        self,
        grad: cute.Tensor,
        y: cute.Tensor,
        mask: cute.Tensor | None,
        out: cute.Tensor,
        scale: Float32,
        queries: Int32,
        stream: Any,
    ) -> None:
        self.kernel(grad, y, mask, out, scale, queries).launch(**self.shape(y.shape[0], stream))

    @cute.kernel
    def kernel(
        self,
        grad: cute.Tensor,
        y: cute.Tensor,
        mask: cute.Tensor | None,
        out: cute.Tensor,
        scale: Float32,
        queries: Int32,
    ) -> None:
        thread, row, exists = self.place(y.shape[0])
        self.exchange.arrive()

        total = Float32(0.0)
        for chunk in cutlass.range_constexpr(self.tiling.chunks):
            lane = self.rows.lane(thread, chunk)
            grads, results = self.load(grad, y, row, exists, lane)
            terms = grads * results if const_expr(self.form == "softmax") else grads
            total += terms.reduce(cute.ReductionOp.ADD, 0.0, reduction_profile=0)
        width = min(self.tiling.row_threads, 32)
        total = cute.arch.warp_reduction(total, operator.add, threads_in_group=width)
        if const_expr(self.exchange.needed):
            (totals,) = self.exchange.share((total,), (0.0,))
            total = reduce_fragment(totals, operator.add)

        values = self.rows.fragment(out.element_type, 0)
        for chunk in cutlass.range_constexpr(self.tiling.chunks):
            lane = self.rows.lane(thread, chunk)
            if const_expr(self.tiling.chunks > 1):
                grads, results = self.load(grad, y, row, exists, lane)
            if const_expr(self.form == "softmax"):
                result = results * (grads - total)
            else:
                result = grads - exponential(results) * total
            values.store((result * scale).to(out.element_type))
            if exists:
                # rows of which nothing is shown are NaN, and their gradient is 0
                self.scores.hide(values, mask, y, row, lane, queries, 0)
                self.rows.store(values, out[row, None], lane)

    @cute.jit
    def load(
        self, grad: cute.Tensor, y: cute.Tensor, row: Int32, exists: Any, lane: Int32
    ) -> tuple:
        """A thread's part of a row of both, 0 where there is no column."""
        grads = self.rows.fragment(grad.element_type, 0)
        results = self.rows.fragment(y.element_type, 0)
        if exists:
            self.rows.load(grad[row, None], grads, lane, 0)
            self.rows.load(y[row, None], results, lane, 0)
        return grads.load().to(Float32), results.load().to(Float32)


def trace(kernel: Any) -> tuple[SoftmaxBackward, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows = cute.sym_int()
    grad, y = (matrix(kernel.dtype, rows, kernel.tiling) for _ in range(2))
    out = matrix(kernel.out, rows, kernel.tiling)
    masked = kernel.mask != "none"
    mask = broadcast(kernel.mask, kernel.tiling, kernel.mask_vector) if masked else None
    scale, queries = Float32(1.0), Int32(1)
    return SoftmaxBackward(kernel), (grad, y, mask, out, scale, queries, current_stream())
