"""Gradients of reductions of a matrix, over its columns or its rows, from those of the results."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, const_expr
from cutlass.cute.runtime import make_fake_tensor

from .arguments import DTYPES, current_stream, matrix
from .reductions import REDUCTIONS
from .row_kernel import RowKernel


class ReductionBackward(RowKernel):
    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel)
        self.reduction = REDUCTIONS[kernel.form]()
        self.leading = kernel.leading

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        grad: cute.Tensor,
        aside: cute.Tensor | None,
        out: cute.Tensor,
        scale: Float32,
        stream: Any,
    ) -> None:
        self.kernel(x, grad, aside, out, scale).launch(**self.shape(x.shape[0], stream))

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        grad: cute.Tensor,
        aside: cute.Tensor | None,
        out: cute.Tensor,
        scale: Float32,
    ) -> None:
        thread, row, exists = self.place(x.shape[0])
        kept = const_expr(0 if aside is None else aside.shape[0])
        if const_expr(not self.leading):
            last = cutlass.min(row, x.shape[0] - 1)
            besides = tuple([aside[k, last] for k in range(kept)])
            factor = self.reduction.factor(grad[last].to(Float32) * scale, besides)
        for chunk in cutlass.range_constexpr(self.tiling.chunks):
            lane = self.rows.lane(thread, chunk)
            values = self.rows.fragment(x.element_type, 0)
            if exists:
                self.rows.load(x[row, None], values, lane, 0)
            if const_expr(self.leading):
                grads = self.rows.load_shared(grad, x[row, None], lane)
                shared = [
                    self.rows.load_shared(aside[k, None], x[row, None], lane) for k in range(kept)
                ]
            result = self.rows.fragment(out.element_type, 0)
            for i in cutlass.range_constexpr(cute.size(values)):
                if const_expr(self.leading):
                    besides = tuple([one[i] for one in shared])
                    factor = self.reduction.factor(grads[i].to(Float32) * scale, besides)
                gradient = self.reduction.gradient(values[i].to(Float32), factor, besides)
                result[i] = gradient.to(out.element_type)
            if exists:
                self.rows.store(result, out[row, None], lane)


def trace(kernel: Any) -> tuple[ReductionBackward, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows, tiling = cute.sym_int(), kernel.tiling
    results = tiling.columns if kernel.leading else rows
    vector = kernel.vector

    def alignment(element: Any) -> int:
        return min(16, vector * element.width // 8)

    element = DTYPES[kernel.grad]
    grad = make_fake_tensor(element, (results,), (1,), assumed_align=alignment(element))
    aside = None
    if kernel.aside:
        aside = make_fake_tensor(
            Float32,
            (kernel.aside, results),
            (cute.sym_int64(divisibility=vector), 1),
            assumed_align=alignment(Float32),
        )
    x, out = (matrix(kernel.dtype, rows, tiling) for _ in range(2))
    return ReductionBackward(kernel), (x, grad, aside, out, Float32(1.0), current_stream())
