"""Masks that many rows share: checks, and the view that the kernels take."""

from __future__ import annotations

import torch

from . import checks

#: Dimensions of a mask before its columns, once neighbours that run on into each other are joined.
_LEADING = 3


def mask_rows(op: str, mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """``mask``, broadcast to ``x``'s shape (..., N), as a view (a, b, c, N) with contiguous rows.

    Rows of the view, counted through a, b and c, are the rows of ``x``; those that are one in
    ``mask`` have one address. Copied is a mask whose columns are broadcast or strided, or whose
    leading dimensions do not join into three.

    Raises:
        TypeError: the mask is no tensor, or neither boolean nor in a supported dtype.
        ValueError: it is on another device, or cannot be broadcast to ``x``.
    """
    if not isinstance(mask, torch.Tensor):
        raise TypeError(f"{op}: mask must be a torch.Tensor, got {type(mask).__name__}")
    if mask.dtype != torch.bool and mask.dtype not in checks.DTYPES:
        raise TypeError(
            f"{op}: mask has dtype {mask.dtype}; accepted are bool, bfloat16, float16, float32"
        )
    if mask.device != x.device:
        raise ValueError(f"{op}: mask is on {mask.device}, input on {x.device}")
    try:
        torch.broadcast_shapes(mask.shape, x.shape)
        mask.expand(x.shape)
    except RuntimeError:
        raise ValueError(
            f"{op}: mask has shape {tuple(mask.shape)}, which cannot be broadcast to the shape "
            f"of input, {tuple(x.shape)}"
        ) from None
    columns = x.shape[-1]
    if mask.dim() == 0 or mask.shape[-1] != columns or (mask.stride(-1) != 1 and columns > 1):
        own = mask.shape[:-1] if mask.dim() else ()
        mask = mask.expand(*own, columns).contiguous()
    joined = _join(mask.expand(x.shape))
    if len(joined) > _LEADING:
        joined = _join(mask.expand(x.shape).contiguous())
    joined = [(1, 0)] * (_LEADING - len(joined)) + joined
    sizes, strides = zip(*joined, strict=True)
    view = mask.as_strided((*sizes, columns), (*strides, 1))
    return view.view(torch.uint8) if view.dtype == torch.bool else view


def _join(mask: torch.Tensor) -> list[tuple[int, int]]:
    """Sizes and strides of the leading dimensions, joined where one runs on into the next."""
    joined: list[tuple[int, int]] = []
    for size, stride in zip(mask.shape[:-1], mask.stride()[:-1], strict=True):
        if size == 1:
            continue
        if joined and joined[-1][1] == size * stride:
            joined[-1] = (joined[-1][0] * size, stride)
        else:
            joined.append((size, stride))
    return joined
