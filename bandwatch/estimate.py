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
    logs = _log_by_placement(samples)
    return of_logs(list(logs.values()), [process for process, _ in logs])


def log_ratio(a_samples: Iterable[Sample], b_samples: Iterable[Sample]) -> Estimate:
    """Time of ``a`` over time of ``b``, from pairs taken at the same (process, placement).

    Above 1 means that ``a`` is slower. Samples without a partner are left out; ``n`` counts the
    pairs.
    """
    a, b = _log_by_placement(a_samples), _log_by_placement(b_samples)
    pairs = sorted(a.keys() & b.keys())
    return of_logs([a[key] - b[key] for key in pairs], [process for process, _ in pairs])


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


def of_logs(logs: Sequence[float], processes: Sequence[int] = ()) -> Estimate:
    """The geometric mean behind ``logs``, natural logarithms of placements.

    ``processes`` tells where each is from. Where several processes differ by more than their
    placements explain, how they differ is the error: below 30 µs a process has an effect of its
    own, and placements of one are then no independent samples.
    """
    n = len(logs)
    if n == 0:
        return Estimate(float("nan"), float("nan"), float("nan"), 0)
    mean = float(np.mean(logs))
    if n == 1:
        return Estimate(float(np.exp(mean)), float("nan"), float("nan"), 1)
    error = max(float(np.std(logs, ddof=1)) / n**0.5, _between(logs, processes))
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * error
    return Estimate(float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half)), n)


def _between(logs: Sequence[float], processes: Sequence[int]) -> float:
    """The standard error of the mean that the means of the processes show."""
    groups: dict[int, list[float]] = {}
    for log, process in zip(logs, processes, strict=bool(processes)):
        groups.setdefault(process, []).append(log)
    if len(groups) < 2:
        return 0.0
    weights = np.array([len(group) for group in groups.values()]) / len(logs)
    spread = float(np.std([float(np.mean(group)) for group in groups.values()], ddof=1))
    return spread * float(np.sqrt((weights**2).sum()))
