"""softmax, log_softmax and logsumexp: input that they refuse, and what no generated test knows."""

import membound
import pytest
import torch

from bandwatch.measure import correctness

from .bad import refused
from .cases import BF16, DTYPES, FP32, OPS, new

FORMS = ("softmax", "log_softmax", "logsumexp")

make = new("meta")
x = make(BF16, 3, 8)

every_form = pytest.mark.parametrize("form", FORMS)

#: Arguments, error, and what the message must hold after the op's name: the argument, what it
#: was, what is accepted.
BAD = {
    "a list": (([1.0],), TypeError, ["input", "torch.Tensor", "list"]),
    "integers": (
        (torch.ones(3, 8, dtype=torch.int32),),
        TypeError,
        ["input", "torch.int32", "bfloat16, float16, float32"],
    ),
    "float64": (
        (torch.ones(3, 8, dtype=torch.float64),),
        TypeError,
        ["input", "torch.float64", "bfloat16, float16, float32"],
    ),
    "a scalar": ((torch.tensor(1.0),), ValueError, ["input", "scalar", "at least one dimension"]),
    "no columns": (
        (make(BF16, 3, 0),),
        ValueError,
        ["input", "0 columns", "(3, 0)", "at least 1"],
    ),
    "a tensor on the CPU": ((torch.ones(3, 8),), ValueError, ["input", "CUDA", "cpu"]),
    "rows as the dimension": ((x, 0), ValueError, ["dim", "last", "-1 or 1", "got 0"]),
    "a dimension that is not there": ((x, 2), ValueError, ["dim", "-1 or 1", "got 2"]),
    "a long row": ((make(BF16, 1, 1_048_577),), ValueError, ["1048577", "1048576"]),
    "too many rows": ((make(BF16, 1 << 31, 1),), ValueError, ["2147483648 rows", "2147483647"]),
}

BAD_MASKS = {
    "a list": ([True], TypeError, ["mask", "torch.Tensor", "list"]),
    "integers": (
        torch.ones(3, 8, dtype=torch.int32, device="meta"),
        TypeError,
        ["mask", "torch.int32", "bool, bfloat16, float16, float32"],
    ),
    "another device": (torch.ones(3, 8), ValueError, ["mask", "cpu", "meta"]),
    "another shape": (make(FP32, 4, 8), ValueError, ["mask", "(4, 8)", "broadcast", "(3, 8)"]),
    "more dimensions": (make(FP32, 2, 3, 8), ValueError, ["mask", "(2, 3, 8)", "(3, 8)"]),
}


@every_form
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name, form):
    arguments, error, parts = BAD[name]
    parts = [f"{form}: ", *parts]
    refused(lambda: getattr(membound, form)(*arguments), error, parts)


@every_form
@pytest.mark.parametrize("name", BAD_MASKS)
def test_a_bad_mask_is_refused_by_name(name, form):
    mask, error, parts = BAD_MASKS[name]
    parts = [f"{form}: ", *parts]
    refused(lambda: getattr(membound, form)(x, mask=mask), error, parts)


@every_form
def test_causal_needs_rows_that_are_queries(form):
    call = getattr(membound, form)
    refused(lambda: call(make(BF16, 8), causal=True), ValueError, [f"{form}: causal", "(8,)"])


@every_form
def test_the_last_dimension_has_two_names(form):
    call = getattr(membound, form)
    with membound.runtime.record_launches() as launches:
        call(x, dim=-1)
        call(x, dim=1)
        call(x, 1)
    assert len(launches) == 3
    assert len(set(launches)) == 1


def test_logsumexp_keeps_the_dimension_on_request():
    with membound.runtime.record_launches():
        assert membound.logsumexp(x).shape == (3,)
        assert membound.logsumexp(x, -1, True).shape == (3, 1)


@every_form
def test_one_launch_forward_and_one_backward(form):
    leaf = make(FP32, 3, 8).requires_grad_()
    with membound.runtime.record_launches() as launches:
        result = getattr(membound, form)(leaf)
        assert len(launches) == 1
        torch.autograd.grad(result, leaf, torch.empty_like(result))
    assert len(launches) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_exponents_far_apart(dtype):
    op = OPS["softmax"]
    workload = op.workload(dtype, (67, 1000))
    inputs = op.make_inputs(workload, "cuda", torch.Generator("cuda").manual_seed(0))
    inputs = {"input": inputs["input"] * 50}
    correctness.check(op, workload, inputs, op.providers["membound"](inputs, workload))
