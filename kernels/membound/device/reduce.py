"""Reductions over the threads that share a row."""

from __future__ import annotations

from collections.abc import Callable

import cutlass.cute as cute
from cutlass import Float32


@cute.jit
def block_reduce(
    value: Float32, combine: Callable, identity: Float32, buffer: cute.Tensor
) -> Float32:
    """Combine ``value`` over all threads of the CTA; every thread gets the result.

    ``buffer`` holds one Float32 a warp in shared memory and serves one reduction only: reusing it
    would need a barrier between the last read and the next write.
    """
    value = cute.arch.warp_reduction(value, combine)
    lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
    if lane == 0:
        buffer[warp] = value
    cute.arch.barrier()
    value = identity
    if lane < cute.size(buffer):
        value = buffer[lane]
    return cute.arch.warp_reduction(value, combine)
