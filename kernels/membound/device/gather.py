"""Rows of one matrix moved to rows of another, by an index."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int64, const_expr

from .arguments import current_stream, scalars
from .windows import Windows, address, window_matrix


class Gather:
    """Row i of the result is row ``index[i]``, of zeros where there is none.

    Where rows are sent instead, row i goes to row ``index[i]``, if there is one.
    """

    def __init__(self, kernel: Any) -> None:
        self.windows = Windows(kernel.tiling)
        self.send = kernel.send

    @cute.jit
    def __call__(
        self, source: cute.Tensor, index: cute.Tensor, out: cute.Tensor, stream: Any
    ) -> None:
        shape = self.windows.shape(index.shape[0], source.shape[1], stream)
        self.kernel(source, index, out).launch(**shape)

    @cute.kernel
    def kernel(self, source: cute.Tensor, index: cute.Tensor, out: cute.Tensor) -> None:
        columns = Int64(source.shape[1])
        row, lane = self.windows.place(columns)
        if row < index.shape[0]:
            other = Int64(index[row])
            if const_expr(self.send):
                begin, start, there = address(source, row), address(out, other), out.shape[0]
            else:
                begin, start, there = address(source, other), address(out, row), source.shape[0]
            exists = other >= 0 and other < there
            loaded = []
            for i in cutlass.range_constexpr(self.windows.count):
                column = self.windows.column(out, start, lane + i * self.windows.across)
                window = self.windows.fragment(source.element_type)
                if exists and column < columns:
                    self.windows.load(source.element_type, begin, column, columns, window)
                loaded.append(window)
            for i in cutlass.range_constexpr(self.windows.count):
                column = self.windows.column(out, start, lane + i * self.windows.across)
                written = column < columns
                if const_expr(self.send):
                    written = written and exists
                if written:
                    self.windows.store(loaded[i], start, column, columns)


def trace(kernel: Any) -> tuple[Gather, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    columns, count = cute.sym_int64(), cute.sym_int()
    source = count if kernel.send else cute.sym_int()
    out = cute.sym_int() if kernel.send else count
    arguments = (
        window_matrix(kernel.dtype, source, columns, kernel.tiling),
        scalars(kernel.index, count),
        window_matrix(kernel.dtype, out, columns, kernel.tiling),
    )
    return Gather(kernel), (*arguments, current_stream())
