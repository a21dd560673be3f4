"""Gradient of logsumexp over the rows of a matrix: the row's gradient times its softmax."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from .arguments import broadcast, current_stream, matrix, scalars
from .row_kernel import RowKernel
from .scores import Scores, exponential


class LogsumexpBackward(RowKernel):
    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel)
        self.scores = Scores(kernel, self.rows)

    @cute.jit
    def __call__(
        self,
        grad: cute.Tensor,
        x: cute.Tensor,
        result: cute.Tensor,
        mask: cute.Tensor | None,
        out: cute.Tensor,
        scale: Float32,
        factor: Float32,
        queries: Int32,
        stream: Any,
    ) -> None:
        launch = self.shape(x.shape[0], stream)
        self.kernel(grad, x, result, mask, out, scale, factor, queries).launch(**launch)

    @cute.kernel
    def kernel(
        self,
        grad: cute.Tensor,
        x: cute.Tensor,
        result: cute.Tensor,
        mask: cute.Tensor | None,
        out: cute.Tensor,
        scale: Float32,
        factor: Float32,
        queries: Int32,
    ) -> None:
        thread, row, exists = self.place(x.shape[0])
        lse = Float32(0.0)
        if exists:
            factor *= grad[row].to(Float32)
            lse = result[row]
        values = self.rows.fragment(out.element_type, 0)
        for chunk in cutlass.range_constexpr(self.tiling.chunks):
            lane = self.rows.lane(thread, chunk)
            scores = self.scores.load(x, mask, row, exists, lane, scale, queries)
            values.store((exponential(scores - lse) * factor).to(out.element_type))
            if exists:
                # rows of which nothing is shown have the sum 0, and their gradient is 0
                self.scores.hide(values, mask, x, row, lane, queries, 0)
                self.rows.store(values, out[row, None], lane)


def trace(kernel: Any) -> tuple[LogsumexpBackward, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows = cute.sym_int()
    x = matrix(kernel.dtype, rows, kernel.tiling)
    out = matrix(kernel.out, rows, kernel.tiling)
    grad = scalars(kernel.dtype, rows)
    masked = kernel.mask != "none"
    mask = broadcast(kernel.mask, kernel.tiling, kernel.mask_vector) if masked else None
    arguments = (grad, x, scalars("float32", rows), mask, out, Float32(1.0), Float32(1.0), Int32(1))
    return LogsumexpBackward(kernel), (*arguments, current_stream())
