"""Reductions: input that they refuse, and what no generated test knows."""

import math

import membound
import pytest
import torch

from .bad import refused
from .cases import BF16, DTYPES, FP32, bits, new

make = new("meta")
x = make(BF16, 3, 8)
inf, nan = math.inf, math.nan

NAMES = ("sum", "mean", "var", "amax", "argmax", "norm")
every_one = pytest.mark.parametrize("name", NAMES)
every_dim = pytest.mark.parametrize("dim", [-1, 0])


def reduce(name, x, dim, **named):
    if name == "norm":
        return membound.norm(x, named.pop("p", 2), dim, **named)
    return getattr(membound, name)(x, dim, **named)


def by_torch(name, x, dim, **named):
    if name == "norm":
        return torch.linalg.vector_norm(x, named.pop("p", 2), dim, **named)
    return getattr(torch, name)(x, dim, **named)


#: Input and dim, error, and what the message must hold after the op's name.
BAD = {
    "a list": (([1.0], -1), TypeError, ["input", "torch.Tensor", "list"]),
    "integers": ((torch.ones(3, 8, dtype=torch.int32), -1), TypeError, ["input", "torch.int32"]),
    "a CPU tensor": ((torch.ones(3, 8), -1), ValueError, ["input", "CUDA", "cpu"]),
    "a scalar": ((torch.tensor(1.0), -1), ValueError, ["input", "scalar"]),
    "a dimension within": ((make(BF16, 3, 4, 8), 1), ValueError, ["dim", "last", "first", "1"]),
    "a dimension that is not there": ((x, 2), ValueError, ["dim", "2"]),
    "long rows": ((make(BF16, 1, 1_048_577), -1), ValueError, ["1048577", "1048576"]),
}


@every_one
@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_refused_by_name(name, bad):
    args, error, parts = BAD[bad]
    refused(lambda: reduce(name, *args), error, [name, *parts])


def test_what_only_some_of_them_take_is_refused_by_name():
    refused(lambda: membound.norm(x, 3, -1), ValueError, ["norm: p is 3", "1, 2, inf"])
    refused(lambda: membound.norm(x), ValueError, ["norm: dim", "None"])
    refused(lambda: membound.argmax(x, (0, 1)), TypeError, ["argmax: dim", "int", "tuple"])
    refused(lambda: membound.sum(x, -1, dtype=torch.float16), TypeError, ["sum: dtype", "float32"])


@every_one
@pytest.mark.parametrize(
    ("dim", "keepdim", "shape"),
    [(-1, False, (3, 4)), (-1, True, (3, 4, 1)), (0, False, (4, 8)), (0, True, (1, 4, 8))],
)
def test_shapes_are_torchs(name, dim, keepdim, shape):
    with membound.runtime.record_launches():
        result = reduce(name, make(BF16, 3, 4, 8), dim, keepdim=keepdim)
    assert tuple(result.shape) == shape
    assert result.dtype == (torch.int64 if name == "argmax" else torch.bfloat16)


def test_several_dimensions_are_one():
    with membound.runtime.record_launches():
        assert membound.sum(make(BF16, 3, 4, 8), (1, 2)).shape == (3,)
        assert membound.mean(make(BF16, 3, 4, 8), (0, 1), keepdim=True).shape == (1, 1, 8)
        assert membound.amax(make(BF16, 3, 4, 8), (0, 1, 2)).shape == ()


@pytest.mark.gpu
@every_dim
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_gradients_of_sums_are_spread_as_in_torch(name, dim):
    x = new("cuda")(FP32, 67, 1001).requires_grad_()
    result = reduce(name, x, dim)
    grad = torch.randn_like(result)
    (actual,) = torch.autograd.grad(result, x, grad)
    (expected,) = torch.autograd.grad(by_torch(name, x, dim), x, grad)
    torch.testing.assert_close(actual, expected)


@pytest.mark.gpu
@every_dim
@pytest.mark.parametrize("columns", [8, 1001, 50_257])
@pytest.mark.parametrize("dtype", DTYPES)
@every_one
def test_what_is_no_number_gives_what_torch_gives(name, dtype, columns, dim):
    x = new("cuda")(dtype, 24, columns)
    x[1, 0], x[3, -1], x[5, 1], x[7, 2], x[9] = nan, nan, inf, -inf, -inf
    x[11], x[13, ::2] = 0, 0
    actual = reduce(name, x, dim)
    if name == "argmax":
        top = x.float().nan_to_num(nan=inf, posinf=1e38, neginf=-inf).amax(dim, keepdim=True)
        equal = x.float().nan_to_num(nan=inf, posinf=1e38, neginf=-inf) == top
        expected = torch.argmax(equal.int() * 2 - (equal.cumsum(dim) > 1).int(), dim)
        assert actual.equal(expected)
    else:
        expected = by_torch(name, x.double(), dim)
        torch.testing.assert_close(
            actual.double(), expected, rtol=1e-2, atol=1e-3, equal_nan=True, check_dtype=False
        )


@pytest.mark.gpu
@every_dim
@pytest.mark.parametrize(("name", "p"), [("amax", None), ("norm", 1), ("norm", 2), ("norm", inf)])
def test_gradients_are_torchs_also_of_equal_elements_and_of_zeros(name, p, dim):
    x = (new("cuda")(FP32, 67, 1000) / 2).round()
    x[3], x[:, 5] = 0, 0
    x.requires_grad_()
    named = {} if p is None else {"p": p}
    result = reduce(name, x, dim, **named)
    grad = torch.randn_like(result)
    (actual,) = torch.autograd.grad(result, x, grad)
    (expected,) = torch.autograd.grad(by_torch(name, x, dim, **named), x, grad)
    torch.testing.assert_close(actual, expected)


@pytest.mark.gpu
def test_a_variance_far_from_zero_keeps_its_digits():
    x = new("cuda")(FP32, 67, 1001) + 10_000
    for dim in (-1, 0):
        expected = x.double().var(dim)
        # neighbours in float32 are 0.001 apart there; mean of squares less square would be 40 % off
        torch.testing.assert_close(membound.var(x, dim).double(), expected, rtol=1e-3, atol=0)


@pytest.mark.gpu
@every_dim
@every_one
def test_more_than_2_to_the_31_elements(name, dim):
    x = torch.ones((67, (1 << 25) + 8), dtype=torch.bfloat16, device="cuda")[:, :1000]
    x[5, 7] = 3
    actual = reduce(name, x, dim)
    expected = by_torch(name, x.double(), dim)
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
@every_dim
def test_runs_are_equal_bit_by_bit(dim):
    x = new("cuda")(FP32, 4097, 1001)
    first = membound.sum(x, dim)
    assert all(bits(membound.sum(x, dim)).equal(bits(first)) for _ in range(20))
