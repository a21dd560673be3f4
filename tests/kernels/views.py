"""The same tensor laid out otherwise in memory, in the midst of NaN."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch


def _nan(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Memory in which whatever is read by mistake shows."""
    return torch.full(shape, float("nan"), dtype=like.dtype, device=like.device)


def _columns(begin: int, spare: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Rows from column ``begin`` of rows that are ``spare`` columns longer."""

    def lay(tensor: torch.Tensor) -> torch.Tensor:
        *leading, columns = tensor.shape
        wide = _nan((*leading, columns + spare), tensor)
        view = wide[..., begin : begin + columns]
        view.copy_(tensor)
        return view

    return lay


def _odd_stride(tensor: torch.Tensor) -> torch.Tensor:
    return _columns(0, 1 + tensor.shape[-1] % 2)(tensor)


def _late(tensor: torch.Tensor) -> torch.Tensor:
    flat = _nan((tensor.numel() + 9,), tensor)
    view = flat[1 : 1 + tensor.numel()].view(tensor.shape)
    view.copy_(tensor)
    return view


def _every_third_row(tensor: torch.Tensor) -> torch.Tensor:
    view = _nan((3 * len(tensor), *tensor.shape[1:]), tensor)[::3]
    view.copy_(tensor)
    return view


def _every_other_column(tensor: torch.Tensor) -> torch.Tensor:
    *leading, columns = tensor.shape
    view = _nan((*leading, 2 * columns), tensor)[..., ::2]
    view.copy_(tensor)
    return view


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def _one_row(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:1].clone().expand_as(tensor)


def _one_column(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[..., :1].clone().expand_as(tensor)


def _one_value(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten()[0].clone().expand_as(tensor)


def far_apart(tensor: torch.Tensor) -> torch.Tensor:
    """Rows so far apart that the last begins beyond 2^31 elements."""
    rows, *rest = tensor.shape
    stride = -(-(2**31) // max(1, rows - 1) // 64) * 64 + 64 + math.prod(rest)
    stride += -stride % 64
    size = stride * (rows - 1) + math.prod(rest)
    memory = torch.empty(size, dtype=tensor.dtype, device=tensor.device)
    view = memory.as_strided(tensor.shape, (stride, *tensor.stride()[1:]))
    view.copy_(tensor)
    return view


#: Layouts of inputs of two dimensions or more. Expanded ones hold other values than the tensor.
MATRIX: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "first columns": _columns(0, 24),
    "columns from 3 on": _columns(3, 24),
    "columns from 4 on": _columns(4, 24),
    "columns from 2 on": _columns(2, 24),
    "odd row stride": _odd_stride,
    "one element late": _late,
    "every third row": _every_third_row,
    "every other column": _every_other_column,
    "transposed": _transposed,
    "one row expanded": _one_row,
    "one column expanded": _one_column,
}

#: Layouts of matrices beside the first.
FEWER = {
    name: MATRIX[name]
    for name in ("columns from 3 on", "one element late", "transposed", "one row expanded")
}

#: Layouts of inputs of one dimension.
VECTOR = {name: MATRIX[name] for name in ("one element late", "every other column")} | {
    "one value expanded": _one_value
}

#: Layouts of the gradients that a backward is given.
GRADIENT = {
    name: MATRIX[name]
    for name in ("columns from 3 on", "one element late", "every third row", "transposed")
} | {"one value expanded": _one_value, "one row expanded": _one_row}

#: All layouts of inputs.
INPUT = MATRIX | VECTOR | {"far apart": far_apart}
