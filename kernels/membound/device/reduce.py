"""Reductions over the threads that share a row."""

from __future__ import annotations

from collections.abc import Callable

import cutlass.cute as cute
from cutlass import Float32, const_expr


@cute.jit
def row_reduce(
    value: Float32, combine: Callable, identity: Float32, threads: int, buffer: cute.Tensor | None
) -> Float32:
    """Combine ``value`` over the ``threads`` threads of a row; each of them gets the result.

    Up to a warp's 32 threads exchange by shuffles alone. More need ``buffer``, Float32
    (rows, warps a row) in shared memory, and one barrier of the whole CTA. A buffer serves one
    reduction only: reusing it would need another barrier between its last read and next write.
    """
    value = cute.arch.warp_reduction(value, combine, threads_in_group=min(threads, 32))
    if const_expr(threads > 32):
        warps = threads // 32
        lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
        if lane == 0:
            buffer[warp // warps, warp % warps] = value
        cute.arch.barrier()
        value = identity
        if lane < warps:
            value = buffer[warp // warps, lane]
        value = cute.arch.warp_reduction(value, combine)
    return value
