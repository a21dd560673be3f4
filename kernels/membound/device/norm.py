"""Root-mean-square and layer normalisation of a matrix's rows, kept in registers.

A row is read once, or twice where it exceeds a cluster's registers.
"""

from __future__ import annotations

import operator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

from .arguments import DTYPES, current_stream, matrix, scalars, seed, shared_rows
from .dropout import Dropout
from .reduce import reduce_fragment
from .row_kernel import RowKernel


class Norm(RowKernel):
    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel)
        self.centred = kernel.form == "layer_norm"
        self.heads = kernel.heads
        self.offset = kernel.offset
        self.dropout = Dropout(self.rows) if kernel.dropout else None
        tiling = kernel.tiling
        self.elements = self.rows.vector * self.rows.count
        # The weight is asked for before the reduction where the registers can hold both.
        # Elements that are accessed alone take a register each.
        most = 16 if tiling.vector > 1 else 8
        self.early = self.elements <= most and tiling.chunks == 1
        # Where 16 registers do, there is room for all 2,048 threads that a multiprocessor can run,
        # but the compiler must be asked not to take more. Checking 16 columns takes too many.
        held = [DTYPES[name].width // 8 for name in (kernel.dtype, kernel.weight) if name != "none"]
        self.unchecked = tiling.columns == tiling.cluster * tiling.chunks * (
            self.elements * tiling.row_threads
        )
        room = self.early and self.elements * sum(held) <= 64 and tiling.cluster == 1
        plain = not self.centred and kernel.residual == "none" and kernel.bias == "none"
        plain = plain and kernel.out == kernel.dtype
        fits = room and plain and (self.elements <= 8 or self.unchecked)
        self.min_ctas = 2048 // tiling.threads if fits and tiling.rows == 1 else 0

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        residual: cute.Tensor | None,
        weight: cute.Tensor | None,
        bias: cute.Tensor | None,
        out: cute.Tensor,
        total: cute.Tensor | None,
        mean: cute.Tensor | None,
        rstd: cute.Tensor | None,
        seed: cute.Tensor | None,
        eps: Float32,
        offset: Float32,
        threshold: Int32,
        scale: Float32,
        stream: Any,
    ) -> None:
        self.kernel(
            x, residual, weight, bias, out, total, mean, rstd, seed, eps, offset, threshold, scale
        ).launch(
            **self.shape(x.shape[0], stream),
            min_blocks_per_mp=self.min_ctas,
            # has no effect in an exported kernel; left open, the DSL would ask a GPU for it
            preferred_smem_carveout=0,
        )

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        residual: cute.Tensor | None,
        weight: cute.Tensor | None,
        bias: cute.Tensor | None,
        out: cute.Tensor,
        total: cute.Tensor | None,
        mean: cute.Tensor | None,
        rstd: cute.Tensor | None,
        seed: cute.Tensor | None,
        eps: Float32,
        offset: Float32,
        threshold: Int32,
        scale: Float32,
    ) -> None:
        thread, row, exists = self.place(x.shape[0])
        self.exchange.arrive()

        if const_expr(self.tiling.chunks == 1):
            lane = self.rows.lane(thread)
            values = self.load(x, residual, seed, row, exists, lane, threshold, scale)
            if const_expr(self.early):
                weights = self.shared(weight, x, row, lane)
                biases = self.shared(bias, x, row, lane)
            if const_expr(total is not None):
                self.put(values, total, row, exists, lane)
            count, centre, squares = self.moments(values, x[row, None], lane)
        else:
            count, centre, squares = Float32(0.0), Float32(0.0), Float32(0.0)
            for chunk in cutlass.range(self.tiling.chunks, unroll=1):
                lane = self.rows.lane(thread, chunk)
                part = self.load(x, residual, seed, row, exists, lane, threshold, scale)
                if const_expr(total is not None):
                    self.put(part, total, row, exists, lane)
                more, its_centre, its_squares = self.moments(part, x[row, None], lane)
                squares += its_squares
                if const_expr(self.centred):
                    difference = its_centre - centre
                    both = cute.arch.fmax(count + more, Float32(1.0))
                    centre += difference * (more / both)
                    squares += difference * difference * (count * more / both)
                    count += more
        if const_expr(self.exchange.needed):
            centre, squares = self.combine(count, centre, squares)

        factor = cute.math.rsqrt(squares / self.tiling.columns + eps)
        if const_expr(self.tiling.chunks == 1):
            if const_expr(not self.early):
                weights = self.shared(weight, x, row, lane)
                biases = self.shared(bias, x, row, lane)
            result = self.finish(values, weights, biases, centre, factor, offset)
            self.put(result, out, row, exists, lane)
        else:
            for chunk in cutlass.range(self.tiling.chunks, unroll=1):
                place = self.rows.lane(thread, chunk)
                again = self.load(x, residual, seed, row, exists, place, threshold, scale)
                its_weights = self.shared(weight, x, row, place)
                its_biases = self.shared(bias, x, row, place)
                its_result = self.finish(again, its_weights, its_biases, centre, factor, offset)
                self.put(its_result, out, row, exists, place)
        if exists and self.first(thread):
            if const_expr(rstd is not None):
                rstd[row] = factor
            if const_expr(mean is not None):
                mean[row] = centre

    @cute.jit
    def finish(
        self,
        values: cute.TensorSSA,
        weights: cute.Tensor | None,
        biases: cute.Tensor | None,
        centre: Float32,
        factor: Float32,
        offset: Float32,
    ) -> cute.TensorSSA:
        """Results from the values of a row and its statistics."""
        if const_expr(self.centred):
            values = values - centre
        values = values * factor
        if const_expr(weights is not None):
            scaled_by = weights.load().to(Float32)
            if const_expr(self.offset):
                scaled_by = scaled_by + offset
            values = values * scaled_by
        if const_expr(biases is not None):
            values = values + biases.load().to(Float32)
        return values

    @cute.jit
    def load(
        self,
        x: cute.Tensor,
        residual: cute.Tensor | None,
        seed: cute.Tensor | None,
        row: Int32,
        exists: Any,
        lane: Int32,
        threshold: Int32,
        scale: Float32,
    ) -> cute.TensorSSA:
        """A thread's part of what is normalised, 0 where there is no column."""
        fragment = self.rows.fragment(x.element_type, 0)
        if exists:
            self.rows.load(x[row, None], fragment, lane, 0)
        if const_expr(residual is not None):
            others = self.rows.fragment(residual.element_type, 0)
            if exists:
                self.rows.load(residual[row, None], others, lane, 0)
        values = fragment.load().to(Float32)
        if const_expr(self.dropout is not None):
            kept = self.rows.fragment(Float32, 0)
            kept.store(values)
            self.dropout.apply(kept, seed, x[row, None], row, lane, threshold, scale)
            values = kept.load()
        if const_expr(residual is not None):
            values = values + others.load().to(Float32)
        return values

    @cute.jit
    def shared(
        self, vectors: cute.Tensor | None, x: cute.Tensor, row: Int32, lane: Int32
    ) -> cute.Tensor | None:
        """A thread's part of the weight or bias of a row, or None."""
        part = None
        if const_expr(vectors is not None):
            own = vectors[row % vectors.shape[0] if const_expr(self.heads) else 0, None]
            part = self.rows.load_shared(own, x[row, None], lane)
        return part

    @cute.jit
    def put(
        self, values: cute.TensorSSA, to: cute.Tensor, row: Int32, exists: Any, lane: Int32
    ) -> None:
        rounded = self.rows.fragment(to.element_type, 0)
        rounded.store(values.to(to.element_type))
        if exists:
            self.rows.store(rounded, to[row, None], lane)

    @cute.jit
    def moments(self, values: cute.TensorSSA, row: cute.Tensor, lane: Int32) -> tuple:
        """Of the columns that a row has in a warp: their number, mean and sum of squares.

        For layer norms the squares are of the differences from that mean.
        """
        width = min(self.tiling.row_threads, 32)
        count, centre = Float32(self.elements * width), Float32(0.0)
        if const_expr(self.centred):
            if const_expr(not self.unchecked):
                ones = self.rows.fragment(Float32, 1.0)
                self.rows.hide_rest(ones, row, lane, 0.0)
                count = self.sum(ones.load())
            centre = self.sum(values) / cute.arch.fmax(count, Float32(1.0))
            differences = self.rows.fragment(Float32, 0)
            differences.store(values - centre)
            self.rows.hide_rest(differences, row, lane, 0.0)
            values = differences.load()
        return count, centre, self.sum(values * values)

    @cute.jit
    def sum(self, values: cute.TensorSSA) -> Float32:
        """The sum over those threads of a warp that share a row."""
        total = values.reduce(cute.ReductionOp.ADD, 0.0, reduction_profile=0)
        width = min(self.tiling.row_threads, 32)
        return cute.arch.warp_reduction(total, operator.add, threads_in_group=width)

    @cute.jit
    def combine(self, count: Float32, centre: Float32, squares: Float32) -> tuple:
        """Mean and sum of squares of a row from its warps' (Chan, Golub and LeVeque, 1979)."""
        if const_expr(not self.centred):
            (all_squares,) = self.exchange.share((squares,), (0.0,))
        else:
            if const_expr(self.unchecked):
                centres, all_squares = self.exchange.share((centre, squares), (0.0, 0.0))
                counts = cute.make_rmem_tensor(centres.layout, Float32)
                counts.fill(self.tiling.columns / self.exchange.layout[1])
                self.hide_slots(counts)
            else:
                counts, centres, all_squares = self.exchange.share(
                    (count, centre, squares), (0.0, 0.0, 0.0)
                )
            sums = cute.make_rmem_tensor(centres.layout, Float32)
            for i in cutlass.range_constexpr(cute.size(centres)):
                sums[i] = counts[i] * centres[i]
            centre = reduce_fragment(sums, operator.add) / self.tiling.columns
            for i in cutlass.range_constexpr(cute.size(centres)):
                difference = centres[i] - centre
                all_squares[i] = all_squares[i] + counts[i] * difference * difference
        return centre, reduce_fragment(all_squares, operator.add)

    @cute.jit
    def hide_slots(self, counts: cute.Tensor) -> None:
        """Put 0 where a lane stands for no warp."""
        lane = cute.arch.lane_idx()
        for i in cutlass.range_constexpr(cute.size(counts)):
            if lane + 32 * i >= self.exchange.layout[1]:
                counts[i] = Float32(0.0)


def trace(kernel: Any) -> tuple[Norm, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows = cute.sym_int()

    def rows_of(dtype: str) -> cute.Tensor | None:
        return None if dtype == "none" else matrix(dtype, rows, kernel.tiling)

    heads = cute.sym_int() if kernel.heads else 1
    statistics = scalars("float32", rows) if kernel.statistics else None
    arguments = (
        rows_of(kernel.dtype),
        rows_of(kernel.residual),
        shared_rows(kernel.weight, heads, kernel.tiling, kernel.weight_vector),
        shared_rows(kernel.bias, heads, kernel.tiling, kernel.bias_vector),
        rows_of(kernel.out),
        rows_of(kernel.total),
        statistics if kernel.form == "layer_norm" else None,
        scalars("float32", rows) if kernel.statistics else None,
        seed() if kernel.dropout else None,
        Float32(0.0),
        Float32(0.0),
        Int32(0),
        Float32(1.0),
    )
    return Norm(kernel), (*arguments, current_stream())
