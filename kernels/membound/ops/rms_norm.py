"""Root-mean-square normalisation over the last dimensions (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .norms import check, norm
from .registration import public


@public
def rms_norm(
    input: torch.Tensor,
    normalized_shape: int | Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    residual_dtype: torch.dtype | None = None,
    weight_offset: float = 0.0,
    dropout_p: float = 0.0,
    dropout_seed: torch.Tensor | None = None,
    return_rstd: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """``x / sqrt(mean(x^2) + eps) * (weight + weight_offset) + bias``, computed in float32.

    ``x`` is the input or, with a residual, ``dropout(input) + residual``. Means are over the last
    dimensions.

    Args:
        input: (..., *normalized_shape) tensor in bfloat16, float16 or float32 on a Hopper GPU.
            Rows may be strided; a tensor whose rows are not contiguous inside is copied first.
        normalized_shape: the trailing dimensions of input to normalise over, up to 1,048,576
            elements.
        weight: tensor of normalized_shape, in any of the three dtypes whatever input's is; or one
            with a further dimension in front, of input's size there, for weights of its own for
            each head: (H, N) for an input (..., H, N).
        eps: added to the mean square; by default float32's machine epsilon, as in torch.
        bias: like weight; where both are given, of its shape.
        residual: tensor of input's shape, in any of the three dtypes, to add first.
        residual_dtype: of the sum with the residual, by default residual's dtype.
        weight_offset: added to the weight in float32; 1 for weights that are stored around 0.
        dropout_p: probability with which an element of input is zeroed before the residual is
            added; the others are scaled by 1 / (1 - dropout_p). Needs a residual.
        dropout_seed: int64 tensor of one value on input's device that decides what is zeroed
            (:mod:`membound.device.dropout` tells how); by default drawn by torch's generator of
            the device.
        return_rstd: also return the rows' factors.

    Returns:
        A tensor of input's shape and dtype. With a residual a tuple, whose second is the sum with
        it, in residual_dtype. With return_rstd a tuple, whose last are the factors
        ``1 / sqrt(mean(x^2) + eps)``, a float32 tensor of input's shape without
        normalized_shape; no gradient flows through it.

    Raises:
        TypeError: a tensor is none or of another dtype.
        ValueError: input is not on a GPU, has no columns or too many, shapes do not fit, tensors
            are on several devices, or dropout_p is no probability or has no residual.
    """
    dims = check(
        "rms_norm",
        input,
        normalized_shape,
        weight,
        bias,
        residual,
        residual_dtype,
        dropout_p,
        dropout_seed,
    )
    if eps is None:
        eps = torch.finfo(torch.float32).eps
    return norm(
        "rms_norm",
        input,
        dims,
        weight,
        bias,
        eps,
        residual,
        residual_dtype,
        weight_offset,
        dropout_p,
        dropout_seed,
        return_rstd,
    )
