"""Validation records: proof that the GPU tests passed on a real card, for one state of the kernels.

A record is one JSON line in ``results/validation/*.jsonl``. It names the kernels by a digest of
their sources, so that a machine without a GPU can tell whether it is still about them.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bandwatch.measure import environment

SCHEMA = 1
FOLDER = Path("results/validation")


def kernels_digest(root: Path) -> str:
    """SHA-256 over the path and content of every Python file below ``kernels/`` of ``root``."""
    total = hashlib.sha256()
    for path in sorted((root / "kernels").rglob("*.py")):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return total.hexdigest()


def append(
    path: Path, root: Path, tests: Mapping[str, int], started_at: datetime
) -> dict[str, Any]:
    """Append the record of a run that ends now; ``tests`` counts GPU tests by outcome."""
    record = {
        "schema": SCHEMA,
        "commit": _commit(root),
        "kernels_digest": kernels_digest(root),
        **environment.describe(),
        "tests": dict(tests),
        "started_at": started_at.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - started_at).total_seconds(), 1),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as out:
        out.write(json.dumps(record) + "\n")
    return record


def newest(root: Path) -> dict[str, Any] | None:
    """The record that was started last, or None where there is none."""
    return max(_records(root), key=lambda record: record["started_at"], default=None)


def problem(root: Path) -> str | None:
    """Why the kernels of ``root`` do not count as validated on a GPU, or None where they do."""
    record = newest(root)
    renew = (
        "On a GPU host run `python -m pytest -m gpu --gpu-record results/validation/<gpu>.jsonl` "
        "and commit the file."
    )
    if record is None:
        return f"{FOLDER} holds no record of the GPU tests. {renew}"
    if record["kernels_digest"] != kernels_digest(root):
        return (
            f"The newest record ({record['started_at']}, {record['gpu']}) is older than the "
            f"kernels: their digest changed. {renew}"
        )
    if record["tests"].get("failed", 0) or not record["tests"].get("passed", 0):
        return f"The newest record ({record['started_at']}) is not of a pass: {record['tests']}."
    return None


def _records(root: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((root / FOLDER).glob("*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{number}: not a JSON line: {error}") from error


def _commit(root: Path) -> str | None:
    try:
        return subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None  # a copy of the tree without git; the digest still identifies the kernels
