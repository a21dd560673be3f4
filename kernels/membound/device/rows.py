"""A thread's part of a row: vectors loaded from and stored to global memory.

A row is cut into vectors of ``vector`` elements, and these into equal chunks, which are held one
after another. Of a chunk, each CTA of a cluster takes as many vectors in a stretch, and hands them
round-robin to its threads. A fragment is a register tensor (vector, count): its element (v, i)
belongs to column ``(lane + i * threads) * vector + v - phase``, where :meth:`Rows.lane` tells the
thread's first vector of the chunk.

The phase is 0 where rows start on vector boundaries. Where they do not (an odd number of
columns), it is the number of elements between the last boundary and the row's start, so that all
accesses but those at the row's ends still move whole vectors: the aligned superset of the row is
read, and what is not the row's is masked.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr


class Rows:
    """Loads and stores of rows tiled as ``tiling`` (a RowTiling)."""

    def __init__(self, tiling: Any) -> None:
        self.columns = tiling.columns
        self.vector = tiling.vector
        self.threads = tiling.row_threads
        self.cluster = tiling.cluster
        self.chunks = tiling.chunks
        self.shifted = tiling.shifted
        longest = tiling.columns + (tiling.vector - 1 if tiling.shifted else 0)
        self.count = -(-longest // (self.threads * self.vector * self.cluster * self.chunks))

    @cute.jit
    def lane(self, thread: Int32, chunk: int = 0) -> Int32:
        """The index of a thread's first vector of a chunk in its row."""
        lane = thread % self.threads + chunk * (self.cluster * self.threads * self.count)
        if const_expr(self.cluster > 1):
            lane += cute.arch.block_idx_in_cluster() * (self.threads * self.count)
        return lane

    def fragment(self, dtype: Any, fill: Any) -> cute.Tensor:
        """A register tensor (vector, count), filled with ``fill``."""
        fragment = cute.make_rmem_tensor((self.vector, self.count), dtype)
        fragment.fill(fill)
        return fragment

    @cute.jit
    def load(self, row: cute.Tensor, fragment: cute.Tensor, lane: Int32, fill: Any) -> None:
        """Read a thread's part of ``row`` (columns,); ``fill`` stands where there is no column."""
        vectors, phase = self._vectors(row)
        for i in cutlass.range_constexpr(self.count):
            index = lane + i * self.threads
            source = cute.local_tile(vectors, (self.vector,), (index,))
            if const_expr(self._all_full(i)):
                cute.autovec_copy(source, fragment[None, i])
            elif index * self.vector < self.columns + phase:
                cute.autovec_copy(source, fragment[None, i])
                if const_expr(self.shifted):
                    if not self._inside(index, phase):
                        for v in cutlass.range_constexpr(self.vector):
                            column = index * self.vector + v - phase
                            if column < 0 or column >= self.columns:
                                fragment[v, i] = row.element_type(fill)

    @cute.jit
    def store(self, fragment: cute.Tensor, row: cute.Tensor, lane: Int32) -> None:
        """Write a thread's part of ``row`` (columns,) and nothing beside it."""
        vectors, phase = self._vectors(row)
        for i in cutlass.range_constexpr(self.count):
            index = lane + i * self.threads
            target = cute.local_tile(vectors, (self.vector,), (index,))
            if const_expr(self._all_full(i)):
                cute.autovec_copy(fragment[None, i], target)
            elif self._inside(index, phase):
                cute.autovec_copy(fragment[None, i], target)
            elif const_expr(self.shifted):
                for v in cutlass.range_constexpr(self.vector):
                    column = index * self.vector + v - phase
                    if column >= 0 and column < self.columns:
                        row[column] = fragment[v, i]

    @cute.jit
    def load_shared(self, shared: cute.Tensor, row: cute.Tensor, lane: Int32) -> cute.Tensor:
        """A fragment of what belongs to a thread's part of ``row`` in ``shared`` (columns,).

        ``shared`` may be of another dtype, and start on other boundaries, which its pointer tells.
        """
        fragment = self.fragment(shared.element_type, 0)
        if const_expr(not self.shifted):
            self.load(shared, fragment, lane, 0)
        else:
            _, phase = self._vectors(row)
            for i in cutlass.range_constexpr(self.count):
                for v in cutlass.range_constexpr(self.vector):
                    column = (lane + i * self.threads) * self.vector + v - phase
                    if column >= 0 and column < self.columns:
                        fragment[v, i] = shared[column]
        return fragment

    @cute.jit
    def hide_rest(self, fragment: cute.Tensor, row: cute.Tensor, lane: Int32, fill: Any) -> None:
        """Put ``fill`` where a fragment of ``row`` (columns,) has no column."""
        _, phase = self._vectors(row)
        for i in cutlass.range_constexpr(self.count):
            if const_expr(not self._all_full(i)):
                for v in cutlass.range_constexpr(self.vector):
                    column = (lane + i * self.threads) * self.vector + v - phase
                    if column < 0 or column >= self.columns:
                        fragment[v, i] = fragment.element_type(fill)

    @cute.jit
    def hide_from(
        self, fragment: cute.Tensor, row: cute.Tensor, lane: Int32, end: Int32, fill: Any
    ) -> None:
        """Put ``fill`` at the columns from ``end`` on in a fragment of ``row`` (columns,)."""
        _, phase = self._vectors(row)
        for i in cutlass.range_constexpr(self.count):
            for v in cutlass.range_constexpr(self.vector):
                if (lane + i * self.threads) * self.vector + v - phase >= end:
                    fragment[v, i] = fragment.element_type(fill)

    @cute.jit
    def column(self, row: cute.Tensor, lane: Int32, i: int) -> Int32:
        """The column of the first element of a thread's i-th vector, which may lie before 0."""
        _, phase = self._vectors(row)
        return (lane + i * self.threads) * self.vector - phase

    def _all_full(self, i: int) -> bool:
        """Whether the i-th vector of every thread lies within the row, known when compiling."""
        if self.shifted:
            return False
        if self.cluster * self.chunks > 1:
            whole = self.cluster * self.chunks * self.count * self.threads * self.vector
            return self.columns == whole
        return (i + 1) * self.threads * self.vector <= self.columns

    @cute.jit
    def _inside(self, index: Int32, phase: Any) -> Any:
        """Whether the vector lies within the row."""
        begin = index * self.vector
        inside = begin + self.vector <= self.columns + phase
        if const_expr(self.shifted):
            inside = inside and begin >= phase
        return inside

    def _vectors(self, row: cute.Tensor) -> tuple[cute.Tensor, Any]:
        """Memory from the vector boundary at or before the row's start, and the row's phase."""
        if not self.shifted:
            return row, 0
        element = row.element_type
        size = element.width // 8
        address = row.iterator.toint()
        start = address & Int64(-self.vector * size)
        pointer = cute.make_ptr(
            element, start, cute.AddressSpace.gmem, assumed_align=self.vector * size
        )
        layout = cute.make_layout(
            self.chunks * self.cluster * self.count * self.threads * self.vector
        )
        return cute.make_tensor(pointer, layout), Int32((address - start) // size)
