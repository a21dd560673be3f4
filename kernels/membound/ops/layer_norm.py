"""Layer normalisation over the last dimensions (Ba, Kiros and Hinton, 2016)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .norms import check, norm
from .registration import public


@public
def layer_norm(
    input: torch.Tensor,
    normalized_shape: int | Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: torch.Tensor | None = None,
    residual_dtype: torch.dtype | None = None,
    weight_offset: float = 0.0,
    dropout_p: float = 0.0,
    dropout_seed: torch.Tensor | None = None,
    return_stats: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """``(x - mean(x)) / sqrt(var(x) + eps) * (weight + weight_offset) + bias``, in float32.

    Arguments and errors are those of :func:`~membound.rms_norm`. ``var`` is the mean square of
    ``x - mean(x)``, computed as such.

    Returns:
        A tensor of input's shape and dtype. With a residual a tuple, whose second is the sum with
        it, in residual_dtype. With return_stats a tuple, whose last two are the rows' means and
        factors ``1 / sqrt(var(x) + eps)``, float32 tensors of input's shape without
        normalized_shape; no gradient flows through them.
    """
    dims = check(
        "layer_norm",
        input,
        normalized_shape,
        weight,
        bias,
        residual,
        residual_dtype,
        dropout_p,
        dropout_seed,
    )
    return norm(
        "layer_norm",
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
        return_stats,
    )
