"""What every op checks of its input, and how rows are taken from it."""

from __future__ import annotations

import torch

from ..runtime import recording

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def row_input(op: str, name: str, x: torch.Tensor) -> None:
    """Require a non-scalar tensor in a supported dtype on a GPU with at least one column."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{op}: {name} must be a torch.Tensor, got {type(x).__name__}")
    if x.dtype not in DTYPES:
        accepted = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise TypeError(f"{op}: {name} has dtype {x.dtype}; accepted are {accepted}")
    if x.dim() == 0:
        raise ValueError(f"{op}: {name} must have at least one dimension, got a scalar")
    if x.shape[-1] == 0:
        raise ValueError(f"{op}: {name} has 0 columns (shape {tuple(x.shape)}); need at least 1")
    on_device(op, name, x)


def on_device(op: str, name: str, x: torch.Tensor) -> None:
    """Require a tensor on a GPU, or on the meta device while launches are recorded."""
    if not (x.is_cuda or (x.is_meta and recording())):
        raise ValueError(f"{op}: {name} must be on a CUDA device, got {x.device}")


def last_dim(op: str, x: torch.Tensor, dim: int) -> None:
    """Require ``dim`` to name the last dimension."""
    if dim not in (-1, x.dim() - 1):
        raise ValueError(f"{op}: dim must be the last dimension (-1 or {x.dim() - 1}), got {dim}")


def row_shape(op: str, x: torch.Tensor, columns: int, limit: int) -> None:
    """Require as many rows and columns as the op's kernels can count and hold."""
    if columns == 0:
        raise ValueError(
            f"{op}: rows of 0 elements (x has shape {tuple(x.shape)}); need at least 1"
        )
    if columns > limit:
        raise ValueError(f"{op}: rows of {columns} elements; the longest supported is {limit}")
    if x.numel() // columns >= 1 << 31:
        raise ValueError(
            f"{op}: {x.numel() // columns} rows; the most supported is {(1 << 31) - 1}"
        )


def needs_grad(*tensors: torch.Tensor | None) -> bool:
    """Whether autograd must learn of an op on ``tensors``."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def as_rows(x: torch.Tensor, columns: int) -> torch.Tensor:
    """View ``x`` as (M, columns) with contiguous rows; copies only what cannot be viewed so."""
    if x.dim() == 2 and x.shape[1] == columns and x.stride(1) == 1:
        return x
    rows = x.reshape(-1, columns)
    if columns == 1:  # any stride is right for one column, but the kernels ask for 1
        return rows.as_strided(rows.shape, (rows.stride(0), 1))
    return rows if rows.stride(1) == 1 else rows.contiguous()


def dtype_name(x: torch.Tensor) -> str:
    """``bfloat16`` for torch.bfloat16."""
    return str(x.dtype).removeprefix("torch.")
