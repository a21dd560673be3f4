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
}


def matrix(dtype: str, rows: Any, columns: Any) -> cute.Tensor:
    """A (rows, columns) matrix with contiguous rows.

    The row stride is a 64-bit number known only at run time: with a static one the compiler takes
    the row offset in 32 bits, and matrices of more than 2^31 elements would be corrupted.
    """
    return make_fake_tensor(DTYPES[dtype], (rows, columns), (cute.sym_int64(), 1))


def vector(dtype: str, length: Any) -> cute.Tensor:
    """A contiguous vector."""
    return make_fake_tensor(DTYPES[dtype], (length,), (1,))


def current_stream() -> Any:
    """The caller's current CUDA stream, found at each call."""
    return make_fake_stream(use_tvm_ffi_env_stream=True)
