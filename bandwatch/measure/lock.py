"""One measurement a GPU at a time: an exclusive lock that the kernel frees when its holder ends."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path


class GpuBusy(RuntimeError):
    """Another process measures on the GPU; the message names it."""


@contextlib.contextmanager
def exclusive(uuid: str, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock of the GPU with that UUID, for all users of the machine.

    Raises :class:`GpuBusy` where another process holds it for ``wait`` seconds more.
    """
    name = f"bandwatch-gpu-{hashlib.sha256(uuid.encode()).hexdigest()[:12]}.lock"
    path = Path(tempfile.gettempdir()) / name
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(PermissionError):  # another user's file, open to all already
            os.chmod(path, 0o666)
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(handle, 1000, 0).decode(errors="replace").strip()
                    raise GpuBusy(
                        f"the GPU is being measured on by {holder or 'another process'}; wait for "
                        "it, end it, or use another GPU (CUDA_VISIBLE_DEVICES)"
                    ) from None
                time.sleep(0.1)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200]
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} ({command}) since {since}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
