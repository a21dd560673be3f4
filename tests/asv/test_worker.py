"""The parent's side of the worker, where a toy repository would not reach."""

import subprocess
import sys

import pytest

from ci import asv_hostenv


def test_a_worker_that_cannot_be_killed_does_not_block(monkeypatch):
    """A process stuck in the driver ignores even SIGKILL until the call returns."""
    worker = asv_hostenv.Worker(sys.executable, {})
    process, told = worker._process, []

    def wait(timeout):
        raise subprocess.TimeoutExpired("worker", timeout)

    monkeypatch.setattr(process, "wait", wait)
    monkeypatch.setattr(asv_hostenv.log, "warning", told.append)

    worker.stop()

    assert "left behind" in told[0]
    monkeypatch.undo()
    assert process.wait(10) == -9


@pytest.mark.parametrize("name", ["torch", "no-such-distribution"])
def test_versions_name_what_is_absent(name):
    found = asv_hostenv._versions([name])

    assert (found[name] == "absent") == (name == "no-such-distribution")
