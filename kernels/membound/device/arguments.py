"""Stand-ins for a kernel's arguments, from which it is compiled."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

DTYPES = {
    "bfloat16": cutlass.BFloat16,
    "float16": cutlass.Float16,
    "float32": cutlass.Float32,
    "bool": cutlass.Uint8,
    "int32": cutlass.Int32,
    "int64": cutlass.Int64,
}


def matrix(dtype: str, rows: Any, tiling: Any) -> cute.Tensor:
    """A (rows, columns) matrix whose rows are contiguous and fit ``tiling`` (a RowTiling).

    The row stride is a 64-bit number known only at run time: with a static one the compiler takes
    the row offset in 32 bits, and matrices of more than 2^31 elements would be corrupted.
    """
    element = DTYPES[dtype]
    vector = 1 if tiling.shifted else tiling.vector
    stride = cute.sym_int64(divisibility=vector)
    alignment = min(16, vector * element.width // 8)
    return make_fake_tensor(element, (rows, tiling.columns), (stride, 1), assumed_align=alignment)


def vector(dtype: str, tiling: Any) -> cute.Tensor:
    """A contiguous vector (columns,) that every row uses, aligned at most to 128 bits."""
    element = DTYPES[dtype]
    vector = 1 if tiling.shifted else tiling.vector
    alignment = min(16, vector * element.width // 8)
    return make_fake_tensor(element, (tiling.columns,), (1,), assumed_align=alignment)


def scalars(dtype: str, rows: Any) -> cute.Tensor:
    """One value a row, one behind the other."""
    element = DTYPES[dtype]
    return make_fake_tensor(element, (rows,), (1,), assumed_align=element.width // 8)


def broadcast(dtype: str, tiling: Any, vector: int) -> cute.Tensor:
    """A (a, b, c, columns) tensor with a row for each of a * b * c, many of them the same.

    Its strides are any, 0 among them; ``vector`` elements can be accessed at a time.
    """
    element = DTYPES[dtype]
    sizes = [cute.sym_int() for _ in range(3)]
    strides = [cute.sym_int64(divisibility=vector) for _ in sizes]
    return make_fake_tensor(
        element,
        (*sizes, tiling.columns),
        (*strides, 1),
        assumed_align=min(16, vector * element.width // 8),
    )


def shared_rows(dtype: str, rows: Any, tiling: Any, vector: int) -> cute.Tensor | None:
    """A (rows, columns) matrix of which each row serves many, or None for dtype "none".

    Its row stride is any; ``vector`` elements can be accessed at a time.
    """
    if dtype == "none":
        return None
    element = DTYPES[dtype]
    strides = cute.sym_int64(divisibility=vector), 1
    alignment = min(16, vector * element.width // 8)
    return make_fake_tensor(element, (rows, tiling.columns), strides, assumed_align=alignment)


def shared_vector(dtype: str, tiling: Any, vector: int) -> cute.Tensor | None:
    """A contiguous vector (columns,) that every row uses, or None for dtype "none".

    ``vector`` elements can be accessed at a time.
    """
    if dtype == "none":
        return None
    element = DTYPES[dtype]
    alignment = min(16, vector * element.width // 8)
    return make_fake_tensor(element, (tiling.columns,), (1,), assumed_align=alignment)


def partial_sums(parts: Any, heads: Any, tiling: Any) -> cute.Tensor:
    """A contiguous float32 workspace (parts, heads, columns)."""
    vector = tiling.vector
    strides = [cute.sym_int64(divisibility=vector) for _ in range(2)]
    return make_fake_tensor(
        cutlass.Float32,
        (parts, heads, tiling.columns),
        (*strides, 1),
        assumed_align=min(16, vector * 4),
    )


def seed() -> cute.Tensor:
    """The 64 bits of a random generator's seed."""
    return make_fake_tensor(cutlass.Int64, (1,), (1,), assumed_align=8)


def current_stream() -> Any:
    """The caller's current CUDA stream, found at each call."""
    return make_fake_stream(use_tvm_ffi_env_stream=True)
