"""A thread's part of a row of any length, for ops whose rows need no exchange between threads.

A window is ``vector`` neighbouring columns, as many as 128 bits of the result hold. Windows start
on the 128-bit boundaries of the *result's* row, so that all results but those at a row's ends are
stored whole. What goes into them may start anywhere: then the one access more that a window
overlaps is loaded too, and the bits are moved into place. A row's first window may begin before
its first column.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, const_expr
from cutlass.cute.runtime import make_fake_tensor

from .arguments import DTYPES


def address(matrix: cute.Tensor, row: Any) -> Int64:
    """Where a row begins."""
    size = matrix.element_type.width // 8
    return matrix.iterator.toint() + Int64(row) * Int64(matrix.stride[0]) * size


class Windows:
    """Loads and stores windows of rows tiled as ``tiling`` (a WindowTiling)."""

    def __init__(self, tiling: Any) -> None:
        self.vector = tiling.vector
        self.across = tiling.across
        self.count = tiling.count
        self.threads = tiling.threads
        self.down = tiling.down
        self.shifted = tiling.shifted
        self.whole = tiling.whole

    @cute.jit
    def blocks(self, columns: Int64) -> Int32:
        """CTAs side by side that a row of ``columns`` takes."""
        spare = self.vector - 1 if self.shifted else 0
        return Int32(cute.ceil_div(columns + spare, self.across * self.count * self.vector))

    def shape(self, rows: Any, columns: Any, stream: Any) -> dict[str, Any]:
        """The launch over a matrix."""
        return {
            "grid": [cute.ceil_div(rows, self.down) * self.blocks(Int64(columns)), 1, 1],
            "block": [self.threads, 1, 1],
            "stream": stream,
        }

    @cute.jit
    def place(self, columns: Int64) -> tuple:
        """This thread's row, which may lie behind the last, and the index of its first window."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks = self.blocks(columns)
        row = Int64(block // blocks) * self.down + thread // self.across
        lane = (block % blocks) * (self.across * self.count) + thread % self.across
        return row, lane

    @cute.jit
    def column(self, result: cute.Tensor, start: Int64, index: Int32) -> Int64:
        """The first column of a window of the row of ``result`` that begins at ``start``."""
        column = Int64(index) * self.vector
        if const_expr(self.shifted):
            column -= (start & 15) // (result.element_type.width // 8)
        return column

    def fragment(self, element: Any) -> cute.Tensor:
        """A register tensor for a window, filled with 0."""
        fragment = cute.make_rmem_tensor((self.vector,), element)
        fragment.fill(0)
        return fragment

    @cute.jit
    def load(
        self, element: Any, start: Int64, column: Int64, columns: Int64, window: cute.Tensor
    ) -> None:
        """Read into ``window`` what of it lies in the row of ``columns`` that begins at ``start``.

        The rest of the window is whatever lies beside the row, or what it was.
        """
        size = const_expr(element.width // 8)
        grain = const_expr(min(16, self.vector * size))  # bytes per access
        accesses = const_expr(self.vector * size // grain)
        first = start + column * size
        end = start + columns * size
        if const_expr(not self.shifted):
            parts = cute.logical_divide(window, cute.make_layout(grain // size))
            for k in cutlass.range_constexpr(accesses):
                if const_expr(self.whole):
                    self._copy(element, first + k * grain, grain, parts[None, k])
                elif first + k * grain < end:
                    self._copy(element, first + k * grain, grain, parts[None, k])
        else:
            begin = first & Int64(-grain)
            shift = Int32(first - begin) // size
            words = cute.make_rmem_tensor((grain // 4, accesses + 1), Uint32)
            words.fill(0)
            for k in cutlass.range_constexpr(accesses + 1):
                place = begin + k * grain
                needed = place + grain > start and place < end
                if const_expr(k == accesses):
                    needed = needed and shift > 0
                if needed:
                    self._copy(Uint32, place, grain, words[None, k])
            moved = cute.recast_tensor(window, Uint32)
            self._move(words, shift, size, moved)

    def _move(self, words: cute.Tensor, shift: Int32, size: int, moved: cute.Tensor) -> None:
        """Put into ``moved`` what begins ``shift`` elements of ``size`` bytes into ``words``."""
        found = [words[i] for i in range(cute.size(words))]
        step = cute.size(words, mode=[0]) // 2
        while step:
            far = (shift & (step * 4 // size)) != 0
            found = [
                Uint32(cutlass.select_(far, there, here))
                for here, there in zip(found, found[step:], strict=False)
            ]
            step //= 2
        half = (shift & 1) != 0
        for i in range(cute.size(moved)):
            word = found[i]
            if size == 2:
                word = Uint32(cutlass.select_(half, (word >> 16) | (found[i + 1] << 16), word))
            moved[i] = word

    @cute.jit
    def store(self, window: cute.Tensor, start: Int64, column: Int64, columns: Int64) -> None:
        """Write what of a window lies in the row of ``columns`` that begins at ``start``."""
        place = start + column * (window.element_type.width // 8)
        if const_expr(self.whole):
            self.put(window, place)
        elif column >= 0 and column + self.vector <= columns:
            self.put(window, place)
        else:
            self.store_each(window, start, column, columns)

    @cute.jit
    def store_each(self, window: cute.Tensor, start: Int64, column: Int64, columns: Int64) -> None:
        """The same for a row that starts on other boundaries than the result's."""
        element = window.element_type
        size = const_expr(element.width // 8)
        for v in cutlass.range_constexpr(self.vector):
            if column + v >= 0 and column + v < columns:
                place = start + (column + v) * size
                pointer = cute.make_ptr(element, place, cute.AddressSpace.gmem, assumed_align=size)
                cute.make_tensor(pointer, cute.make_layout(1))[0] = window[v]

    def _copy(self, element: Any, place: Int64, grain: int, target: cute.Tensor) -> None:
        pointer = cute.make_ptr(element, place, cute.AddressSpace.gmem, assumed_align=grain)
        layout = cute.make_layout(grain * 8 // element.width)
        cute.autovec_copy(cute.make_tensor(pointer, layout), target)

    def put(self, window: cute.Tensor, place: Int64) -> None:
        pointer = cute.make_ptr(
            window.element_type, place, cute.AddressSpace.gmem, assumed_align=16
        )
        cute.autovec_copy(window, cute.make_tensor(pointer, cute.make_layout(self.vector)))


def window_matrix(dtype: str, rows: Any, columns: Any, tiling: Any) -> cute.Tensor:
    """A matrix of rows that fit ``tiling`` (a WindowTiling); their number and length are any."""
    element = DTYPES[dtype]
    divisor = 16 * 8 // element.width if tiling.whole else 1
    alignment = element.width // 8 if tiling.shifted else 16
    strides = cute.sym_int64(divisibility=divisor), 1
    return make_fake_tensor(element, (rows, columns), strides, assumed_align=alignment)


def shared_window_row(dtype: str, columns: Any, tiling: Any) -> cute.Tensor | None:
    """A contiguous vector that every row uses, or None for dtype "none"."""
    if dtype == "none":
        return None
    element = DTYPES[dtype]
    alignment = element.width // 8 if tiling.shifted else 16
    return make_fake_tensor(element, (columns,), (1,), assumed_align=alignment)
