"""Ingest: results and git history in, one new generation of the dataset out."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.progress import Progress

from .. import sidecar
from ..detect.verdicts import changes_and_incidents
from . import asv_files, commits, rows
from .dataset import DEFAULT_DIR, Dataset, DatasetError, Generation, current
from .schema import TABLES

#: Seconds that a replaced generation stays for those who still read it.
GRACE = 600.0

#: Seconds to wait for another ingest into the same dataset.
PATIENCE = 120.0

Rows = list[dict[str, Any]]


def ingest(
    results_dirs: Path | str | Sequence[Path | str],
    repo: Path | str = ".",
    dataset_dir: Path | str = DEFAULT_DIR,
    progress: Progress | None = None,
) -> Generation:
    """Bring the dataset up to date with one or more folders in asv's layout.

    Writes a complete generation and replaces ``CURRENT`` atomically; where nothing changed since
    the last ingest, that generation is returned with ``reused`` set. What cannot be read is left
    out and named in the table ``warnings``.

    Raises :class:`DatasetError` for folders without a single result, where another ingest does not
    end, or where the dataset cannot be written, and
    :class:`~bandwatch.results.commits.HistoryError` where git cannot tell the order.
    """
    if isinstance(results_dirs, (str, Path)):
        results_dirs = [results_dirs]
    folders = [Path(folder) for folder in results_dirs]
    root = Path(dataset_dir)
    try:
        return _ingest(folders, repo, root, progress)
    except OSError as error:
        raise DatasetError(
            f"{root}: cannot be written, what it held before still stands ({error}); "
            "make room or give the right to, or name another folder with --dataset"
        ) from error


def _ingest(
    folders: Sequence[Path], repo: Path | str, root: Path, progress: Progress | None
) -> Generation:
    root.mkdir(parents=True, exist_ok=True)
    with _only_one(root):
        fingerprint = _fingerprint(folders, repo)
        latest = current(root)
        if latest and latest.fingerprint == fingerprint and _is_intact(latest):
            return replace(latest, reused=True)
        paths = [path for folder in folders for path in asv_files.result_paths(folder)]
        if not paths:
            raise DatasetError(
                f"no asv results in {', '.join(map(str, folders))}: files like "
                "<folder>/<machine>/<commit>-<environment>.json were expected; "
                "`asv run` writes them"
            )
        tables = _tables(paths, commits.read_history(repo), progress)
        generation = _write(root, tables, fingerprint)
        _publish(root, generation)
        _remove_old(root, generation)
        return generation


def _is_intact(generation: Generation) -> bool:
    try:
        Dataset(generation).close()
    except DatasetError:
        return False
    return True


# Reading ------------------------------------------------------------------------------------------


def _tables(
    paths: Sequence[Path], history: commits.History, progress: Progress | None
) -> dict[str, Rows]:
    warnings: Rows = []

    def warn(source: Path | str, message: str) -> None:
        warnings.append({"source": str(source), "message": message})

    bar = progress or Progress(disable=True)
    files = []
    for path in bar.track(paths, description="Reading results"):
        try:
            file = asv_files.read(path)
        except asv_files.DamagedFile as error:
            warn(path, f"left out: {error}")
            continue
        files.append(file)
        for message in file.warnings:
            warn(path, message)
    places = history.place({file.commit for file in files})
    for file in files:
        if places[file.commit].kind == "unknown":
            warn(
                file.path,
                f"commit {file.commit[:12]} is not in the repository (rebased away?); "
                "kept, without a place in the history",
            )
    sidecars = _sidecars(paths, warn)
    points: Rows = []
    static: Rows = []
    for file in bar.track(files, description="Joining sessions"):
        place = places[file.commit]
        beside = sidecars.get(file.path, ())
        matching = [s for s in beside if s.session["commit"] == file.commit]
        if len(matching) < len(beside):
            warn(file.path, "left out: a sidecar beside it is of another commit")
        points.extend(rows.point_rows(file, matching, place))
        static.extend(rows.static_rows(file, place))
    if not points and not static:
        names = sorted({row.benchmark for file in files for row in file.rows})
        found = ", ".join(names[:3]) or "none"
        warn("results", f"no benchmark of a known form (…track_time, bench_static…): {found}")
    points.sort(key=_point_order)
    static = _newest_static(static, warn)
    measured = {row["commit"] for row in points if row["verdict"] != "not available"}
    measured |= {
        one.session["commit"]
        for beside in sidecars.values()
        for one in beside
        if any("shared" in line for line in one.workloads)
    }
    hashes = [commit.hash for commit in history.commits]
    changes, incidents = changes_and_incidents(points, static, hashes, bar)
    return {
        "points": points,
        "static": static,
        "commits": [_commit_row(c, measured) for c in history.commits],
        "changes": changes,
        "incidents": incidents,
        "warnings": warnings,
    }


def _sidecars(paths: Iterable[Path], warn: Any) -> dict[Path, list[sidecar.Sidecar]]:
    """Sidecars by the result file they stand beside: ``<stem>`` or ``<stem>.<older session>``."""
    known = set(paths)
    found: dict[Path, list[sidecar.Sidecar]] = {}
    for folder in sorted({path.parent for path in known}):
        for path in sorted(folder.glob(f"*{sidecar.SUFFIX}")):
            stem = path.name.removesuffix(sidecar.SUFFIX)
            result = folder / f"{stem}.json"
            if result not in known:
                result = folder / f"{stem.rpartition('.')[0]}.json"
            if result not in known:
                warn(path, f"left out: no asv result {stem}.json beside it")
                continue
            try:
                found.setdefault(result, []).append(sidecar.read(path))
            except sidecar.SidecarError as error:
                warn(path, f"left out: {error}")
    return found


def _newest_static(static: Rows, warn: Any) -> Rows:
    """One row per series and commit: machines agree on what a compiler makes, or are reported."""
    kept: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(static, key=lambda r: r["started_at"]):
        before = kept.get((row["series"], row["commit"]))
        if before and before["value"] != row["value"]:
            warn(
                row["machine"],
                f"{row['series']} at {row['commit'][:12]} is {row['value']:g} here and "
                f"{before['value']:g} on {before['machine']}; the later one is kept",
            )
        kept[row["series"], row["commit"]] = row
    for row in kept.values():
        del row["started_at"]
    return sorted(kept.values(), key=lambda r: (r["series"], _last(r["position"])))


def _point_order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    started = row["started_at"]
    return row["series"], _last(row["position"]), started.timestamp() if started else 0.0


def _last(position: int | None) -> float:
    return math.inf if position is None else position


def _commit_row(commit: commits.Commit, measured: set[str]) -> dict[str, Any]:
    return {
        "commit": commit.hash,
        "position": commit.position,
        "subject": commit.subject,
        "author": commit.author,
        "authored_at": commit.authored_at,
        "committed_at": commit.committed_at,
        "measured": commit.hash in measured,
    }


# Writing ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _only_one(root: Path) -> Iterator[None]:
    """Hold the lock of the dataset; the kernel frees it when its holder ends in any way."""
    with (root / ".lock").open("w") as lock:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DatasetError(
                        f"{root}: another ingest has been running for {PATIENCE:.0f} s; "
                        "wait for it or end it"
                    ) from None
                time.sleep(0.1)
        yield


def _fingerprint(folders: Sequence[Path], repo: Path | str) -> str:
    """Changes when a result file, the main branch or this code does; cheap: contents unread."""
    digest = hashlib.sha256(repr(commits.head(repo)).encode())
    package = Path(__file__).parents[1]
    for pattern in ("*.py", "*.json", "results/*.py", "detect/*.py", "measure/workload.py"):
        for source in sorted(package.glob(pattern)):
            digest.update(source.read_bytes())
    for folder in folders:
        inputs = (p for p in folder.resolve().glob("*/*") if p.suffix in (".json", ".jsonl"))
        for path in sorted(inputs):
            with contextlib.suppress(FileNotFoundError):  # a broken link, or removed just now
                facts = path.stat()
                digest.update(f"{path}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _write(root: Path, tables: Mapping[str, Rows], fingerprint: str) -> Generation:
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.urandom(3).hex()}"
    path = root / "generations" / name
    # Written under a name that no reader looks at, then renamed as a whole.
    partial = root / "generations" / f".{name}"
    partial.mkdir(parents=True)
    counts = {}
    try:
        for table, schema in TABLES.items():
            content = pa.Table.from_pylist(_without_nan(tables[table], schema), schema=schema)
            pq.write_table(content, partial / f"{table}.parquet", compression="zstd")
            counts[table] = content.num_rows
        facts = {"fingerprint": fingerprint, "rows": counts}
        (partial / "generation.json").write_text(json.dumps(facts))
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return Generation(name, path, counts, fingerprint)


def _without_nan(content: Rows, schema: pa.Schema) -> Rows:
    """Rows with null for what is not known, so that SQL need not tell two kinds of nothing."""
    floats = [f.name for f in schema if pa.types.is_floating(f.type)]
    for row in content:
        for name in floats:
            value = row.get(name)
            if value is not None and math.isnan(value):
                row[name] = None
    return content


def _publish(root: Path, generation: Generation) -> None:
    partial = root / ".CURRENT"
    partial.write_text(generation.id)
    os.replace(partial, root / "CURRENT")
    # The grace period of the others begins now.
    for other in _others(root, generation):
        marker = other / "replaced"
        if not marker.exists():
            marker.touch()


def _remove_old(root: Path, generation: Generation) -> None:
    for other in _others(root, generation):
        if time.time() - (other / "replaced").stat().st_mtime > GRACE:
            shutil.rmtree(other, ignore_errors=True)


def _others(root: Path, generation: Generation) -> list[Path]:
    folders = (p for p in (root / "generations").iterdir() if p.is_dir())
    return [p for p in folders if p.name != generation.id]
