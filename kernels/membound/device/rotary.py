"""Rotary position embedding: pairs of a head's elements turned by the angle of their position.

A thread turns ``vector`` pairs of one head of one token, or copies as many elements of what is not
turned. The heads of a token are neighbours, so that its angles come from the cache but once.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr
from cutlass.cute.runtime import make_fake_tensor

from .arguments import DTYPES, current_stream

THREADS = 256


class Rotary:
    def __init__(self, kernel: Any) -> None:
        self.vector = kernel.vector
        self.turned = kernel.turned  # elements of a head that are turned
        self.interleaved = kernel.interleaved
        self.pairs = kernel.turned // 2 // kernel.vector  # work items of a head that turn
        self.copies = kernel.copied // kernel.vector  # and that copy

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        cos: cute.Tensor,
        sin: cute.Tensor,
        out: cute.Tensor,
        offsets: cute.Tensor | None,
        cu_seqlens: cute.Tensor | None,
        offset: Int32,
        direction: Float32,
        stream: Any,
    ) -> None:
        batch, tokens, heads, _ = x.shape
        items = Int64(batch) * tokens * heads * (self.pairs + self.copies)
        self.kernel(x, cos, sin, out, offsets, cu_seqlens, offset, direction).launch(
            grid=[Int32((items + THREADS - 1) // THREADS), 1, 1],
            block=[THREADS, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        cos: cute.Tensor,
        sin: cute.Tensor,
        out: cute.Tensor,
        offsets: cute.Tensor | None,
        cu_seqlens: cute.Tensor | None,
        offset: Int32,
        direction: Float32,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        batch, tokens, heads, _ = x.shape
        work = Int64(block) * THREADS + thread
        row = work // (self.pairs + self.copies)
        part = Int32(work % (self.pairs + self.copies))
        head, at = Int32(row % heads), row // heads
        token, sequence = Int32(at % tokens), Int32(at // tokens)
        if sequence < batch:
            source, target = x[sequence, token, head, None], out[sequence, token, head, None]
            if part < self.pairs:
                position = token
                if const_expr(cu_seqlens is not None):
                    sequence, position = place(cu_seqlens, token)
                position += offset
                if const_expr(offsets is not None):
                    position += Int32(offsets[sequence])
                # what lies outside the tables must not be read
                position = min(max(position, Int32(0)), Int32(cos.shape[0]) - 1)
                self.turn(source, cos[position, None], sin[position, None], target, part, direction)
            elif const_expr(self.copies > 0):
                self.copy(source, target, part - self.pairs)

    @cute.jit
    def turn(
        self,
        source: cute.Tensor,
        cos: cute.Tensor,
        sin: cute.Tensor,
        target: cute.Tensor,
        part: Int32,
        direction: Float32,
    ) -> None:
        """Turn pairs ``part * vector`` to ``(part + 1) * vector`` of a head."""
        angles = []
        for table in (cos, sin):
            values = cute.make_rmem_tensor((self.vector,), table.element_type)
            cute.autovec_copy(cute.local_tile(table, (self.vector,), (part,)), values)
            angles.append(values.load().to(Float32))
        c, s = angles[0], angles[1] * direction
        if const_expr(self.interleaved):
            both = cute.make_rmem_tensor((2 * self.vector,), source.element_type)
            place_in = (2 * self.vector,), (part,)
            cute.autovec_copy(cute.local_tile(source, *place_in), both)
            a = cute.make_rmem_tensor((self.vector,), Float32)
            b = cute.make_rmem_tensor((self.vector,), Float32)
            for i in cutlass.range_constexpr(self.vector):
                a[i] = both[2 * i].to(Float32)
                b[i] = both[2 * i + 1].to(Float32)
            first, second = a.load() * c - b.load() * s, a.load() * s + b.load() * c
            a.store(first)
            b.store(second)
            for i in cutlass.range_constexpr(self.vector):
                both[2 * i] = a[i].to(source.element_type)
                both[2 * i + 1] = b[i].to(source.element_type)
            cute.autovec_copy(both, cute.local_tile(target, *place_in))
        else:
            near = (self.vector,), (part,)
            far = (self.vector,), (part + self.pairs,)
            a = cute.make_rmem_tensor((self.vector,), source.element_type)
            b = cute.make_rmem_tensor((self.vector,), source.element_type)
            cute.autovec_copy(cute.local_tile(source, *near), a)
            cute.autovec_copy(cute.local_tile(source, *far), b)
            x, y = a.load().to(Float32), b.load().to(Float32)
            a.store((x * c - y * s).to(source.element_type))
            b.store((x * s + y * c).to(source.element_type))
            cute.autovec_copy(a, cute.local_tile(target, *near))
            cute.autovec_copy(b, cute.local_tile(target, *far))

    @cute.jit
    def copy(self, source: cute.Tensor, target: cute.Tensor, part: Int32) -> None:
        """Copy a vector of what follows the elements that are turned."""
        values = cute.make_rmem_tensor((self.vector,), source.element_type)
        at = (self.vector,), (part + self.turned // self.vector,)
        cute.autovec_copy(cute.local_tile(source, *at), values)
        cute.autovec_copy(values, cute.local_tile(target, *at))


@cute.jit
def place(cu_seqlens: cute.Tensor, token: Int32) -> tuple:
    """The sequence that holds ``token`` of sequences one behind the other, and its place there."""
    low, high = Int32(0), Int32(cu_seqlens.shape[0]) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if Int64(cu_seqlens[middle]) <= token:
            low = middle
        else:
            high = middle
    return low, token - Int32(cu_seqlens[low])


def trace(kernel: Any) -> tuple[Rotary, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    element, table = DTYPES[kernel.dtype], DTYPES[kernel.table]
    sizes = [cute.sym_int() for _ in range(3)]

    def heads() -> cute.Tensor:
        step = 2 * kernel.vector if kernel.interleaved else kernel.vector
        strides = [cute.sym_int64(divisibility=step) for _ in sizes]
        return make_fake_tensor(
            element,
            (*sizes, kernel.turned + kernel.width_beside),
            (*strides, 1),
            assumed_align=min(16, step * element.width // 8),
        )

    def angles(rows: Any) -> cute.Tensor:
        return make_fake_tensor(
            table,
            (rows, kernel.turned // 2),
            (cute.sym_int64(divisibility=kernel.table_vector), 1),
            assumed_align=min(16, kernel.table_vector * table.width // 8),
        )

    positions = cute.sym_int()
    offsets = cu_seqlens = None
    if kernel.offsets != "none":
        integer = DTYPES[kernel.offsets]
        offsets = make_fake_tensor(
            integer, (cute.sym_int(),), (1,), assumed_align=integer.width // 8
        )
    if kernel.cu_seqlens != "none":
        integer = DTYPES[kernel.cu_seqlens]
        cu_seqlens = make_fake_tensor(
            integer, (cute.sym_int(),), (1,), assumed_align=integer.width // 8
        )
    tables = (angles(positions), angles(positions))
    arguments = (heads(), *tables, heads(), offsets, cu_seqlens, Int32(0), Float32(1.0))
    return Rotary(kernel), (*arguments, current_stream())
