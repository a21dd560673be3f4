"""How rows of any length are spread over threads where they need nothing of each other."""

from __future__ import annotations

import dataclasses

import torch

from ..runtime import Kernel
from .layouts import Layout

_THREADS = 256

#: Longest row.
MAX_COLUMNS = (1 << 31) - 1


@dataclasses.dataclass(frozen=True)
class WindowTiling:
    """Windows of ``vector`` columns, ``across`` threads along a row and the others down the rows.

    Nothing here depends on how many rows and columns there are, but for ``across``.
    """

    vector: int  # columns of a window
    across: int  # threads along a row, a power of two
    count: int  # windows of a thread
    shifted: bool  # whether rows may start between the boundaries of accesses
    whole: bool  # whether rows are windows from end to end

    def __str__(self) -> str:
        kind = "s" if self.shifted else "w" if self.whole else "t"
        return f"v{self.vector}{kind}_a{self.across}_k{self.count}"

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return _THREADS

    @property
    def down(self) -> int:
        """Rows of a CTA."""
        return _THREADS // self.across

    def blocks(self, columns: int) -> int:
        """CTAs side by side that a row of ``columns`` takes."""
        spare = self.vector - 1 if self.shifted else 0
        return -(-(columns + spare) // (self.across * self.count * self.vector))


class WindowKernel(Kernel):
    """A kernel whose configuration holds a tiling of windows."""

    tiling: WindowTiling

    @property
    def threads(self) -> int:
        return self.tiling.threads

    @property
    def shared_bytes(self) -> int:
        return 0

    @property
    def full_width(self) -> bool:
        return self.tiling.whole


def window_tiling(vector: int, *matrices: Layout, count: int = 2) -> WindowTiling:
    """The tiling for matrices, the first of which has as many columns as a row has results.

    ``count`` is the number of windows of a thread where rows are long.
    """
    columns = matrices[0].columns
    tail = columns % vector != 0
    aligned = all(_starts_fit(matrix) for matrix in matrices)
    shifted = not aligned
    windows = -(-(columns + (vector - 1 if shifted else 0)) // vector)
    across = min(_THREADS, 1 << (windows - 1).bit_length())
    return WindowTiling(
        vector=vector,
        across=across,
        count=count if windows > _THREADS else 1,
        shifted=shifted,
        whole=not (shifted or tail),
    )


def flat(*matrices: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """Matrices of one shape as one row each, where all are contiguous and no row gets too long."""
    if not all(
        one is None or (one.is_contiguous() and one.numel() <= MAX_COLUMNS) for one in matrices
    ):
        return matrices
    return tuple(
        # a single row has no stride that could be in the way
        None if one is None else one.as_strided((1, one.numel()), (0, 1))
        for one in matrices
    )


def _starts_fit(matrix: Layout) -> bool:
    """Whether every row starts on a boundary of 128 bits."""
    return matrix.offset == 0 and all(stride * matrix.size % 16 == 0 for stride in matrix.strides)
