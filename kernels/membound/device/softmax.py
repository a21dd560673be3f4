"""Softmax, its logarithm, and the logarithm of its divisor, over the rows of a matrix.

A row is read once and kept in registers, or twice where it exceeds a cluster's.
"""

from __future__ import annotations

import operator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

from .arguments import broadcast, current_stream, matrix, scalars
from .reduce import reduce_fragment
from .row_kernel import RowKernel
from .scores import Scores, exponential


class Softmax(RowKernel):
    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel)
        self.form = kernel.form
        self.scores = Scores(kernel, self.rows)

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        mask: cute.Tensor | None,
        out: cute.Tensor,
        exact: cute.Tensor | None,
        scale: Float32,
        queries: Int32,
        stream: Any,
    ) -> None:
        self.kernel(x, mask, out, exact, scale, queries).launch(**self.shape(x.shape[0], stream))

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        mask: cute.Tensor | None,
        out: cute.Tensor,
        exact: cute.Tensor | None,
        scale: Float32,
        queries: Int32,
    ) -> None:
        thread, row, exists = self.place(x.shape[0])
        self.exchange.arrive()

        # Each warp works relative to its own maximum, so that the warps of a row meet only once:
        # softmax = exp(x - warp's top) * exp(warp's top - row's top) / row's total
        width = min(self.tiling.row_threads, 32)
        top, origin, total = -Float32.inf, Float32(0.0), Float32(0.0)
        for chunk in cutlass.range_constexpr(self.tiling.chunks):
            lane = self.rows.lane(thread, chunk)
            scores = self.scores.load(x, mask, row, exists, lane, scale, queries)
            highest = scores.reduce(cute.ReductionOp.MAX, -Float32.inf, reduction_profile=0)
            highest = cute.arch.warp_reduction(highest, cute.arch.fmax, threads_in_group=width)
            before = origin
            top = cute.arch.fmax(top, highest)
            origin = self.origin(top)
            powers = exponential(scores - origin)
            more = powers.reduce(cute.ReductionOp.ADD, 0.0, reduction_profile=0)
            more = cute.arch.warp_reduction(more, operator.add, threads_in_group=width)
            if const_expr(chunk == 0):
                total = more
            else:
                total = total * exponential(before - origin) + more

        row_origin = origin
        if const_expr(self.exchange.needed):
            tops, totals = self.exchange.share((top, total), (-Float32.inf, 0.0))
            top = reduce_fragment(tops, cute.arch.fmax)
            row_origin = self.origin(top)
            for i in cutlass.range_constexpr(cute.size(tops)):
                totals[i] = totals[i] * exponential(self.origin(tops[i]) - row_origin)
            total = reduce_fragment(totals, operator.add)

        if const_expr(self.form == "logsumexp"):
            if exists and self.first(thread):
                result = row_origin + cute.math.log(total)
                out[row] = result.to(out.element_type)
                exact[row] = result
        else:
            values = self.rows.fragment(out.element_type, 0)
            for chunk in cutlass.range_constexpr(self.tiling.chunks):
                lane = self.rows.lane(thread, chunk)
                if const_expr(self.tiling.chunks > 1):
                    scores = self.scores.load(x, mask, row, exists, lane, scale, queries)
                    powers, origin = exponential(scores - row_origin), row_origin
                if const_expr(self.form == "softmax"):
                    result = powers * (exponential(origin - row_origin) / total)
                else:
                    result = scores - row_origin - cute.math.log(total)
                values.store(result.to(out.element_type))
                if exists:
                    self.rows.store(values, out[row, None], lane)

    @cute.jit
    def origin(self, top: Float32) -> Float32:
        """What the exponents of values up to ``top`` are taken relative to.

        A part of a row may hold nothing but -inf beside finite values elsewhere. A row with +inf
        has that as its logsumexp; softmax is NaN for it.
        """
        finite = top > -Float32.inf
        if const_expr(self.form == "logsumexp"):
            finite = finite and top < Float32.inf
        return top if finite else Float32(0.0)


def trace(kernel: Any) -> tuple[Softmax, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows = cute.sym_int()
    x = matrix(kernel.dtype, rows, kernel.tiling)
    masked = kernel.mask != "none"
    mask = broadcast(kernel.mask, kernel.tiling, kernel.mask_vector) if masked else None
    if kernel.form == "logsumexp":
        out, exact = scalars(kernel.out, rows), scalars("float32", rows)
    else:
        out, exact = matrix(kernel.out, rows, kernel.tiling), None
    return Softmax(kernel), (x, mask, out, exact, Float32(1.0), Int32(1), current_stream())
