import dataclasses

import pytest
import torch

from bandwatch.measure import correctness
from bandwatch.measure.workload import Tolerance, Workload

from .stand_ins import right, softmax_op

WORKLOAD = Workload("softmax", "float32", (3000, 16))


def inputs_of(op):
    return op.make_inputs(WORKLOAD, "cpu", torch.Generator().manual_seed(0))


def test_every_element_is_compared():
    op = softmax_op()
    inputs = inputs_of(op)
    output = right(inputs)
    assert correctness.check(op, WORKLOAD, inputs, output)["max_abs"] < 1e-6
    output[1234] += 1e-3
    with pytest.raises(correctness.WrongResult, match=r"16 of 48000 .*first at \[1234, 0\]"):
        correctness.check(op, WORKLOAD, inputs, output)


def test_an_unwritten_row_is_found():
    op = softmax_op()
    inputs = inputs_of(op)
    output = right(inputs)
    correctness.poison(output[1234])
    with pytest.raises(correctness.WrongResult, match=r"not written at \[1234, 0\]"):
        correctness.check(op, WORKLOAD, inputs, output)


def test_other_providers_may_round_between_steps():
    op = softmax_op()
    workload = dataclasses.replace(WORKLOAD, dtype="bfloat16")
    inputs = op.make_inputs(workload, "cpu", torch.Generator().manual_seed(0))
    output = right(inputs)
    output *= 1 + 2 * 2.0**-8
    with pytest.raises(correctness.WrongResult):
        correctness.check(op, workload, inputs, output)
    correctness.check(op, workload, inputs, output, own=False)


def compare(actual, expected, **tolerance):
    return correctness.compare(actual, expected, Tolerance(**tolerance), "float32")


def test_a_sum_that_cancels_is_judged_by_its_row():
    expected = torch.tensor([[1.0, 1e-6], [1e-6, 1e-6]], dtype=torch.float64)
    actual = (expected + 8 * 2.0**-24).float()
    compare(actual[:1], expected[:1], size="row")
    for wrong in (
        {"actual": actual[:1], "expected": expected[:1]},
        {"actual": actual, "expected": expected, "size": "row"},
    ):
        with pytest.raises(correctness.WrongResult, match="values are wrong"):
            compare(**wrong)


def test_infinities_and_integers_are_equal_or_wrong():
    inf = float("inf")
    expected = torch.tensor([1.0, inf, -inf, 1e39], dtype=torch.float64)
    compare(expected.float(), expected)
    for wrong in ([1.0, inf, inf, inf], [1.0, 3e38, -inf, inf], [inf, inf, -inf, inf]):
        with pytest.raises(correctness.WrongResult, match="1 of 4"):
            compare(torch.tensor(wrong), expected)
    with pytest.raises(correctness.WrongResult, match=r"1 of 3 .*first at \[1\]: 2, expected 3"):
        compare(torch.tensor([1, 2, 3]), torch.tensor([1, 3, 3]))


def test_integers_are_poisoned_too():
    for dtype, ones in ((torch.int32, -1), (torch.uint8, 255), (torch.bool, True)):
        values = torch.zeros(4, dtype=dtype)
        correctness.poison(values)
        assert (values == ones).all()
