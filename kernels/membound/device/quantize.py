"""Quantisation of rows, or of blocks of 128 columns of them, to float8_e4m3fn with a scale each."""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint8, const_expr
from cutlass.cute.runtime import make_fake_tensor

from .arguments import DTYPES, current_stream, scalars
from .fp8 import quantize, scale_of
from .reduce import reduce_fragment
from .row_kernel import RowKernel
from .rows import Rows
from .scores import exponential

_maximum = partial(cute.arch.fmax, nan=True)


def silu(x: Float32) -> Float32:
    """x * sigmoid(x)."""
    return x * cute.arch.rcp_approx(1.0 + exponential(-x))


class Part(Rows):
    """The first ``columns``, known at run time, of rows tiled for more."""

    def __init__(self, tiling: Any, columns: Int32) -> None:
        super().__init__(tiling)
        self.columns = columns

    def _all_full(self, i: int) -> bool:
        return False


class Quantize(RowKernel):
    """``up`` is None, or what is quantised is silu(x) * up."""

    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel)
        self.block = kernel.block
        self.whole = kernel.whole
        self.in_phase = kernel.in_phase

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        up: cute.Tensor | None,
        out: cute.Tensor,
        scales: cute.Tensor,
        stream: Any,
    ) -> None:
        self.kernel(x, up, out, scales).launch(**self.shape(scales.shape[0], stream))

    @cute.kernel
    def kernel(
        self, x: cute.Tensor, up: cute.Tensor | None, out: cute.Tensor, scales: cute.Tensor
    ) -> None:
        thread, index, exists = self.place(scales.shape[0])
        self.exchange.arrive()
        if const_expr(not self.whole):
            block = index % cute.ceil_div(x.shape[1], self.block)
            columns = cutlass.min(x.shape[1] - block * self.block, self.block)
            self.rows = Part(self.tiling, columns)

        amax = Float32(0.0)
        for chunk in cutlass.range_constexpr(self.tiling.chunks):
            lane = self.rows.lane(thread, chunk)
            values = self.load(x, up, index, exists, lane)
            for i in cutlass.range_constexpr(cute.size(values)):
                amax = _maximum(amax, abs(values[i]))
        width = min(self.tiling.row_threads, 32)
        amax = cute.arch.warp_reduction(amax, _maximum, threads_in_group=width)
        if const_expr(self.exchange.needed):
            (found,) = self.exchange.share((amax,), (0.0,))
            amax = reduce_fragment(found, _maximum)
        scale = scale_of(amax)
        if exists and self.first(thread):
            scales[index] = scale

        result = self.rows.fragment(Uint8, 0)
        for chunk in cutlass.range_constexpr(self.tiling.chunks):
            lane = self.rows.lane(thread, chunk)
            if const_expr(self.tiling.chunks > 1):
                values = self.load(x, up, index, exists, lane)
            quantize(values, scale, result)
            if exists:
                self.store(result, x, out, index, lane)

    @cute.jit
    def load(
        self,
        x: cute.Tensor,
        up: cute.Tensor | None,
        index: Int32,
        exists: Any,
        lane: Int32,
    ) -> cute.Tensor:
        """A thread's part of what is quantised, 0 where there is no column."""
        loaded = self.rows.fragment(x.element_type, 0)
        if exists:
            self.rows.load(self.part(x, index), loaded, lane, 0)
        values = self.rows.fragment(Float32, 0)
        values.store(loaded.load().to(Float32))
        if const_expr(up is not None):
            others = self.rows.fragment(up.element_type, 0)
            if exists:
                self.rows.load(self.part(up, index), others, lane, 0)
            for i in cutlass.range_constexpr(cute.size(values)):
                values[i] = silu(values[i]) * others[i].to(Float32)
        return values

    @cute.jit
    def store(
        self,
        result: cute.Tensor,
        x: cute.Tensor,
        out: cute.Tensor,
        index: Int32,
        lane: Int32,
    ) -> None:
        target = self.part(out, index)
        if const_expr(self.in_phase):
            self.rows.store(result, target, lane)
        else:
            for i in cutlass.range_constexpr(self.rows.count):
                first = self.rows.column(self.part(x, index), lane, i)
                for v in cutlass.range_constexpr(self.rows.vector):
                    if first + v >= 0 and first + v < self.rows.columns:
                        target[first + v] = result[v, i]

    @cute.jit
    def part(self, matrix: cute.Tensor, index: Int32) -> cute.Tensor:
        """The row or the block of a row with this number."""
        if const_expr(self.block == 0):
            part = matrix[index, None]
        else:
            blocks = cute.ceil_div(matrix.shape[1], self.block)
            row = matrix[index // blocks, None]
            part = cute.local_tile(row, (self.block,), (index % blocks,))
        return part


def trace(kernel: Any) -> tuple[Quantize, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    tiling, rows = kernel.tiling, cute.sym_int()
    columns = cute.sym_int() if kernel.block else tiling.columns
    vector = 1 if tiling.shifted else tiling.vector

    def matrix(element: Any) -> cute.Tensor:
        return make_fake_tensor(
            element,
            (rows, columns),
            (cute.sym_int64(divisibility=vector), 1),
            assumed_align=min(16, vector * element.width // 8),
        )

    x = matrix(DTYPES[kernel.dtype])
    up = matrix(DTYPES[kernel.dtype]) if kernel.form == "swiglu" else None
    scales = scalars("float32", cute.sym_int() if kernel.block else rows)
    return Quantize(kernel), (x, up, matrix(Uint8), scales, current_stream())
