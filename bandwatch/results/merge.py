"""Join result folders that shards or several runners wrote into one, row by row; loses nothing.

A row is a benchmark at one combination of parameters, known by its values. Of a row that several
measured, the newest measurement is kept; what was not measured never replaces what was. Sessions
are kept whole. Everything is read and joined before anything is written.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import sidecar

#: Columns of asv's rows that hold one value a row, not one a combination of parameters.
_OF_THE_ROW = frozenset({"params", "version", "started_at", "duration", "profile"})

_MACHINE, _BENCHMARKS = "machine.json", "benchmarks.json"


class MergeError(ValueError):
    """The folders cannot be joined; the message names the file and what to do."""


@dataclass
class Summary:
    """What a merge did to one result file, or would do."""

    path: Path
    added: int = 0
    replaced: int = 0
    kept: int = 0
    sessions: int = 0
    notes: list[str] = field(default_factory=list)


def merge(sources: Sequence[Path], target: Path, dry_run: bool = False) -> list[Summary]:
    """Join ``sources`` and what ``target`` holds already into ``target``.

    Each folder is laid out as asv's: ``<machine>/<commit>-<environment>.json``. Returns a summary
    for each result file. Raises :class:`MergeError` for folders that cannot be joined, a damaged
    file, or machines of one name that differ.
    """
    for source in sources:
        if not source.is_dir():
            raise MergeError(f"{source} is no folder")
        inside, outside = source.resolve(), target.resolve()
        if inside == outside or inside in outside.parents or outside in inside.parents:
            raise MergeError(f"{source} and {target} lie in one another; merge into another folder")
        if not any(source.glob("*/*.json")):
            raise MergeError(
                f"{source} holds no results like <machine>/<commit>-<environment>.json"
            )
    folders = [*([target] if target.is_dir() else []), *sources]
    written: dict[Path, str] = {}
    summaries = []
    machines = sorted({path.parent.name for folder in folders for path in folder.glob("*/*.json")})
    for machine in machines:
        places = [folder / machine for folder in folders if (folder / machine).is_dir()]
        written |= _machine(places, target / machine)
        names = {path.name for place in places for path in place.glob("*.json")} - {_MACHINE}
        for name in sorted(names):
            paths = [place / name for place in places if (place / name).exists()]
            summary = Summary(target / machine / name)
            joined = _file(paths, summary)
            if not (summary.path.exists() and joined == _read(summary.path)):
                written[summary.path] = json.dumps(joined)
            written |= _sessions(places, target / machine, name, summary)
            summaries.append(summary)
    written |= _benchmarks(folders, target)
    if not dry_run:
        for path, text in written.items():
            _write(path, text)
    return summaries


def _file(paths: Sequence[Path], summary: Summary) -> dict[str, Any]:
    """The documents of one commit and environment as one; the first is the target's, if it is."""
    documents = [_read(path) for path in paths]
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
    durations = {k: v for document in documents for k, v in document.get("durations", {}).items()}
    newest = max(documents, key=lambda one: max(_starts(one), default=0))
    return {**newest, "result_columns": columns, "results": results, "durations": durations}


def _row(
    name: str,
    rows: Sequence[tuple[bool, Path, dict[str, Any]]],
    columns: Sequence[str],
    summary: Summary,
) -> dict[str, Any]:
    version = max(
        (row for _, _, row in rows),
        key=lambda row: (row.get("started_at") or 0, str(row.get("version"))),
    ).get("version")
    used = [one for one in rows if one[2].get("version") == version]
    for _, path, row in rows:
        if row.get("version") != version:
            summary.notes.append(
                f"{name}: version {row.get('version')} of {path} gave way to version {version}"
            )
    params = _united([row["params"] for _, _, row in used], name)
    combinations = list(itertools.product(*params)) or [()]
    # newest first; of equal age the order of the folders must not decide
    used.sort(key=lambda one: (one[2].get("started_at") or 0, str(one[2])), reverse=True)
    placed = [(ours, row, _positions(row["params"])) for ours, _, row in used]
    listed = [column for column in columns if column not in _OF_THE_ROW]
    joined: dict[str, Any] = {**used[0][2], "params": params}
    chosen: list[tuple[dict[str, Any], int] | None] = []
    for combination in combinations:
        candidates = [
            (_rank(_at(row, "result", at[combination])), ours, row, at[combination])
            for ours, row, at in placed
            if combination in at
        ]
        best = max(candidates, key=lambda one: one[0], default=None)  # the newest of the best
        mine = next((one for one in candidates if one[1] and one[0]), None)
        if best and mine and _cell(mine, listed) == _cell(best, listed):
            best = mine
        chosen.append(best and (best[2], best[3]))
        if best and best[0]:
            if best is mine:
                summary.kept += 1
            elif mine:
                summary.replaced += 1
            else:
                summary.added += 1
    for column in listed:
        nothing = math.nan if column == "result" else None
        joined[column] = [_at(one[0], column, one[1]) if one else nothing for one in chosen]
    return joined


def _cell(candidate: tuple[int, bool, dict[str, Any], int], columns: Sequence[str]) -> list[Any]:
    _, _, row, index = candidate
    return [_at(row, column, index) for column in columns]


def _at(row: Mapping[str, Any], column: str, index: int) -> Any:
    values = row.get(column)
    if isinstance(values, list):
        return values[index] if index < len(values) else None
    return values if not row.get("params") else None  # of a benchmark without parameters


def _rank(value: Any) -> int:
    """Measured before failed before not measured."""
    if value is None:
        return 1
    return 0 if isinstance(value, float) and math.isnan(value) else 2


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


def _starts(document: Mapping[str, Any]) -> Iterator[float]:
    for name in document["results"]:
        yield _by_column(document, name, Path()).get("started_at") or 0


def _sessions(places: Sequence[Path], target: Path, name: str, summary: Summary) -> dict[Path, str]:
    """Sidecars of one result file: the newest beside it, the others under their session's name."""
    stem = name.removesuffix(".json")
    sessions: dict[str, tuple[str, str, Path]] = {}
    for place in places:
        for path in sorted(place.glob(f"{stem}*{sidecar.SUFFIX}")):
            middle = path.name.removeprefix(stem).removesuffix(sidecar.SUFFIX)
            if middle and not middle.startswith("."):
                continue  # of another result whose name begins alike
            try:
                session = sidecar.read(path).session
            except sidecar.SidecarError as error:
                raise MergeError(str(error)) from error
            text, identity = path.read_text("utf-8"), session["session"]
            known = sessions.get(identity)
            if known and not (text.startswith(known[1]) or known[1].startswith(text)):
                raise MergeError(f"{path} and {known[2]} differ and are both session {identity}")
            if known is None or len(text) > len(known[1]):
                sessions[identity] = (session["started_at"], text, path)
    order = sorted(sessions, key=lambda identity: (sessions[identity][0], identity))
    files = {}
    for identity in order:
        last = identity == order[-1]
        middle = "" if last else f".{identity}"
        files[target / f"{stem}{middle}{sidecar.SUFFIX}"] = sessions[identity][1]
    summary.sessions = len(files)
    return {path: text for path, text in files.items() if not _holds(path, text)}


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


def _benchmarks(folders: Sequence[Path], target: Path) -> dict[Path, str]:
    """Descriptions of all benchmarks; of different ones the higher version, then the larger."""
    joined: dict[str, Any] = {}
    for folder in _having(folders, _BENCHMARKS):
        for name, benchmark in _read(folder / _BENCHMARKS).items():
            known = joined.get(name)
            if known is None or _weight(benchmark) > _weight(known):
                joined[name] = benchmark
    path = target / _BENCHMARKS
    if not joined or (path.exists() and _read(path) == joined):
        return {}
    return {path: json.dumps(dict(sorted(joined.items())), indent=4, sort_keys=True) + "\n"}


def _weight(benchmark: Any) -> tuple[Any, ...]:
    if not isinstance(benchmark, Mapping):
        return (json.dumps(benchmark),)
    size = math.prod(len(axis) for axis in benchmark.get("params", []))
    return (str(benchmark.get("version", "")), size, json.dumps(benchmark, sort_keys=True))


def _having(folders: Iterable[Path], name: str) -> list[Path]:
    return [folder for folder in folders if (folder / name).exists()]


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
