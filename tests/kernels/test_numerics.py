"""The checks that judge the GPU's results can say no."""

import dataclasses

import pytest
import torch

from bandwatch.measure import backward
from bandwatch.measure.correctness import WrongResult, reference_gradients

from . import numerics
from .cases import DTYPES, OPS, Case, Ran, has_backward, typical
from .numerics import assert_right

#: Ops whose results the reference decides.
JUDGED = {name: op for name, op in OPS.items() if op.check is None}

every_op = pytest.mark.parametrize("op", JUDGED.values(), ids=list(JUDGED))
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def right(op, dtype) -> Ran:
    """What good kernels give: the reference, rounded once."""
    if dtype not in op.dtypes:
        pytest.skip(f"not in {dtype}")
    few = typical(op)[0].workload if op.shapes else op.workload(dtype, (67, 1000))
    case = Case(dataclasses.replace(few, dtype=dtype))
    if not op.accepts(case.workload):
        pytest.skip(f"no {case.workload.key}")
    inputs = case.inputs("cpu")[1]
    names = op.result_dtypes(case.workload)
    outputs = tuple(
        value.to(getattr(torch, names[i] if names else dtype))
        if value.is_floating_point()
        else value
        for i, value in enumerate(backward.flat(op.reference(inputs, case.workload)))
    )
    if not has_backward(op):
        return Ran(case, inputs, outputs, {}, {})
    generator = torch.Generator().manual_seed(1)
    prepared = backward.prepare(op.reference, op, case.workload, inputs, generator)
    grads = {i: grad.to(outputs[i].dtype) for i, grad in prepared.grads.items()}
    gradients = {
        name: gradient.to(inputs[name].dtype)
        for name, gradient in reference_gradients(op, case.workload, inputs, grads).items()
    }
    return Ran(case, inputs, outputs, grads, gradients)


def drop_the_tail(out):
    out[..., -(1 + out.shape[-1] // 100) :] = 0


def leave_one_unwritten(out):
    out.flatten()[len(out) // 2] = float("nan")


def overflow(out):
    out.view(-1)[out.numel() // 3] = float("inf")


def shift_by_one_column(out):
    out.copy_(out.roll(1, -1))


def double_one_row(out):
    first = int(out.abs().argmax()) if out.dim() == 1 else 0  # of one value, not the smallest
    out[first : first + 1].mul_(2)


def round_away(out):
    """Each value a few units in the last place off."""
    arithmetic = 2.0**-12 if out.dtype == torch.float32 else 0
    out.mul_(1 + 4 * torch.finfo(out.dtype).eps + arithmetic)


FAULTS = [drop_the_tail, leave_one_unwritten, overflow, shift_by_one_column, double_one_row]
FAULTS += [round_away]


@every_op
@every_dtype
def test_a_right_result_passes(op, dtype):
    assert_right(right(op, dtype))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@every_op
@every_dtype
def test_a_fault_of_a_result_is_found(op, dtype, fault):
    ran = right(op, dtype)
    for i, output in enumerate(ran.outputs):
        if not output.is_floating_point() or output.unique().numel() < 2:
            continue
        broken = output.clone()
        fault(broken)
        outputs = (*ran.outputs[:i], broken, *ran.outputs[i + 1 :])
        with pytest.raises(WrongResult, match="values are wrong|not written"):
            assert_right(dataclasses.replace(ran, outputs=outputs))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@every_op
@every_dtype
def test_a_fault_of_a_gradient_is_found(op, dtype, fault):
    ran = right(op, dtype)
    for name, gradient in ran.gradients.items():
        broken = gradient.clone()
        fault(broken)
        if broken.equal(gradient):  # zeros, of a gradient that has many
            continue
        gradients = {**ran.gradients, name: broken}
        with pytest.raises(WrongResult, match=f"gradient of {name}: .* values are wrong"):
            assert_right(dataclasses.replace(ran, gradients=gradients))


@every_op
def test_shape_number_and_dtype_count(op):
    ran = right(op, op.dtypes[0])
    first, *others = ran.outputs
    wrong = (first[..., :1] if first.dim() else first[None], *others), (first.double(), *others)
    for outputs in (*wrong, (*ran.outputs, first)):
        with pytest.raises(WrongResult, match="expected"):
            assert_right(dataclasses.replace(ran, outputs=outputs))


@pytest.mark.parametrize("op", [op for op in JUDGED.values() if op.rowwise], ids=lambda op: op.name)
def test_rows_are_judged_in_parts_where_they_are_many(op, monkeypatch):
    ran = right(op, "float32")
    monkeypatch.setattr(numerics, "_CHUNK", 1 << 14)
    assert_right(ran)
    last = ran.outputs[0].clone()
    last[-1:].mul_(2)
    with pytest.raises(WrongResult, match="values are wrong"):
        assert_right(dataclasses.replace(ran, outputs=(last, *ran.outputs[1:])))
    for name, gradient in ran.gradients.items():
        broken = gradient.clone()
        rows = slice(-1, None) if broken.dim() > 1 else slice(None)  # else a sum over rows
        broken[rows].mul_(2)
        with pytest.raises(WrongResult, match=f"gradient of {name}"):
            assert_right(dataclasses.replace(ran, gradients={**ran.gradients, name: broken}))
