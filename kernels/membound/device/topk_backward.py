"""Gradient of the k chosen values of each row: a row of zeros but for them."""

from __future__ import annotations

import operator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

from .arguments import current_stream, matrix
from .rows import Rows
from .topk import picks


class TopKBackward:
    def __init__(self, kernel: Any) -> None:
        self.tiling = kernel.tiling
        self.rows = Rows(kernel.tiling)
        self.threads = kernel.tiling.threads
        self.k = kernel.k
        self.softmax = kernel.softmax

    @cute.jit
    def __call__(
        self,
        grad: cute.Tensor,
        values: cute.Tensor,
        indices: cute.Tensor,
        out: cute.Tensor,
        stream: Any,
    ) -> None:
        self.kernel(grad, values, indices, out).launch(
            grid=[out.shape[0], 1, 1],
            block=[self.threads, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self, grad: cute.Tensor, values: cute.Tensor, indices: cute.Tensor, out: cute.Tensor
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        zeros = self.rows.fragment(out.element_type, 0)
        for chunk in cutlass.range(self.tiling.chunks):
            self.rows.store(zeros, out[row, None], self.rows.lane(thread, chunk))
        cute.arch.barrier()  # zeros first
        if thread < 32:
            total = Float32(0.0)
            if const_expr(self.softmax):
                at = thread
                while at < self.k:
                    total += grad[row, at].to(Float32) * values[row, at].to(Float32)
                    at += 32
                total = cute.arch.warp_reduction(total, operator.add)
            at = thread
            while at < self.k:
                result = grad[row, at].to(Float32)
                if const_expr(self.softmax):
                    result = values[row, at].to(Float32) * (result - total)
                out[row, Int32(indices[row, at])] = result.to(out.element_type)
                at += 32


def trace(kernel: Any) -> tuple[TopKBackward, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows = cute.sym_int()
    grad, values = (picks(kernel.dtype, rows, kernel) for _ in range(2))
    indices, out = picks("int64", rows, kernel), matrix(kernel.dtype, rows, kernel.tiling)
    return TopKBackward(kernel), (grad, values, indices, out, current_stream())
