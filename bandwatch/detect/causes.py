"""What else changed in the commit range of an incident: toolchain, then static facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .incidents import Incident

Row = Mapping[str, Any]

#: Static metrics worth naming, most telling first, with the words for them.
_METRICS = {
    "spills": "spills",
    "registers": "registers",
    "narrow_access_share": "narrow accesses",
    "idle_warp_share": "idle warps",
    "shared_bytes": "shared memory",
    "stack_bytes": "stack",
    "instructions": "instructions",
}
_SHARES = frozenset({"narrow_access_share", "idle_warp_share"})

#: Smaller moves explain nothing: of a share, and of a count relative to what it was.
_LEAST_SHARE = 0.05
_LEAST_RATIO = 0.10


def likely_cause(
    incident: Incident, series: Mapping[str, Sequence[Row]], static: Sequence[Row]
) -> str:
    """Short text such as ``spills 0 → 12, registers 64 → 128 (5 of 8 workloads)``; "" if none.

    ``series`` maps names to rows of POINTS, ``static`` are rows of STATIC. Only workloads of the
    incident count, each with its own last good and first bad commit. All static metrics are better
    low: those that moved the way of the incident go before, and without, the others.
    """
    tools = _toolchain(incident, series)
    facts = _static(incident, series, static)
    return "; ".join(text for text in (tools, facts) if text)


def _toolchain(incident: Incident, series: Mapping[str, Sequence[Row]]) -> str:
    moves: Counter[str] = Counter()
    for change in incident.changes:
        rows = {
            row["position"]: row
            for row in series[change.series]
            if row["placement"] == "main" and row["verdict"] == "valid"
        }
        before, after = _tools(rows[change.good]), _tools(rows[change.bad])
        for name in dict.fromkeys([*before, *after]):
            old, new = before.get(name, "none"), after.get(name, "none")
            if old != new:
                moves[f"{name} {old} → {new}"] += 1
    return "toolchain changed: " + ", ".join(moves) if moves else ""


def _tools(row: Row) -> dict[str, str]:
    parts = (part.partition(" ") for part in (row.get("toolchain") or "").split(", ") if part)
    versions = {name: version for name, _, version in parts}
    if row.get("driver"):
        versions["driver"] = row["driver"]
    return versions


def _static(incident: Incident, series: Mapping[str, Sequence[Row]], static: Sequence[Row]) -> str:
    by_workload: dict[tuple[Any, ...], list[Row]] = {}
    for row in static:
        by_workload.setdefault(_workload(row), []).append(row)
    found = [
        (key, *move)
        for change in incident.changes
        for key in [_workload(series[change.series][0])]
        for move in _differences(by_workload.get(key, ()), change.good, change.bad)
    ]
    worse = incident.verdict == "regression"
    found = [move for move in found if (move[3] > move[2]) == worse] or found
    moves: dict[str, Counter[tuple[float, float]]] = {}
    for _, metric, before, after in found:
        moves.setdefault(metric, Counter())[before, after] += 1
    if not moves:
        return ""
    parts = [
        f"{words} {_number(metric, before)} → {_number(metric, after)}"
        for metric, words in _METRICS.items()
        if metric in moves
        for (before, after), _ in moves[metric].most_common(1)
    ]
    total = len({_workload(series[c.series][0]) for c in incident.changes})
    return f"{', '.join(parts)} ({len({key for key, *_ in found})} of {total} workloads)"


def _differences(rows: Sequence[Row], good: int, bad: int) -> list[tuple[str, float, float]]:
    """Metrics that differ tellingly between the two positions under one toolchain."""
    values: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if row["metric"] in _METRICS and row["position"] in (good, bad):
            values.setdefault((row["metric"], row["toolchain"]), {})[row["position"]] = row["value"]
    return [
        (metric, at[good], at[bad])
        for (metric, _), at in values.items()
        if len(at) == 2 and _telling(metric, at[good], at[bad])
    ]


def _telling(metric: str, before: float, after: float) -> bool:
    if metric in _SHARES:
        return abs(after - before) >= _LEAST_SHARE
    return before != after and abs(after - before) >= _LEAST_RATIO * before


def _workload(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("op", "direction", "dtype", "shape"))


def _number(metric: str, value: float) -> str:
    return f"{100 * value:.0f} %" if metric in _SHARES else f"{value:g}"
