"""How a row is spread over threads. Chosen by rule, so that a shape always gets one kernel."""

from __future__ import annotations

import torch

#: Longest row that one CTA holds in registers: 1,024 threads of 32 elements.
MAX_COLUMNS = 32_768


def row_threads(columns: int) -> int:
    """Threads for a row: a power of two, about 16 elements each, at most 1,024."""
    wanted = -(-columns // 16)
    return min(1024, 1 << (wanted - 1).bit_length())


def cta_rows(threads: int) -> int:
    """Rows for a CTA whose rows have ``threads`` threads each: as many as make 128 threads."""
    return max(1, 128 // threads)


def vector_length(*matrices: torch.Tensor, shared: torch.Tensor | None = None) -> int:
    """Elements per access: up to 128 bits, as columns, row strides and addresses allow.

    ``shared`` is a vector that every row uses; it is read in pieces of as many elements.
    """
    length = 16 // min(matrix.element_size() for matrix in matrices)
    while length > 1 and not (
        all(_rows_fit(matrix, length) for matrix in matrices)
        and (shared is None or _address_fits(shared, length))
    ):
        length //= 2
    return length


def _rows_fit(matrix: torch.Tensor, length: int) -> bool:
    return (
        matrix.shape[1] % length == 0
        and matrix.stride(0) % length == 0
        and _address_fits(matrix, length)
    )


def _address_fits(tensor: torch.Tensor, length: int) -> bool:
    address = 0 if tensor.is_meta else tensor.data_ptr()
    return address % min(16, length * tensor.element_size()) == 0
