"""Join result folders that shards or several runners wrote into one, row by row; loses nothing.

A row is a benchmark at one combination of parameters, known by its values. Of a row that several
measured, the newest measurement is kept and the others are named; what was not measured never
replaces what was. Sessions are kept whole. Everything is read and joined before anything is
written.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import sidecar
from . import asv_files

#: Columns of asv's rows that hold one value a row, not one a combination of parameters.
_OF_THE_ROW = frozenset({"params", "version", "started_at", "duration", "profile"})

_MACHINE, _BENCHMARKS = "machine.json", "benchmarks.json"

_MEASURED = 2  # the rank of a measured value


class MergeError(ValueError):
    """The folders cannot be joined; the message names the file and what to do."""


@dataclass
class Summary:
    """What a merge did to one result file, or would do.

    ``added``, ``replaced`` and ``kept`` count rows with a result, failed ones among them.
    """

    path: Path
    added: int = 0
    replaced: int = 0
    kept: int = 0
    sessions: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Cell:
    """What one file says of one row: its benchmark's columns, and where in them the row is."""

    row: Mapping[str, Any]
    index: int
    path: Path
    ours: bool  # in the target

    def rank(self) -> int:
        return _rank(_at(self.row, "result", self.index))

    def values(self, columns: Sequence[str]) -> list[Any]:
        return [_at(self.row, column, self.index) for column in columns]


@dataclass
class _Session:
    """One session, and the files that hold it."""

    started_at: str
    text: str
    paths: list[Path]


def merge(sources: Sequence[Path], target: Path, dry_run: bool = False) -> list[Summary]:
    """Join ``sources`` and what ``target`` holds already into ``target``.

    Each folder is laid out as asv's: ``<machine>/<commit>-<environment>.json``. Returns a summary
    for each result file, and one for ``benchmarks.json`` where its descriptions differed. Raises
    :class:`MergeError` for folders that cannot be joined, a damaged file, or machines of one name
    that differ.
    """
    for source in sources:
        if not source.is_dir():
            raise MergeError(f"{source} is no folder")
        inside, outside = source.resolve(), target.resolve()
        if inside == outside or inside in outside.parents or outside in inside.parents:
            raise MergeError(f"{source} and {target} lie in one another; merge into another folder")
        if not any(_of_machines(source)):
            raise MergeError(
                f"{source} holds no results like <machine>/<commit>-<environment>.json"
            )
    folders = [*([target] if target.is_dir() else []), *sources]
    written: dict[Path, str] = {}
    stale: set[Path] = set()
    summaries = []
    machines = sorted({path.parent.name for folder in folders for path in _of_machines(folder)})
    for machine in machines:
        places = [folder / machine for folder in folders if (folder / machine).is_dir()]
        written |= _machine(places, target / machine)
        sessions = _sessions(places)
        stems = {path.stem for place in places for path in place.glob("*.json")} | set(sessions)
        for stem in sorted(stems - {Path(_MACHINE).stem}):
            summary = Summary(target / machine / f"{stem}.json")
            paths = [place / summary.path.name for place in _having(places, summary.path.name)]
            if paths:
                written[summary.path] = json.dumps(_file(paths, summary))
            files = _named(stem, sessions.get(stem, {}), target / machine)
            summary.sessions = len(files)
            written |= files
            ours = {p for one in sessions.get(stem, {}).values() for p in one.paths}
            stale |= {path for path in ours if path.parent == target / machine} - set(files)
            summaries.append(summary)
    described = Summary(target / _BENCHMARKS)
    written |= _benchmarks(folders, described)
    if described.notes:
        summaries.append(described)
    if not dry_run:
        for path, text in written.items():
            if not _holds(path, text):
                _write(path, text)
        for path in stale:  # its session is in another file by now
            path.unlink()
    return summaries


def _of_machines(folder: Path) -> Iterator[Path]:
    return itertools.chain(folder.glob("*/*.json"), folder.glob(f"*/*{sidecar.SUFFIX}"))


def _file(paths: Sequence[Path], summary: Summary) -> dict[str, Any]:
    """The documents of one commit and environment as one; the first is the target's, if it is."""
    documents = [_result(path) for path in paths]
    first = documents[0]
    for path, document in zip(paths[1:], documents[1:], strict=True):
        for name in ("commit_hash", "env_name", "version"):
            if document.get(name) != first.get(name):
                raise MergeError(
                    f"{path}: {name} is {document.get(name)!r}, in {paths[0]} it is "
                    f"{first.get(name)!r}; results of different things have one file name"
                )
    columns = list(dict.fromkeys(c for document in documents for c in document["result_columns"]))
    ours = summary.path.resolve()
    results = {}
    for name in dict.fromkeys(name for document in documents for name in document["results"]):
        rows = [
            (path.resolve() == ours, path, _by_column(document, name, path))
            for path, document in zip(paths, documents, strict=True)
            if name in document["results"]
        ]
        results[name] = _trimmed(_row(name, rows, columns, summary), columns)
    by_age = sorted(documents, key=_last_start)
    durations = {k: v for one in by_age for k, v in (one.get("durations") or {}).items()}
    return {**by_age[-1], "result_columns": columns, "results": results, "durations": durations}


def _row(
    name: str,
    rows: Sequence[tuple[bool, Path, dict[str, Any]]],
    columns: Sequence[str],
    summary: Summary,
) -> dict[str, Any]:
    version = max((row for _, _, row in rows), key=_precedence).get("version")
    used = [one for one in rows if one[2].get("version") == version]
    for _, path, row in rows:
        if row.get("version") != version:
            summary.notes.append(
                f"{name}: version {row.get('version')} of {path} gave way to version {version}"
            )
    params = _united([row["params"] for _, _, row in used], name)
    combinations = list(itertools.product(*params)) or [()]
    # newest first; of equal age the order of the folders must not decide
    used.sort(key=lambda one: (_started(one[2]), str(one[2])), reverse=True)
    placed = [(ours, path, row, _positions(row["params"])) for ours, path, row in used]
    listed = [column for column in columns if column not in _OF_THE_ROW]
    chosen: list[_Cell | None] = []
    older: Counter[Path] = Counter()
    for combination in combinations:
        candidates = [
            _Cell(row, at[combination], path, ours)
            for ours, path, row, at in placed
            if combination in at
        ]
        best = max(candidates, key=_Cell.rank, default=None)  # the newest of the best
        mine = next((one for one in candidates if one.ours and one.rank()), None)
        if best and mine and mine.values(listed) == best.values(listed):
            best = mine
        chosen.append(best)
        if best and best.rank():
            if best is mine:
                summary.kept += 1
            elif mine:
                summary.replaced += 1
            else:
                summary.added += 1
            older.update(
                one.path
                for one in candidates
                if one.rank() == _MEASURED and one.values(listed) != best.values(listed)
            )
    for path, count in older.items():
        summary.notes.append(f"{name}: {count} older rows of {path} gave way")
    # The age of what is kept: a later run that measured none of it must not make it look newer.
    kept = [one.row for one in chosen if one and one.rank()] or [used[0][2]]
    joined: dict[str, Any] = {**max(kept, key=_started), "params": params}
    for column in listed:
        nothing = math.nan if column == "result" else None
        joined[column] = [_at(one.row, column, one.index) if one else nothing for one in chosen]
    return joined


def _precedence(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Which version of a benchmark stays: one that measured something, the higher, the later."""
    results = row.get("result")
    measured = any(_rank(v) == _MEASURED for v in (results if isinstance(results, list) else []))
    return measured, _number(row.get("version")), _started(row), str(row.get("version"))


def _number(version: Any) -> int:
    """A version that people count up; -1 for asv's own, a hash of the source without order."""
    text = str(version)
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else -1


def _started(row: Mapping[str, Any]) -> float:
    value = row.get("started_at")
    return value if isinstance(value, (int, float)) else 0


def _at(row: Mapping[str, Any], column: str, index: int) -> Any:
    values = row.get(column)
    if isinstance(values, list):
        return values[index] if index < len(values) else None
    return values if not row.get("params") else None  # of a benchmark without parameters


def _rank(value: Any) -> int:
    """Measured before failed before not measured."""
    if value is None:
        return 1
    return 0 if isinstance(value, float) and math.isnan(value) else _MEASURED


def _united(several: Sequence[list[list[str]]], name: str) -> list[list[str]]:
    if len({len(params) for params in several}) > 1:
        raise MergeError(f"{name}: rows of one version have different numbers of parameters")
    return [
        list(dict.fromkeys(value for axis in axes for value in axis))
        for axes in zip(*several, strict=True)
    ]


def _positions(params: Sequence[Sequence[str]]) -> dict[tuple[str, ...], int]:
    return {c: i for i, c in enumerate(itertools.product(*params) if params else [()])}


def _by_column(document: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    row = document["results"][name]
    if not isinstance(row, list):
        raise MergeError(f"{path}: {name}: asv's older format; `asv update` converts it")
    found = dict(zip(document["result_columns"], row, strict=False))
    found.setdefault("params", [])
    return found


def _trimmed(row: Mapping[str, Any], columns: Sequence[str]) -> list[Any]:
    """As asv writes rows: a column of nothing is null, and the last ones are left out."""
    values = []
    for column in columns:
        value = row.get(column)
        if column not in _OF_THE_ROW and isinstance(value, list) and all(v is None for v in value):
            value = None
        values.append(value)
    while values and values[-1] is None:
        values.pop()
    return values


def _last_start(document: Mapping[str, Any]) -> float:
    rows = (_by_column(document, name, Path()) for name in document["results"])
    return max(map(_started, rows), default=0)


def _sessions(places: Sequence[Path]) -> dict[str, dict[str, _Session]]:
    """The sessions of one machine by the stem of their result file, then by their name."""
    found: dict[str, dict[str, _Session]] = {}
    for path in (p for place in places for p in sorted(place.glob(f"*{sidecar.SUFFIX}"))):
        try:
            session = sidecar.read(path).session
        except sidecar.SidecarError as error:
            raise MergeError(str(error)) from error
        text, identity = path.read_text("utf-8"), session["session"]
        stem = path.name.removesuffix(sidecar.SUFFIX).removesuffix(f".{identity}")
        known = found.setdefault(stem, {}).setdefault(
            identity, _Session(session["started_at"], text, [])
        )
        if not (text.startswith(known.text) or known.text.startswith(text)):
            raise MergeError(
                f"{path} and {known.paths[0]} differ and are both session {identity}; "
                "delete the wrong one"
            )
        known.text = max(known.text, text, key=len)  # a copy made before the session ended
        known.paths.append(path)
    return found


def _named(stem: str, sessions: Mapping[str, _Session], target: Path) -> dict[Path, str]:
    """Files of one result's sessions: the newest beside it, others under their own names.

    Where all have their own names already, as in a study, they stay so. The newest comes last, so
    that an older one is never overwritten before it has its own file.
    """
    plain = f"{stem}{sidecar.SUFFIX}"
    beside = any(path.name == plain for one in sessions.values() for path in one.paths)
    order = sorted(sessions, key=lambda identity: (sessions[identity].started_at, identity))
    names = [f"{stem}.{identity}{sidecar.SUFFIX}" for identity in order]
    if beside:
        names[-1] = plain
    return {
        target / name: sessions[identity].text for name, identity in zip(names, order, strict=True)
    }


def _machine(places: Sequence[Path], target: Path) -> dict[Path, str]:
    found = [(place / _MACHINE, _read(place / _MACHINE)) for place in _having(places, _MACHINE)]
    if not found:
        return {}
    path, first = found[0]
    for other, facts in found[1:]:
        for name in sorted({*first, *facts}):
            if first.get(name) != facts.get(name):
                raise MergeError(
                    f"{other}: {name} is {facts.get(name)!r}, in {path} it is "
                    f"{first.get(name)!r}: two machines of one name; rename one (asv machine)"
                )
    text = path.read_text("utf-8")
    wanted = target / _MACHINE
    return {} if wanted.exists() else {wanted: text}


def _benchmarks(folders: Sequence[Path], summary: Summary) -> dict[Path, str]:
    """Descriptions of all benchmarks; of different ones the higher version, then the larger."""
    joined: dict[str, Any] = {}
    where: dict[str, Path] = {}
    for folder in _having(folders, _BENCHMARKS):
        path = folder / _BENCHMARKS
        for name, benchmark in _read(path).items():
            known = joined.get(name, benchmark)
            if name in joined and known == benchmark:
                continue
            if name in joined:
                wins = _weight(benchmark) > _weight(known)
                kept, other = (path, where[name]) if wins else (where[name], path)
                summary.notes.append(f"{name}: described as in {kept}, not as in {other}")
                if not wins:
                    continue
            joined[name], where[name] = benchmark, path
    if not joined or (summary.path.exists() and _read(summary.path) == joined):
        return {}
    text = json.dumps(dict(sorted(joined.items())), indent=4, sort_keys=True)  # as asv writes it
    return {summary.path: text}


def _weight(benchmark: Any) -> tuple[Any, ...]:
    if not isinstance(benchmark, Mapping):
        return (-1, 0, json.dumps(benchmark))
    size = math.prod(len(axis) for axis in benchmark.get("params", []))
    return (_number(benchmark.get("version")), size, json.dumps(benchmark, sort_keys=True))


def _having(folders: Iterable[Path], name: str) -> list[Path]:
    return [folder for folder in folders if (folder / name).exists()]


def _result(path: Path) -> dict[str, Any]:
    """An asv result of which every row can be read."""
    document = _read(path)
    try:
        warnings = asv_files.read(path).warnings
    except asv_files.DamagedFile as error:
        warnings = (str(error),)
    if warnings:
        raise MergeError(f"{path} is damaged ({warnings[0]}); delete it or measure again")
    return document


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8"))
        if not isinstance(document, dict):
            raise ValueError("no JSON object")
        if path.name not in (_MACHINE, _BENCHMARKS):
            for name, kind in (("results", dict), ("result_columns", list)):
                if not isinstance(document.get(name), kind):
                    raise ValueError(f"no {name}; `asv update` converts older formats")
    except (OSError, ValueError, RecursionError) as error:
        raise MergeError(f"{path} is damaged ({error}); delete it or measure again") from error
    return document


def _holds(path: Path, text: str) -> bool:
    return path.exists() and path.read_text("utf-8") == text


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, because os.replace is atomic only within a file system.
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
