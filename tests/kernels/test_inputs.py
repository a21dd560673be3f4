"""Good input becomes launches, in the registry's directions, and nothing more."""

import membound
import pytest
import torch

from asv_bench import workloads
from bandwatch.measure import backward

from .cases import BF16, OPS, as_leaves, has_backward, new, recorded, typical

make = new("meta")
x = make(BF16, 3, 8)

every_op = pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))


def test_the_registry_holds_every_public_op():
    """What is exported has a description, and so tests, a byte model and a benchmark."""
    others = {"Explanation", "parallelize", "runtime"}
    assert set(membound.__all__) - others == set(OPS)


@every_op
def test_meta_tensors_are_for_recording_only(op):
    workload = typical(op)[0].workload
    inputs = op.make_inputs(workload, "meta", None)
    with pytest.raises(ValueError, match=f"{op.name}: .* must be on a CUDA device, got meta"):
        op.providers["membound"](inputs, workload)


@every_op
def test_gradients_are_no_matter_where_none_are_kept(op):
    for case in typical(op):
        given = case.inputs("meta")[0]
        with recorded() as plain:
            op.providers["membound"](given, case.workload)
        with recorded() as without, torch.no_grad():
            outputs = op.providers["membound"](as_leaves(op, given), case.workload)
        assert without == plain
        assert not any(output.requires_grad for output in backward.flat(outputs))


@every_op
def test_only_the_gradients_asked_for_are_computed(op):
    if not has_backward(op):
        pytest.skip("no gradient")
    case = typical(op)[0]
    given = case.inputs("meta")[0]
    for name in backward.leaves(op, given):
        leaf = given[name].detach().requires_grad_()
        with recorded():
            outputs = op.providers["membound"]({**given, name: leaf}, case.workload)
            outputs = [one for one in backward.flat(outputs) if one.requires_grad]
            grads = [torch.empty_like(output) for output in outputs]
            (gradient,) = torch.autograd.grad(outputs, leaf, grads)
        assert (gradient.shape, gradient.dtype) == (leaf.shape, leaf.dtype)


@pytest.mark.parametrize("workload", list(workloads.grid()), ids=lambda workload: workload.key)
def test_each_benchmarked_workload_launches_kernels(workload):
    op = OPS[workload.op]
    assert workloads.kernels(membound, op, workload)


def test_recordings_nest_and_end():
    with recorded() as outer:
        membound.softmax(x)
        with recorded() as inner:
            membound.softmax(x)
        membound.softmax(x)
    assert (len(outer), len(inner)) == (2, 1)
    assert not membound.runtime.recording()
