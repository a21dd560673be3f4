"""Root-mean-square normalisation of a matrix's rows, each read once and kept in registers."""

from __future__ import annotations

import operator
from typing import Any

import cutlass.cute as cute
from cutlass import Float32, const_expr

from .arguments import DTYPES, current_stream, matrix, vector
from .reduce import RowExchange, reduce_fragment
from .rows import Rows


class RmsNorm:
    def __init__(self, kernel: Any) -> None:
        self.tiling = kernel.tiling
        self.rows = Rows(kernel.tiling)
        self.exchange = RowExchange(kernel.tiling)
        self.shared_bytes = kernel.shared_bytes
        elements = self.rows.vector * self.rows.count
        # The weight is asked for before the reduction where the registers can hold both.
        self.early = elements <= 16
        # Where 16 registers do, there is room for all 2,048 threads that a multiprocessor can run,
        # but the compiler must be asked not to take more. Checking 16 columns takes too many.
        sizes = [DTYPES[dtype].width // 8 for dtype in kernel.dtypes]
        unchecked = kernel.tiling.columns == elements * kernel.tiling.row_threads
        room = self.early and elements * sum(sizes) <= 64 and (elements <= 8 or unchecked)
        self.min_ctas = 2048 // kernel.tiling.threads if room and kernel.tiling.rows == 1 else 0

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        weight: cute.Tensor | None,
        out: cute.Tensor,
        eps: Float32,
        stream: Any,
    ) -> None:
        self.kernel(x, weight, out, eps).launch(
            grid=[cute.ceil_div(x.shape[0], self.tiling.rows), self.tiling.cluster, 1],
            block=[self.tiling.threads, 1, 1],
            cluster=[1, self.tiling.cluster, 1] if self.tiling.cluster > 1 else None,
            smem=self.shared_bytes,
            min_blocks_per_mp=self.min_ctas,
            # has no effect in an exported kernel; left open, the DSL would ask a GPU for it
            preferred_smem_carveout=0,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self, x: cute.Tensor, weight: cute.Tensor | None, out: cute.Tensor, eps: Float32
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row = block * self.tiling.rows + thread // self.tiling.row_threads
        # the last CTA may have rows to spare, unless a CTA has but one
        exists = const_expr(self.tiling.rows == 1) or row < x.shape[0]
        lane = self.rows.lane(thread)
        self.exchange.arrive()

        values = self.rows.fragment(x.element_type, 0)
        if exists:
            self.rows.load(x[row, None], values, lane, 0)
        if const_expr(weight is not None and self.early):
            weights = self.rows.load_shared(weight, x[row, None], lane)
        loaded = values.load().to(Float32)

        total = (loaded * loaded).reduce(cute.ReductionOp.ADD, 0.0, reduction_profile=0)
        width = min(self.tiling.row_threads, 32)
        total = cute.arch.warp_reduction(total, operator.add, threads_in_group=width)
        if const_expr(self.exchange.needed):
            (totals,) = self.exchange.share((total,), (0.0,))
            total = reduce_fragment(totals, operator.add)
        normed = loaded * cute.math.rsqrt(total / self.tiling.columns + eps)

        if const_expr(weight is not None):
            if const_expr(not self.early):
                weights = self.rows.load_shared(weight, x[row, None], lane)
            normed *= weights.load().to(Float32)
        values.store(normed.to(out.element_type))
        if exists:
            self.rows.store(values, out[row, None], lane)


def trace(kernel: Any) -> tuple[RmsNorm, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows = cute.sym_int()
    x, out = (matrix(kernel.dtype, rows, kernel.tiling) for _ in range(2))
    weight = None if kernel.weight == "none" else vector(kernel.weight, kernel.tiling)
    return RmsNorm(kernel), (x, weight, out, Float32(0.0), current_stream())
