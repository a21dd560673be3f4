"""A launch plan: everything an op has the GPU do, in order, and nothing of the host."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import membound
import pytest
import torch
from membound.runtime import plan as plans

KERNELS = str(Path(membound.__file__).parents[1])


def make(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def recorded(call, *args, **kwargs):
    with membound.runtime.record_plan() as plan:
        call(*args, **kwargs)
    return plan


@pytest.fixture
def named(monkeypatch):
    """A digest for every kernel without compiling it."""
    monkeypatch.setattr(plans, "artifact", lambda kernel: SimpleNamespace(digest=kernel.name))


def test_a_forward_is_its_allocation_and_its_launch():
    plan = recorded(membound.softmax, make(3, 1000), scale=0.5)
    allocation, launch = plan.describe()
    memory = ["bfloat16", [3, 1000], [1000, 1], 0, 0]
    assert (allocation[0], allocation[2]) == ("aten.empty.memory_format", memory)
    (kernel,) = plan.kernels
    source = ["bfloat16", [3, 1000], [1000, 1], 0, 1]
    assert launch[0] == kernel.name
    assert [part for part in launch[1] if part is not None] == [source, memory, 0.5, 1]


def test_a_backward_is_recorded_by_itself_or_with_its_forward():
    x = make(3, 1000).requires_grad_()
    with membound.runtime.record_plan() as both:
        with membound.runtime.record_plan() as forward:
            y = membound.softmax(x)
        grad = torch.empty_like(y)
        with membound.runtime.record_plan() as backward:
            y.backward(grad)
    assert [kernel.module for kernel in forward.kernels] == ["softmax"]
    assert [kernel.module for kernel in backward.kernels] == ["softmax_backward"]
    assert both.kernels == []  # recordings nest, and each launch is in the innermost

    both = recorded(lambda: membound.softmax(x).backward(grad))
    assert [kernel.module for kernel in both.kernels] == ["softmax", "softmax_backward"]


def test_recording_does_not_change_what_autograd_does():
    """A gradient that nobody else holds becomes .grad without a copy."""
    x = make(3, 1000).requires_grad_()
    with membound.runtime.record_launches():
        y = membound.softmax(x)
    steps = recorded(y.backward, torch.empty_like(y)).describe()
    assert [step[0].partition("_")[0] for step in steps] == ["aten.empty.memory", "softmax"], steps
    assert x.grad is not None


def test_calls_of_torch_are_part_of_it_and_views_are_not():
    strided = make(1000, 3).t()  # whose rows must be copied together
    steps = recorded(membound.softmax, strided).describe()
    assert "aten.clone.default" in [step[0] for step in steps]
    steps = recorded(lambda: membound.softmax(make(3, 1000)).view(-1)[5:].unsqueeze(0)).describe()
    assert not [step[0] for step in steps if "view" in step[0] or "slice" in step[0]]


def test_memory_that_is_used_again_is_told_from_fresh_memory():
    x = make(3, 8)
    kernel = recorded(membound.softmax, x).kernels[0]

    def memories(*arguments):
        ((_, described),) = recorded(membound.runtime.launch, kernel, *arguments).describe()
        return [memory for *_, memory in described]

    assert memories(x, x, x[1:]) == [0, 0, 0]
    assert memories(x, make(3, 8), x) == [0, 1, 0]


CALLS = {
    "plain": lambda: membound.softmax(make(3, 1000)),
    "rows": lambda: membound.softmax(make(4, 1000)),
    "columns": lambda: membound.softmax(make(3, 1008)),
    "dtype": lambda: membound.softmax(make(3, 1000, dtype=torch.float16)),
    "row stride": lambda: membound.softmax(make(3, 1008)[:, :1000]),
    "alignment": lambda: membound.softmax(make(3, 1008)[:, 4:1004]),
    "scalar": lambda: membound.softmax(make(3, 1000), scale=0.5),
    "other scalar": lambda: membound.softmax(make(3, 1000), scale=0.25),
    "more calls": lambda: membound.softmax(make(3, 1000)).mul(2),
    "twice": lambda: [membound.softmax(make(3, 1000)) for _ in range(2)],
    "other op": lambda: membound.log_softmax(make(3, 1000)),
}


def test_each_fact_of_the_work_is_part_of_the_digest(named):
    digests = {name: recorded(call).digest() for name, call in CALLS.items()}
    assert len(set(digests.values())) == len(CALLS)
    assert digests == {name: recorded(call).digest() for name, call in CALLS.items()}


def test_the_device_is_given_and_not_asked():
    seen = []
    recorded(lambda: seen.append(membound.runtime.multiprocessors(torch.device("cuda"))))
    assert seen == [132]


def test_recording_needs_no_compiler():
    script = """
import sys
sys.path.insert(0, sys.argv[1])
sys.modules["cutlass"] = sys.modules["tvm_ffi"] = None  # importing them fails
import torch, membound
with membound.runtime.record_plan() as plan:
    membound.softmax(torch.empty(3, 8, device="meta"))
assert not torch.cuda.is_initialized()
print(plan.kernels[0].name)
"""
    command = [sys.executable, "-c", script, KERNELS]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    plan = recorded(membound.softmax, make(3, 8, dtype=torch.float32))
    assert done.stdout.split() == [plan.kernels[0].name]
