"""Reductions over the threads that share a row, in a warp, a CTA or a cluster of CTAs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, const_expr


@cute.jit
def reduce_fragment(values: cute.Tensor, combine: Callable) -> Float32:
    """Combine a register tensor's Float32 values over the thread and its whole warp."""
    value = values[0]
    for i in cutlass.range_constexpr(1, cute.size(values)):
        value = combine(value, values[i])
    return cute.arch.warp_reduction(value, combine)


class RowExchange:
    """Hands the values of a row's warps to all threads of the row.

    A row within a warp exchanges nothing. The warps of a CTA meet in shared memory; those of a
    cluster write into the shared memory of each of its CTAs.
    """

    def __init__(self, tiling: Any) -> None:
        self.warps = tiling.row_threads // 32
        self.cluster = tiling.cluster
        self.layout = (tiling.rows, self.warps * tiling.cluster)
        self.needed = tiling.warp_slots > 0

    @cute.jit
    def arrive(self) -> None:
        """Call first in the kernel: no CTA may be written to before it runs."""
        if const_expr(self.cluster > 1):
            cute.arch.cluster_arrive_relaxed()

    @cute.jit
    def share(self, values: tuple, fills: tuple, again: bool = False) -> list:
        """A register tensor per value with the row's values of it, spread over a warp's lanes.

        ``values`` are Float32, the same in all lanes of a warp; ``fills`` the neutral elements
        for lanes that are left over. Each call of a kernel has shared memory of its own, and all
        but the first are ``again``.
        """
        allocator = cutlass.memory.SmemAllocator()
        buffers = [allocator.allocate_tensor(Float32, cute.make_layout(self.layout)) for _ in fills]
        lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
        row, slot = warp // self.warps, warp % self.warps
        if const_expr(self.cluster == 1):
            if lane == 0:
                for buffer, value in zip(buffers, values, strict=True):
                    buffer[row, slot] = value
            cute.arch.barrier()
        else:
            slot += cute.arch.block_idx_in_cluster() * self.warps
            if const_expr(not again):
                cute.arch.cluster_wait()
            if lane < self.cluster:
                for buffer, value in zip(buffers, values, strict=True):
                    own = buffer.iterator + buffer.layout((row, slot))
                    cute.arch.store(self._peer(own, lane), value, ss="cluster")
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()

        slots = self.layout[1]
        gathered = []
        for buffer, fill in zip(buffers, fills, strict=True):
            fragment = cute.make_rmem_tensor((-(-slots // 32),), Float32)
            fragment.fill(fill)
            for i in cutlass.range_constexpr(cute.size(fragment)):
                if lane + 32 * i < slots:
                    fragment[i] = buffer[row, lane + 32 * i]
            gathered.append(fragment)
        return gathered

    def _peer(self, own: cute.Pointer, rank: Any) -> cute.Pointer:
        """The place of ``own`` in the shared memory of another CTA of the cluster."""
        mapped = cute.arch.map_dsmem_ptr(own, rank)
        # stores take a shared memory pointer and learn from ss="cluster" whose memory is meant
        return cute.make_ptr(Float32, mapped.toint(), cute.AddressSpace.smem, assumed_align=4)
