"""Repeated calls do what the function did: tried on the CPU, where a kernel is any function."""

import dataclasses
from typing import Any, ClassVar

import pytest
import torch
from membound.runtime import Kernel, Replay, empty, launch, replay
from torch._subclasses.fake_tensor import FakeTensorMode

CPU = -1  # as get_device tells of a tensor on the CPU, which is the GPU of these tests


@dataclasses.dataclass(frozen=True)
class AddKernel(Kernel):
    module: ClassVar[str] = "add"


def kernel(function):
    made = AddKernel()
    object.__setattr__(made, "function", function)
    return made


def add_without_torch(x, y, out, factor):
    out.numpy()[...] = x.numpy() + factor * y.numpy()


ADD = kernel(add_without_torch)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(replay, "_current_device", lambda: CPU)
    monkeypatch.setattr(replay, "_NO_GPU", None)
    monkeypatch.setattr(
        replay, "_empty_strided", lambda s, t, d: torch.empty_strided(s, t, dtype=d)
    )


@pytest.fixture
def add():
    """``x + factor * y`` by rows, and how often its host code ran."""
    runs = []

    def run(x: torch.Tensor, y: torch.Tensor, factor: float) -> Any:
        runs.append(x.shape)
        out = empty(x.shape, x.dtype, x.device)
        launch(ADD, x.view(-1, x.shape[-1]), y, out.view(-1, x.shape[-1]), factor)
        return out

    add = Replay(run, run)
    add.runs = runs
    return add


def test_the_third_call_of_a_layout_only_allocates_and_launches(add):
    for i in range(5):
        x, y = torch.randn(2, 3, 4), torch.randn(6, 4)
        assert add(x, y, 0.5).equal(x + 0.5 * y.view(2, 3, 4))
        assert len(add.runs) == min(i + 1, 2)


def test_each_call_gets_results_of_its_own(add):
    x, y = torch.randn(6, 4), torch.randn(6, 4)
    results = [add(x, y, 1.0) for _ in range(5)]
    assert len({result.data_ptr() for result in results}) == 5


@pytest.mark.parametrize(
    "other",
    [
        (torch.randn(7, 4), torch.randn(7, 4), 1.0),
        (torch.randn(6, 4).double(), torch.randn(6, 4).double(), 1.0),
        (torch.randn(6, 8)[:, :4], torch.randn(6, 4), 1.0),
        (torch.randn(25)[1:].view(6, 4), torch.randn(6, 4), 1.0),
        (torch.randn(6, 4), torch.randn(6, 4), 2.0),
    ],
    ids=["shape", "dtype", "stride", "address", "number"],
)
def test_another_layout_or_number_is_another_call(add, other):
    for _ in range(3):
        add(torch.randn(6, 4), torch.randn(6, 4), 1.0)
    seen = len(add.runs)
    assert seen == 2
    x, y, factor = other
    assert add(*other).equal(x + factor * y)
    assert len(add.runs) == seen + 1


def test_one_tensor_in_two_places_does_not_stand_for_two(add):
    x = torch.randn(6, 4)
    for _ in range(4):
        assert add(x, x, 1.0).equal(2 * x)
    y = torch.randn(6, 4)
    assert add(x, y, 1.0).equal(x + y)


def test_what_torch_computes_is_computed_each_time():
    def run(x):
        out = empty(x.shape, x.dtype, x.device)
        launch(ADD, x, x.abs(), out, 1.0)
        return out

    add = Replay(run, run)
    for _ in range(5):
        x = torch.randn(6, 4)
        assert add(x).equal(x + x.abs())


def test_results_are_passed_on_between_launches_and_returned_in_order():
    def run(x, y):
        first = empty(x.shape, x.dtype, x.device)
        launch(ADD, x, y, first, 1.0)
        second = empty(x.shape, x.dtype, x.device)
        launch(ADD, first, y, second, 2.0)
        return second, first

    twice = Replay(run, run)
    for _ in range(4):
        x, y = torch.randn(6, 4), torch.randn(6, 4)
        second, first = twice(x, y)
        assert first.equal(x + y)
        assert second.equal(first + 2 * y)


def test_results_in_place_are_the_argument():
    def run(x, y):
        launch(ADD, x, y, x, 1.0)
        return x

    in_place = Replay(run, run)
    for _ in range(4):
        x, y = torch.randn(6, 4), torch.randn(6, 4)
        expected = x + y
        assert in_place(x, y) is x
        assert x.equal(expected)


def test_an_error_is_raised_each_time():
    def run(x):
        raise ValueError("no")

    for _ in range(4):
        with pytest.raises(ValueError, match="no"):
            Replay(run, run)(torch.randn(3))


def test_what_is_remembered_is_bounded(add, monkeypatch):
    monkeypatch.setattr(replay, "_MOST", 3)
    for rows in range(1, 9):
        x = torch.randn(rows, 4)
        add(x, x.clone(), 1.0)
    assert len(add._plans) <= 3


def test_what_torch_must_learn_of_goes_the_other_way(add):
    told = []
    add.otherwise = lambda *args, **named: told.append(args)
    x, y = torch.randn(6, 4), torch.randn(6, 4)
    for _ in range(3):
        add(x, y, 1.0)
    assert not told
    add(x.requires_grad_(), y, 1.0)
    assert len(told) == 1
    with torch.no_grad():
        assert add(x, y, 1.0).equal(x + y)
    assert len(told) == 1
    with FakeTensorMode(allow_non_fake_inputs=True):
        add(x.detach(), y, 1.0)
    add(x.detach(), [1.0], 1.0)
    assert len(told) == 3


def test_arguments_may_be_named(add):
    for _ in range(4):
        x, y = torch.randn(6, 4), torch.randn(6, 4)
        assert add(x, factor=3.0, y=y).equal(x + 3 * y)
        assert add(x, y=y, factor=2.0).equal(x + 2 * y)
    assert len(add.runs) == 4


def test_a_tensor_on_the_cpu_goes_the_other_way_also_where_torch_knows_no_gpu(add, monkeypatch):
    monkeypatch.setattr(replay, "_NO_GPU", CPU)
    monkeypatch.setattr(replay, "_current_device", None)
    told = []
    add.otherwise = lambda *args, **named: told.append(args)
    for _ in range(3):
        add(torch.randn(6, 4), torch.randn(6, 4), 1.0)
    assert len(told) == 3 and not add.runs
