"""rms_norm and layer_norm: input they refuse, and what the generated tests cannot know."""

import membound
import pytest
import torch

from bandwatch.measure import correctness

from .bad import refused
from .cases import BF16, OPS, new

make = new("meta")
x = make(BF16, 3, 8)


def rms_norm(*args, **kwargs):
    return lambda: membound.rms_norm(*args, **kwargs)


#: Call, error, and what the message must hold: the argument, what it was, what is accepted.
BAD = {
    "rms_norm of nothing": (
        rms_norm(None, 8),
        TypeError,
        ["rms_norm: input", "torch.Tensor", "NoneType"],
    ),
    "rms_norm of complex numbers": (
        rms_norm(torch.ones(3, 8, dtype=torch.complex64), 8),
        TypeError,
        ["rms_norm: input", "torch.complex64", "bfloat16, float16, float32"],
    ),
    "rms_norm on the CPU": (
        rms_norm(torch.ones(3, 8), 8),
        ValueError,
        ["rms_norm: input", "CUDA", "cpu"],
    ),
    "rms_norm of no columns": (
        rms_norm(make(BF16, 3, 0), 0),
        ValueError,
        ["rms_norm: input", "0 columns", "(3, 0)", "at least 1"],
    ),
    "rms_norm over another length": (
        rms_norm(x, 7),
        ValueError,
        ["rms_norm: normalized_shape (7,)", "last dimensions of input", "(3, 8)"],
    ),
    "rms_norm over the first dimension": (
        rms_norm(x, (3,)),
        ValueError,
        ["rms_norm: normalized_shape (3,)", "last dimensions of input", "(3, 8)"],
    ),
    "rms_norm over more dimensions than there are": (
        rms_norm(x, (2, 3, 8)),
        ValueError,
        ["rms_norm: normalized_shape (2, 3, 8)", "(3, 8)"],
    ),
    "rms_norm over no dimension": (
        rms_norm(x, ()),
        ValueError,
        ["rms_norm: normalized_shape ()", "last dimensions of input", "(3, 8)"],
    ),
    "rms_norm of no columns in several dimensions": (
        rms_norm(make(BF16, 3, 0, 5), (0, 5)),
        ValueError,
        ["rms_norm: ", "0 elements", "(3, 0, 5)", "at least 1"],
    ),
    "rms_norm over a fraction": (
        rms_norm(x, 8.0),
        TypeError,
        ["rms_norm: normalized_shape", "8.0", "int"],
    ),
    "rms_norm over fractions": (
        rms_norm(x, (8.0,)),
        TypeError,
        ["rms_norm: normalized_shape", "(8.0,)", "int"],
    ),
    "rms_norm of long rows": (
        rms_norm(make(BF16, 1, 1024, 1025), (1024, 1025)),
        ValueError,
        ["rms_norm: ", "1049600", "1048576"],
    ),
    "a weight of another shape": (
        rms_norm(x, 8, make(BF16, 7)),
        ValueError,
        ["rms_norm: weight", "(7,)", "expected (8,)"],
    ),
    "a weight of more dimensions": (
        rms_norm(x, 8, make(BF16, 1, 8)),
        ValueError,
        ["rms_norm: weight", "(1, 8)", "expected (8,)"],
    ),
    "a weight of another type": (
        rms_norm(x, 8, torch.ones(8, dtype=torch.float64, device="meta")),
        TypeError,
        ["rms_norm: weight", "torch.float64", "bfloat16, float16, float32"],
    ),
    "a weight that is no tensor": (
        rms_norm(x, 8, [1.0] * 8),
        TypeError,
        ["rms_norm: weight", "torch.Tensor", "list"],
    ),
    "a weight on the CPU": (
        rms_norm(x, 8, torch.ones(8)),
        ValueError,
        ["rms_norm: weight", "CUDA", "cpu"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name):
    refused(*BAD[name])


@pytest.mark.gpu
def test_squares_that_overflow_float16():
    op = OPS["rms_norm"]
    workload = op.workload("float16", (67, 1000))
    inputs = dict(op.make_inputs(workload, "cuda", torch.Generator("cuda").manual_seed(0)))
    inputs["input"] = inputs["input"] + 300
    assert inputs["input"].square().isinf().any()
    correctness.check(op, workload, inputs, op.providers["membound"](inputs, workload))
