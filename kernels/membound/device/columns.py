"""Reductions over the rows of a matrix: a result for each column.

A CTA takes neighbouring columns of some of the rows. Its threads lie ``across`` columns, in
vectors of 128 bits, and down the rows; what they keep meets in shared memory. Where the rows are
cut in parts for several CTAs, each part's states go to a workspace, over which the kernel runs
again.

Rows may start between the boundaries of vectors (an odd number of columns). All rows of one thread
then start equally far behind a boundary, its phase: the rows between them fill whole vectors. Its
elements belong to columns that lie as far to the left, so a CTA reads a vector more than it owns.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr
from cutlass.cute.runtime import make_fake_tensor

from .arguments import DTYPES, current_stream
from .reductions import REDUCTIONS, select

#: Rows of which a thread asks for vectors before it waits for the first.
_AHEAD = 6


class Columns:
    def __init__(self, kernel: Any) -> None:
        self.reduction = REDUCTIONS[kernel.form]()
        self.width = self.reduction.width
        self.again = kernel.stage == "states"
        self.last = kernel.stage != "parts"
        self.shifted = kernel.shifted
        self.vector = kernel.vector
        self.across = kernel.across
        self.threads = kernel.threads
        self.down = kernel.threads // kernel.across
        self.owned = kernel.owned
        self.shared_bytes = kernel.shared_bytes
        self.ahead = 4 if self.again and self.width > 1 else _AHEAD

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        out: cute.Tensor,
        aside: cute.Tensor | None,
        columns: Int32,
        parts: Int32,
        divisor: Float32,
        stream: Any,
    ) -> None:
        self.kernel(x, out, aside, columns, divisor).launch(
            grid=[cute.ceil_div(columns, self.owned), parts, 1],
            block=[self.threads, 1, 1],
            smem=self.shared_bytes,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        out: cute.Tensor,
        aside: cute.Tensor | None,
        columns: Int32,
        divisor: Float32,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, part, _ = cute.arch.block_idx()
        _, parts, _ = cute.arch.grid_dim()
        across, down = thread % self.across, thread // self.across
        rows = x.shape[0]
        share = rows // parts + (1 if rows % parts != 0 else 0)
        begin = part * share
        first = begin + down

        size = const_expr(x.element_type.width // 8)
        stride = Int64(x.stride[0]) * size
        address = x.iterator.toint() + Int64(first) * stride
        phase = Int32(0)
        if const_expr(self.shifted):
            phase = Int32(address & 15) // size
        lane = block * (self.owned // self.vector) + across
        address = (address & Int64(-16)) + Int64(lane) * 16
        step = stride * self.down

        count = Int32(0)  # of this thread's rows
        if lane * self.vector - phase < columns:
            count = (cutlass.min(share, rows - begin) - down + self.down - 1) // self.down
            count = cutlass.max(count, 0)

        states = [cute.make_rmem_tensor((self.vector,), Float32) for _ in range(self.width)]
        for state, value in zip(states, self.reduction.identity, strict=True):
            state.fill(value)
        for i in cutlass.range(count // self.ahead, unroll=1):
            self.take(x, address, step, first + i * (self.ahead * self.down), self.ahead, states)
            address += step * self.ahead
        rest = count % self.ahead
        if rest > 0:
            self.take(x, address, step, first + (count - rest) * self.down, rest, states)

        buffers = self.meet(states, across, down, phase)
        column = block * self.owned + thread
        if thread < self.owned and column < columns:
            state = tuple([buffer[0, thread] for buffer in buffers])
            self.put(state, column, part, out, aside, divisor)

    @cute.jit
    def take(
        self, x: cute.Tensor, address: Int64, step: Int64, row: Int32, count: Any, states: list
    ) -> None:
        """Join the next ``count`` rows of this thread, at most ``ahead``, to its states."""
        whole = const_expr(isinstance(count, int))
        reduction = self.reduction
        width = const_expr(self.width if self.again else 1)
        fills = reduction.identity if const_expr(self.again) else (reduction.fill,)
        loaded = []
        for s in cutlass.range_constexpr(width):
            loaded.append(cute.make_rmem_tensor((self.vector, self.ahead), x.element_type))
            if const_expr(not whole):
                loaded[s].fill(x.element_type(fills[s]))
        for u in cutlass.range_constexpr(self.ahead):
            if const_expr(whole):
                self.load(x, address + step * u, loaded, u)
            elif u < count:
                self.load(x, address + step * u, loaded, u)
        present = None
        if const_expr(not whole):
            present = [select(u < count, 1.0, 0.0) for u in range(self.ahead)]
        for v in cutlass.range_constexpr(self.vector):
            state = tuple([one[v] for one in states])
            if const_expr(self.again):
                for u in cutlass.range_constexpr(self.ahead):
                    state = reduction.join(state, tuple([one[v, u] for one in loaded]))
            else:
                values = [loaded[0][v, u].to(Float32) for u in range(self.ahead)]
                places = [row + u * self.down for u in range(self.ahead)]
                state = reduction.join(state, reduction.gather(values, places, present))
            for s in cutlass.range_constexpr(self.width):
                states[s][v] = state[s]

    @cute.jit
    def load(self, x: cute.Tensor, address: Int64, loaded: list, u: int) -> None:
        """The vector at ``address``, or of each value of a state."""
        for s in cutlass.range_constexpr(len(loaded)):
            # a state's values lie behind one another, each a row of as many columns
            behind = Int64(x.shape[1] // self.width * 4) * s if const_expr(s > 0) else Int64(0)
            pointer = cute.make_ptr(
                x.element_type, address + behind, cute.AddressSpace.gmem, assumed_align=16
            )
            source = cute.make_tensor(pointer, cute.make_layout(self.vector))
            cute.autovec_copy(source, loaded[s][None, u])

    @cute.jit
    def meet(self, states: list, across: Int32, down: Int32, phase: Int32) -> list:
        """Join the states of threads that lie down the rows; returns shared memory, a (down, owned)
        tensor a value, whose row 0 holds the columns' states."""
        thread, _, _ = cute.arch.thread_idx()
        allocator = cutlass.memory.SmemAllocator()
        layout = cute.make_layout((self.down, self.owned), stride=(self.owned, 1))
        buffers = [allocator.allocate_tensor(Float32, layout, 16) for _ in states]
        for s in cutlass.range_constexpr(self.width):
            for v in cutlass.range_constexpr(self.vector):
                column = across * self.vector + v - phase
                if const_expr(not self.shifted):
                    buffers[s][down, column] = states[s][v]
                elif column >= 0 and column < self.owned:
                    buffers[s][down, column] = states[s][v]
        cute.arch.barrier()
        for level in cutlass.range_constexpr(self.down.bit_length() - 1):
            half = const_expr(self.down >> (level + 1))
            for k in cutlass.range_constexpr(-(-half * self.owned // self.threads)):
                index = thread + k * self.threads
                row, column = index // self.owned, index % self.owned
                if row < half:
                    state = self.reduction.join(
                        tuple([buffer[row, column] for buffer in buffers]),
                        tuple([buffer[row + half, column] for buffer in buffers]),
                    )
                    for s in cutlass.range_constexpr(self.width):
                        buffers[s][row, column] = state[s]
            cute.arch.barrier()
        return buffers

    @cute.jit
    def put(
        self,
        state: tuple,
        column: Int32,
        part: Int32,
        out: cute.Tensor,
        aside: cute.Tensor | None,
        divisor: Float32,
    ) -> None:
        """Store the result of a column, or its state."""
        if const_expr(self.last):
            out[column] = self.reduction.finish(state, divisor).to(out.element_type)
            if const_expr(aside is not None):
                kept = self.reduction.aside(state)
                for s in cutlass.range_constexpr(len(kept)):
                    aside[s, column] = kept[s]
        else:
            width = out.shape[1] // self.width
            for s in cutlass.range_constexpr(self.width):
                out[part, width * s + column] = state[s]


def trace(kernel: Any) -> tuple[Columns, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    element = DTYPES[kernel.dtype]
    alignment = element.width // 8 if kernel.shifted else 16
    stride = cute.sym_int64(divisibility=1 if kernel.shifted else kernel.vector)
    x = make_fake_tensor(
        element, (cute.sym_int(), cute.sym_int()), (stride, 1), assumed_align=alignment
    )
    columns = cute.sym_int()
    aside = None
    if kernel.stage != "parts":
        out_dtype = DTYPES[kernel.out]
        out = make_fake_tensor(out_dtype, (columns,), (1,), assumed_align=out_dtype.width // 8)
        if kernel.aside:
            stride = cute.sym_int64()
            aside = make_fake_tensor(Float32, (kernel.aside, columns), (stride, 1), assumed_align=4)
    else:
        stride = cute.sym_int64(divisibility=4)
        out = make_fake_tensor(
            Float32, (cute.sym_int(), cute.sym_int()), (stride, 1), assumed_align=16
        )
    scalars = Int32(1), Int32(1), Float32(1.0)
    return Columns(kernel), (x, out, aside, *scalars, current_stream())
