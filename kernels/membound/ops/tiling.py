"""How rows are spread over threads. Chosen by rule, so that a shape always gets one kernel."""

from __future__ import annotations

import dataclasses

from .layouts import Layout

#: Most threads of a row in one CTA, and most elements that each holds without spills.
_CTA_THREADS = 1024
_THREAD_ELEMENTS = 32
#: Most CTAs of a cluster: the portable limit.
_MAX_CLUSTER = 8

#: Longest row.
MAX_COLUMNS = 1 << 20


@dataclasses.dataclass(frozen=True)
class RowTiling:
    """Rows of ``columns`` elements over the threads of a CTA, or of a cluster of CTAs."""

    columns: int
    vector: int  # elements per access
    row_threads: int  # threads per row in a CTA, a power of two
    rows: int  # rows per CTA
    cluster: int  # CTAs per row, a power of two
    chunks: int  # parts of a row that are held one after another
    shifted: bool  # whether rows may start between the boundaries of accesses

    def __str__(self) -> str:
        shifted = "s" if self.shifted else ""
        return (
            f"n{self.columns}_v{self.vector}{shifted}"
            f"_t{self.row_threads}_r{self.rows}_c{self.cluster}_k{self.chunks}"
        )

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return self.row_threads * self.rows

    @property
    def warp_slots(self) -> int:
        """Values that a reduction over a row exchanges through a CTA's shared memory: one a warp
        of each CTA, and none where a row lies within a warp."""
        return self.cluster * self.threads // 32 if self.row_threads > 32 else 0

    def full_width(self, *sizes: int) -> bool:
        """Whether rows of elements of each of ``sizes`` bytes are moved by 128 bits alone."""
        return not self.shifted and all(self.vector * size >= 16 for size in sizes)


def row_tiling(
    columns: int,
    *matrices: Layout,
    shared: Layout | None = None,
    beside: bool = False,
    held: int = 1,
) -> RowTiling:
    """The tiling for the rows of ``matrices``, each (M, columns).

    Each thread holds two accesses of 128 bits, or one where that makes the row fit a warp, or
    more where the row would exceed a CTA; four in shifted rows of 16-bit elements, where the work
    at a row's ends is worth sharing among fewer threads. Only rows that exceed a CTA even so are
    spread over a cluster, whose barrier costs more than full registers do, and only what exceeds a
    cluster is taken in chunks, which are read again for the result. Short rows share a CTA of 128
    threads. ``shared`` is a vector that every row uses; it is read in pieces of as many elements.
    ``beside`` says that something else is read beside the rows, in pieces of its own. ``held`` is
    the number of matrices whose part of a row a thread holds at a time.
    """
    widest = 16 // min(matrix.size for matrix in matrices)
    aligned = _aligned_length(widest, matrices, shared)
    # what is shared or beside is then read element by element: for 16-bit rows a loss
    gains = (shared is None and not beside) or widest == 4
    shifted = gains and aligned < widest <= columns and _in_phase(widest, matrices)
    accesses = 4 if shifted and widest == 8 else 1 if columns <= 32 * widest else 2
    row_threads = min(_CTA_THREADS, _power_of_two(-(-columns // (accesses * widest))))
    most = _CTA_THREADS * _THREAD_ELEMENTS // _power_of_two(held)
    longest = columns + (widest - 1 if shifted else 0)
    cluster = min(_MAX_CLUSTER, _power_of_two(-(-longest // most)))
    return RowTiling(
        columns=columns,
        vector=widest if shifted else aligned,
        row_threads=row_threads,
        rows=max(1, 128 // row_threads),
        cluster=cluster,
        chunks=-(-longest // (cluster * most)),
        shifted=shifted,
    )


def shared_vector(shared: Layout, tiling: RowTiling) -> int:
    """Elements that can be accessed at a time in what several rows share, up to the tiling's."""
    length = 1 if tiling.shifted else tiling.vector
    while length > 1 and not _rows_fit(shared, length):
        length //= 2
    return length


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _aligned_length(length: int, matrices: tuple[Layout, ...], shared: Layout | None) -> int:
    """Elements per access: up to ``length``, as columns, row strides and addresses allow."""
    while length > 1 and not (
        all(_rows_fit(matrix, length) for matrix in matrices)
        and (shared is None or _address_fits(shared, length))
    ):
        length //= 2
    return length


def _in_phase(length: int, matrices: tuple[Layout, ...]) -> bool:
    """Whether every row starts equally far behind a boundary of ``length`` elements in each."""
    first, *others = matrices
    return length * first.size <= 16 and all(
        other.size == first.size
        and (other.strides[0] - first.strides[0]) % length == 0
        and other.offset == first.offset
        for other in others
    )


def _rows_fit(matrix: Layout, length: int) -> bool:
    return (
        matrix.columns % length == 0
        and all(stride % length == 0 for stride in matrix.strides)
        and _address_fits(matrix, length)
    )


def _address_fits(tensor: Layout, length: int) -> bool:
    return tensor.offset % min(16, length * tensor.size) == 0
