import dataclasses

import numpy as np
import pytest
import torch

from bandwatch.measure import correctness
from bandwatch.measure.workload import Workload

from .stand_ins import right, softmax_op

WORKLOAD = Workload("softmax", "float32", (3000, 16))


def test_rows_hold_the_first_the_last_and_no_duplicates():
    for total in (1, 2, 511, 512, 513, 32768):
        rows = correctness.choose_rows(total, np.random.default_rng(0))
        assert len(rows) == min(total, correctness.ROWS)
        assert (rows[0], rows[-1]) == (0, total - 1)
        assert rows == sorted(set(rows))


def test_errors_are_measured_on_the_rows_alone():
    op = softmax_op()
    inputs = op.make_inputs(WORKLOAD, "cpu", torch.Generator().manual_seed(0))
    output = right(inputs)
    output[5] += 1e-3
    rows = [0, 5, 2999]
    with pytest.raises(correctness.WrongResult, match=r"16 of 48 .*first at \[5, 0\]"):
        correctness.check(op, WORKLOAD, inputs, output, rows)
    assert correctness.check(op, WORKLOAD, inputs, output, [0, 2999])["max_abs"] < 1e-6


def test_an_unwritten_row_is_found_though_it_is_not_among_the_rows():
    op = softmax_op()
    inputs = op.make_inputs(WORKLOAD, "cpu", torch.Generator().manual_seed(0))
    output = right(inputs)
    correctness.poison(output[1234])
    with pytest.raises(correctness.WrongResult, match=r"not written at \[1234, 0\]"):
        correctness.check(op, WORKLOAD, inputs, output, [0, 2999])


def test_inputs_of_another_shape_are_taken_whole():
    weight = torch.arange(1.0, 17.0)
    op = dataclasses.replace(
        softmax_op(), reference=lambda inputs: inputs["x"].double() * inputs["weight"].double()
    )
    x = torch.randn(3000, 16)
    error = correctness.check(op, WORKLOAD, {"x": x, "weight": weight}, x * weight, [0, 7, 2999])
    assert error["max_rel"] < 1e-6


def test_integers_are_poisoned_too():
    words = torch.zeros(4, dtype=torch.int32)
    correctness.poison(words)
    assert (words == -1).all()
