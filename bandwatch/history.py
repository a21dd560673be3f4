"""Questions the dashboard and the command line ask of the dataset. No drawing, no statistics.

Every function takes an open :class:`~bandwatch.results.dataset.Dataset`. Columns are those of
:mod:`bandwatch.results.schema`; positions are first-parent indices of the main branch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .results.dataset import Dataset
from .results.schema import REFERENCES

#: How many commits of the main branch the lines of :func:`today` look back over.
WINDOW = 50


class NotFound(LookupError):
    """The dataset holds nothing under the name asked for."""


@dataclass(frozen=True)
class OpLine:
    """One operation in :func:`today`: geometric means over a fixed set of ``workloads``.

    The set is fixed over the window: the workloads that are valid at every commit of it, so that
    the line never moves because its members changed. ``available`` counts those valid at the
    newest commit. Intervals are 95 % and take the workloads' errors as independent.
    """

    op: str
    gpu: str
    provider: str
    workloads: int
    available: int
    utilisation: float | None
    utilisation_low: float | None
    utilisation_high: float | None
    speedup: float | None  # over eager, above 1 is faster
    speedup_low: float | None
    speedup_high: float | None
    positions: tuple[int, ...]  # the sparkline, oldest first
    values: tuple[float, ...]
    worst: str | None  # the workload of lowest utilisation now, e.g. "bfloat16 32768x1001"
    worst_utilisation: float | None


@dataclass(frozen=True)
class Today:
    """``state`` is "fine", "1 open regression", "n open regressions" or "no data"."""

    state: str
    open_regressions: int
    suspected: int  # regressions that only the newest point of a series supports
    newest: dict[str, Any] | None  # row of COMMITS: the newest measured commit of main
    behind: int  # commits of main after it
    gpu: str | None
    ops: tuple[OpLine, ...]


@dataclass(frozen=True)
class Incident:
    """An incident in full.

    ``facts`` is its row of INCIDENTS; ``workloads`` its changes with ``op``, ``direction``,
    ``dtype``, ``shape`` and ``provider``, worst first; ``commits`` the commits of its range, oldest
    first, the last good one excluded.
    """

    facts: dict[str, Any]
    workloads: pd.DataFrame
    commits: pd.DataFrame


def today(dataset: Dataset, gpu: str | None = None) -> Today:
    """The state of the main branch now, for one GPU model: by default the last one measured."""
    points = dataset.sql(
        "SELECT op, direction, dtype, shape, options, provider, gpu, position, utilisation,"
        " utilisation_low, utilisation_high, speedup, speedup_low, speedup_high FROM points"
        " WHERE placement = 'main' AND verdict = 'valid'"
    )
    points = points[~points["provider"].isin(REFERENCES)]
    newest = dataset.sql("SELECT * FROM commits WHERE measured ORDER BY position DESC LIMIT 1")
    if newest.empty:
        return Today("no data", 0, 0, None, 0, None, ())
    if gpu is None and not points.empty:
        gpu = str(points.loc[points["position"].idxmax(), "gpu"])
    points = points[points["gpu"] == gpu]
    broken = int(
        dataset.sql(
            "SELECT count(*) AS n FROM incidents"
            " WHERE verdict = 'regression' AND status = 'open' AND gpu IS NOT DISTINCT FROM ?",
            [gpu],
        )["n"][0]
    )
    suspected = int(
        dataset.sql(
            f"SELECT count(*) AS n FROM changes JOIN ({_SERIES}) USING (series)"
            " WHERE verdict = 'suspected' AND (effect > 0) = (metric = 'seconds') AND gpu = ?",
            [gpu],
        )["n"][0]
    )
    if points.empty and not broken:
        state = "no data"
    elif broken:
        state = f"{broken} open regression{'s' if broken > 1 else ''}"
    else:
        state = "fine"
    head = newest.iloc[0].to_dict()
    last = int(dataset.sql("SELECT max(position) AS p FROM commits")["p"][0])
    since = last - WINDOW
    lines = tuple(
        _op_line(str(op), str(provider), str(gpu), group[group["position"] > since])
        for (op, provider), group in points.dropna(subset="utilisation").groupby(["op", "provider"])
        if (group["position"] > since).any()
    )
    return Today(state, broken, suspected, head, last - int(head["position"]), gpu, lines)


def _op_line(op: str, provider: str, gpu: str, points: pd.DataFrame) -> OpLine:
    keys = ["direction", "dtype", "shape", "options"]
    table = points.assign(log=np.log(points["utilisation"])).pivot_table(
        index=keys, columns="position", values="log", aggfunc="mean"
    )
    now = table.columns[-1]
    table = table[table[now].notna()]
    # Commits that ran only a few of the workloads would shrink the common set for all the others.
    table = table.loc[:, table.notna().mean() >= 0.5]
    common = table.dropna()
    newest = points[points["position"] == now]
    members = newest[pd.MultiIndex.from_frame(newest[keys]).isin(common.index)]
    worst = newest.loc[newest["utilisation"].idxmin()]
    value, low, high = _geometric_mean(members, "utilisation")
    speedup, speedup_low, speedup_high = _geometric_mean(members, "speedup")
    means = common.mean()
    return OpLine(
        op=op,
        gpu=gpu,
        provider=provider,
        workloads=len(common),
        available=len(table),
        utilisation=value,
        utilisation_low=low,
        utilisation_high=high,
        speedup=speedup,
        speedup_low=speedup_low,
        speedup_high=speedup_high,
        positions=tuple(int(p) for p in common.columns) if len(common) else (),
        values=tuple(float(v) for v in np.exp(means)) if len(common) else (),
        worst=f"{worst['dtype']} {worst['shape']}",
        worst_utilisation=float(worst["utilisation"]),
    )


def _geometric_mean(
    rows: pd.DataFrame, column: str
) -> tuple[float | None, float | None, float | None]:
    known = rows[rows[column].notna()]
    if known.empty:
        return None, None, None
    mean = float(np.log(known[column]).mean())
    half_widths = (np.log(known[f"{column}_high"]) - np.log(known[f"{column}_low"])) / 2
    if half_widths.isna().any():
        return math.exp(mean), None, None
    half = float(np.sqrt((half_widths**2).sum())) / len(known)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def series(
    dataset: Dataset,
    op: str,
    direction: str,
    dtype: str | None = None,
    shape: str | None = None,
    provider: str | None = None,
    gpu: str | None = None,
    limit: int = 2000,
) -> pd.DataFrame:
    """POINTS of one operation with ``subject``, ``author``, ``authored_at`` and ``committed_at``.

    Ordered by series and position; at most the ``limit`` newest positions of each series. Points
    off the main branch come with a null position and no commit facts.
    """
    where, params = _where(
        op=op, direction=direction, dtype=dtype, shape=shape, provider=provider, gpu=gpu
    )
    return dataset.sql(
        "SELECT p.*, c.subject, c.author, c.authored_at, c.committed_at"
        ' FROM points p LEFT JOIN commits c ON p."commit" = c."commit"'
        f" WHERE {where}"
        " QUALIFY row_number() OVER (PARTITION BY series ORDER BY p.position DESC NULLS LAST)"
        f" <= {int(limit)}"
        " ORDER BY series, p.position, started_at",
        params,
    )


def changes(
    dataset: Dataset,
    op: str | None = None,
    direction: str | None = None,
    dtype: str | None = None,
    shape: str | None = None,
    provider: str | None = None,
    gpu: str | None = None,
    verdict: str | None = None,
) -> pd.DataFrame:
    """CHANGES with the workload of their series, newest first."""
    where, params = _where(
        op=op,
        direction=direction,
        dtype=dtype,
        shape=shape,
        provider=provider,
        gpu=gpu,
        verdict=verdict,
    )
    return dataset.sql(
        "SELECT c.*, p.op, p.direction, p.dtype, p.shape, p.options, p.provider, p.gpu"
        f" FROM changes c JOIN ({_SERIES}) p USING (series)"
        f" WHERE {where} ORDER BY bad_position DESC NULLS LAST, series",
        params,
    )


def incidents(dataset: Dataset, status: str | None = None) -> pd.DataFrame:
    """INCIDENTS, open ones first, then newest first."""
    where, params = _where(status=status)
    return dataset.sql(
        f"SELECT * FROM incidents WHERE {where}"
        " ORDER BY status <> 'open', bad_position DESC, worst_effect",
        params,
    )


def incident(dataset: Dataset, id: str) -> Incident:
    """One incident in full. Raises :class:`NotFound` for an unknown id."""
    facts = dataset.sql("SELECT * FROM incidents WHERE incident = ?", [id])
    if facts.empty:
        raise NotFound(f"no incident {id!r} in this dataset; `bandwatch incidents` lists them")
    row = facts.iloc[0].to_dict()
    workloads = dataset.sql(
        "SELECT c.*, p.op, p.direction, p.dtype, p.shape, p.options, p.provider, p.gpu"
        f" FROM changes c JOIN ({_SERIES}) p USING (series)"
        " WHERE c.incident = ? AND verdict = ? ORDER BY abs(effect) DESC, series",
        [id, row["verdict"]],
    )
    between = dataset.sql(
        "SELECT * FROM commits WHERE position > ? AND position <= ? ORDER BY position",
        [int(row["good_position"]), int(row["bad_position"])],
    )
    return Incident(row, workloads, between)


def commits(dataset: Dataset) -> pd.DataFrame:
    """COMMITS, oldest first."""
    return dataset.sql("SELECT * FROM commits ORDER BY position")


def static(
    dataset: Dataset,
    op: str,
    direction: str = "forward",
    dtype: str | None = None,
    shape: str | None = None,
    metric: str | None = None,
) -> pd.DataFrame:
    """STATIC of one operation with the commit's ``subject``, by series and position."""
    where, params = _where(op=op, direction=direction, dtype=dtype, shape=shape, metric=metric)
    return dataset.sql(
        "SELECT p.*, c.subject, c.committed_at"
        ' FROM static p LEFT JOIN commits c ON p."commit" = c."commit"'
        f" WHERE {where} ORDER BY series, p.position",
        params,
    )


def choices(dataset: Dataset) -> dict[str, list[str]]:
    """What can be selected: ops, directions, dtypes, shapes, providers and gpus present."""
    columns = ("op", "direction", "dtype", "shape", "provider", "gpu")
    found = dataset.sql(f"SELECT DISTINCT {', '.join(columns)} FROM points")
    result = {f"{name}s": sorted(found[name].unique()) for name in columns}
    result["shapes"].sort(key=_shape_order)
    return result


def _shape_order(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(n) for n in text.split("x"))
    except ValueError:
        return (0,)
    return (sizes[-1], *sizes)


_SERIES = "SELECT DISTINCT series, op, direction, dtype, shape, options, provider, gpu FROM points"


def _where(**columns: str | None) -> tuple[str, list[str]]:
    given = {name: value for name, value in columns.items() if value is not None}
    clauses = [f"{name} = ?" for name in given]
    return " AND ".join(clauses) or "true", list(given.values())
