"""Root-mean-square normalisation whose result is quantised to float8_e4m3fn and never stored."""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint8, const_expr
from cutlass.cute.runtime import make_fake_tensor

from .arguments import current_stream, matrix, shared_rows
from .fp8 import quantize, scale_of
from .norm import Norm
from .reduce import reduce_fragment

_maximum = partial(cute.arch.fmax, nan=True)


class NormFp8(Norm):
    """Rows that are held whole; blocks of columns that share a scale lie within a warp."""

    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel)
        self.block = kernel.block

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        residual: cute.Tensor | None,
        weight: cute.Tensor | None,
        bias: cute.Tensor | None,
        out: cute.Tensor,
        scales: cute.Tensor,
        total: cute.Tensor | None,
        eps: Float32,
        offset: Float32,
        stream: Any,
    ) -> None:
        self.kernel(x, residual, weight, bias, out, scales, total, eps, offset).launch(
            **self.shape(x.shape[0], stream)
        )

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        residual: cute.Tensor | None,
        weight: cute.Tensor | None,
        bias: cute.Tensor | None,
        out: cute.Tensor,
        scales: cute.Tensor,
        total: cute.Tensor | None,
        eps: Float32,
        offset: Float32,
    ) -> None:
        thread, row, exists = self.place(x.shape[0])
        self.exchange.arrive()
        lane = self.rows.lane(thread)
        values = self.load(x, residual, None, row, exists, lane, Int32(0), Float32(1.0))
        if const_expr(self.early):
            weights = self.shared(weight, x, row, lane)
            biases = self.shared(bias, x, row, lane)
        if const_expr(total is not None):
            self.put(values, total, row, exists, lane)
        count, centre, squares = self.moments(values, x[row, None], lane)
        if const_expr(self.exchange.needed):
            centre, squares = self.combine(count, centre, squares)
        factor = cute.math.rsqrt(squares / self.tiling.columns + eps)
        if const_expr(not self.early):
            weights = self.shared(weight, x, row, lane)
            biases = self.shared(bias, x, row, lane)
        normed = self.rows.fragment(Float32, 0)
        normed.store(self.finish(values, weights, biases, centre, factor, offset))

        result = self.rows.fragment(Uint8, 0)
        if const_expr(self.block == 0):
            amax = Float32(0.0)
            for i in cutlass.range_constexpr(cute.size(normed)):
                amax = _maximum(amax, abs(normed[i]))
            width = min(self.tiling.row_threads, 32)
            amax = cute.arch.warp_reduction(amax, _maximum, threads_in_group=width)
            if const_expr(self.exchange.needed):
                (found,) = self.exchange.share((amax,), (0.0,), again=True)
                amax = reduce_fragment(found, _maximum)
            scale = scale_of(amax)
            if exists and self.first(thread):
                scales[row, 0] = scale
            quantize(normed, scale, result)
        else:
            width = self.block // self.tiling.vector
            for i in cutlass.range_constexpr(self.rows.count):
                amax = Float32(0.0)
                for v in cutlass.range_constexpr(self.tiling.vector):
                    amax = _maximum(amax, abs(normed[v, i]))
                amax = cute.arch.warp_reduction(amax, _maximum, threads_in_group=width)
                scale = scale_of(amax)
                column = self.rows.column(x[row, None], lane, i)
                if exists and column % self.block == 0 and column < self.tiling.columns:
                    scales[row, column // self.block] = scale
                quantize(normed[None, i], scale, result[None, i])
        if exists:
            self.rows.store(result, out[row, None], lane)


def trace(kernel: Any) -> tuple[NormFp8, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows, tiling = cute.sym_int(), kernel.tiling

    def rows_of(dtype: str) -> cute.Tensor | None:
        return None if dtype == "none" else matrix(dtype, rows, tiling)

    def made(element: Any, columns: int, vector: int) -> cute.Tensor:
        return make_fake_tensor(
            element,
            (rows, columns),
            (cute.sym_int64(divisibility=vector), 1),
            assumed_align=vector * element.width // 8,
        )

    heads = cute.sym_int() if kernel.heads else 1
    blocks = -(-tiling.columns // (kernel.block or tiling.columns))
    arguments = (
        rows_of(kernel.dtype),
        rows_of(kernel.residual),
        shared_rows(kernel.weight, heads, tiling, kernel.weight_vector),
        shared_rows(kernel.bias, heads, tiling, kernel.bias_vector),
        made(Uint8, tiling.columns, tiling.vector),
        made(Float32, blocks, 1),
        rows_of(kernel.total),
        Float32(0.0),
        Float32(0.0),
    )
    return NormFp8(kernel), (*arguments, current_stream())
