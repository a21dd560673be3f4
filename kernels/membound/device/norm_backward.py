"""Gradient of rms_norm and layer_norm for the rows of the input and of the residual."""

from __future__ import annotations

import operator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

from .arguments import current_stream, matrix, scalars, seed, shared_rows
from .dropout import Dropout
from .reduce import reduce_fragment
from .row_kernel import RowKernel


class NormBackward(RowKernel):
    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel)
        self.centred = kernel.form == "layer_norm"
        self.heads = kernel.heads
        self.offset = kernel.offset
        self.dropout = Dropout(self.rows) if kernel.dropout else None
        # The sum's gradient is asked for before the reduction where the registers can hold it.
        elements = self.rows.vector * self.rows.count
        self.early = elements <= 16 and kernel.tiling.chunks == 1

    @cute.jit
    def __call__(
        self,
        normed: cute.Tensor,
        grad: cute.Tensor,
        of_total: cute.Tensor | None,
        weight: cute.Tensor | None,
        mean: cute.Tensor | None,
        rstd: cute.Tensor,
        seed: cute.Tensor | None,
        d_input: cute.Tensor | None,
        d_residual: cute.Tensor | None,
        offset: Float32,
        threshold: Int32,
        scale: Float32,
        stream: Any,
    ) -> None:
        self.kernel(
            normed,
            grad,
            of_total,
            weight,
            mean,
            rstd,
            seed,
            d_input,
            d_residual,
            offset,
            threshold,
            scale,
        ).launch(**self.shape(normed.shape[0], stream))

    @cute.kernel
    def kernel(
        self,
        normed: cute.Tensor,
        grad: cute.Tensor,
        of_total: cute.Tensor | None,
        weight: cute.Tensor | None,
        mean: cute.Tensor | None,
        rstd: cute.Tensor,
        seed: cute.Tensor | None,
        d_input: cute.Tensor | None,
        d_residual: cute.Tensor | None,
        offset: Float32,
        threshold: Int32,
        scale: Float32,
    ) -> None:
        thread, row, exists = self.place(normed.shape[0])
        self.exchange.arrive()

        factor, centre = Float32(0.0), Float32(0.0)
        if exists:
            factor = rstd[row]
            if const_expr(mean is not None):
                centre = mean[row]
        # With y = (x - mean) * rstd and g the gradient of y, that of x is
        # rstd * (g - mean(g) - y * mean(g * y)), without mean(g) for rms_norm.
        along, level = Float32(0.0), Float32(0.0)
        if const_expr(self.tiling.chunks == 1):
            lane = self.rows.lane(thread)
            values, grads = self.load(
                normed, grad, weight, row, exists, lane, centre, factor, offset
            )
            if const_expr(self.early):
                further = self.further(of_total, row, exists, lane)
            along, level = self.sums(values, grads)
        else:
            for chunk in cutlass.range(self.tiling.chunks, unroll=1):
                lane = self.rows.lane(thread, chunk)
                part, its_grads = self.load(
                    normed, grad, weight, row, exists, lane, centre, factor, offset
                )
                its_along, its_level = self.sums(part, its_grads)
                along += its_along
                level += its_level
        along, level = self.combine(along, level)

        if const_expr(self.tiling.chunks == 1):
            if const_expr(not self.early):
                further = self.further(of_total, row, exists, lane)
            result = self.finish(values, grads, further, along, level, factor)
            self.put(result, seed, d_input, d_residual, row, exists, lane, threshold, scale)
        else:
            for chunk in cutlass.range(self.tiling.chunks, unroll=1):
                place = self.rows.lane(thread, chunk)
                again, grads_again = self.load(
                    normed, grad, weight, row, exists, place, centre, factor, offset
                )
                rest = self.further(of_total, row, exists, place)
                total = self.finish(again, grads_again, rest, along, level, factor)
                self.put(total, seed, d_input, d_residual, row, exists, place, threshold, scale)

    @cute.jit
    def load(
        self,
        normed: cute.Tensor,
        grad: cute.Tensor,
        weight: cute.Tensor | None,
        row: Int32,
        exists: Any,
        lane: Int32,
        centre: Float32,
        factor: Float32,
        offset: Float32,
    ) -> tuple:
        """A thread's part of a normalised row and of its gradient, 0 where there is no column."""
        values = self.rows.fragment(normed.element_type, 0)
        grads = self.rows.fragment(grad.element_type, 0)
        if exists:
            self.rows.load(normed[row, None], values, lane, 0)
            self.rows.load(grad[row, None], grads, lane, 0)
        of_values = grads.load().to(Float32)
        if const_expr(weight is not None):
            own = weight[row % weight.shape[0] if const_expr(self.heads) else 0, None]
            scaled_by = self.rows.load_shared(own, normed[row, None], lane).load().to(Float32)
            if const_expr(self.offset):
                scaled_by = scaled_by + offset
            of_values = of_values * scaled_by
        result = values.load().to(Float32)
        if const_expr(self.centred):
            result = result - centre
        return result * factor, of_values

    @cute.jit
    def further(
        self, of_total: cute.Tensor | None, row: Int32, exists: Any, lane: Int32
    ) -> cute.Tensor | None:
        """A thread's part of the gradient that the sum with the residual has of its own."""
        part = None
        if const_expr(of_total is not None):
            part = self.rows.fragment(of_total.element_type, 0)
            if exists:
                self.rows.load(of_total[row, None], part, lane, 0)
        return part

    @cute.jit
    def sums(self, values: cute.TensorSSA, grads: cute.TensorSSA) -> tuple:
        """A thread's sums of the products and, for layer norms, of the gradients."""
        along = (grads * values).reduce(cute.ReductionOp.ADD, 0.0, reduction_profile=0)
        level = Float32(0.0)
        if const_expr(self.centred):
            level = grads.reduce(cute.ReductionOp.ADD, 0.0, reduction_profile=0)
        return along, level

    @cute.jit
    def finish(
        self,
        values: cute.TensorSSA,
        grads: cute.TensorSSA,
        further: cute.Tensor | None,
        along: Float32,
        level: Float32,
        factor: Float32,
    ) -> cute.TensorSSA:
        """The gradient of what was normalised."""
        if const_expr(self.centred):
            grads = grads - level
        result = (grads - values * along) * factor
        if const_expr(further is not None):
            result = result + further.load().to(Float32)
        return result

    @cute.jit
    def put(
        self,
        result: cute.TensorSSA,
        seed: cute.Tensor | None,
        d_input: cute.Tensor | None,
        d_residual: cute.Tensor | None,
        row: Int32,
        exists: Any,
        lane: Int32,
        threshold: Int32,
        scale: Float32,
    ) -> None:
        """Store the gradient of the residual, and of the input behind the dropout."""
        if const_expr(d_residual is not None):
            self.put_row(result, d_residual, row, exists, lane)
        if const_expr(d_input is not None):
            if const_expr(self.dropout is not None):
                kept = self.rows.fragment(Float32, 0)
                kept.store(result)
                self.dropout.apply(kept, seed, d_input[row, None], row, lane, threshold, scale)
                result = kept.load()
            self.put_row(result, d_input, row, exists, lane)

    @cute.jit
    def put_row(
        self, values: cute.TensorSSA, to: cute.Tensor, row: Int32, exists: Any, lane: Int32
    ) -> None:
        rounded = self.rows.fragment(to.element_type, 0)
        rounded.store(values.to(to.element_type))
        if exists:
            self.rows.store(rounded, to[row, None], lane)

    @cute.jit
    def combine(self, along: Float32, level: Float32, again: bool = False) -> tuple:
        """The row's means of what its threads have summed."""
        width = min(self.tiling.row_threads, 32)
        along = cute.arch.warp_reduction(along, operator.add, threads_in_group=width)
        if const_expr(self.centred):
            level = cute.arch.warp_reduction(level, operator.add, threads_in_group=width)
        if const_expr(self.exchange.needed):
            if const_expr(self.centred):
                alongs, levels = self.exchange.share((along, level), (0.0, 0.0), again)
                level = reduce_fragment(levels, operator.add)
            else:
                (alongs,) = self.exchange.share((along,), (0.0,), again)
            along = reduce_fragment(alongs, operator.add)
        return along / self.tiling.columns, level / self.tiling.columns


def trace(kernel: Any) -> tuple[NormBackward, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows = cute.sym_int()

    def rows_of(dtype: str) -> cute.Tensor | None:
        return None if dtype == "none" else matrix(dtype, rows, kernel.tiling)

    heads = cute.sym_int() if kernel.heads else 1
    arguments = (
        rows_of(kernel.normed),
        rows_of(kernel.grad),
        rows_of(kernel.of_total),
        shared_rows(kernel.weight, heads, kernel.tiling, kernel.weight_vector),
        scalars("float32", rows) if kernel.form == "layer_norm" else None,
        scalars("float32", rows),
        seed() if kernel.dropout else None,
        rows_of(kernel.input),
        rows_of(kernel.residual),
        Float32(0.0),
        Int32(0),
        Float32(1.0),
    )
    return NormBackward(kernel), (*arguments, current_stream())
