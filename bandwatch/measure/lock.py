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
    handle = _open(path)
    try:
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


def _open(path: Path) -> int:
    """Open the lock file, or make it with access for all users."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        # Not O_CREAT alone: in a sticky folder such as /tmp, Linux refuses that for a file of
        # another user, whatever its mode (fs.protected_regular).
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        with contextlib.suppress(FileExistsError):
            handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(handle, 0o666)  # whatever the umask
            return handle
