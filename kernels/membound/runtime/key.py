"""What decides the machine code of a kernel, and so which entry of the cache is its own.

The device source with everything it imports from this package, the configuration, the toolchain
and how it is used. The package's own name is not part of it, so two checkouts with equal code
share their entries.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from . import compiler
from .kernel import DEVICE, Kernel
from .toolchain import toolchain

#: Of a kernel's name in that of its entry; file systems end names at 255 bytes.
_NAME_LENGTH = 160


def built_from(kernel: Kernel) -> dict[str, Any]:
    """All that decides what ``kernel`` is compiled to, as JSON values."""
    return {
        "configuration": _configuration(kernel),
        "module": kernel.module,
        **present(kernel.module),
    }


def present(module: str) -> dict[str, Any]:
    """The part of :func:`built_from` that is of the code and toolchain that are here now."""
    return {
        "sources": source_digest(DEVICE / f"{module}.py"),
        "compiler": _source(Path(compiler.__file__)).digest,
        "toolchain": toolchain(),
    }


def entry_name(kernel: Kernel) -> str:
    """Name of the entry of ``kernel`` in the cache: the kernel's, and a digest of all else."""
    parts = json.dumps(built_from(kernel), sort_keys=True)
    return f"{kernel.name[:_NAME_LENGTH]}-{hashlib.sha256(parts.encode()).hexdigest()[:20]}"


def _configuration(part: Any) -> dict[str, Any]:
    """All that device code can read of a kernel or of a dataclass in it: fields and properties.

    Properties count because they are computed by host code, which is not among the sources.
    """
    values = {name: getattr(part, name) for name in _readable(type(part))}
    return {
        name: _configuration(value) if dataclasses.is_dataclass(value) else _plain(value)
        for name, value in values.items()
    }


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


@functools.cache
def _readable(kind: type) -> tuple[str, ...]:
    properties = inspect.getmembers_static(
        kind, lambda member: isinstance(member, (property, functools.cached_property))
    )
    fields = (field.name for field in dataclasses.fields(kind))
    return (*fields, *(name for name, _ in properties))


@functools.cache
def source_digest(path: Path) -> str:
    """SHA-256 over a module and, transitively, all it imports from its own package."""
    sources: dict[Path, _Source] = {}
    todo = [path]
    while todo:
        current = todo.pop()
        if current not in sources:
            sources[current] = _source(current)
            todo += sources[current].imports
    digest = hashlib.sha256()
    for current, source in sorted(sources.items()):
        relative = os.path.relpath(current, path.parent)
        digest.update(f"{relative}\0{source.digest}\0".encode())
    return digest.hexdigest()


class _Source(NamedTuple):
    digest: str
    imports: tuple[Path, ...]


@functools.cache
def _source(path: Path) -> _Source:
    content = path.read_bytes()
    return _Source(hashlib.sha256(content).hexdigest(), tuple(_relative_imports(path, content)))


def _relative_imports(path: Path, source: bytes) -> Iterator[Path]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
        for name in [None, *(alias.name for alias in node.names)]:
            target = base / name if name else base
            for candidate in (target.with_suffix(".py"), target / "__init__.py"):
                if candidate.is_file():
                    yield candidate
