import os
import signal
import subprocess
import sys
import time

import pytest

from bandwatch.measure.lock import GpuBusy, exclusive

HOLD = """
import sys, time
from bandwatch.measure.lock import exclusive
with exclusive(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path, monkeypatch):
    """Start a process that holds the lock of a GPU."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    started = []

    def start(uuid):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, uuid], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "held\n"
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_held_gpu_is_refused_and_the_holder_named(holder):
    process = holder("GPU-1")
    named = rf"process {process.pid} .* since \d{{4}}-"
    with pytest.raises(GpuBusy, match=named), exclusive("GPU-1"):
        pass
    with exclusive("GPU-2"):
        pass


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_holder_frees_it(holder, end):
    process = holder("GPU-1")
    process.send_signal(end)
    process.wait()
    with exclusive("GPU-1"), pytest.raises(GpuBusy), exclusive("GPU-1"):
        pass


def test_waiting_takes_over_when_the_holder_ends(holder):
    process = holder("GPU-1")
    subprocess.Popen(["sh", "-c", f"sleep 0.5; kill {process.pid}"])
    begin = time.monotonic()
    with exclusive("GPU-1", wait=20):
        assert 0.3 < time.monotonic() - begin < 15


def test_children_do_not_inherit_it(holder):
    with exclusive("GPU-1"):
        child = subprocess.Popen(["sleep", "30"], close_fds=False)
    try:
        with exclusive("GPU-1"):
            pass
    finally:
        child.kill()
        child.wait()


def test_every_user_may_lock(holder, tmp_path):
    with exclusive("GPU-1"):
        pass
    (path,) = tmp_path.glob("bandwatch-gpu-*.lock")
    assert os.stat(path).st_mode & 0o777 == 0o666


def test_a_lock_file_of_another_user_is_opened(holder, monkeypatch):
    """As Linux with fs.protected_regular has it: O_CREAT on another's file in /tmp is refused."""
    with exclusive("GPU-1"):
        pass
    real = os.open

    def protected(path, flags, *mode):
        if flags & os.O_CREAT and not flags & os.O_EXCL and os.path.exists(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, *mode)

    def refused(*_):
        raise PermissionError(1, "Operation not permitted")  # only an owner may

    monkeypatch.setattr(os, "open", protected)
    monkeypatch.setattr(os, "chmod", refused)
    monkeypatch.setattr(os, "fchmod", refused)
    with exclusive("GPU-1"), pytest.raises(GpuBusy), exclusive("GPU-1"):
        pass
