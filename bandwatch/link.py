"""What a session shifts: ratios to the control differ between cards and days, by family.

The same code gives another ratio on another card, by up to a percent or so. Where sessions
measured equal code, its ratios tell the shift of each: of the anchor, which is measured for that,
and of workloads whose kernels are the same ones. The shift is shrunk towards none as far as its
own error asks for: taken at face value it would add that error to every workload of the session,
and make steps at the borders of sessions where there are none.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .measure.workload import ANCHOR, CONTROL
from .sidecar import Sidecar

#: Least placements of a ratio: fewer tell nothing of its error.
_LEAST_PAIRS = 3


@dataclass(frozen=True)
class Observation:
    """The ratio of one workload's time to its control's in one session.

    ``value`` is its logarithm, ``variance`` of the mean over placements. Equal ``code`` in two
    sessions is equal machine code on equal inputs against one control.
    """

    session: str
    gpu: str
    card: str
    family: str
    code: str
    value: float
    variance: float


@dataclass(frozen=True)
class Offset:
    """The shift of a session and family: subtract ``value`` from logarithms of ratios there.

    ``variance`` is what remains unknown of it, shared by all workloads of the session and family.
    """

    value: float
    variance: float


def observations(sidecars: Iterable[Sidecar], provider: str = "membound") -> list[Observation]:
    """Of all valid workloads of ``provider`` whose kernels are known, and of the anchor."""
    found = []
    for one in sidecars:
        session, environment = one.session["session"], one.session["environment"]
        harness = one.session["harness"]
        against = f"{harness['control']}|{environment.get('driver')}"
        lines: dict[str, list[Mapping[str, Any]]] = {}
        for line in one.workloads:
            lines.setdefault(line["key"], []).append(line)
        for key, several in lines.items():
            codes = {
                provider: json.dumps(several[-1]["kernels"], sort_keys=True),
                ANCHOR: f"{ANCHOR} {harness.get('anchor')}",
            }
            for name, code in codes.items():
                ratio = _ratio(several, name)
                if ratio is None or code == "{}":
                    continue
                found.append(
                    Observation(
                        session,
                        environment["gpu"],
                        environment.get("card", "unknown"),
                        f"{several[-1]['op']}/{several[-1]['direction']}",
                        f"{key}|{code}|{against}",
                        *ratio,
                    )
                )
    return found


def _ratio(lines: Sequence[Mapping[str, Any]], name: str) -> tuple[float, float] | None:
    logs: list[float] = []
    for line in lines:
        own, control = line["providers"].get(name), line["providers"].get(CONTROL)
        if own is None or control is None or "reused" in own:
            continue
        if (own["verdict"], control["verdict"]) != ("valid", "valid"):
            continue
        at = {(process, place): seconds for process, place, seconds in control["samples"]}
        logs += [
            math.log(seconds / at[process, place])
            for process, place, seconds in own["samples"]
            if (process, place) in at
        ]
    if len(logs) < _LEAST_PAIRS:
        return None
    return statistics.fmean(logs), statistics.variance(logs) / len(logs)


def deviations(seen: Sequence[Observation]) -> list[tuple[Observation, float, float]]:
    """Each observation with how far it is from its code's mean over sessions, and the variance.

    Observations of code that only one session measured tell nothing and are left out.
    """
    by_code: dict[tuple[str, str], list[Observation]] = {}
    for one in seen:
        by_code.setdefault((one.gpu, one.code), []).append(one)
    found = []
    for several in by_code.values():
        count = len({one.session for one in several})
        if count < 2:
            continue
        mean = statistics.fmean(one.value for one in several)
        noise = statistics.fmean(one.variance for one in several)
        # the mean holds the observation itself, which takes 1/count of its deviation away
        stretch = count / (count - 1)
        found += [
            (one, (one.value - mean) * stretch, stretch**2 * (1 - 1 / count) * noise)
            for one in several
        ]
    return found


def offsets(
    deviating: Sequence[tuple[Observation, float, float]], leave_out: str | None = None
) -> dict[tuple[str, str], Offset]:
    """The shift by (session, family); ``leave_out`` is the code that shall not speak for itself.

    Two stages of empirical Bayes: the shift that all families of a session share, then what a
    family has beside it. The variances between sessions and between families are estimated by
    moments (DerSimonian and Laird, 1986) and may be none, and then so is the shift.
    """
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for one, deviation, variance in deviating:
        if one.code != leave_out:
            groups.setdefault((one.session, one.family), []).append((deviation, variance))
    means = {group: _mean(values) for group, values in groups.items()}
    sessions: dict[str, list[tuple[float, float]]] = {}
    for (session, _), mean in means.items():
        sessions.setdefault(session, []).append(mean)
    within = _within(sessions)
    totals = {
        session: _mean([(value, variance + within) for value, variance in several])
        for session, several in sessions.items()
    }
    among = _moments(list(totals.values()))
    shared = {session: _shrunk(total, among) for session, total in totals.items()}
    found = {}
    for (session, family), (value, variance) in means.items():
        common = shared[session]
        own = _shrunk((value - common.value, variance), within)
        found[session, family] = Offset(common.value + own.value, common.variance + own.variance)
    return found


def _mean(values: Sequence[tuple[float, float]]) -> tuple[float, float]:
    weights = [1 / variance if variance > 0 else 1e12 for _, variance in values]
    total = sum(weights)
    return sum(w * value for w, (value, _) in zip(weights, values, strict=True)) / total, 1 / total


def _moments(values: Sequence[tuple[float, float]]) -> float:
    """The variance of the truths behind ``values``, given as (value, variance)."""
    if len(values) < 2:
        return 0.0
    weights = np.array([1 / max(variance, 1e-12) for _, variance in values])
    points = np.array([value for value, _ in values])
    mean = float((weights * points).sum() / weights.sum())
    spread = float((weights * (points - mean) ** 2).sum())
    scale = float(weights.sum() - (weights**2).sum() / weights.sum())
    return max(0.0, (spread - (len(values) - 1)) / scale) if scale > 0 else 0.0


def _within(sessions: Mapping[str, Sequence[tuple[float, float]]]) -> float:
    """The variance between families of one session, pooled over sessions."""
    pooled = [(len(several), _moments(several)) for several in sessions.values()]
    weight = sum(count - 1 for count, _ in pooled)
    return sum((count - 1) * tau for count, tau in pooled) / weight if weight else 0.0


def _shrunk(mean: tuple[float, float], between: float) -> Offset:
    value, variance = mean
    if between <= 0:
        return Offset(0.0, 0.0)
    share = between / (between + variance)
    return Offset(share * value, share * variance)


@dataclass(frozen=True)
class Spread:
    """How much equal code differs between sessions: standard deviations of log ratios.

    ``linked`` is what remains once the other workloads of a session have told its shift. Of a
    ``card``, or of all cards of a model where that is None.
    """

    gpu: str
    card: str | None
    sessions: int
    codes: int
    raw: float
    linked: float


def spread(seen: Sequence[Observation]) -> list[Spread]:
    """Raw beside linked spread, over all cards of a model and then by card."""
    deviating = deviations(seen)
    without = {one.code: offsets(deviating, one.code) for one, _, _ in deviating}
    rows: dict[tuple[str, str | None], list[tuple[Observation, float]]] = {}
    for one, _, _ in deviating:
        offset = without[one.code].get((one.session, one.family), Offset(0.0, 0.0))
        for card in (None, one.card):
            rows.setdefault((one.gpu, card), []).append((one, offset.value))
    found = []
    for (gpu, card), several in rows.items():
        raw = _pooled((one.code, one.value) for one, _ in several)
        linked = _pooled((one.code, one.value - offset) for one, offset in several)
        if raw is not None and linked is not None:
            sessions = len({one.session for one, _ in several})
            codes = len({one.code for one, _ in several})
            found.append(Spread(gpu, card, sessions, codes, raw, linked))
    return sorted(found, key=lambda one: (one.gpu, one.card is not None, one.card or ""))


def _pooled(values: Iterable[tuple[str, float]]) -> float | None:
    """The standard deviation within groups; None where no group has two."""
    groups: dict[str, list[float]] = {}
    for group, value in values:
        groups.setdefault(group, []).append(value)
    several = [group for group in groups.values() if len(group) > 1]
    if not several:
        return None
    squares = sum(statistics.variance(group) * (len(group) - 1) for group in several)
    return math.sqrt(squares / sum(len(group) - 1 for group in several))
