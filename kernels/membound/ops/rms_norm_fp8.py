"""Root-mean-square normalisation with its result quantised to float8_e4m3fn."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from ..runtime import empty, launch
from .layouts import layout
from .norms import NormKernel, check, forward_kernel, heads_of, layout_of, rows_of
from .quantize import BLOCK, quantize_fp8
from .registration import define, public


@dataclasses.dataclass(frozen=True)
class NormFp8Kernel(NormKernel):
    module: ClassVar[str] = "norm_fp8"
    block: int  # columns that share a scale, or 0 for rows

    @property
    def shared_bytes(self) -> int:
        own = 4 * self.tiling.warp_slots if self.block == 0 else 0  # float32, for the maximum
        return super().shared_bytes + own

    @property
    def full_width(self) -> bool:
        return False  # results take fewer bits than what is read


@public
def rms_norm_fp8(
    input: torch.Tensor,
    normalized_shape: int | Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    residual_dtype: torch.dtype | None = None,
    weight_offset: float = 0.0,
    block: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """:func:`~membound.quantize_fp8` of :func:`~membound.rms_norm`, which is not rounded before.

    Where rows are too long for a cluster's registers, odd, or start between boundaries of 16
    bytes, the float32 result is stored between two launches; else it never leaves registers. No
    gradient flows through.

    Args:
        input, normalized_shape, weight, eps, bias, residual, residual_dtype, weight_offset: as for
            :func:`~membound.rms_norm`.
        block: None for a scale a row, or 128 for one each 128 columns, of which a row's last may
            have fewer.

    Returns:
        A float8_e4m3fn tensor of input's shape, and the scales in float32: of input's shape
        without normalized_shape, or with ceil(N / 128) in its place for rows of N elements. With a
        residual also the sum with it, in residual_dtype.

    Raises:
        TypeError, ValueError: as :func:`~membound.rms_norm`; ValueError also where block is
            another.
    """
    dims = check(
        "rms_norm_fp8",
        input,
        normalized_shape,
        weight,
        bias,
        residual,
        residual_dtype,
        0.0,
        None,
    )
    if block not in (None, BLOCK):
        raise ValueError(f"rms_norm_fp8: block is {block!r}; accepted are None (a row) and {BLOCK}")
    if eps is None:
        eps = torch.finfo(torch.float32).eps
    total = ""
    if residual is not None:
        total = str(residual_dtype or residual.dtype).removeprefix("torch.")
    given = (None if one is None else one.detach() for one in (input, weight, bias, residual))
    quantised, *rest = _op(*given, dims, eps, weight_offset, total, block or 0)
    # kernels write bytes: the libraries between do not all know the type
    return quantised.view(torch.float8_e4m3fn), *rest


_kernels: dict[tuple[Any, ...], NormKernel] = {}


def _run(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    dims: int,
    eps: float,
    offset: float,
    total: str,
    block: int,
) -> tuple[torch.Tensor, ...]:
    columns = math.prod(x.shape[-dims:])
    rows, others = rows_of(x, columns), rows_of(residual, columns)
    weights, biases = rows_of(weight, columns), rows_of(bias, columns)
    key = ("rms_norm", layout(rows), layout_of(others), total, layout_of(weights))
    key += (layout_of(biases), heads_of(dims, weight, bias) > 1, offset != 0.0, False, False)
    if block >= columns:
        block, one_block = 0, True
    else:
        one_block = False
    kernel = _kernels.get((key, block))
    if kernel is None:
        kernel = _kernels[key, block] = _kernel(key, block)
    fused = isinstance(kernel, NormFp8Kernel)
    sums = None if residual is None else empty(x.shape, getattr(torch, total), x.device)
    added = None if sums is None else sums.view(-1, columns)
    if fused or not x.numel():
        quantised = empty(x.shape, torch.uint8, x.device)
        scales = empty((rows.shape[0], _blocks(columns, block)), torch.float32, x.device)
        if x.numel():
            out = quantised.view(-1, columns)
            launch(kernel, rows, others, weights, biases, out, scales, added, eps, offset)
    else:
        between = empty(rows.shape, torch.float32, x.device)
        without = (None, None, None)  # statistics, dropout
        launch(kernel, rows, others, weights, biases, between, added, *without, eps, offset, 0, 1.0)
        typed, scales = quantize_fp8(between, block or None)
        quantised = typed.view(torch.uint8).view(x.shape)
    last = (_blocks(columns, block),) if block or one_block else ()
    results = (quantised, scales.view(*x.shape[:-dims], *last))
    return results if sums is None else (*results, sums)


def _blocks(columns: int, block: int) -> int:
    """How many scales a row has."""
    return -(-columns // block) if block else 1


def _kernel(key: tuple[Any, ...], block: int) -> NormKernel:
    """One kernel that quantises too, or one with results in float32."""
    x = key[1]
    kernel = forward_kernel(*key, x.dtype)
    tiling = kernel.tiling
    fits = tiling.chunks == 1 and not tiling.shifted and tiling.vector > 1
    if block:  # its elements must lie side by side in a warp
        fits = fits and tiling.vector >= 4 and tiling.row_threads * tiling.vector >= block
    if not fits:
        return forward_kernel(*key, torch.float32)
    fields = {one.name: getattr(kernel, one.name) for one in dataclasses.fields(kernel)}
    return NormFp8Kernel(**fields | {"out": "float8_e4m3fn"}, block=block)


def _like(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    dims: int,
    eps: float,
    offset: float,
    total: str,
    block: int,
) -> tuple[torch.Tensor, ...]:
    last = (-(-math.prod(x.shape[-dims:]) // block),) if block else ()
    scales = x.new_empty((*x.shape[:-dims], *last), dtype=torch.float32)
    results = (x.new_empty(x.shape, dtype=torch.uint8), scales)
    if residual is None:
        return results
    return *results, x.new_empty(x.shape, dtype=getattr(torch, total))


_op = define(
    "rms_norm_fp8(Tensor input, Tensor? weight, Tensor? bias, Tensor? residual, int dims, "
    "float eps, float offset, str total, int block) -> Tensor[]",
    _run,
    _like,
)
