"""Compiled kernels on disk: one folder an entry, written once, read by every later process.

An entry is found by what decides the machine code: the device source with everything it imports
from this package, the configuration, the toolchain and how it is used. The package's own name is
not part of it, so two checkouts with equal code share their entries.
"""

from __future__ import annotations

import ast
import concurrent.futures
import contextlib
import dataclasses
import fcntl
import functools
import glob
import hashlib
import inspect
import json
import multiprocessing
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from . import compiler
from .kernel import Kernel
from .toolchain import toolchain

_FILES = ("kernel.o", "kernel.cubin", "kernel.so")

#: Of a kernel's name in that of its entry; file systems end names at 255 bytes.
_NAME_LENGTH = 160


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A built kernel on disk."""

    name: str
    digest: str  # SHA-256 over device code and host stub, the same on every machine
    threads: int  # per CTA
    dynamic_smem: int  # bytes per CTA
    cluster: int  # CTAs per cluster
    folder: Path

    @property
    def cubin(self) -> bytes:
        return (self.folder / "kernel.cubin").read_bytes()

    @property
    def library(self) -> Path:
        return self.folder / "kernel.so"


def cache_folder() -> Path:
    """``$MEMBOUND_CACHE_DIR``, else ``~/.cache/membound``."""
    override = os.environ.get("MEMBOUND_CACHE_DIR")
    return Path(override) if override else Path.home() / ".cache" / "membound"


def artifact(kernel: Kernel) -> Artifact:
    """The built kernel, from the cache or compiled now.

    Raises:
        MissingDependency: it is not in the cache and cannot be compiled here.
    """
    key = _key(kernel)
    found = _read(kernel, cache_folder() / key)
    if found is not None:
        return found
    folder = _writable(cache_folder()) / key
    with _locked(folder.with_name(f"{key}.lock")):
        # another process may have built it while this one waited
        return _read(kernel, folder) or _compile_into(kernel, folder)


def build(
    kernels: Iterable[Kernel],
    jobs: int | None = None,
    progress: Callable[[Kernel], None] = lambda kernel: None,
) -> None:
    """Fill the cache in parallel processes; ``progress`` is told of each kernel that is ready."""
    missing = []
    for kernel in dict.fromkeys(kernels):
        if _read(kernel, cache_folder() / _key(kernel)) is None:
            missing.append(kernel)
        else:
            progress(kernel)
    jobs = min(jobs or os.cpu_count() or 1, len(missing))
    shared = not missing or _writable(cache_folder()) == cache_folder()
    if jobs <= 1 or not shared:
        for kernel in missing:
            artifact(kernel)
            progress(kernel)
        return
    # spawn: the caller may hold a CUDA context or threads, which a fork would break
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {pool.submit(artifact, kernel): kernel for kernel in missing}
        for future in concurrent.futures.as_completed(futures):
            future.result()
            progress(futures[future])


def _writable(folder: Path) -> Path:
    """``folder``, or one that lasts as long as this process where that cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        warnings.warn(
            f"cannot write the kernel cache {folder} ({error}); kernels are compiled for this "
            "process only. Set MEMBOUND_CACHE_DIR to a writable folder.",
            stacklevel=3,
        )
        return Path(_process_folder().name)


@functools.cache
def _process_folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="membound-")


def _read(kernel: Kernel, folder: Path) -> Artifact | None:
    try:
        facts = json.loads((folder / "facts.json").read_text())
        digest, hashes = facts["digest"], facts["sha256"]
        for name in _FILES:
            if _sha256(folder / name) != hashes[name]:
                raise ValueError(f"{name} is not what was written")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        warnings.warn(f"damaged kernel cache entry {folder}: {error}; building anew", stacklevel=3)
        return None
    return Artifact(
        name=kernel.name,
        digest=digest,
        threads=kernel.threads,
        dynamic_smem=kernel.shared_bytes,
        cluster=kernel.cluster,
        folder=folder,
    )


def _compile_into(kernel: Kernel, folder: Path) -> Artifact:
    """Build beside ``folder`` and move into place, so that no reader meets half an entry.

    The entry's lock is held, so that a draft of it is what a killed build left.
    """
    for stale in folder.parent.glob(f".draft-{glob.escape(folder.name)}-*"):
        shutil.rmtree(stale)
    # not by mkdtemp, which would hide the entry from other users of a shared folder
    draft = folder.with_name(f".draft-{folder.name}-{os.getpid()}")
    draft.mkdir()
    try:
        digest = compiler.compile_kernel(kernel, draft)
        facts = {"name": kernel.name, "digest": digest, "toolchain": toolchain()}
        facts["sha256"] = {name: _sha256(draft / name) for name in _FILES}
        (draft / "facts.json").write_text(json.dumps(facts, indent=1))
        if folder.is_dir():
            shutil.rmtree(folder)
        else:
            folder.unlink(missing_ok=True)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    built = _read(kernel, folder)
    assert built is not None
    return built


def _key(kernel: Kernel) -> str:
    parts = {
        "configuration": _configuration(kernel),
        "sources": source_digest(kernel.source()),
        "toolchain": toolchain(),
        "compiler": _source(Path(compiler.__file__)).digest,
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
    return f"{kernel.name[:_NAME_LENGTH]}-{digest[:20]}"


def _configuration(part: Any) -> dict[str, Any]:
    """All that device code can read of a kernel or of a dataclass in it: fields and properties.

    Properties count because they are computed by host code, which is not among the sources.
    """
    values = {name: getattr(part, name) for name in _readable(type(part))}
    return {
        name: _configuration(value) if dataclasses.is_dataclass(value) else value
        for name, value in values.items()
    }


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


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


_thread_lock = threading.Lock()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One builder of an entry at a time, over threads and processes; freed by a kill."""
    with _thread_lock:
        # for reading, which the lock of another user of a shared folder allows
        handle = os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
