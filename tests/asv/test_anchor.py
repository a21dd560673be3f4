"""The anchor: frozen, whole, of workloads that are measured, and right on a GPU."""

import pytest

torch = pytest.importorskip("torch")

from asv_bench import workloads  # noqa: E402
from asv_bench.anchor import KEYS, anchor  # noqa: E402
from asv_bench.anchor.__main__ import CannotFreeze, plan  # noqa: E402
from bandwatch.measure import backward, correctness  # noqa: E402

GRID = {one.key: one for one in workloads.grid()}


def test_what_was_frozen_is_unchanged():
    assert anchor().damaged() == []


def test_it_holds_workloads_that_are_measured():
    assert anchor().keys == set(KEYS)
    assert set(KEYS) <= set(GRID)


@pytest.mark.parametrize("key", KEYS)
def test_inputs_and_results_are_those_of_the_operation(key, monkeypatch):
    calls = []
    monkeypatch.setattr(
        type(anchor()), "_function", lambda self, library: lambda *given: calls.append(given)
    )
    workload = GRID[key]
    op = workloads.describe(workload.op)
    inputs = op.make_inputs(workload, "meta", None)
    results = backward.flat(anchor().run(inputs, workload))
    assert calls
    with torch.no_grad():
        expected = backward.flat(op.reference(inputs, workload))
    assert [one.shape for one in results] == [one.shape for one in expected]


def test_what_calls_torch_cannot_be_frozen():
    membound = pytest.importorskip("membound")
    op = workloads.ops(membound)["cross_entropy"]
    with pytest.raises(CannotFreeze, match="cross_entropy.* calls aten.sum"):
        plan(membound, op, op.benchmarks[0])


@pytest.mark.gpu
@pytest.mark.parametrize("key", KEYS)
def test_it_is_right(key):
    workload = GRID[key]
    op = workloads.describe(workload.op)
    generator = torch.Generator("cuda").manual_seed(3)
    inputs = op.make_inputs(workload, "cuda", generator)
    correctness.check(op, workload, inputs, anchor().run(inputs, workload))
