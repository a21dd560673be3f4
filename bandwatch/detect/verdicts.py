"""Detection over the whole dataset: rows of POINTS in, rows of CHANGES and INCIDENTS out."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from rich.progress import Progress

from ..results.schema import REFERENCES
from .causes import likely_cause
from .incidents import Incident, group
from .steps import BANDWIDTH, SECONDS, UTILISATION, Change, Metric, Series, detect

Row = Mapping[str, Any]

_MOVES = frozenset({"regression", "improvement", "recovered"})
_EVENT = "environment event"


def changes_and_incidents(
    points: Sequence[Row], static: Sequence[Row], hashes: Sequence[str], progress: Progress
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of CHANGES and INCIDENTS; ``hashes`` are the main line's commits by position.

    ``points`` are sorted by series and position. References (eager, control) raise no alarm. Where
    the control moved it is an "environment event" if utilisation did not move with it, or if only
    utilisation did and the provider's own rate stayed.
    """
    series = {
        name: list(rows) for name, rows in itertools.groupby(points, key=lambda row: row["series"])
    }
    found: list[Change] = []
    controls: list[Change] = []
    for name, rows in progress.track(list(series.items()), description="Detecting changes"):
        provider = rows[0]["provider"]
        if provider == "control":
            controls += [c for c in _detect(name, rows, BANDWIDTH) if c.verdict in _MOVES]
        elif provider not in REFERENCES:
            measured = any(_known(row.get("utilisation")) for row in rows)
            found += _detect(name, rows, UTILISATION if measured else SECONDS)
    found = [_charged_to_the_control(c, series, controls) for c in found]
    seen = [c for c in found if c.verdict in (*_MOVES, _EVENT)]
    for change in controls:
        if not any(_together(change, c, series) for c in seen):
            reason = f"the control itself moved ({change.verdict}); utilisation did not"
            found.append(replace(change, verdict=_EVENT, reason=reason))
    incidents = group(((series[c.series][0]["gpu"], c) for c in found), hashes)
    member_of = dict(_membership(incidents))
    changes = [
        _change_row(change, member_of.get((change.series, change.bad)), hashes) for change in found
    ]
    return changes, [_incident_row(i, series, static, hashes) for i in incidents]


def _charged_to_the_control(
    change: Change, series: Mapping[str, Sequence[Row]], controls: Sequence[Change]
) -> Change:
    """``change``, or an environment event where the control moved and the provider did not."""
    if change.verdict not in _MOVES or change.metric != UTILISATION.name:
        return change
    if not any(_together(change, control, series) for control in controls):
        return change
    own = _detect(change.series, series[change.series], BANDWIDTH)
    if any(c.verdict in _MOVES and _overlap(change, c) for c in own):
        return change
    reason = f"utilisation moved ({change.verdict}) because the control did; the provider did not"
    return replace(change, verdict=_EVENT, reason=reason, recovered_at=None)


def _together(a: Change, b: Change, series: Mapping[str, Sequence[Row]]) -> bool:
    """Whether two changes are of one place and share a commit."""
    return _place(series[a.series][0]) == _place(series[b.series][0]) and _overlap(a, b)


def _detect(name: str, rows: Sequence[Row], metric: Metric) -> list[Change]:
    return detect(_series(name, rows, metric), metric)


def _series(name: str, rows: Sequence[Row], metric: Metric) -> Series:
    """One point per commit of the main line; side branches are never segmented with it."""
    main = [row for row in rows if row["placement"] == "main"]
    if metric.name == UTILISATION.name:
        main = _against_one_control(main)
    points = []
    for position, sessions in itertools.groupby(main, key=lambda row: row["position"]):
        points.append((position, *_combined(list(sessions), metric.name)))
    positions, values, lows, highs, valid, code = zip(*points, strict=True) if points else [()] * 6
    return Series(name, positions, values, lows, highs, valid, code)


def _against_one_control(rows: Sequence[Row]) -> list[Row]:
    """Rows whose utilisation is unknown where it was told by another control than the newest's."""
    controls = [control for row in rows if (control := _control(row)) is not None]
    newest = controls[-1] if controls else None
    return [
        row if _control(row) in (None, newest) else {**row, "utilisation": None} for row in rows
    ]


def _control(row: Row) -> str | None:
    """The version of the control; None where the session told none."""
    parts = (row.get("toolchain") or "").split(", ")
    return next((part for part in parts if part.startswith("control ")), None)


def _combined(rows: Sequence[Row], column: str) -> tuple[float, float, float, bool, str | None]:
    """Value, interval, validity and code of the sessions of one commit taken together.

    Sessions count where they share the toolchain of the latest valid one: an older compiler's
    result of the same commit says nothing about the newer one's.
    """
    valid = [r for r in rows if r["verdict"] == "valid" and _known(r.get(column))]
    if not valid:
        return math.nan, math.nan, math.nan, False, None
    latest = valid[-1]
    same = [r for r in valid if _tools(r) == _tools(latest)]
    logs = np.log([r[column] for r in same])
    mean = float(logs.mean())
    low, high = ([r.get(f"{column}_{end}") for r in same] for end in ("low", "high"))
    half = math.nan
    if column != "bytes_per_second" and all(map(_known, [*low, *high])):
        half = float(np.sqrt(((np.log(high) - np.log(low)) ** 2).sum())) / (2 * len(same))
    code = latest.get("kernels")
    return (
        math.exp(mean),
        math.exp(mean - half),
        math.exp(mean + half),
        True,
        code if code not in (None, "{}") else None,
    )


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def _tools(row: Row) -> tuple[Any, Any]:
    return row.get("toolchain"), row.get("driver")


def _place(row: Row) -> tuple[Any, ...]:
    """What a control and the providers measured against it have in common."""
    names = ("op", "direction", "dtype", "shape", "options", "gpu")
    return tuple(row[name] for name in names)


def _overlap(a: Change, b: Change) -> bool:
    return max(a.good, b.good) < min(a.bad, b.bad)


def _membership(incidents: Sequence[Incident]) -> Iterator[tuple[tuple[str, int], str]]:
    """(series, bad position) of each change in an incident, and of the step that ended it."""
    for incident in incidents:
        for change in incident.changes:
            yield (change.series, change.bad), incident.id
            if change.recovered_at is not None:
                yield (change.series, change.recovered_at), incident.id


def _change_row(change: Change, incident: str | None, hashes: Sequence[str]) -> dict[str, Any]:
    bad = None if change.bad is None else hashes[change.bad]
    identity = f"{change.series}|{change.metric}|{change.verdict}|{bad}"
    return {
        "change": hashlib.sha256(identity.encode()).hexdigest()[:12],
        "incident": incident,
        "series": change.series,
        "metric": change.metric,
        "verdict": change.verdict,
        "good_commit": None if change.good is None else hashes[change.good],
        "bad_commit": bad,
        "good_position": change.good,
        "bad_position": change.bad,
        "before": change.before,
        "after": change.after,
        "effect": change.effect,
        "effect_low": change.effect_low,
        "effect_high": change.effect_high,
        "reason": change.reason,
    }


def _incident_row(
    incident: Incident,
    series: Mapping[str, Sequence[Row]],
    static: Sequence[Row],
    hashes: Sequence[str],
) -> dict[str, Any]:
    heads = [series[change.series][0] for change in incident.changes]
    return {
        "incident": incident.id,
        "verdict": incident.verdict,
        "status": incident.status,
        "good_commit": hashes[incident.good],
        "bad_commit": hashes[incident.bad],
        "good_position": incident.good,
        "bad_position": incident.bad,
        "gpu": incident.gpu,
        "ops": ",".join(sorted({row["op"] for row in heads})),
        "workloads": len({_place(row) for row in heads}),
        "worst_effect": incident.worst_effect,
        "median_effect": incident.median_effect,
        "cause": likely_cause(incident, series, static),
    }
