"""Cross-entropy of the rows of a matrix of logits with one target class each.

A row is read once, or, where it exceeds a cluster, once in chunks.
"""

from __future__ import annotations

import operator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from .arguments import current_stream, matrix, scalars, shared_vector
from .logits import Logits, target_of
from .reduce import reduce_fragment
from .row_kernel import RowKernel
from .scores import exponential


class CrossEntropy(RowKernel):
    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel)
        self.logits = Logits(kernel, self.rows)
        self.smoothed = kernel.smoothed

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        target: cute.Tensor,
        weight: cute.Tensor | None,
        weight_sum: cute.Tensor | None,
        loss: cute.Tensor,
        lse: cute.Tensor,
        factor: cute.Tensor,
        correct: cute.Tensor,
        ignored: Int64,
        scale: Float32,
        cap: Float32,
        smoothing: Float32,
        z_loss: Float32,
        stream: Any,
    ) -> None:
        self.kernel(
            x,
            target,
            weight,
            weight_sum,
            loss,
            lse,
            factor,
            correct,
            ignored,
            scale,
            cap,
            smoothing,
            z_loss,
        ).launch(**self.shape(x.shape[0], stream))

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        target: cute.Tensor,
        weight: cute.Tensor | None,
        weight_sum: cute.Tensor | None,
        loss: cute.Tensor,
        lse: cute.Tensor,
        factor: cute.Tensor,
        correct: cute.Tensor,
        ignored: Int64,
        scale: Float32,
        cap: Float32,
        smoothing: Float32,
        z_loss: Float32,
    ) -> None:
        thread, row, exists = self.place(x.shape[0])
        self.exchange.arrive()
        columns = self.tiling.columns

        # Each warp works relative to its own maximum, as in softmax.
        width = min(self.tiling.row_threads, 32)
        top, origin, total, weighted = -Float32.inf, Float32(0.0), Float32(0.0), Float32(0.0)
        for chunk in cutlass.range_constexpr(self.tiling.chunks):
            lane = self.rows.lane(thread, chunk)
            logits = self.logits.load(x, row, exists, lane, scale, cap)
            highest = logits.reduce(cute.ReductionOp.MAX, -Float32.inf, reduction_profile=0)
            highest = cute.arch.warp_reduction(highest, cute.arch.fmax, threads_in_group=width)
            before = origin
            top = cute.arch.fmax(top, highest)
            origin = finite(top)
            powers = exponential(logits - origin)
            more = powers.reduce(cute.ReductionOp.ADD, 0.0, reduction_profile=0)
            if const_expr(chunk == 0):
                total = more
            else:
                total = total * exponential(before - origin) + more
            if const_expr(self.smoothed):
                weighted += self.weigh(x, weight, row, exists, lane, logits)
        total = cute.arch.warp_reduction(total, operator.add, threads_in_group=width)
        if const_expr(self.smoothed):
            weighted = cute.arch.warp_reduction(weighted, operator.add, threads_in_group=width)

        if const_expr(self.exchange.needed):
            if const_expr(self.smoothed):
                tops, totals, sums = self.exchange.share(
                    (top, total, weighted), (-Float32.inf, 0.0, 0.0)
                )
                weighted = reduce_fragment(sums, operator.add)
            else:
                tops, totals = self.exchange.share((top, total), (-Float32.inf, 0.0))
            top = reduce_fragment(tops, cute.arch.fmax)
            origin = finite(top)
            for i in cutlass.range_constexpr(cute.size(tops)):
                totals[i] = totals[i] * exponential(finite(tops[i]) - origin)
            total = reduce_fragment(totals, operator.add)

        if exists and self.first(thread):
            index, counts, share = target_of(target, weight, row, columns, ignored)
            own = Float32(0.0)
            if counts:
                own = self.logits.of(x[row, Int32(index)].to(Float32), scale, cap)
            log_total = cute.math.log(total)
            lse[row] = origin + log_total
            # differences first: a large maximum would take the digits of the logarithm
            result = share * ((origin - own) + log_total)
            if const_expr(self.smoothed):
                mass = Float32(columns)
                if const_expr(weight is not None):
                    mass = weight_sum[0]
                spread = (mass * origin - weighted) + mass * log_total
                result = (1.0 - smoothing) * result + smoothing / columns * spread
            result += z_loss * (origin + log_total) * (origin + log_total)
            if not counts:  # 0, or NaN for what is no class
                result = share
            loss[row] = result
            factor[row] = share
            hit = Float32(0.0)
            if counts and own >= top:
                hit = Float32(1.0)
            correct[row] = hit

    @cute.jit
    def weigh(
        self,
        x: cute.Tensor,
        weight: cute.Tensor | None,
        row: Int32,
        exists: Any,
        lane: Int32,
        logits: cute.TensorSSA,
    ) -> Float32:
        """The sum of a thread's logits, each with its class's weight."""
        shown = self.rows.fragment(Float32, 0.0)
        sum_ = Float32(0.0)
        if exists:
            shown.store(logits)
            self.rows.hide_rest(shown, x[row, None], lane, 0.0)
            if const_expr(weight is not None):
                weights = self.rows.load_shared(weight, x[row, None], lane)
                shown.store(shown.load() * weights.load().to(Float32))
            sum_ = shown.load().reduce(cute.ReductionOp.ADD, 0.0, reduction_profile=0)
        return sum_


@cute.jit
def finite(top: Float32) -> Float32:
    """What exponents are taken relative to: a part of a row may hold nothing but -inf."""
    return top if top > -Float32.inf else Float32(0.0)


def trace(kernel: Any) -> tuple[CrossEntropy, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows = cute.sym_int()
    x = matrix(kernel.dtype, rows, kernel.tiling)
    weight = weights(kernel)
    mass = scalars("float32", 1) if kernel.weight != "none" and kernel.smoothed else None
    results = (scalars("float32", rows) for _ in range(4))
    arguments = (x, scalars(kernel.target, rows), weight, mass, *results, Int64(0))
    numbers = (Float32(1.0), Float32(1.0), Float32(0.0), Float32(0.0))
    return CrossEntropy(kernel), (*arguments, *numbers, current_stream())


def weights(kernel: Any) -> cute.Tensor | None:
    """A stand-in for the classes' weights (columns,), or None."""
    return shared_vector(kernel.weight, kernel.tiling, kernel.weight_vector)
