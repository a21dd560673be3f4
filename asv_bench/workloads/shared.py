"""What descriptions of operations share: the grid of matrices, random inputs, sizes in bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bandwatch.measure.workload import DTYPE_BYTES, Workload, workload_of

DTYPES = ("bfloat16", "float16", "float32")
SHAPES = (
    "32768x256",
    "32768x1024",
    "32768x1001",
    "4096x4096",
    "32768x4096",
    "16384x8192",
    "8192x16384",
    "4096x32768",
)
NO, YES = "no", "yes"


def matrices(
    op: str,
    shapes: tuple[str, ...] = SHAPES,
    dtypes: tuple[str, ...] = DTYPES,
    direction: str = "forward",
    options: Mapping[str, tuple[str, ...]] | None = None,
    **values: str,
) -> tuple[Workload, ...]:
    """Workloads to benchmark: every dtype on every shape, with the options ``values``.

    Shapes are written as ``"32768x4096"``; ``options`` are those that the op has.
    """
    return tuple(
        workload_of(op, options or {}, dtype, sizes(shape), direction, **values)
        for dtype in dtypes
        for shape in shapes
    )


def sizes(shape: str) -> tuple[int, ...]:
    """``(32768, 4096)`` of ``"32768x4096"``."""
    return tuple(int(n) for n in shape.split("x"))


def torch_dtype(name: str) -> Any:
    """``torch.bfloat16`` of ``"bfloat16"``."""
    import torch

    return getattr(torch, name)


def randn(shape: tuple[int, ...], dtype: str, device: Any, generator: Any) -> Any:
    """Normal values."""
    import torch

    return torch.randn(shape, dtype=torch_dtype(dtype), device=device, generator=generator)


def randint(
    high: int, shape: tuple[int, ...], device: Any, generator: Any, dtype: str = "int64"
) -> Any:
    """Integers from 0 up to, but not, ``high``."""
    import torch

    return torch.randint(high, shape, dtype=torch_dtype(dtype), device=device, generator=generator)


def other_dtype(dtype: str) -> str:
    """A dtype of another width: float32 beside 16-bit ones, bfloat16 beside float32."""
    return "bfloat16" if dtype == "float32" else "float32"


def nbytes(workload: Workload) -> int:
    """Bytes of a tensor of the workload's shape and dtype."""
    return math.prod(workload.shape) * DTYPE_BYTES[workload.dtype]
