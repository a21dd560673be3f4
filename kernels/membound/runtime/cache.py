"""Compiled kernels on disk: one folder an entry, written once, read by every later process.

An entry is found by what decides the machine code, see :mod:`~.key`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import functools
import glob
import hashlib
import json
import multiprocessing
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from . import compiler, key
from .kernel import Kernel

_FILES = ("kernel.o", "kernel.cubin", "kernel.so")

#: Most processes that compile unless told: each takes about half a GB of memory.
_MOST_JOBS = 16


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
    found = find(kernel)
    if found is not None:
        return found
    name = key.entry_name(kernel)
    folder = _writable(cache_folder()) / name
    with _locked(folder.with_name(f"{name}.lock")):
        # another process may have built it while this one waited
        return _read(folder) or _compile_into(kernel, folder)


def find(kernel: Kernel) -> Artifact | None:
    """The built kernel, where it is in the cache."""
    return _read(cache_folder() / key.entry_name(kernel))


def build(
    kernels: Iterable[Kernel],
    jobs: int | None = None,
    progress: Callable[[Kernel], None] = lambda kernel: None,
) -> None:
    """Fill the cache in parallel processes; ``progress`` is told of each kernel that is ready.

    Where kernels cannot be built, builds the others and raises what the first of them raised.
    """
    missing = []
    for kernel in dict.fromkeys(kernels):
        if find(kernel) is None:
            missing.append(kernel)
        else:
            progress(kernel)
    if not missing:
        return
    jobs = min(jobs or min(_MOST_JOBS, len(os.sched_getaffinity(0))), len(missing))
    if _writable(cache_folder()) != cache_folder():
        jobs = 1  # what another process built would be lost
    errors: list[Exception] = []
    for kernel, result in _in_parallel(missing, jobs):
        try:
            result()
            progress(kernel)
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _in_parallel(kernels: list[Kernel], jobs: int) -> Iterator[tuple[Kernel, Callable[[], Any]]]:
    """Each kernel when it is done, with what raises the error where it could not be built."""
    if jobs == 1:
        for kernel in kernels:
            yield kernel, functools.partial(artifact, kernel)
        return
    # spawn: the caller may hold a CUDA context or threads, which a fork would break
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {pool.submit(artifact, kernel): kernel for kernel in kernels}
        try:
            for future in concurrent.futures.as_completed(futures):
                yield futures[future], future.result
        finally:  # where the caller stopped early, what has not begun is dropped
            pool.shutdown(cancel_futures=True)


@dataclasses.dataclass(frozen=True)
class Entry:
    """An entry of the cache, whatever it was built from and whether it can still be used."""

    folder: Path
    #: None where it is damaged.
    artifact: Artifact | None
    #: Versions that it was built with, by name; none where it is damaged.
    toolchain: dict[str, str]
    #: Whether the present code with the present toolchain may use it.
    current: bool

    @property
    def built_at(self) -> float:
        """In seconds since the epoch."""
        return self.folder.stat().st_mtime

    def remove(self) -> None:
        """Delete it; a process that has loaded it keeps what it has."""
        shutil.rmtree(self.folder)


def entries() -> list[Entry]:
    """All entries of the cache, by name."""
    found = []
    for facts in sorted(cache_folder().glob("*/facts.json")):
        folder = facts.parent
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the caller is told by the entry
            artifact = _read(folder)
        if artifact is None:
            found.append(Entry(folder, None, {}, current=False))
            continue
        built_from = json.loads(facts.read_text())["built_from"]
        found.append(Entry(folder, artifact, built_from["toolchain"], _is_current(built_from)))
    return found


def _is_current(built_from: dict[str, Any]) -> bool:
    try:
        present = key.present(built_from["module"])
    except FileNotFoundError:  # the present code has no such module
        return False
    return present.items() <= built_from.items()


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


def _read(folder: Path) -> Artifact | None:
    try:
        facts = json.loads((folder / "facts.json").read_text())
        for name in _FILES:
            if _sha256(folder / name) != facts["sha256"][name]:
                raise ValueError(f"{name} is not what was written")
        configuration = facts["built_from"]["configuration"]
        return Artifact(
            name=configuration["name"],
            digest=facts["digest"],
            threads=configuration["threads"],
            dynamic_smem=configuration["shared_bytes"],
            cluster=configuration["cluster"],
            folder=folder,
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        warnings.warn(f"damaged kernel cache entry {folder}: {error}; building anew", stacklevel=3)
        return None


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
        facts = {"digest": digest, "built_from": key.built_from(kernel)}
        facts["sha256"] = {name: _sha256(draft / name) for name in _FILES}
        (draft / "facts.json").write_text(json.dumps(facts, indent=1))
        if folder.is_dir():
            shutil.rmtree(folder)
        else:
            folder.unlink(missing_ok=True)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    built = _read(folder)
    assert built is not None
    return built


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
