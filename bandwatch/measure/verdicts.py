"""Whether a measured time may be believed. An invalid time is kept and shown, never compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .. import estimate
from ..gpus import peak_bytes_per_second
from .telemetry import Telemetry

VALID = "valid"
THROTTLED = "throttled"
NOT_STEADY = "not steady"
ABOVE_PEAK = "above physical peak"
L2_RESIDENT = "L2-resident"
FAILED = "failed"
NOT_AVAILABLE = "not available"

#: Reasons that slow the memory system or the whole chip down. ``sw_power_cap`` is not among them:
#: memory-bound kernels sit at the power limit routinely, and it costs SM clock only, of which
#: they have plenty; what counts there is how far the clock fell.
THROTTLES = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown"}
)

#: Least median SM clock as a share of the card's maximum. Row kernels use up to about 70 % of the
#: issue slots at full clock, so below three quarters they may stop being memory-bound.
MIN_SM_CLOCK_SHARE = 0.75

#: Most that the slowest placement may exceed the fastest, against the control at the same ones.
#: Ratios spread by 0.1 to 0.3 % (standard deviation) from 30 µs up and 2 to 4 % at 5 µs.
STEADY_SPREAD = 0.10

#: Widest half of the 95 % interval of a ratio to the control once all placements are measured.
STEADY_HALF_WIDTH = 0.01

#: Placements from which on the interval is judged; below, Student's quantile makes it useless.
LEAST_INTERVAL = 4

#: How much faster than the control a provider may be before the control is suspect: it moves the
#: same bytes and does nothing else, so what it cannot do is its fault.
MAX_OF_CONTROL = 1.01

#: Least size of the rotating buffers in L2 sizes: below, replays find part of the data in L2.
MIN_ROTATION = 2.0


def judge(
    seconds: Sequence[float],
    *,
    logs: Sequence[float],
    finished: bool,
    traffic_bytes: int,
    rotation_bytes: int,
    l2_bytes: int,
    gpu: str,
    telemetry: Telemetry,
) -> tuple[str, str]:
    """Verdict and reason for the times of one provider, one time per placement.

    ``logs`` are logarithms of what must be steady, over all processes of the session: the ratio to
    the control where there is one. ``finished`` says that no more placements follow.

    The fault that explains most comes first. The physical peak is checked only for GPU
    models whose datasheet is known, throttling only where there is telemetry.
    """
    if rotation_bytes < MIN_ROTATION * l2_bytes:
        return L2_RESIDENT, (
            f"buffers of {rotation_bytes / 1e6:.1f} MB rotate through an L2 of "
            f"{l2_bytes / 1e6:.1f} MB; at least {MIN_ROTATION:g} times its size is needed"
        )
    peak = peak_bytes_per_second(gpu)
    rate = traffic_bytes / min(seconds)
    if peak is not None and rate > peak:
        return ABOVE_PEAK, f"{rate / 1e9:.0f} GB/s, the {gpu} moves at most {peak / 1e9:.0f} GB/s"
    throttles = sorted(THROTTLES.intersection(telemetry.reasons))
    if throttles:
        return THROTTLED, f"the driver reported {', '.join(throttles)}"
    share = telemetry.sm_clock_share
    if share is not None and share < MIN_SM_CLOCK_SHARE:
        return THROTTLED, f"SM clock at {share:.0%} of its maximum"
    spread = math.expm1(max(logs) - min(logs))
    if spread > STEADY_SPREAD:
        return NOT_STEADY, (
            f"placements spread by {spread:.1%}, at most {STEADY_SPREAD:.0%} is steady"
        )
    if finished and len(logs) >= LEAST_INTERVAL:
        ratio = estimate.of_logs(logs)
        half = math.log(ratio.high / ratio.low) / 2
        if half > STEADY_HALF_WIDTH:
            return NOT_STEADY, (
                f"known to ±{half:.1%} after {len(logs)} placements, ±{STEADY_HALF_WIDTH:.0%} is "
                "steady"
            )
    return VALID, ""


def suspicion(
    samples: Mapping[str, Sequence[estimate.Sample]], control: Sequence[estimate.Sample]
) -> str:
    """Why the control is no ceiling here: a provider beats it by more than 1 %. Empty if none."""
    for name, own in samples.items():
        ratio = estimate.log_ratio(control, own)
        if ratio.n > 1 and ratio.low > MAX_OF_CONTROL:
            return f"suspect: {name} reaches {ratio.value:.1%} of it, 100 % is the most"
    return ""
