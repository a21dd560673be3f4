"""A CTA's part of a flat tensor: any stretch of up to ``TILE`` elements, at any place.

The vectors that cover the stretch are moved whole, but for the elements at its ends.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

THREADS = 256
#: Elements that a thread holds.
ELEMENTS = 32


class Stretches:
    """Loads and stores of stretches of elements of ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self.vector = 16 // size
        self.count = ELEMENTS // self.vector

    def fragment(self, dtype: Any, fill: Any) -> cute.Tensor:
        """A register tensor (vector, count), filled with ``fill``."""
        fragment = cute.make_rmem_tensor((self.vector, self.count), dtype)
        fragment.fill(fill)
        return fragment

    @cute.jit
    def load(self, flat: cute.Tensor, begin: Int64, end: Int64, fill: Any) -> cute.Tensor:
        """A thread's part of ``flat[begin:end]``, ``fill`` where there is none."""
        fragment = self.fragment(flat.element_type, fill)
        vectors, first = self._vectors(flat, begin)
        thread, _, _ = cute.arch.thread_idx()
        for i in cutlass.range_constexpr(self.count):
            index = thread + i * THREADS
            place = first + Int64(index) * self.vector
            if place < end:
                cute.autovec_copy(
                    cute.local_tile(vectors, (self.vector,), (index,)), fragment[None, i]
                )
                if place < begin or place + self.vector > end:
                    for v in cutlass.range_constexpr(self.vector):
                        if place + v < begin or place + v >= end:
                            fragment[v, i] = flat.element_type(fill)
        return fragment

    @cute.jit
    def store(self, fragment: cute.Tensor, flat: cute.Tensor, begin: Int64, end: Int64) -> None:
        """Write a thread's part of ``flat[begin:end]`` and nothing beside it."""
        vectors, first = self._vectors(flat, begin)
        thread, _, _ = cute.arch.thread_idx()
        for i in cutlass.range_constexpr(self.count):
            index = thread + i * THREADS
            place = first + Int64(index) * self.vector
            if place >= begin and place + self.vector <= end:
                cute.autovec_copy(
                    fragment[None, i], cute.local_tile(vectors, (self.vector,), (index,))
                )
            elif place < end:
                for v in cutlass.range_constexpr(self.vector):
                    if place + v >= begin and place + v < end:
                        flat[place + v] = fragment[v, i]

    @cute.jit
    def place(self, begin: Int64, i: int) -> Int64:
        """Where the first element of a thread's i-th vector lies, which may be before ``begin``."""
        thread, _, _ = cute.arch.thread_idx()
        return begin // self.vector * self.vector + Int64(thread + i * THREADS) * self.vector

    @cute.jit
    def _vectors(self, flat: cute.Tensor, begin: Int64) -> tuple:
        first = begin // self.vector * self.vector
        element = flat.element_type
        address = flat.iterator.toint() + first * (element.width // 8)
        pointer = cute.make_ptr(element, address, cute.AddressSpace.gmem, assumed_align=16)
        layout = cute.make_layout(THREADS * ELEMENTS)
        return cute.make_tensor(pointer, layout), first


def tile(size: int) -> int:
    """Elements of a tile: with any place in its first vector it fits the CTA's registers."""
    return THREADS * ELEMENTS - 16 // size


@cute.jit
def first_tile(cu_seqlens: cute.Tensor, row: Int32, length: int) -> Int32:
    """An upper bound on the tiles of the rows before ``row``: tiles are numbered from there.

    floor(begin / length) + row grows from row to row by at least ceil(row's length / length).
    """
    return Int32(Int64(cu_seqlens[row]) // length) + row


@cute.jit
def row_of(cu_seqlens: cute.Tensor, tile: Int32, rows: Int32, length: int) -> Int32:
    """The row that a tile belongs to, or would if the row were long enough.

    All lanes of a warp search together, each in a 32nd of what is left.
    """
    lane = cute.arch.lane_idx()
    low, high = Int32(0), rows  # first_tile(low) <= tile < first_tile(high)
    while high - low > 1:
        step = (high - low + 31) // 32
        probe = min(low + lane * step, high)
        before = probe < high and first_tile(cu_seqlens, probe, length) <= tile
        ahead = cute.arch.popc(cute.arch.vote_ballot_sync(before))
        new_low = low + (ahead - 1) * step
        high = min(new_low + step, high)
        low = new_low
    return low
