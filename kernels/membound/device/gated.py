"""activation(gate) * up, and its gradients."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int64, const_expr

from .activations import ACTIVATIONS, gradient
from .arguments import current_stream
from .windows import Windows, address, window_matrix


class Gated:
    """``up`` is None where it lies behind the gate in the same rows, and so are its gradients."""

    def __init__(self, kernel: Any) -> None:
        self.activation = ACTIVATIONS[kernel.activation]
        self.windows = Windows(kernel.tiling)

    @cute.jit
    def __call__(
        self, gate: cute.Tensor, up: cute.Tensor | None, out: cute.Tensor, stream: Any
    ) -> None:
        shape = self.windows.shape(out.shape[0], out.shape[1], stream)
        self.kernel(gate, up, out).launch(**shape)

    @cute.kernel
    def kernel(self, gate: cute.Tensor, up: cute.Tensor | None, out: cute.Tensor) -> None:
        columns = Int64(out.shape[1])
        row, lane = self.windows.place(columns)
        if row < out.shape[0]:
            start = address(out, row)
            parts = []
            for i in cutlass.range_constexpr(self.windows.count):
                column = self.windows.column(out, start, lane + i * self.windows.across)
                parts.append(self.load((gate, up), row, column, columns))
            for i in cutlass.range_constexpr(self.windows.count):
                column = self.windows.column(out, start, lane + i * self.windows.across)
                gates, ups = parts[i]
                result = self.windows.fragment(Float32)
                for v in cutlass.range_constexpr(self.windows.vector):
                    value, _ = self.activation(gates[v].to(Float32))
                    result[v] = value * ups[v].to(Float32)
                self.store(result, out, start, column, columns)

    @cute.jit
    def load(self, halves: tuple, row: Int64, column: Int64, columns: Int64) -> tuple:
        """A window of the gate and of up."""
        gate, up = halves
        gates = self.windows.fragment(gate.element_type)
        ups = self.windows.fragment(gate.element_type)
        if column < columns:
            start = address(gate, row)
            self.windows.load(gate.element_type, start, column, columns, gates)
            start = self.second(gate, up, row, columns)
            self.windows.load(gate.element_type, start, column, columns, ups)
        return gates, ups

    @cute.jit
    def second(
        self, first: cute.Tensor, second: cute.Tensor | None, row: Int64, columns: Int64
    ) -> Int64:
        """Where a row of the second half begins."""
        if const_expr(second is None):
            start = address(first, row) + columns * (first.element_type.width // 8)
        else:
            start = address(second, row)
        return start

    @cute.jit
    def store(
        self, result: cute.Tensor, out: cute.Tensor, start: Int64, column: Int64, columns: Int64
    ) -> None:
        if column < columns:
            rounded = self.windows.fragment(out.element_type)
            rounded.store(result.load().to(out.element_type))
            self.windows.store(rounded, start, column, columns)


class GatedBackward(Gated):
    """Of the gradients, those that are wanted; ``d_up`` is None for a packed one too."""

    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel)
        self.to_gate, self.to_up = kernel.to_gate, kernel.to_up
        # the two may start on different boundaries, and then each has windows of its own
        self.together = self.to_gate and self.to_up and not kernel.tiling.shifted

    @cute.jit
    def __call__(
        self,
        grad: cute.Tensor,
        gate: cute.Tensor,
        up: cute.Tensor | None,
        d_gate: cute.Tensor | None,
        d_up: cute.Tensor | None,
        stream: Any,
    ) -> None:
        shape = self.windows.shape(grad.shape[0], grad.shape[1], stream)
        self.kernel(grad, gate, up, d_gate, d_up).launch(**shape)

    @cute.kernel
    def kernel(
        self,
        grad: cute.Tensor,
        gate: cute.Tensor,
        up: cute.Tensor | None,
        d_gate: cute.Tensor | None,
        d_up: cute.Tensor | None,
    ) -> None:
        columns = Int64(grad.shape[1])
        row, lane = self.windows.place(columns)
        if row < grad.shape[0]:
            inputs = grad, gate, up
            for i in cutlass.range_constexpr(self.windows.count):
                index = lane + i * self.windows.across
                if const_expr(self.to_gate):
                    start = address(d_gate, row)
                    column = self.windows.column(d_gate, start, index)
                    of_gate, of_up = self.gradients(inputs, row, column, columns)
                    self.store(of_gate, d_gate, start, column, columns)
                    if const_expr(self.together):
                        start = self.second(d_gate, d_up, row, columns)
                        self.store(of_up, d_gate, start, column, columns)
                if const_expr(self.to_up and not self.together):
                    d_first = d_up if const_expr(d_gate is None) else d_gate
                    start = self.second(d_first, d_up, row, columns)
                    column = self.windows.column(d_first, start, index)
                    _, of_up = self.gradients(inputs, row, column, columns)
                    self.store(of_up, d_first, start, column, columns)

    @cute.jit
    def gradients(self, inputs: tuple, row: Int64, column: Int64, columns: Int64) -> tuple:
        """The gradients of a window of the gate and of up."""
        grad, gate, up = inputs
        grads = self.windows.fragment(grad.element_type)
        if column < columns:
            self.windows.load(grad.element_type, address(grad, row), column, columns, grads)
        gates, ups = self.load((gate, up), row, column, columns)
        of_gate, of_up = self.windows.fragment(Float32), self.windows.fragment(Float32)
        for v in cutlass.range_constexpr(self.windows.vector):
            gate_value, given = gates[v].to(Float32), grads[v].to(Float32)
            value, _ = self.activation(gate_value)
            of_gate[v] = gradient(self.activation, gate_value, given * ups[v].to(Float32))
            of_up[v] = given * value
        return of_gate, of_up


def trace(kernel: Any) -> tuple[Gated, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows, columns = cute.sym_int(), cute.sym_int64()

    def matrix(there: bool = True) -> cute.Tensor | None:
        return window_matrix(kernel.dtype, rows, columns, kernel.tiling) if there else None

    def halves(first: bool = True, second: bool = True) -> tuple[cute.Tensor | None, ...]:
        if not kernel.packed:
            return matrix(first), matrix(second)
        return window_matrix(kernel.dtype, rows, cute.sym_int64(), kernel.tiling), None

    if kernel.backward:
        gradients = halves(kernel.to_gate, kernel.to_up)
        arguments = (matrix(), *halves(), *gradients, current_stream())
        return GatedBackward(kernel), arguments
    return Gated(kernel), (*halves(), matrix(), current_stream())
