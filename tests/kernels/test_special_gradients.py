"""What gradients are at NaN and infinities, as far as that can be told without a GPU."""

import dataclasses
import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from membound.device import activations

from asv_bench.workloads.activations import activate
from bandwatch.measure import backward
from bandwatch.measure.correctness import WrongResult

from .cases import OPS, Case, cases, special_gradient_cases
from .numerics import assert_right_where_special, make_special

inf, nan = math.inf, math.nan
VALUES = (nan, inf, -inf, 2.5, -2.5, 0.0, -0.0)
#: Ops whose float32 gradients by torch are exact enough to be judged like the suite's.
EXACT = ("softmax", "log_softmax", "logsumexp", "layer_norm", "swiglu", "reglu", "rotary", "amax")


@pytest.fixture
def in_python(monkeypatch):
    """The device's activations, traced on plain numbers."""

    def fmax(a, b, nan):
        assert nan
        return a if math.isnan(a) else max(a, b)

    monkeypatch.setattr(activations, "Float32", float)
    monkeypatch.setattr(activations, "cute", SimpleNamespace(arch=SimpleNamespace(fmax=fmax)))
    select = SimpleNamespace(select_=lambda condition, a, b: a if condition else b)
    monkeypatch.setattr(activations, "cutlass", select)


@pytest.mark.parametrize(("x", "given"), list(itertools.product(VALUES, VALUES)))
@pytest.mark.parametrize("name", ["relu", "relu2"])
def test_where_torch_selects_the_gradient_is_selected(in_python, name, x, given):
    leaf = torch.tensor(x, requires_grad=True)
    value = activate(name, leaf)
    (right,) = torch.autograd.grad(value, leaf, torch.tensor(given))
    found = activations.gradient(activations.ACTIVATIONS[name], x, given)
    torch.testing.assert_close(torch.tensor(found), right, equal_nan=True)


def judge(case, run, name=None):
    """Judge float32 gradients by ``run``; special is the input ``name``, or else what is given."""
    op, workload = case.op, dataclasses.replace(case.workload, dtype="float32")
    inputs = dict(Case(workload).inputs("cpu")[0])
    if name:
        make_special(inputs[name], workload.dtype)
    prepared = backward.prepare(run, op, workload, inputs, torch.Generator().manual_seed(1))
    if not name:
        for grad in prepared.grads.values():
            make_special(grad, workload.dtype)
    found = dict(zip(prepared.leaves, backward.gradients(prepared), strict=True))
    assert_right_where_special(op, workload, prepared.inputs, prepared.grads, found)


@pytest.mark.parametrize("name", EXACT)
def test_torchs_own_gradients_are_right(name):
    op = OPS[name]
    for case in special_gradient_cases(op)[:3]:
        judge(case, op.providers["eager"])
        for matrix in op.differentiable[:1]:
            judge(case, op.providers["eager"], matrix)


@pytest.mark.parametrize("special", [None, "gate"])
def test_a_slope_of_0_that_is_multiplied_is_wrong(special):
    op = OPS["reglu"]

    def multiplied(inputs, workload):
        gate = inputs["gate"]
        return gate * (gate > 0) * inputs["up"]

    with pytest.raises(WrongResult, match="gradient of gate"):
        judge(special_gradient_cases(op)[0], multiplied, special)


def test_ignored_rows_that_have_a_gradient_are_wrong():
    """torch has one where they hold NaN."""
    op = OPS["cross_entropy"]
    with pytest.raises(WrongResult, match="ignored rows"):
        judge(special_gradient_cases(op)[0], op.providers["eager"], "input")


def test_no_kernel_is_added():
    listed = cases()
    for op in OPS.values():
        mine = special_gradient_cases(op)
        assert all(case.id in listed for case in mine)
        assert mine or "backward" not in op.directions
