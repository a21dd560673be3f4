"""The one estimator: geometric means and paired log ratios with 95 % Student intervals.

Samples are ``[process, placement, seconds]``. The logarithm is taken first because timing effects
multiply: a slow placement slows every provider by about the same factor, so the ratio within a
placement is steadier than either time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95

Sample = Sequence[float]


@dataclass(frozen=True)
class Estimate:
    """A value with its interval and the number of samples (or pairs) behind it.

    ``low`` and ``high`` are NaN below two samples (one sample bounds nothing), ``value`` is NaN
    with none.
    """

    value: float
    low: float
    high: float
    n: int


def seconds(samples: Iterable[Sample]) -> Estimate:
    """Geometric mean of the sample times, in seconds; one sample is one placement."""
    return of_logs(list(_log_by_placement(samples).values()))


def log_ratio(a_samples: Iterable[Sample], b_samples: Iterable[Sample]) -> Estimate:
    """Time of ``a`` over time of ``b``, from pairs taken at the same (process, placement).

    Above 1 means that ``a`` is slower. Samples without a partner are left out; ``n`` counts the
    pairs.
    """
    a, b = _log_by_placement(a_samples), _log_by_placement(b_samples)
    return of_logs([a[key] - b[key] for key in sorted(a.keys() & b.keys())])


def _log_by_placement(samples: Iterable[Sample]) -> dict[tuple[int, int], float]:
    logs: dict[tuple[int, int], float] = {}
    for process, placement, value in samples:
        key = (int(process), int(placement))
        if key in logs:
            raise ValueError(
                f"two samples at process {key[0]}, placement {key[1]}; one was expected: "
                "number the processes when joining sessions"
            )
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"sample {[process, placement, value]}: expected seconds above 0")
        logs[key] = float(np.log(value))
    return logs


def of_logs(logs: Sequence[float]) -> Estimate:
    """The geometric mean behind ``logs``, natural logarithms of independent samples."""
    n = len(logs)
    if n == 0:
        return Estimate(float("nan"), float("nan"), float("nan"), 0)
    mean = float(np.mean(logs))
    if n == 1:
        return Estimate(float(np.exp(mean)), float("nan"), float("nan"), 1)
    error = float(np.std(logs, ddof=1)) / n**0.5
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * error
    return Estimate(float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half)), n)
