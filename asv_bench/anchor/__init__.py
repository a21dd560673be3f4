"""The anchor: operations of one commit of the suite, frozen as compiled.

``python -m asv_bench.anchor VERSION`` freezes those of the ``membound`` that it imports, into a
folder of that name here; :data:`CURRENT` says which is measured. A new version is made when an
operation is missing in it, never because kernels got faster.
"""

from __future__ import annotations

import functools
from pathlib import Path

from bandwatch.measure.frozen import Frozen

#: The version that sessions measure.
CURRENT = "a1"

#: Frozen workloads: two of each family, of 50 to 300 µs, which repeat best.
KEYS = (
    "softmax/forward/bfloat16/32768x4096",
    "softmax/forward/float32/16384x8192",
    "logsumexp/forward/bfloat16/32768x4096",
    "rms_norm/forward/bfloat16/32768x4096",
    "rms_norm/forward/float32/16384x8192",
    "layer_norm/forward/bfloat16/16384x8192",
    "swiglu/forward/bfloat16/32768x4096",
    "bias_act/forward/bfloat16/16384x8192",
    "rotary/forward/bfloat16/4x4096x32x128",
    "embedding/forward/bfloat16/32768x128256x4096",
    "sum/forward/bfloat16/32768x4096",
    "var/forward/bfloat16/32768x4096",
    "quantize_fp8/forward/bfloat16/32768x4096",
)


@functools.cache
def anchor() -> Frozen:
    """The current anchor."""
    return Frozen(Path(__file__).parent / CURRENT)
