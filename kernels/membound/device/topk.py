"""The k largest or smallest of each row, exactly and in order.

Each element becomes a number, unique in its row: a key in the order of the values, and behind it
the distance of its column from the right, so that of equal values the leftmost is larger. A radix
select, 8 bits at a time from the top, finds how far down the k largest numbers reach: the CTA
counts the elements of each digit among those that are still open, and keeps the digit in which the
k-th lies. The k are then gathered in shared memory and sorted.

A row that fits the CTA's registers is read once; a longer one in chunks, again for each digit.
"""

from __future__ import annotations

import operator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32, Uint64, const_expr
from cutlass.cute.runtime import make_fake_tensor

from .arguments import DTYPES, current_stream, matrix
from .rows import Rows

#: Bits of a column's place, and of a digit.
COLUMN_BITS = 24
DIGIT_BITS = 8
DIGITS = 1 << DIGIT_BITS
#: Numbers that the CTA shares on a digit: the digit, what is left to find in it, its count.
FACTS = 4


class TopK:
    def __init__(self, kernel: Any) -> None:
        self.tiling = kernel.tiling
        self.rows = Rows(kernel.tiling)
        self.threads = kernel.tiling.threads
        self.k = kernel.k
        self.sorted_size = kernel.sorted_size
        self.largest = kernel.largest
        self.softmax = kernel.softmax
        self.shared_bytes = kernel.shared_bytes
        self.bits = DTYPES[kernel.dtype].width + COLUMN_BITS
        self.infinity = {"bfloat16": 0x7F80, "float16": 0x7C00, "float32": 0x7F800000}[kernel.dtype]

    @cute.jit
    def __call__(
        self, x: cute.Tensor, values: cute.Tensor, indices: cute.Tensor, stream: Any
    ) -> None:
        self.kernel(x, values, indices).launch(
            grid=[x.shape[0], 1, 1],
            block=[self.threads, 1, 1],
            smem=self.shared_bytes,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, x: cute.Tensor, values: cute.Tensor, indices: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        source = x[row, None]
        allocator = cutlass.memory.SmemAllocator()
        found = allocator.allocate_tensor(Uint64, cute.make_layout(self.sorted_size), 8)
        counts = allocator.allocate_tensor(Int32, cute.make_layout(DIGITS))
        facts = allocator.allocate_tensor(Int32, cute.make_layout(FACTS))

        held = self.rows.fragment(x.element_type, 0)
        if const_expr(self.tiling.chunks == 1):
            self.rows.load(source, held, self.rows.lane(thread), 0)

        # Open are the numbers that agree with prefix in the bits of mask; left of them are wanted.
        prefix, mask = Uint64(0), Uint64(0)
        left, shift = Int32(self.k), Int32(self.bits - DIGIT_BITS)
        searching = Int32(1)
        while searching != 0:
            digit = thread
            while digit < DIGITS:
                counts[digit] = 0
                digit += self.threads
            cute.arch.barrier()
            for chunk in cutlass.range(self.tiling.chunks):
                self.count(source, held, counts, chunk, prefix, mask, shift)
            cute.arch.barrier()
            if thread < 32:
                self.choose(counts, facts, left)
            cute.arch.barrier()
            prefix |= Uint64(facts[0]) << Uint64(shift)
            mask |= Uint64(DIGITS - 1) << Uint64(shift)
            left = facts[1]
            if facts[2] == left or shift == 0:  # all that are open are among the k
                searching = Int32(0)
            shift -= DIGIT_BITS
            cute.arch.barrier()

        at = thread
        while at < self.sorted_size:
            found[at] = Uint64(0)  # less than any number
            at += self.threads
        if thread == 0:
            facts[3] = 0
        cute.arch.barrier()
        for chunk in cutlass.range(self.tiling.chunks):
            self.gather(source, held, found, facts, chunk, prefix, mask)
        cute.arch.barrier()
        self.sort(found)
        self.write(x, values, indices, found, counts, row)

    @cute.jit
    def load(self, source: cute.Tensor, held: cute.Tensor, chunk: Int32) -> cute.Tensor:
        """A thread's part of a chunk of the row, as the bits of its values."""
        thread, _, _ = cute.arch.thread_idx()
        if const_expr(self.tiling.chunks > 1):
            self.rows.load(source, held, self.rows.lane(thread, chunk), 0)
        unsigned = Uint32 if const_expr(held.element_type.width == 32) else cutlass.Uint16
        return cute.recast_tensor(held, unsigned)

    @cute.jit
    def number(self, bits: Uint32, column: Int32) -> Uint64:
        """The number of an element: larger for larger values, and for lower columns of equals."""
        width = const_expr(self.bits - COLUMN_BITS)
        sign, every = const_expr(1 << (width - 1)), const_expr((1 << width) - 1)
        magnitude = bits & Uint32(sign - 1)
        key = bits | Uint32(sign)
        if (bits & Uint32(sign)) != 0:
            key = bits ^ Uint32(every)
        if magnitude == 0:  # both zeros are equal
            key = Uint32(sign)
        if magnitude > Uint32(self.infinity):  # NaN of either sign is the largest, as in torch
            key = Uint32(every)
        if const_expr(not self.largest):
            key ^= Uint32(every)
        place = Uint32((1 << COLUMN_BITS) - 1) - Uint32(column)
        return (Uint64(key) << Uint64(COLUMN_BITS)) | Uint64(place)

    @cute.jit
    def count(
        self,
        source: cute.Tensor,
        held: cute.Tensor,
        counts: cute.Tensor,
        chunk: Int32,
        prefix: Uint64,
        mask: Uint64,
        shift: Int32,
    ) -> None:
        """Count a chunk's open numbers by their digit; equal digits of a warp are counted once."""
        thread, _, _ = cute.arch.thread_idx()
        lane = cute.arch.lane_idx()
        bits = self.load(source, held, chunk)
        for i in cutlass.range_constexpr(self.rows.count):
            column = self.rows.column(source, self.rows.lane(thread, chunk), i)
            for v in cutlass.range_constexpr(self.rows.vector):
                number = self.number(Uint32(bits[v, i]), column + v)
                inside = column + v >= 0 and column + v < self.tiling.columns
                digit = Int32(DIGITS) + lane
                if inside and (number & mask) == prefix:
                    digit = Int32((number >> Uint64(shift)) & Uint64(DIGITS - 1))
                same = cute.arch.match_sync(0xFFFFFFFF, digit)
                lowest = cute.arch.popc(Uint32(same) & (Uint32(1) << Uint32(lane)) - 1) == 0
                if digit < DIGITS and lowest:
                    cute.arch.atomic_add(
                        counts.iterator + digit, Int32(cute.arch.popc(Uint32(same)))
                    )

    @cute.jit
    def choose(self, counts: cute.Tensor, facts: cute.Tensor, left: Int32) -> None:
        """One warp finds the digit that holds the ``left``-th largest of what was counted."""
        lane = cute.arch.lane_idx()
        each = const_expr(DIGITS // 32)
        own = Int32(0)
        for i in cutlass.range_constexpr(each):
            own += counts[lane * each + i]
        above = own  # the sum of the lanes from this one up
        for step in cutlass.range_constexpr(5):
            other = cute.arch.shuffle_sync_down(above, 1 << step)
            if lane + (1 << step) < 32:
                above += other
        above -= own
        for i in cutlass.range_constexpr(each):
            digit = lane * each + (each - 1 - i)
            here = counts[digit]
            if above < left and left <= above + here:
                facts[0] = digit
                facts[1] = left - above
                facts[2] = here
            above += here

    @cute.jit
    def gather(
        self,
        source: cute.Tensor,
        held: cute.Tensor,
        found: cute.Tensor,
        facts: cute.Tensor,
        chunk: Int32,
        prefix: Uint64,
        mask: Uint64,
    ) -> None:
        """Put a chunk's part of the k largest numbers into ``found``, in any order."""
        thread, _, _ = cute.arch.thread_idx()
        bits = self.load(source, held, chunk)
        for i in cutlass.range_constexpr(self.rows.count):
            column = self.rows.column(source, self.rows.lane(thread, chunk), i)
            for v in cutlass.range_constexpr(self.rows.vector):
                number = self.number(Uint32(bits[v, i]), column + v)
                inside = column + v >= 0 and column + v < self.tiling.columns
                if inside and (number & mask) >= prefix:
                    found[cute.arch.atomic_add(facts.iterator + 3, Int32(1))] = number

    @cute.jit
    def sort(self, found: cute.Tensor) -> None:
        """A bitonic sort, the largest first."""
        thread, _, _ = cute.arch.thread_idx()
        size = Int32(2)
        while size <= self.sorted_size:
            stride = size // 2
            while stride > 0:
                pair = thread
                while pair < self.sorted_size // 2:
                    low = pair // stride * stride * 2 + pair % stride
                    high = low + stride
                    a, b = found[low], found[high]
                    falling = (low & size) == 0
                    if (a < b) == falling:
                        found[low] = b
                        found[high] = a
                    pair += self.threads
                cute.arch.barrier()
                stride //= 2
            size *= 2

    @cute.jit
    def write(
        self,
        x: cute.Tensor,
        values: cute.Tensor,
        indices: cute.Tensor,
        found: cute.Tensor,
        scratch: cute.Tensor,
        row: Int32,
    ) -> None:
        """Write the values, or their softmax, and their columns."""
        thread, _, _ = cute.arch.thread_idx()
        powers = cute.recast_tensor(scratch, Float32)
        if const_expr(self.softmax):
            if thread < 32:
                top = -Float32.inf
                at = thread
                while at < self.k:
                    top = cute.arch.fmax(top, x[row, column_of(found[at])].to(Float32))
                    at += 32
                top = cute.arch.warp_reduction(top, cute.arch.fmax)
                top = top if top > -Float32.inf else Float32(0.0)
                total = Float32(0.0)
                at = thread
                while at < self.k:
                    power = cute.math.exp(x[row, column_of(found[at])].to(Float32) - top)
                    powers[at] = power
                    total += power
                    at += 32
                total = cute.arch.warp_reduction(total, operator.add)
                at = thread
                while at < self.k:
                    values[row, at] = (powers[at] / total).to(values.element_type)
                    at += 32
        at = thread
        while at < self.k:
            column = column_of(found[at])
            indices[row, at] = Int64(column)
            if const_expr(not self.softmax):
                values[row, at] = x[row, column]
            at += self.threads


@cute.jit
def column_of(number: Uint64) -> Int32:
    """The column of an element's number."""
    return Int32((1 << COLUMN_BITS) - 1) - Int32(number & Uint64((1 << COLUMN_BITS) - 1))


def trace(kernel: Any) -> tuple[TopK, tuple[Any, ...]]:
    """The jit function of ``kernel`` and arguments that stand for every call of it."""
    rows = cute.sym_int()
    x = matrix(kernel.dtype, rows, kernel.tiling)
    return TopK(kernel), (
        x,
        picks(kernel.dtype, rows, kernel),
        picks("int64", rows, kernel),
        current_stream(),
    )


def picks(dtype: str, rows: Any, kernel: Any) -> cute.Tensor:
    """A contiguous (rows, k) matrix."""
    element = DTYPES[dtype]
    return make_fake_tensor(
        element,
        (rows, kernel.k),
        (cute.sym_int64(), 1),
        assumed_align=element.width // 8,
    )
