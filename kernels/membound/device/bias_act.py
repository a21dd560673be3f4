"""activation(x + bias), and its gradients."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr
from cutlass.cute.runtime import make_fake_tensor

from .activations import ACTIVATIONS, gradient
from .arguments import current_stream
from .windows import Windows, address, shared_window_row, window_matrix

#: Rows of which a thread asks for windows before it works on the first, where it sums over rows.
_AHEAD = 4


class BiasAct:
    """``grad`` is None forward, and the result the gradient of x otherwise."""

    def __init__(self, kernel: Any) -> None:
        self.activation = ACTIVATIONS[kernel.activation]
        self.windows = Windows(kernel.tiling)

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        grad: cute.Tensor | None,
        bias: cute.Tensor | None,
        out: cute.Tensor,
        stream: Any,
    ) -> None:
        shape = self.windows.shape(x.shape[0], x.shape[1], stream)
        self.kernel(x, grad, bias, out).launch(**shape)

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        grad: cute.Tensor | None,
        bias: cute.Tensor | None,
        out: cute.Tensor,
    ) -> None:
        columns = Int64(x.shape[1])
        row, lane = self.windows.place(columns)
        if row < x.shape[0]:
            start = address(out, row)
            loaded = []
            for i in cutlass.range_constexpr(self.windows.count):
                column = self.windows.column(out, start, lane + i * self.windows.across)
                inside = column < columns
                grads = None
                if const_expr(grad is not None):
                    grads = self.load(grad, row, column, columns, inside)
                loaded.append((grads, self.load(x, row, column, columns, inside)))
            for i in cutlass.range_constexpr(self.windows.count):
                column = self.windows.column(out, start, lane + i * self.windows.across)
                grads, values = loaded[i]
                self.add(values, self.load_bias(bias, column, columns))
                if const_expr(grads is None):
                    for v in cutlass.range_constexpr(self.windows.vector):
                        values[v], _ = self.activation(values[v])
                else:
                    self.chain(grads, values)
                self.store(values, out, start, column, columns, column < columns)

    @cute.jit
    def load(
        self, matrix: cute.Tensor, row: Int64, column: Int64, columns: Int64, inside: Any
    ) -> cute.Tensor:
        """A window in float32, 0 where there is none."""
        window = self.windows.fragment(matrix.element_type)
        if inside:
            start = address(matrix, row)
            self.windows.load(matrix.element_type, start, column, columns, window)
        wide = self.windows.fragment(Float32)
        wide.store(window.load().to(Float32))
        return wide

    @cute.jit
    def load_bias(self, bias: cute.Tensor | None, column: Int64, columns: Int64) -> Any:
        """A window of the bias in float32, or None."""
        wide = None
        if const_expr(bias is not None):
            window = self.windows.fragment(bias.element_type)
            if column < columns:
                start = bias.iterator.toint()
                self.windows.load(bias.element_type, start, column, columns, window)
            wide = self.windows.fragment(Float32)
            wide.store(window.load().to(Float32))
        return wide

    @cute.jit
    def add(self, values: cute.Tensor, bias: cute.Tensor | None) -> None:
        if const_expr(bias is not None):
            values.store(values.load() + bias.load())

    @cute.jit
    def chain(self, grads: cute.Tensor, values: cute.Tensor) -> None:
        """Put the gradients of ``values``, given the results', in their place."""
        for v in cutlass.range_constexpr(self.windows.vector):
            values[v] = gradient(self.activation, values[v], grads[v])

    @cute.jit
    def store(
        self,
        values: cute.Tensor,
        out: cute.Tensor,
        start: Int64,
        column: Int64,
        columns: Int64,
        inside: Any,
    ) -> None:
        if inside:
            rounded = self.windows.fragment(out.element_type)
            rounded.store(values.load().to(out.element_type))
            self.windows.store(rounded, start, column, columns)


class BiasActSums(BiasAct):
    """The gradient of x, unless that is None, and sums of its rows.

    Row i of the sums is over the rows i, i + (number of sums), and so on. A thread's rows all start
    as far behind a boundary: where that differs from row to row, the host sees to it that the
    rows between two of them fill whole windows.
    """

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        grad: cute.Tensor,
        bias: cute.Tensor,
        d_x: cute.Tensor | None,
        sums: cute.Tensor,
        stream: Any,
    ) -> None:
        self.kernel(x, grad, bias, d_x, sums).launch(
            grid=[self.windows.blocks(Int64(x.shape[1])), sums.shape[0] // self.windows.down, 1],
            block=[self.windows.threads, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        grad: cute.Tensor,
        bias: cute.Tensor,
        d_x: cute.Tensor | None,
        sums: cute.Tensor,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, part, _ = cute.arch.block_idx()
        columns, rows = Int64(x.shape[1]), Int64(x.shape[0])
        lane = block * self.windows.across + thread % self.windows.across
        first = Int64(part * self.windows.down + thread // self.windows.across)
        step = Int64(sums.shape[0])
        column = Int64(lane) * self.windows.vector
        if const_expr(d_x is not None):
            column = self.windows.column(d_x, address(d_x, first), lane)

        biases = self.load_bias(bias, column, columns)
        totals = self.windows.fragment(Float32)
        turns = Int32(0)
        if column < columns and first < rows:
            turns = Int32((rows - first + step * _AHEAD - 1) // (step * _AHEAD))
        for i in cutlass.range(turns, unroll=1):
            loaded = []
            for u in cutlass.range_constexpr(_AHEAD):
                row = first + (i * _AHEAD + u) * step
                grads = self.load(grad, row, column, columns, row < rows)
                loaded.append((grads, self.load(x, row, column, columns, row < rows)))
            for u in cutlass.range_constexpr(_AHEAD):
                row = first + (i * _AHEAD + u) * step
                grads, values = loaded[u]
                self.add(values, biases)
                self.chain(grads, values)
                if row < rows:
                    totals.store(totals.load() + values.load())
                if const_expr(d_x is not None):
                    start = address(d_x, row)
                    self.store(values, d_x, start, column, columns, row < rows)
        if column < columns:
            start = address(sums, first)
            if const_expr(self.windows.whole):
                self.windows.store(totals, start, column, columns)
            else:
                self.windows.store_each(totals, start, column, columns)


def trace(kernel: Any) -> tuple[BiasAct, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows, columns = cute.sym_int(), cute.sym_int64()

    def matrix(there: bool = True) -> cute.Tensor | None:
        return window_matrix(kernel.dtype, rows, columns, kernel.tiling) if there else None

    bias = shared_window_row(kernel.bias, columns, kernel.tiling)
    given = matrix(), matrix(kernel.backward), bias
    if not kernel.sums:
        return BiasAct(kernel), (*given, matrix(), current_stream())
    stride = cute.sym_int64(divisibility=4 if kernel.tiling.whole else 1)
    sums = make_fake_tensor(Float32, (cute.sym_int(), columns), (stride, 1), assumed_align=16)
    return BiasActSums(kernel), (*given, matrix(kernel.to_input), sums, current_stream())
