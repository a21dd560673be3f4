"""bias_act: input it refuses, and what the generated tests cannot know."""

import membound
import pytest
import torch

from .bad import refused
from .cases import BF16, FP32, new

make = new("meta")
x = make(BF16, 3, 8)

#: Arguments, error, and what the message must hold after the op's name.
BAD = {
    "a list": (([1.0],), TypeError, ["input", "torch.Tensor", "list"]),
    "float64": (
        (torch.ones(3, 8, dtype=torch.float64),),
        TypeError,
        ["input", "torch.float64", "bfloat16, float16, float32"],
    ),
    "no columns": ((make(BF16, 3, 0),), ValueError, ["input", "0 columns", "at least 1"]),
    "the CPU": ((torch.ones(3, 8),), ValueError, ["input", "CUDA", "cpu"]),
    "another activation": ((x, None, "tanh"), ValueError, ["activation", "'tanh'", "'relu2'"]),
    "a list as bias": ((x, [1.0]), TypeError, ["bias", "torch.Tensor", "list"]),
    "a short bias": ((x, make(BF16, 7)), ValueError, ["bias", "(7,)", "expected (8,)"]),
    "a bias matrix": ((x, make(BF16, 3, 8)), ValueError, ["bias", "(3, 8)", "expected (8,)"]),
    "a bias elsewhere": ((x, torch.ones(8)), ValueError, ["bias", "cpu"]),
    "an integer bias": (
        (x, torch.ones(8, dtype=torch.int64, device="meta")),
        TypeError,
        ["bias", "torch.int64", "bfloat16, float16, float32"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name):
    arguments, error, parts = BAD[name]
    refused(lambda: membound.bias_act(*arguments), error, ["bias_act: ", *parts])


def test_the_gradient_of_a_bias_alone_stores_no_other():
    bias = make(FP32, 8).requires_grad_()
    with membound.runtime.record_launches() as launches:
        result = membound.bias_act(x, bias)
        torch.autograd.grad(result, bias, torch.empty_like(result))
    backward = launches[1].kernel
    assert backward.sums
    assert not backward.to_input


@pytest.mark.gpu
def test_sums_are_of_what_is_not_rounded():
    """In bfloat16 a sum of rounded terms would be as wrong as their rounding is one-sided."""
    inputs = torch.full((4096, 64), 1.0, dtype=torch.bfloat16, device="cuda")
    bias = torch.zeros(64, device="cuda", requires_grad=True)
    membound.bias_act(inputs, bias, "silu").backward(torch.ones_like(inputs))
    leaf = torch.ones((), dtype=torch.float64, requires_grad=True)
    torch.nn.functional.silu(leaf).backward()
    torch.testing.assert_close(
        bias.grad.double().cpu(),
        torch.full((64,), 4096 * leaf.grad.item(), dtype=torch.float64),
        rtol=1e-5,
        atol=0,
    )
