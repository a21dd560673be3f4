"""Reader of asv's result files, versions 1 and 2.

A file is one commit in one environment on one machine; a row is one benchmark at one combination
of parameters, known by the row's own values, for what ``benchmarks.json`` says is today's list.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NOT_RESULTS = frozenset({"machine.json", "benchmarks.json"})

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")  # SHA-1, SHA-256

#: The end of year 9999 in ms since the epoch, the last that Python's dates know.
_LAST_TIME = 253_402_300_799_000


class DamagedFile(ValueError):
    """A file that is not a readable asv result; the message says what is wrong with it."""


@dataclass(frozen=True)
class Row:
    """One benchmark at one combination of parameters.

    ``outcome`` is "ok", "failed" (asv's null), "not available" (NaN: skipped or not selected) or
    "not a number". ``value`` is in the benchmark's unit and None unless "ok". ``ci_99`` is asv's 99
    % interval, None where it has none or an infinite one. ``started_at`` is in ms since the epoch.
    """

    benchmark: str
    params: tuple[str, ...]
    outcome: str
    value: float | None
    ci_99: tuple[float, float] | None
    samples: tuple[float, ...] | None
    repeat: int | None
    version: str | None
    started_at: int | None


@dataclass(frozen=True)
class ResultFile:
    """One asv result file; ``warnings`` names the benchmarks in it that could not be read."""

    path: Path
    machine: str
    env: str
    commit: str
    requirements: Mapping[str, str]
    facts: Mapping[str, str]  # asv's "params": what machine.json said, python, requirements
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]


def result_paths(results_dir: Path | str) -> list[Path]:
    """Files that should be asv results: ``<results_dir>/<machine>/*.json``, sorted."""
    return sorted(p for p in Path(results_dir).glob("*/*.json") if p.name not in _NOT_RESULTS)


def read(path: Path | str) -> ResultFile:
    """Read one result file. Raises :class:`DamagedFile`, also for a file asv never wrote."""
    path = Path(path)
    try:
        # json accepts the NaN and Infinity tokens that asv writes.
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFile(f"not readable as JSON ({error})") from error
    if not isinstance(data, dict):
        raise DamagedFile(f"a JSON object was expected, this is a {type(data).__name__}")
    version = data.get("version")
    if version not in (1, 2):
        raise DamagedFile(f"asv result version {version!r}; 1 and 2 can be read")
    commit, results = data.get("commit_hash"), data.get("results")
    if not (isinstance(commit, str) and isinstance(results, dict)):
        raise DamagedFile("no commit_hash or results in it, so it is not an asv result")
    if not _COMMIT.fullmatch(commit):
        raise DamagedFile(f"commit_hash is {commit!r}; a full hash in lower case was expected")
    rows: list[Row] = []
    warnings: list[str] = []
    read_rows = _rows_v1 if version == 1 else _rows_v2
    for benchmark, entry in results.items():
        try:
            rows.extend(read_rows(data, benchmark, entry))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            warnings.append(f"{benchmark}: left out, its row is damaged ({error})")
    return ResultFile(
        path=path,
        machine=path.parent.name,
        env=str(data.get("env_name") or path.stem.partition("-")[2]),
        commit=commit,
        requirements=_texts(data.get("requirements")),
        facts=_texts(data.get("params")),
        rows=tuple(rows),
        warnings=tuple(warnings),
    )


def _texts(value: Any) -> dict[str, str]:
    return {k: str(v) for k, v in value.items()} if isinstance(value, dict) else {}


def _rows_v2(data: Mapping[str, Any], benchmark: str, entry: Any) -> Iterator[Row]:
    # Trailing nulls are cut from rows, and columns may come and go: pair by the file's header.
    cells = dict(zip(data["result_columns"], entry, strict=False))
    params = cells.get("params") or []
    n = math.prod(len(values) for values in params)

    def column(name: str) -> list[Any]:
        return _column(cells.get(name), n, name)

    return _rows(
        benchmark,
        params,
        column("result"),
        list(zip(column("stats_ci_99_a"), column("stats_ci_99_b"), strict=True)),
        column("samples"),
        column("stats_repeat"),
        cells.get("version"),
        cells.get("started_at"),
    )


def _rows_v1(data: Mapping[str, Any], benchmark: str, entry: Any) -> Iterator[Row]:
    cells = entry if isinstance(entry, dict) else {"result": [entry]}
    params = cells.get("params") or []
    n = math.prod(len(values) for values in params)
    stats = [s or {} for s in _column(cells.get("stats"), n, "stats")]
    return _rows(
        benchmark,
        params,
        _column(cells.get("result"), n, "result"),
        [tuple(s.get("ci_99") or (None, None)) for s in stats],
        _column(cells.get("samples"), n, "samples"),
        [s.get("repeat") for s in stats],
        (data.get("benchmark_version") or {}).get(benchmark),
        (data.get("started_at") or {}).get(benchmark),
    )


def _column(values: Any, n: int, name: str) -> list[Any]:
    """``n`` entries; asv writes null for a column that is null throughout."""
    if values is None:
        return [None] * n
    if not isinstance(values, list):
        values = [values]
    if len(values) != n:
        raise ValueError(f"{len(values)} entries in {name} for {n} combinations of parameters")
    return values


def _rows(
    benchmark: str,
    params: list[list[str]],
    values: list[Any],
    intervals: list[tuple[Any, Any]],
    samples: list[Any],
    repeats: list[Any],
    version: Any,
    started_at: Any,
) -> Iterator[Row]:
    # asv's order: the product of the parameters, the last one fastest.
    combinations = itertools.product(*params)
    for combination, value, interval, sample, repeat in zip(
        combinations, values, intervals, samples, repeats, strict=True
    ):
        outcome = _outcome(value)
        bounded = all(_is_finite(bound) for bound in interval)
        yield Row(
            benchmark=benchmark,
            params=tuple(_plain(text) for text in combination),
            outcome=outcome,
            value=float(value) if outcome == "ok" else None,
            ci_99=(float(interval[0]), float(interval[1])) if bounded else None,
            samples=tuple(map(float, sample)) if sample else None,
            repeat=int(repeat) if _is_finite(repeat) else None,
            version=None if version is None else str(version),
            started_at=_time(started_at),
        )


def _outcome(value: Any) -> str:
    if value is None:
        return "failed"
    if isinstance(value, float) and math.isnan(value):
        return "not available"
    return "ok" if _is_finite(value) else "not a number"


def _is_finite(value: Any) -> bool:
    """Whether ``value`` is a number that a float can hold; JSON has integers that none can."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max


def _time(value: Any) -> int | None:
    return int(value) if _is_finite(value) and 0 <= value <= _LAST_TIME else None


def _plain(text: Any) -> str:
    """The text of a parameter that asv wrote as ``repr`` of a string; others as they are."""
    text = str(text)
    if text[:1] in "'\"":
        try:
            return str(ast.literal_eval(text))
        except (ValueError, SyntaxError):
            return text
    return text
