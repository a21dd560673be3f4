"""The first call of a kernel, which loads it: also while a CUDA graph is captured."""

import ctypes
import dataclasses
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import membound
import pytest
import torch
from membound.runtime import launcher

KERNELS = str(Path(membound.__file__).parents[1])
GLOBAL, RELAXED = 0, 2


@pytest.fixture
def kernel():
    """A kernel that no other test has loaded."""
    with membound.runtime.record_launches() as launches:
        membound.softmax(torch.empty(3, 1, device="meta"))
    (launch,) = launches
    return dataclasses.replace(launch.kernel)


@pytest.fixture
def driver(monkeypatch):
    """A stand-in for the driver, the suite's loader and a capture, and what they saw."""
    seen = SimpleNamespace(mode=GLOBAL, opened=0, calls=[], capturing=False, error=None)

    def exchange(pointer):
        seen.mode, pointer._obj.value = pointer._obj.value, seen.mode

    def function(*arguments):
        seen.calls.append(seen.mode)
        if seen.error:
            raise seen.error

    def open_kernel(kernel, device):
        seen.opened += 1
        return function

    library = SimpleNamespace(cuThreadExchangeStreamCaptureMode=exchange)
    monkeypatch.setattr(ctypes, "CDLL", lambda *args, **kwargs: library)
    monkeypatch.setattr(launcher, "_open", open_kernel)
    monkeypatch.setattr(launcher, "_loaded", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: seen.capturing)
    return seen


def test_only_the_first_launch_relaxes_captures(kernel, driver):
    x = torch.empty(3, 1)
    for _ in range(3):
        membound.runtime.launch(kernel, x)
    assert driver.calls == [RELAXED, GLOBAL, GLOBAL]
    assert (driver.mode, driver.opened) == (GLOBAL, 1)


def test_equal_kernels_are_loaded_once(kernel, driver):
    x = torch.empty(3, 1)
    other = dataclasses.replace(kernel)
    membound.runtime.launch(kernel, x)
    membound.runtime.launch(other, x)
    assert (driver.calls, driver.opened) == ([RELAXED, GLOBAL], 1)


def test_a_launch_that_failed_is_tried_anew(kernel, driver):
    x = torch.empty(3, 1)
    driver.error = RuntimeError("no memory")
    with pytest.raises(RuntimeError, match="^no memory$"):
        membound.runtime.launch(kernel, x)
    assert driver.mode == GLOBAL
    driver.error = None
    membound.runtime.launch(kernel, x)
    assert (driver.calls, driver.opened) == ([RELAXED, RELAXED], 2)


def test_a_failure_in_a_capture_says_what_to_do(kernel, driver):
    driver.error, driver.capturing = RuntimeError("not permitted"), True
    with pytest.raises(RuntimeError, match=f"{kernel.name} could not be loaded.*once before"):
        membound.runtime.launch(kernel, torch.empty(3, 1))
    assert driver.mode == GLOBAL


CAPTURE = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, membound
x = torch.randn(67, 1000, device="cuda", dtype=torch.bfloat16)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, capture_error_mode=sys.argv[2]):
    y = membound.softmax(x, -1, scale=0.5)
for seed in range(2):
    torch.manual_seed(seed)
    x.normal_()
    y.fill_(float("nan"))
    graph.replay()
    torch.testing.assert_close(y, torch.softmax(x * 0.5, -1))
"""


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("cached", [False, True], ids=["compiled", "cached"])
def test_the_first_call_of_a_process_may_be_captured(tmp_path, monkeypatch, mode, cached):
    monkeypatch.setenv("MEMBOUND_CACHE_DIR", str(tmp_path))
    for _ in range(1 + cached):
        done = subprocess.run(
            [sys.executable, "-c", CAPTURE, KERNELS, mode], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("softmax*/"))) == 1
