"""Root-mean-square normalisation over the last dimensions (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import torch

from ..runtime import Kernel, empty, launch
from . import checks
from .layouts import fresh, layout
from .registration import define
from .tiling import MAX_COLUMNS, RowTiling, row_tiling


@dataclasses.dataclass(frozen=True)
class RmsNormKernel(Kernel):
    module: ClassVar[str] = "rms_norm"
    dtype: str
    weight: str  # dtype of the weight, or "none"
    tiling: RowTiling

    @property
    def dtypes(self) -> list[str]:
        """Dtypes of what a thread holds."""
        return [self.dtype] if self.weight == "none" else [self.dtype, self.weight]

    @property
    def threads(self) -> int:
        return self.tiling.threads

    @property
    def cluster(self) -> int:
        return self.tiling.cluster

    @property
    def shared_bytes(self) -> int:
        return 4 * self.tiling.warp_slots  # float32


def rms_norm(
    x: torch.Tensor,
    normalized_shape: int | Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimensions, computed in float32.

    Args:
        x: (..., *normalized_shape) tensor in bfloat16, float16 or float32 on a Hopper GPU. Rows
            may be strided; a tensor whose rows are not contiguous inside is copied first.
        normalized_shape: the trailing dimensions of x to normalise over.
        weight: tensor of normalized_shape, in any of the three dtypes whatever x's is.
        eps: added to the mean square; by default float32's machine epsilon, as in torch.

    Returns:
        A tensor of x's shape and dtype.

    Raises:
        TypeError: x or weight is no tensor or of another dtype.
        ValueError: x is not on a GPU, has no columns or more than 262,144, the shapes do not fit,
            or weight is on another device.
        NotImplementedError: x or weight requires a gradient.
    """
    checks.row_input("rms_norm", "x", x)
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
    if not isinstance(shape, Sequence) or not all(isinstance(n, int) for n in shape):
        raise TypeError(
            f"rms_norm: normalized_shape must be an int or a sequence of ints, got {shape!r}"
        )
    shape = tuple(shape)
    if not shape or tuple(x.shape[-len(shape) :]) != shape:
        raise ValueError(
            f"rms_norm: normalized_shape {shape} must be the last dimensions of x, "
            f"which has shape {tuple(x.shape)}"
        )
    if weight is not None:
        checks.row_input("rms_norm", "weight", weight)
        if tuple(weight.shape) != shape:
            raise ValueError(f"rms_norm: weight has shape {tuple(weight.shape)}; expected {shape}")
        if weight.device != x.device:
            raise ValueError(f"rms_norm: weight is on {weight.device}, x on {x.device}")
    columns = math.prod(shape)
    checks.row_shape("rms_norm", x, columns, MAX_COLUMNS)
    if checks.needs_grad(x, weight):
        raise NotImplementedError("rms_norm: no gradient yet; call it under torch.no_grad()")
    if eps is None:
        eps = torch.finfo(torch.float32).eps
    return _op(x, columns, weight, eps)


def _rms_norm(
    x: torch.Tensor, columns: int, weight: torch.Tensor | None, eps: float
) -> torch.Tensor:
    rows = checks.as_rows(x, columns)
    out = empty(rows.shape, x.dtype, x.device)
    if weight is not None:
        weight = checks.as_rows(weight, columns)[0]
    if rows.numel():
        kernel = RmsNormKernel(
            dtype=checks.dtype_name(x),
            weight="none" if weight is None else checks.dtype_name(weight),
            tiling=row_tiling(
                columns,
                layout(rows),
                fresh(columns, x.dtype),
                shared=None if weight is None else layout(weight),
            ),
        )
        launch(kernel, rows, weight, out, eps)
    return out.view(x.shape)


def _like(x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_op = define(
    "rms_norm(Tensor x, SymInt columns, Tensor? weight, float eps) -> Tensor", _rms_norm, _like
)
