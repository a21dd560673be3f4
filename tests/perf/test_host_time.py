"""What a call costs the host, against torch's: calls this small wait for nothing else."""

import time

import membound
import pytest
import torch
import torch.nn.functional as F

from .host_time import CALLS, WARMUP, bare, ratio

SHAPE = (64, 1024)

#: Calls of the suite and of torch that do the same, by what they are.
PAIRS = {
    "softmax": (lambda x, w: membound.softmax(x), lambda x, w: torch.softmax(x, -1)),
    "log_softmax": (lambda x, w: membound.log_softmax(x), lambda x, w: torch.log_softmax(x, -1)),
    "rms_norm": (
        lambda x, w: membound.rms_norm(x, w.shape, w, 1e-6),
        lambda x, w: F.rms_norm(x, w.shape, w, 1e-6),
    ),
    "layer_norm": (
        lambda x, w: membound.layer_norm(x, w.shape, w),
        lambda x, w: F.layer_norm(x, w.shape, w),
    ),
}

offered = pytest.mark.parametrize("op", [op for op in PAIRS if hasattr(membound, op)])

#: Most that softmax may cost, relative to torch.softmax: in a call that keeps no gradient, of the
#: launch alone, and in a call with a gradient. On H200 hosts 1.4, 0.66 and 2.9 were measured. The
#: aims are 0.8, 0.65 and 1.5; an allocation (1 us) and a launch (4 us) leave 0 of torch's 6 us for
#: Python, and torch.autograd.Function alone takes as long as a launch.
MOST, MOST_BARE, MOST_WITH_GRAD = 1.7, 0.8, 3.5


def calls(op, device, grad=False):
    x = torch.randn(SHAPE, dtype=torch.bfloat16, device=device, requires_grad=grad)
    w = torch.ones(SHAPE[1:], dtype=torch.bfloat16, device=device)
    own, other = PAIRS[op]
    return (lambda: own(x, w)), (lambda: other(x, w))


@pytest.mark.gpu
@offered
def test_a_call(benchmark, op):
    with torch.no_grad():
        found = ratio(benchmark, *calls(op, "cuda"), torch.cuda.synchronize)
    if op == "softmax":
        assert found <= MOST


@pytest.mark.gpu
@offered
def test_a_call_with_grad(benchmark, op):
    found = ratio(benchmark, *calls(op, "cuda", grad=True), torch.cuda.synchronize)
    if op == "softmax":
        assert found <= MOST_WITH_GRAD


@pytest.mark.gpu
@offered
def test_a_bare_launch(benchmark, op):
    with torch.no_grad():
        own, other = calls(op, "cuda")
        own()  # as a rule of the suite: loaded before it is timed
        found = ratio(benchmark, bare(own), other, torch.cuda.synchronize)
    if op == "softmax":
        assert found <= MOST_BARE


# Without a GPU: that the figures above are what they are said to be ------------------------------


def busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_a_ratio_is_of_own_to_other(benchmark):
    settled = []
    found = ratio(
        benchmark,
        lambda: busy(20e-6),
        lambda: busy(40e-6),
        lambda: settled.append(None),
        rounds=30,
    )
    assert 0.4 < found < 0.6
    assert len(settled) == 2 * (30 + WARMUP)
    info = benchmark.extra_info
    assert info["calls"] == CALLS
    assert (info["own_us"], info["other_us"]) == pytest.approx((20, 40), rel=0.2)


@offered
def test_a_bare_launch_is_that_of_the_call(op):
    own, _ = calls(op, "meta")
    with membound.runtime.record_launches() as whole:
        own()
    launch = bare(own)
    with membound.runtime.record_launches() as alone:
        launch()
    assert alone == whole


@offered
@pytest.mark.parametrize("grad", [False, True])
def test_the_calls_to_be_timed_do_what_torch_does(op, grad):
    own, other = calls(op, "meta", grad)
    with membound.runtime.record_launches():
        mine = own()
    assert (mine.shape, mine.dtype, mine.requires_grad) == (SHAPE, torch.bfloat16, grad)
    theirs = other()
    assert (theirs.shape, theirs.dtype, theirs.requires_grad) == (SHAPE, torch.bfloat16, grad)
