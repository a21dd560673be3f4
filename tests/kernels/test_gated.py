"""swiglu, geglu and reglu: input they refuse, and what the generated tests cannot know."""

import membound
import pytest
import torch

from .bad import refused
from .cases import BF16, FP32, new

FORMS = ("swiglu", "geglu", "reglu")

make = new("meta")
x = make(BF16, 3, 8)

#: Arguments, error, and what the message must hold after the op's name.
BAD = {
    "a list": (([1.0],), TypeError, ["gate", "torch.Tensor", "list"]),
    "integers": (
        (torch.ones(3, 8, dtype=torch.int32),),
        TypeError,
        ["gate", "torch.int32", "bfloat16, float16, float32"],
    ),
    "a scalar": ((torch.tensor(1.0),), ValueError, ["gate", "scalar", "at least one dimension"]),
    "no columns": ((make(BF16, 3, 0),), ValueError, ["gate", "0 columns", "(3, 0)", "at least 1"]),
    "the CPU": ((torch.ones(3, 8),), ValueError, ["gate", "CUDA", "cpu"]),
    "no two halves": ((make(BF16, 3, 7),), ValueError, ["gate", "7 columns", "even"]),
    "a list beside": ((x, [1.0]), TypeError, ["up", "torch.Tensor", "list"]),
    "another shape": ((x, make(BF16, 3, 4)), ValueError, ["up", "(3, 4)", "(3, 8)"]),
    "another dtype": ((x, make(FP32, 3, 8)), TypeError, ["up", "float32", "bfloat16"]),
    "another device": ((x, torch.ones(3, 8, dtype=torch.bfloat16)), ValueError, ["up", "cpu"]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name, form):
    arguments, error, parts = BAD[name]
    parts = [f"{form}: ", *parts]
    refused(lambda: getattr(membound, form)(*arguments), error, parts)


def test_gelu_has_two_forms():
    call = membound.geglu
    refused(lambda: call(x, approximate="erf"), ValueError, ["geglu: approximate", "erf", "tanh"])


def test_one_launch_forward_and_one_backward():
    for given in ((x,), (x, make(BF16, 3, 8))):
        leaves = [one.detach().requires_grad_() for one in given]
        with membound.runtime.record_launches() as launches:
            result = membound.swiglu(*leaves)
            assert len(launches) == 1
            torch.autograd.grad(result, leaves, torch.empty_like(result))
        assert len(launches) == 2


def test_whole_matrices_are_taken_whatever_their_shape():
    """Nothing is compiled anew for another number of rows or columns."""
    with membound.runtime.record_launches() as launches:
        for shape in ((64, 4096), (7, 50_000), (3, 5, 8192), (100_000,)):
            membound.swiglu(make(BF16, *shape), make(BF16, *shape))
    assert len({launch.kernel for launch in launches}) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_where_halves_lie_makes_no_difference(form):
    packed = new("cuda")(BF16, 67, 2 * 1001)
    gate, up = packed.chunk(2, -1)
    call = getattr(membound, form)
    assert call(packed).equal(call(gate, up))
    assert call(packed).equal(call(gate.contiguous(), up.contiguous()))
