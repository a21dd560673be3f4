"""All gradients of rms_norm and layer_norm in one pass over the rows.

CTAs, or clusters, stay and take one row after another; each keeps its part of the weight, and its
part of the sums over rows that the weight's and the bias's gradients are.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

from .arguments import current_stream, matrix, partial_sums, scalars, seed, shared_rows
from .norm_backward import NormBackward


class NormGradients(NormBackward):
    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel)
        self.ahead = kernel.ahead
        # Where registers are short, the weight is read again for each row: it stays in caches.
        self.keeps = self.rows.vector * self.rows.count <= 8
        self.min_ctas = kernel.resident

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
        of_weight: cute.Tensor | None,
        of_bias: cute.Tensor | None,
        offset: Float32,
        threshold: Int32,
        scale: Float32,
        stream: Any,
    ) -> None:
        sums = of_bias if const_expr(of_weight is None) else of_weight
        launch = self.shape(normed.shape[0], stream)
        launch["grid"][0] = sums.shape[0] // self.tiling.rows * sums.shape[1]
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
            of_weight,
            of_bias,
            offset,
            threshold,
            scale,
        ).launch(
            **launch,
            min_blocks_per_mp=self.min_ctas,
            # has no effect in an exported kernel; left open, the DSL would ask a GPU for it
            preferred_smem_carveout=0,
        )

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
        of_weight: cute.Tensor | None,
        of_bias: cute.Tensor | None,
        offset: Float32,
        threshold: Int32,
        scale: Float32,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        sums = of_bias if const_expr(of_weight is None) else of_weight
        parts, heads = sums.shape[0], sums.shape[1]
        first, head = block // heads * self.tiling.rows, block % heads
        # rows of a head follow each other at a distance of as many rows as there are heads
        part = first + thread // self.tiling.row_threads
        count = normed.shape[0] // heads
        lane = self.rows.lane(thread)
        if const_expr(self.tiling.cluster > 1):  # no CTA may be written to before it runs
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()

        weights = None
        if const_expr(weight is not None):
            own = weight[head if const_expr(self.heads) else 0, None]
            weights = self.rows.fragment(weight.element_type, 0)
            if const_expr(self.keeps):
                self.rows.load(own, weights, lane, 0)
        weight_sums = self.rows.fragment(Float32, 0)
        bias_sums = self.rows.fragment(Float32, 0)

        # Rows are taken in turns into two sets of registers, and the values that their warps
        # exchange into two places in shared memory: one row is asked for while another is worked
        # on, and no warp writes what a slower one still reads.
        sources = (normed, grad, of_total)
        held = [
            tuple(
                None if const_expr(one is None) else self.rows.fragment(one.element_type, 0)
                for one in sources
            )
            for _ in range(2)
        ]
        statistics = [cute.make_rmem_tensor((2,), Float32) for _ in range(2)]
        if const_expr(self.ahead):
            self.ask(sources, mean, rstd, held[0], statistics[0], part, count, heads, head, lane)
        for begin in cutlass.range(first, count, 2 * parts, unroll=1):
            for turn in cutlass.range_constexpr(2):
                index = part + (begin - first) + turn * parts
                asked = 1 - turn if const_expr(self.ahead) else turn
                following = index + parts if const_expr(self.ahead) else index
                self.ask(
                    sources,
                    mean,
                    rstd,
                    held[asked],
                    statistics[asked],
                    following,
                    count,
                    heads,
                    head,
                    lane,
                )
                factor = statistics[turn][0]
                values, plain = held[turn][0].load().to(Float32), held[turn][1].load().to(Float32)
                if const_expr(self.centred):
                    values = values - statistics[turn][1]
                values = values * factor
                grads = plain
                if const_expr(weights is not None):
                    if const_expr(not self.keeps):
                        self.rows.load(own, weights, lane, 0)
                    scaled_by = weights.load().to(Float32)
                    if const_expr(self.offset):
                        scaled_by = scaled_by + offset
                    grads = plain * scaled_by
                along, level = self.sums(values, grads)
                along, level = self.combine(along, level, again=True)
                if const_expr(of_weight is not None):
                    weight_sums.store(weight_sums.load() + plain * values)
                if const_expr(of_bias is not None):
                    bias_sums.store(bias_sums.load() + plain)
                result = self.finish(values, grads, held[turn][2], along, level, factor)
                exists, row = index < count, index * heads + head
                self.put(result, seed, d_input, d_residual, row, exists, lane, threshold, scale)

        if const_expr(of_weight is not None):
            self.rows.store(weight_sums, of_weight[part, head, None], lane)
        if const_expr(of_bias is not None):
            self.rows.store(bias_sums, of_bias[part, head, None], lane)

    @cute.jit
    def ask(
        self,
        sources: tuple,
        mean: cute.Tensor | None,
        rstd: cute.Tensor,
        held: tuple,
        statistics: cute.Tensor,
        index: Int32,
        count: Int32,
        heads: Int32,
        head: Int32,
        lane: Int32,
    ) -> None:
        """Load a thread's parts of a head's row number ``index``, 0 where there is none."""
        row = index * heads + head
        statistics.fill(0.0)
        if index < count:
            statistics[0] = rstd[row]
            if const_expr(mean is not None):
                statistics[1] = mean[row]
        for source, part in zip(sources, held, strict=True):
            if const_expr(source is not None):
                part.fill(0)
                if index < count:
                    self.rows.load(source[row, None], part, lane, 0)


def trace(kernel: Any) -> tuple[NormGradients, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows, parts, heads = (cute.sym_int() for _ in range(3))

    def rows_of(dtype: str) -> cute.Tensor | None:
        return None if dtype == "none" else matrix(dtype, rows, kernel.tiling)

    def sums(wanted: bool) -> cute.Tensor | None:
        return partial_sums(parts, heads, kernel.tiling) if wanted else None

    arguments = (
        rows_of(kernel.normed),
        rows_of(kernel.grad),
        rows_of(kernel.of_total),
        shared_rows(
            kernel.weight, heads if kernel.heads else 1, kernel.tiling, kernel.weight_vector
        ),
        scalars("float32", rows) if kernel.form == "layer_norm" else None,
        scalars("float32", rows),
        seed() if kernel.dropout else None,
        rows_of(kernel.input),
        rows_of(kernel.residual),
        sums(kernel.of_weight),
        sums(kernel.of_bias),
        Float32(0.0),
        Int32(0),
        Float32(1.0),
    )
    return NormGradients(kernel), (*arguments, current_stream())
