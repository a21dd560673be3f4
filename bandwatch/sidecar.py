"""The session sidecar: what a benchmark session knows and asv's result file cannot hold.

A ``*.session.jsonl`` file beside asv's result: first a line of kind ``session``, then one line of
kind ``workload`` per workload and round. ``sidecar.schema.json`` describes both.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema

SCHEMA = 1
SUFFIX = ".session.jsonl"


class SidecarError(ValueError):
    """A sidecar file, or a line for one, that does not follow the schema."""


@dataclass(frozen=True)
class Sidecar:
    """One session: its head line and its workload lines, in the order they were measured."""

    session: dict[str, Any]
    workloads: list[dict[str, Any]]


def read(path: str | os.PathLike[str]) -> Sidecar:
    """Read and validate a sidecar; :class:`SidecarError` names the file and the line at fault."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SidecarError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    lines = list(_lines(path, text))
    if not lines:
        raise SidecarError(f"{path}:1: empty; a session line was expected. Measure again")
    session, *workloads = lines
    for number, line in enumerate(lines, start=1):
        _validate(line, "session" if number == 1 else "workload", f"{path}:{number}")
        if line["session"] != session["session"]:
            raise SidecarError(
                f"{path}:{number}: of session {line['session']!r}, but the file is of "
                f"{session['session']!r}; each session has a file of its own"
            )
    return Sidecar(session, workloads)


class Writer:
    """Writes a sidecar line by line; the file is complete and valid after each.

    ``session`` is the head line without ``schema`` and ``kind``. A file of the same session is
    continued, which is how a worker that was restarted in the middle of a session goes on; a file
    of another session is replaced.
    """

    def __init__(self, path: str | os.PathLike[str], session: dict[str, Any]) -> None:
        self.path = Path(path)
        head = {"schema": SCHEMA, "kind": "session", **session}
        _validate(head, "session", f"{self.path}:1")
        self._lines = [head, *self._earlier(head["session"])]
        self._write()

    def append(self, workload: dict[str, Any]) -> None:
        """Add a workload line (without ``schema`` and ``kind``) and rewrite the file atomically."""
        line = {"schema": SCHEMA, "kind": "workload", **workload}
        _validate(line, "workload", f"{self.path}:{len(self._lines) + 1}")
        if line["session"] != self._lines[0]["session"]:
            raise SidecarError(
                f"{self.path}: a workload of session {line['session']!r} cannot be added to "
                f"session {self._lines[0]['session']!r}"
            )
        self._lines.append(line)
        self._write()

    def _earlier(self, session: str) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        try:
            found = read(self.path)
        except SidecarError:
            return []  # what is damaged cannot be continued; the session that wrote it is gone
        return found.workloads if found.session["session"] == session else []

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in self._lines)
        # In the same folder, because os.replace is atomic only within a file system.
        handle, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o644)
            os.replace(name, self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _lines(path: Path, text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            yield json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise SidecarError(
                f"{path}:{number}: not a JSON object ({error}); the file is damaged, "
                "delete it or measure again"
            ) from error


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_FORMATS = jsonschema.FormatChecker(formats=())


@_FORMATS.checks("date-time", raises=(ValueError, OverflowError))
def _is_time(value: Any) -> bool:
    """Whether a string is a time with its offset from UTC that a datetime can hold."""
    if not isinstance(value, str):
        return True  # the schema's "type" says so
    time = datetime.fromisoformat(value)
    time.astimezone(UTC)
    return time.tzinfo is not None


@functools.cache
def _validator(kind: str) -> jsonschema.Draft202012Validator:
    text = resources.files("bandwatch").joinpath("sidecar.schema.json").read_text("utf-8")
    schema = json.loads(text)
    return jsonschema.Draft202012Validator(
        {**schema, "$ref": f"#/$defs/{kind}"}, format_checker=_FORMATS
    )


def _validate(line: Any, kind: str, where: str) -> None:
    if not isinstance(line, dict):
        raise SidecarError(f"{where}: {type(line).__name__} where an object was expected")
    if line.get("schema") != SCHEMA:
        raise SidecarError(
            f"{where}: schema {line.get('schema')!r}, this bandwatch reads {SCHEMA}; update it"
        )
    if line.get("kind") != kind:
        raise SidecarError(f"{where}: line of kind {line.get('kind')!r}, {kind!r} was expected")
    error = jsonschema.exceptions.best_match(_validator(kind).iter_errors(line))
    if error is not None:
        field = error.json_path.removeprefix("$.")
        raise SidecarError(f"{where}: {field}: {error.message}")
    for name, provider in line.get("providers", {}).items():
        places = [(process, placement) for process, placement, _ in provider["samples"]]
        if len(set(places)) < len(places):
            raise SidecarError(
                f"{where}: providers.{name}: two samples at one process and placement; "
                "a sample is one placement"
            )
