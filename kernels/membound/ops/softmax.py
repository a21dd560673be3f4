"""Softmax over the last dimension."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from ..runtime import Kernel, launch
from . import checks
from .registration import NAMESPACE, library
from .tiling import MAX_COLUMNS, RowTiling, row_tiling


@dataclasses.dataclass(frozen=True)
class SoftmaxKernel(Kernel):
    module: ClassVar[str] = "softmax"
    dtype: str
    tiling: RowTiling

    @property
    def threads(self) -> int:
        return self.tiling.threads

    @property
    def cluster(self) -> int:
        return self.tiling.cluster

    @property
    def shared_bytes(self) -> int:
        return 2 * 4 * self.tiling.warp_slots  # float32, for the maximum and for the sum


def softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Softmax over the last dimension, computed in float32.

    Args:
        x: (..., N) tensor in bfloat16, float16 or float32 on a Hopper GPU. Rows may be strided;
            a tensor whose last dimension is strided is copied first.
        dim: the last dimension.

    Returns:
        A tensor of x's shape and dtype. Rows of NaN, +inf or all -inf give what torch gives.

    Raises:
        TypeError: x is no tensor or of another dtype.
        ValueError: x is not on a GPU, has no columns or more than 262,144, or dim is not the last
            dimension.
        NotImplementedError: x requires a gradient.
    """
    checks.row_input("softmax", "x", x)
    checks.last_dim("softmax", x, dim)
    checks.row_shape("softmax", x, x.shape[-1], MAX_COLUMNS)
    checks.no_gradient("softmax", x=x)
    return _op(x)


def _softmax(x: torch.Tensor) -> torch.Tensor:
    rows = checks.as_rows(x, x.shape[-1])
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    if rows.numel():
        tiling = row_tiling(rows.shape[1], rows, out)
        launch(SoftmaxKernel(checks.dtype_name(x), tiling), rows, out)
    return out.view(x.shape)


library.define("softmax(Tensor x) -> Tensor")
library.impl("softmax", _softmax, "CUDA")
library.impl("softmax", _softmax, "Meta")
_op = getattr(torch.ops, NAMESPACE).softmax.default
