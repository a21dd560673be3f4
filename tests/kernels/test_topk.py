"""topk: input that it refuses, and what no generated test knows."""

import membound
import pytest
import torch

from .bad import refused
from .cases import BF16, DTYPES, FP32, bits, new

make = new("meta")
x = make(BF16, 3, 8)

#: Arguments, error, and what the message must hold after the op's name.
BAD = {
    "a list": (([1.0], 1), TypeError, ["input", "torch.Tensor", "list"]),
    "integers": ((torch.ones(3, 8, dtype=torch.int32), 1), TypeError, ["input", "torch.int32"]),
    "a CPU tensor": ((torch.ones(3, 8), 1), ValueError, ["input", "CUDA", "cpu"]),
    "rows": ((x, 1, 0), ValueError, ["dim", "last", "got 0"]),
    "none": ((x, 0), ValueError, ["k is 0", "1 to 8"]),
    "more than there are": ((x, 9), ValueError, ["k is 9", "1 to 8"]),
    "more than can be sorted": ((make(BF16, 3, 1000), 257), ValueError, ["k is 257", "1 to 256"]),
    "a fraction": ((x, 2.0), TypeError, ["k", "int", "float"]),
    "a truth": ((x, True), TypeError, ["k", "int", "bool"]),
    "long rows": ((make(BF16, 1, 1_048_577), 1), ValueError, ["1048577", "1048576"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name):
    args, error, parts = BAD[name]
    refused(lambda: membound.topk(*args), error, ["topk", *parts])


def expected(x, k, largest=True):
    """NaN above all numbers, both zeros equal, equal ones from the left: a stable sort's order."""
    order = torch.sort(x.float(), dim=-1, descending=largest, stable=True).indices[:, :k]
    return x.gather(-1, order), order


@pytest.mark.gpu
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("columns", [7, 256, 1000, 1001, 50_257, 300_000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_order_is_by_value_then_column_also_of_what_is_no_number(dtype, columns, largest):
    x = new("cuda")(dtype, 14, columns)
    inf, nan = float("inf"), float("nan")
    x[1], x[2], x[3], x[4] = -inf, nan, inf, 2.5
    x[5, 3], x[5, -1], x[6, ::3], x[7, ::2] = nan, nan, inf, -inf
    x[8], x[8, 5] = 0, 1  # one-hot
    x[9], x[9, ::2] = 0.0, -0.0
    x[10] = x[10].abs()
    x[11] = -x[11].abs()
    x[12] = (x[12] / 4).round()  # many equal ones, of both signs
    k = min(columns, 64)
    values, indices = membound.topk(x, k, largest=largest)
    right, order = expected(x, k, largest)
    assert indices.equal(order)
    assert bits(values).equal(bits(right))


@pytest.mark.gpu
@pytest.mark.parametrize("k", [1, 2, 3, 31, 32, 33, 100, 255, 256])
def test_any_k(k):
    x = new("cuda")(FP32, 67, 1000)
    values, indices = membound.topk(x, k)
    right, order = expected(x, k)
    assert indices.equal(order) and values.equal(right)


@pytest.mark.gpu
def test_all_of_a_row():
    x = new("cuda")(BF16, 67, 256)
    values, indices = membound.topk(x, 256)
    assert indices.sort(-1).values.equal(torch.arange(256, device="cuda").expand(67, 256))
    assert values.equal(x.gather(-1, indices))
