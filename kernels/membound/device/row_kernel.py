"""What the kernels over rows share: which row a thread works on, and how they are launched."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int32, const_expr

from .reduce import RowExchange
from .rows import Rows


class RowKernel:
    """A kernel that gives each row of a matrix to a warp or part of one, a CTA or a cluster."""

    def __init__(self, kernel: Any) -> None:
        self.tiling = kernel.tiling
        self.rows = Rows(kernel.tiling)
        self.exchange = RowExchange(kernel.tiling)
        self.shared_bytes = kernel.shared_bytes

    def shape(self, rows: Any, stream: Any) -> dict[str, Any]:
        """The launch over a matrix of ``rows`` rows."""
        tiling = self.tiling
        return {
            "grid": [cute.ceil_div(rows, tiling.rows), tiling.cluster, 1],
            "block": [tiling.threads, 1, 1],
            "cluster": [1, tiling.cluster, 1] if tiling.cluster > 1 else None,
            "smem": self.shared_bytes,
            "stream": stream,
        }

    @cute.jit
    def place(self, rows: Int32) -> tuple:
        """This thread's index in its CTA, its row, and whether there is such a row."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row = block * self.tiling.rows + thread // self.tiling.row_threads
        # the last CTA may have rows to spare, unless a CTA has but one
        exists = const_expr(self.tiling.rows == 1) or row < rows
        return thread, row, exists

    @cute.jit
    def first(self, thread: Int32) -> Any:
        """Whether this thread is the one that stores what a row has one of."""
        first = thread % self.tiling.row_threads == 0
        if const_expr(self.tiling.cluster > 1):
            first = first and cute.arch.block_idx_in_cluster() == 0
        return first
