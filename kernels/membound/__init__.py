"""Memory-bound kernels for NVIDIA Hopper (sm_90a), written in CuTe-DSL.

Importing needs neither a GPU nor the compiler; a call says what is missing.
"""

from . import runtime
from .ops.bias_act import bias_act
from .ops.cross_entropy import cross_entropy
from .ops.embedding import embedding
from .ops.gated import geglu, reglu, swiglu
from .ops.gather import gather_rows, permute_rows
from .ops.layer_norm import layer_norm
from .ops.quantize import quantize_fp8, swiglu_fp8
from .ops.ragged import ragged_cross_entropy, ragged_rms_norm, ragged_softmax
from .ops.reductions import amax, argmax, mean, norm, sum, var
from .ops.rms_norm import rms_norm
from .ops.rms_norm_fp8 import rms_norm_fp8
from .ops.rotary import rotary
from .ops.softmax import log_softmax, logsumexp, softmax
from .ops.topk import topk
from .parallelize import Explanation, parallelize

__all__ = [
    "amax",
    "argmax",
    "bias_act",
    "cross_entropy",
    "embedding",
    "Explanation",
    "gather_rows",
    "geglu",
    "layer_norm",
    "log_softmax",
    "logsumexp",
    "mean",
    "norm",
    "parallelize",
    "permute_rows",
    "quantize_fp8",
    "ragged_cross_entropy",
    "ragged_rms_norm",
    "ragged_softmax",
    "reglu",
    "rms_norm",
    "rms_norm_fp8",
    "rotary",
    "runtime",
    "softmax",
    "sum",
    "swiglu",
    "swiglu_fp8",
    "topk",
    "var",
]
