"""Sums of the rows of a matrix that go to one row of the result, in a fixed order.

The rows are given in the order of where they go, so that those of one result follow each other.
Results that many rows go to would keep their threads long: where ``length`` rows in a stretch all
go to one result, a kernel of its own has summed them up before.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr
from cutlass.cute.runtime import make_fake_tensor

from .arguments import current_stream, scalars
from .windows import Windows, address, window_matrix

#: Rows of which a thread asks for windows before it adds the first.
_AHEAD = 4


class _Sums:
    def __init__(self, kernel: Any) -> None:
        self.windows = Windows(kernel.tiling)
        self.split = kernel.split

    @cute.jit
    def add_rows(
        self,
        totals: cute.Tensor,
        grad: cute.Tensor,
        order: cute.Tensor | None,
        begin: Int32,
        end: Int32,
        hole: tuple,
        column: Int64,
    ) -> None:
        """Add a window of the rows from ``begin`` to ``end``, or of those in ``order`` there.

        Those from the first to the second number of ``hole`` are left out.
        """
        columns = Int64(grad.shape[1])
        out, back = hole
        count = end - begin - (back - out)
        for i in cutlass.range(cute.ceil_div(count, _AHEAD), unroll=1):
            loaded = []
            for u in cutlass.range_constexpr(_AHEAD):
                window = self.windows.fragment(grad.element_type)
                place = begin + i * _AHEAD + u
                if place >= out:
                    place += back - out
                if i * _AHEAD + u < count:
                    row = Int64(place)
                    if const_expr(order is not None):
                        row = Int64(order[place])
                    start = address(grad, row)
                    self.windows.load(grad.element_type, start, column, columns, window)
                loaded.append(window)
            for u in cutlass.range_constexpr(_AHEAD):
                if i * _AHEAD + u < count:
                    totals.store(totals.load() + loaded[u].load().to(Float32))


class Stretches(_Sums):
    """``sums[p]`` of the p-th ``length`` rows in ``order``, where ``index`` tells one result."""

    @cute.jit
    def __call__(
        self,
        grad: cute.Tensor,
        index: cute.Tensor,
        order: cute.Tensor,
        sums: cute.Tensor,
        length: Int32,
        stream: Any,
    ) -> None:
        shape = self.windows.shape(sums.shape[0], grad.shape[1], stream)
        self.kernel(grad, index, order, sums, length).launch(**shape)

    @cute.kernel
    def kernel(
        self,
        grad: cute.Tensor,
        index: cute.Tensor,
        order: cute.Tensor,
        sums: cute.Tensor,
        length: Int32,
    ) -> None:
        columns = Int64(grad.shape[1])
        stretch, lane = self.windows.place(columns)
        column = Int64(lane) * self.windows.vector
        if stretch < sums.shape[0] and column < columns:
            begin = Int32(stretch) * length
            if index[begin] == index[begin + length - 1]:
                totals = self.windows.fragment(Float32)
                end = begin + length
                self.add_rows(totals, grad, order, begin, end, (end, end), column)
                # rows of sums hold whole windows
                self.windows.put(totals, address(sums, stretch) + column * 4)


class ScatterAdd(_Sums):
    """Row v of the result is the sum of those rows in ``order`` that begin at ``begins[v]``.

    The next result's begin where they end. Row ``padding`` is of zeros.
    """

    @cute.jit
    def __call__(
        self,
        grad: cute.Tensor,
        order: cute.Tensor,
        begins: cute.Tensor,
        sums: cute.Tensor | None,
        out: cute.Tensor,
        length: Int32,
        padding: Int32,
        stream: Any,
    ) -> None:
        shape = self.windows.shape(out.shape[0], out.shape[1], stream)
        self.kernel(grad, order, begins, sums, out, length, padding).launch(**shape)

    @cute.kernel
    def kernel(
        self,
        grad: cute.Tensor,
        order: cute.Tensor,
        begins: cute.Tensor,
        sums: cute.Tensor | None,
        out: cute.Tensor,
        length: Int32,
        padding: Int32,
    ) -> None:
        columns = Int64(out.shape[1])
        row, lane = self.windows.place(columns)
        start, column = Int64(0), columns
        if row < out.shape[0]:
            start = address(out, row)
            column = self.windows.column(out, start, lane)
        if column < columns:
            begin, end = begins[row], begins[row + 1]
            if row == padding:
                end = begin
            totals = self.windows.fragment(Float32)
            hole = end, end
            if const_expr(self.split):
                first = cute.ceil_div(begin, length)
                last = cutlass.max(end // length, first)
                self.add_rows(totals, sums, None, first, last, (last, last), column)
                if first < last:
                    hole = first * length, last * length
            self.add_rows(totals, grad, order, begin, end, hole, column)
            rounded = self.windows.fragment(out.element_type)
            rounded.store(totals.load().to(out.element_type))
            self.windows.store(rounded, start, column, columns)


def trace(kernel: Any) -> tuple[_Sums, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    columns, count = cute.sym_int64(), cute.sym_int()
    grad = window_matrix(kernel.dtype, count, columns, kernel.tiling)
    order = scalars("int64", count)
    sums = None
    if kernel.split:
        stride = cute.sym_int64(divisibility=kernel.tiling.vector)
        shape = cute.sym_int(), columns
        sums = make_fake_tensor(Float32, shape, (stride, 1), assumed_align=16)
    length = Int32(1)
    if kernel.stage == "stretches":
        index = scalars(kernel.index, count)
        return Stretches(kernel), (grad, index, order, sums, length, current_stream())
    out = window_matrix(kernel.dtype, cute.sym_int(), columns, kernel.tiling)
    arguments = grad, order, scalars("int32", cute.sym_int()), sums, out, length, Int32(-1)
    return ScatterAdd(kernel), (*arguments, current_stream())
