"""What of a tensor decides which kernel takes it: the key and the input of every tiling rule."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Layout(NamedTuple):
    """Rows of a tensor, however many: ``strides`` between them, contiguous inside.

    ``offset`` is the first row's address behind a boundary of 16 bytes.
    """

    dtype: torch.dtype
    columns: int
    strides: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize


def layout(rows: torch.Tensor) -> Layout:
    """The layout of ``rows``; on the meta device as if its storage began on a boundary."""
    if rows.is_meta:
        address = rows.storage_offset() * rows.element_size()
    else:
        address = rows.data_ptr()
    # half the host time of the constructor
    return tuple.__new__(Layout, (rows.dtype, rows.shape[-1], rows.stride()[:-1], address % 16))


def fresh(columns: int, dtype: torch.dtype) -> Layout:
    """The layout of a matrix from :func:`~..runtime.empty`."""
    return Layout(dtype, columns, (columns,), 0)
