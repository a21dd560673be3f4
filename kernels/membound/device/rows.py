"""A thread's part of a row: vectors loaded from and stored to global memory.

A row is cut into vectors of ``vector`` elements, handed round-robin to the row's threads. A
fragment is a register tensor (vector, count); its element (v, i) is column
``(thread + i * threads) * vector + v``.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr


def fragment_shape(tiling: Any) -> tuple[int, int]:
    """(vector, count) of the fragment that covers a thread's part of a row."""
    return tiling.vector, -(-tiling.columns // (tiling.row_threads * tiling.vector))


@cute.jit
def load_row(row: cute.Tensor, fragment: cute.Tensor, thread: Int32, threads: int) -> None:
    """Fill ``fragment`` from ``row`` (columns,); what lies beyond the last column is left as is."""
    vector, count = fragment.shape
    vectors = const_expr(cute.size(row) // vector)
    for i in cutlass.range_constexpr(count):
        index = thread + i * threads
        source = cute.local_tile(row, (vector,), (index,))
        if const_expr((i + 1) * threads <= vectors):
            cute.autovec_copy(source, fragment[None, i])
        elif index < vectors:
            cute.autovec_copy(source, fragment[None, i])


@cute.jit
def store_row(fragment: cute.Tensor, row: cute.Tensor, thread: Int32, threads: int) -> None:
    """Write ``fragment`` to ``row`` (columns,), without what lies beyond the last column."""
    vector, count = fragment.shape
    vectors = const_expr(cute.size(row) // vector)
    for i in cutlass.range_constexpr(count):
        index = thread + i * threads
        target = cute.local_tile(row, (vector,), (index,))
        if const_expr((i + 1) * threads <= vectors):
            cute.autovec_copy(fragment[None, i], target)
        elif index < vectors:
            cute.autovec_copy(fragment[None, i], target)
