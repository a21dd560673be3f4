"""How rows are spread over threads. Chosen by rule, so that a shape always gets one kernel."""

from __future__ import annotations

import dataclasses

import torch

#: Most threads of a row in one CTA, and most columns that they hold, 32 elements each.
_CTA_THREADS = 1024
_CTA_COLUMNS = 32_768
#: Most CTAs of a cluster: the portable limit.
_MAX_CLUSTER = 8

#: Longest row.
MAX_COLUMNS = _MAX_CLUSTER * _CTA_COLUMNS


@dataclasses.dataclass(frozen=True)
class RowTiling:
    """Rows of ``columns`` elements over the threads of a CTA, or of a cluster of CTAs."""

    columns: int
    vector: int  # elements per access
    row_threads: int  # threads per row in a CTA, a power of two
    rows: int  # rows per CTA
    cluster: int  # CTAs per row, a power of two
    shifted: bool  # whether rows may start between the boundaries of accesses

    def __str__(self) -> str:
        shifted = "s" if self.shifted else ""
        return (
            f"n{self.columns}_v{self.vector}{shifted}"
            f"_t{self.row_threads}_r{self.rows}_c{self.cluster}"
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


def row_tiling(
    columns: int, *matrices: torch.Tensor, shared: torch.Tensor | None = None
) -> RowTiling:
    """The tiling for the rows of ``matrices``, each (M, columns).

    Each thread holds two accesses of 128 bits, or one where that makes the row fit a warp, or
    more where the row would exceed a CTA; four in shifted rows of 16-bit elements, where the work
    at a row's ends is worth sharing among fewer threads. Only rows that exceed a CTA even so are
    spread over a cluster, whose barrier costs more than full registers do. Short rows share a CTA
    of 128 threads. ``shared`` is a vector that every row uses; it is read in pieces of as many
    elements.
    """
    widest = 16 // min(matrix.element_size() for matrix in matrices)
    aligned = _aligned_length(widest, matrices, shared)
    # what all rows share is then read element by element: for 16-bit rows a loss
    gains = shared is None or widest == 4
    shifted = gains and aligned < widest <= columns and _in_phase(widest, matrices)
    accesses = 4 if shifted and widest == 8 else 1 if columns <= 32 * widest else 2
    row_threads = min(_CTA_THREADS, _power_of_two(-(-columns // (accesses * widest))))
    return RowTiling(
        columns=columns,
        vector=widest if shifted else aligned,
        row_threads=row_threads,
        rows=max(1, 128 // row_threads),
        cluster=_power_of_two(-(-columns // _CTA_COLUMNS)),
        shifted=shifted,
    )


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _aligned_length(
    length: int, matrices: tuple[torch.Tensor, ...], shared: torch.Tensor | None
) -> int:
    """Elements per access: up to ``length``, as columns, row strides and addresses allow."""
    while length > 1 and not (
        all(_rows_fit(matrix, length) for matrix in matrices)
        and (shared is None or _address_fits(shared, length))
    ):
        length //= 2
    return length


def _in_phase(length: int, matrices: tuple[torch.Tensor, ...]) -> bool:
    """Whether every row starts equally far behind a boundary of ``length`` elements in each."""
    first, *others = matrices
    return all(
        other.element_size() == first.element_size()
        and (other.stride(0) - first.stride(0)) % length == 0
        and (_address(other) - _address(first)) % (length * first.element_size()) == 0
        for other in others
    )


def _rows_fit(matrix: torch.Tensor, length: int) -> bool:
    return (
        matrix.shape[1] % length == 0
        and matrix.stride(0) % length == 0
        and _address_fits(matrix, length)
    )


def _address_fits(tensor: torch.Tensor, length: int) -> bool:
    return _address(tensor) % min(16, length * tensor.element_size()) == 0


def _address(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_meta else tensor.data_ptr()
