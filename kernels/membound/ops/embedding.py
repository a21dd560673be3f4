"""Rows of a table looked up by number."""

from __future__ import annotations

import torch

from . import checks
from .gather import check_index_form, check_rows, gather
from .windows import MAX_COLUMNS


def embedding(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    *,
    check_input: bool = True,
) -> torch.Tensor:
    """Row ``input[...]`` of the weight, as torch.nn.functional.embedding.

    Args:
        input: int64 or int32 tensor of any shape with numbers from 0 to V - 1.
        weight: (V, D) tensor in bfloat16, float16 or float32 on a Hopper GPU. Rows may be strided;
            a tensor whose last dimension is strided is copied first.
        padding_idx: a row, from -V to V - 1, whose gradient is 0.
        check_input: find numbers that are no row, which takes the host a wait for the GPU and is
            left out while a CUDA graph is captured or torch.compile traces. Unchecked, their rows
            are zeros and take part in no gradient.

    Returns:
        A tensor (*input.shape, D) of weight's dtype. The gradient of a row is the sum, in float32
        and in the order of the input, of those of the results that were made of it.

    Raises:
        TypeError: input or weight is no tensor or of another dtype.
        ValueError: they are not on one GPU; weight is no matrix; input or padding_idx is no row.
    """
    checks.row_input("embedding", "weight", weight)
    if weight.dim() != 2:
        raise ValueError(f"embedding: weight has shape {tuple(weight.shape)}; expected (V, D)")
    checks.row_shape("embedding", weight, weight.shape[1], MAX_COLUMNS)
    check_index_form("embedding", "input", input, weight)
    rows = weight.shape[0]
    if padding_idx is None:
        padding = -1
    elif -rows <= padding_idx < rows:
        padding = padding_idx % rows
    else:
        raise ValueError(
            f"embedding: padding_idx is {padding_idx}; accepted are None and {-rows} to {rows - 1}"
        )
    if check_input:
        check_rows("embedding", "input", input, rows)
    return gather(weight, input, padding)
