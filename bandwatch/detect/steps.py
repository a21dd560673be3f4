"""Where the level of one series changed, and what that means.

A series is fitted by a piecewise constant on the logarithm, with known noise: each point weighs
by its own interval plus a floor for what differs between sessions. PELT of ``ruptures`` finds the
exact optimum of that fit; a step counts where it exceeds the metric's margin.

Why PELT and not ``asv.step_detect``: asv estimates the noise from the series, which a dozen points
with many true steps cannot give, while we know it. In simulation (300 series a cell, 2 % margin;
both raised a false alarm in at most 1 of 300 clean series):

=======================================  ======  ====
13 points                                 PELT   asv
=======================================  ======  ====
0.3 % noise, 2 % step found                49 %  25 %
0.3 % noise, 3 % step                     100 %  88 %
1 % noise, 3 % step                        79 %   8 %
1 % noise, 5 % step                        99 %  33 %
8 steps of 3 to 35 %, all found exactly    35 %   0 %
=======================================  ======  ====

Its limit: where points claim a fifth of their true noise (0.2 % for 1 %), 8 % of clean series of 13
points raise a false regression, so intervals must be honest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from ruptures import Pelt
from ruptures.base import BaseCost

#: Valid points below which a series gets the verdict "insufficient data".
MIN_POINTS = 4

#: Standard normal quantile of a two-sided 95 % interval.
Z95 = 1.959964


@dataclass(frozen=True)
class Metric:
    """What a series shows and which way is good.

    ``margin`` is the smallest relative change worth a verdict; ``session_noise`` the relative
    standard deviation between sessions that a point's own interval does not cover.
    """

    name: str
    higher_is_better: bool
    unit: str
    margin: float = 0.02
    session_noise: float = 0.005


#: Time of the control over time of the provider, both of one session.
UTILISATION = Metric("utilisation", True, "1")
#: Bytes over time; drifts with the card, so the floor is higher.
BANDWIDTH = Metric("bytes_per_second", True, "B/s", session_noise=0.01)
#: Plain time, for results that come without a control.
SECONDS = Metric("seconds", False, "s", session_noise=0.01)


@dataclass(frozen=True)
class Series:
    """Points of one series in commit order.

    ``positions`` ascend strictly. ``lows`` and ``highs`` bound 95 % intervals, NaN where unknown.
    Points that are not ``valid`` never enter. ``code`` optionally names what ran at each point, so
    that one odd point between two equal levels can be told from a change that was taken back.
    """

    name: str
    positions: Sequence[int]
    values: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]
    valid: Sequence[bool]
    code: Sequence[str | None] = field(default=())

    def __post_init__(self) -> None:
        n = len(self.positions)
        for name in ("values", "lows", "highs", "valid", "code"):
            length = len(getattr(self, name))
            if length != n and not (name == "code" and length == 0):
                raise ValueError(f"series {self.name}: {length} {name} for {n} positions")
        if any(b <= a for a, b in zip(self.positions, self.positions[1:], strict=False)):
            raise ValueError(f"series {self.name}: positions must ascend, one point each")


@dataclass(frozen=True)
class Change:
    """One verdict on a series; the change lies in (good, bad], positions of valid points.

    ``effect`` is log(after / before) with its 95 % interval; its sign is the metric's, so a
    regression of a lower-is-better metric has a positive effect. ``recovered_at`` is set on a
    regression whose level came back, to the position where it did.
    """

    series: str
    metric: str
    verdict: str
    good: int | None
    bad: int | None
    before: float
    after: float
    effect: float
    effect_low: float
    effect_high: float
    reason: str
    recovered_at: int | None = None


class _WeightedMean(BaseCost):
    """Sum of weighted squares around the weighted mean; columns are value and weight."""

    model = "weighted mean"
    min_size = 1

    def fit(self, signal: np.ndarray) -> _WeightedMean:
        y, w = signal[:, 0] - signal[:, 0].mean(), signal[:, 1]
        self.signal = signal
        self._sums = [np.concatenate([[0.0], np.cumsum(w * y**k)]) for k in range(3)]
        return self

    def error(self, start: int, end: int) -> float:
        w, wy, wyy = (float(s[end] - s[start]) for s in self._sums)
        return wyy - wy * wy / w


def detect(series: Series, metric: Metric) -> list[Change]:
    """Verdicts on the changes of ``series``, in commit order.

    regression, improvement
        the level moved by more than the margin.
    recovered
        an improvement that brought the level back to where it was before a regression.
    suspected
        a step that only the last point supports; it needs another measurement.
    outlier
        one point off between two equal levels; (good, bad] is the step into it.
    insufficient data
        fewer than ``MIN_POINTS`` valid points; the only verdict then.
    """
    points = _Points.of(series, metric)
    n = len(points.y)
    if n < MIN_POINTS:
        nan = math.nan
        reason = f"{n} valid points, {MIN_POINTS} needed"
        return [
            Change(
                series.name, metric.name, "insufficient data", None, None, *[nan] * 5, reason=reason
            )
        ]
    levels, outliers = _fit(points, metric.margin)
    changes = [
        points.change(series, metric, a, b) for a, b in zip(levels, levels[1:], strict=False)
    ]
    changes += [points.outlier(series, metric, i, levels) for i in outliers]
    return sorted(_recoveries(changes, metric), key=lambda c: (c.bad, c.good))


@dataclass(frozen=True)
class _Level:
    """A run of points (indices into the valid ones, outliers left out) and its weighted mean."""

    points: tuple[int, ...]
    mean: float
    variance: float


@dataclass(frozen=True)
class _Points:
    """The valid points: positions, logarithms with higher as better, weights (1 / variance)."""

    positions: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    code: tuple[str | None, ...]

    @classmethod
    def of(cls, series: Series, metric: Metric) -> _Points:
        values = np.asarray(series.values, float)
        lows, highs = np.asarray(series.lows, float), np.asarray(series.highs, float)
        keep = np.asarray(series.valid, bool) & np.isfinite(values) & (values > 0)
        values, lows, highs = values[keep], lows[keep], highs[keep]
        bounded = np.isfinite(lows) & np.isfinite(highs) & (lows > 0) & (highs >= lows)
        own = np.zeros(len(values))
        own[bounded] = (np.log(highs[bounded]) - np.log(lows[bounded])) / (2 * Z95)
        # A point without an interval counts like the typical one that has it.
        own[~bounded] = np.median(own[bounded]) if bounded.any() else 0.0
        sign = 1.0 if metric.higher_is_better else -1.0
        code = series.code or [None] * len(series.positions)
        return cls(
            np.asarray(series.positions, int)[keep],
            sign * np.log(values),
            1 / (own**2 + metric.session_noise**2),
            tuple(c for c, k in zip(code, keep, strict=True) if k),
        )

    def level(self, points: tuple[int, ...]) -> _Level:
        weights = self.weights[list(points)]
        total = float(weights.sum())
        return _Level(points, float((weights * self.y[list(points)]).sum()) / total, 1 / total)

    def _verdict(
        self, series: Series, metric: Metric, verdict: str, reason: str, a: _Level, b: _Level
    ) -> Change:
        sign = 1.0 if metric.higher_is_better else -1.0
        effect = sign * (b.mean - a.mean)
        half = Z95 * math.sqrt(a.variance + b.variance)
        return Change(
            series.name,
            metric.name,
            verdict,
            int(self.positions[a.points[-1]]),
            int(self.positions[b.points[0]]),
            math.exp(sign * a.mean),
            math.exp(sign * b.mean),
            effect,
            effect - half,
            effect + half,
            reason,
        )

    def change(self, series: Series, metric: Metric, a: _Level, b: _Level) -> Change:
        verdict = "improvement" if b.mean > a.mean else "regression"
        reason = f"{len(a.points)} points before, {len(b.points)} after"
        if b.points == (len(self.y) - 1,):
            reason = f"{verdict} seen by the last point only; one more measurement decides"
            verdict = "suspected"
        return self._verdict(series, metric, verdict, reason, a, b)

    def outlier(self, series: Series, metric: Metric, i: int, levels: list[_Level]) -> Change:
        # Without the outlier a step may turn out to lie at it, so look only at what is before.
        level = [level for level in levels if level.points[0] < i][-1]
        base = replace(level, points=tuple(p for p in level.points if p < i))
        reason = "one point off what is before and after it"
        return self._verdict(series, metric, "outlier", reason, base, self.level((i,)))

    def taken_back(self, i: int) -> bool:
        """Whether point ``i`` ran other code than both its neighbours, so it was a real change."""
        before, here, after = self.code[i - 1 : i + 2]
        return None not in (before, here, after) and here not in (before, after)


def _fit(points: _Points, margin: float) -> tuple[list[_Level], list[int]]:
    """Levels that differ by more than ``margin``, and the outliers left out of them."""
    alive = list(range(len(points.y)))
    outliers: list[int] = []
    while True:
        levels = _merge(points, _segment(points, alive), margin)
        spikes = _spikes(points, levels, margin)
        if not spikes:
            return levels, outliers
        outliers += spikes
        alive = [i for i in alive if i not in spikes]


def _spikes(points: _Points, levels: list[_Level], margin: float) -> list[int]:
    """Single points between equal levels, no two of them neighbours."""
    spikes: list[int] = []
    k = 1
    while k < len(levels) - 1:
        before, here, after = levels[k - 1 : k + 2]
        i = here.points[0]
        alone = len(here.points) == 1 and abs(before.mean - after.mean) < margin
        if alone and not points.taken_back(i):
            spikes.append(i)
            k += 1  # what follows is a level that the spike left, not another spike
        k += 1
    return spikes


def _segment(points: _Points, alive: list[int]) -> list[_Level]:
    signal = np.column_stack([points.y[alive], points.weights[alive]])
    # In units of the known variance: a new level must beat about 3.6 standard deviations among
    # 13 points and 4.2 among 100.
    penalty = 8.0 + 2.0 * math.log(len(alive))
    ends = Pelt(custom_cost=_WeightedMean(), min_size=1, jump=1).fit(signal).predict(pen=penalty)
    return [points.level(tuple(alive[a:b])) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def _merge(points: _Points, levels: list[_Level], margin: float) -> list[_Level]:
    """Join neighbours closer than ``margin``, the closest first."""
    levels = list(levels)
    while len(levels) > 1:
        gaps = [abs(b.mean - a.mean) for a, b in zip(levels, levels[1:], strict=False)]
        i = int(np.argmin(gaps))
        if gaps[i] >= margin:
            break
        levels[i : i + 2] = [points.level(levels[i].points + levels[i + 1].points)]
    return levels


def _recoveries(changes: list[Change], metric: Metric) -> list[Change]:
    """Mark regressions whose level came back, and call the step that did it "recovered"."""
    sign = 1.0 if metric.higher_is_better else -1.0
    result = list(changes)
    for i, broken in enumerate(changes):
        if broken.verdict != "regression":
            continue
        goal = sign * math.log(broken.before) - metric.margin
        for j, later in enumerate(changes):
            if (
                later.verdict == "improvement"
                and later.good >= broken.bad
                and sign * math.log(later.after) >= goal
            ):
                result[i] = replace(result[i], recovered_at=later.bad)
                back = f"back to the level before position {broken.bad}"
                result[j] = replace(result[j], verdict="recovered", reason=back)
                break
    return result
