"""rotary: input that it refuses, and what no generated test knows."""

import membound
import pytest
import torch

from .bad import refused
from .cases import BF16, FP32, bits, new

make = new("meta")
x, table = make(BF16, 2, 5, 3, 8), make(FP32, 9, 4)


def integers(*shape):
    return torch.zeros(shape, dtype=torch.int64, device="meta")


#: Arguments, named ones, error, and what the message must hold after the op's name.
BAD = {
    "a list": (([1.0], table, table), {}, TypeError, ["input", "torch.Tensor", "list"]),
    "a CPU tensor": ((torch.ones(2, 5, 3, 8), table, table), {}, ValueError, ["input", "CUDA"]),
    "three dimensions": (
        (x[0], table, table),
        {},
        ValueError,
        ["input", "(5, 3, 8)", "(batch, tokens, heads, D)"],
    ),
    "four dimensions of packed tokens": (
        (x, table, table),
        {"cu_seqlens": integers(3)},
        ValueError,
        ["input", "(2, 5, 3, 8)", "(tokens, heads, D)"],
    ),
    "wide tables": (
        (x, make(FP32, 9, 5), table),
        {},
        ValueError,
        ["cos", "(9, 5)", "(positions, R / 2)", "8"],
    ),
    "unlike tables": ((x, table, table.half()), {}, ValueError, ["sin", "torch.float16", "cos's"]),
    "few positions": ((x, table, table), {"offsets": 5}, ValueError, ["offsets", "5", "0 to 4"]),
    "a negative offset": ((x, table, table), {"offsets": -1}, ValueError, ["offsets", "-1"]),
    "a fraction": ((x, table, table), {"offsets": 0.5}, TypeError, ["offsets", "int", "float"]),
    "offsets of others": (
        (x, table, table),
        {"offsets": integers(3)},
        ValueError,
        ["offsets", "(3,)", "(2,)"],
    ),
    "a learnt table": (
        (x, table, make(FP32, 9, 4).requires_grad_()),
        {},
        ValueError,
        ["cos and sin", "no gradient"],
    ),
    "one end": (
        (x[0], table, table),
        {"cu_seqlens": integers(1)},
        ValueError,
        ["cu_seqlens", "(1,)", "(sequences + 1,)"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name):
    args, named, error, parts = BAD[name]
    refused(lambda: membound.rotary(*args, **named), error, ["rotary", *parts])


@pytest.mark.gpu
def test_queries_are_taken_from_where_they_lie_packed_with_others():
    packed = new("cuda")(BF16, 2, 33, 3, 4, 64)
    table = torch.rand(33, 32, device="cuda")
    query = packed[:, :, 1]
    expected = membound.rotary(query.contiguous(), table, table)
    with membound.runtime.record_launches() as launches:
        membound.rotary(query, table, table)
    assert launches[0].arguments[0].strides == query.stride()
    assert bits(membound.rotary(query, table, table)).equal(bits(expected))
    membound.rotary(query, table, table, inplace=True)
    assert bits(query).equal(bits(expected))


@pytest.mark.gpu
def test_in_place_is_known_to_autograd():
    x = new("cuda")(FP32, 2, 5, 3, 8).requires_grad_()
    table = torch.rand(5, 4, device="cuda")
    grad = torch.randn_like(x)
    (expected,) = torch.autograd.grad(membound.rotary(x, table, table), x, grad)
    y = x * 1
    assert membound.rotary(y, table, table, inplace=True) is y
    (actual,) = torch.autograd.grad(y, x, grad)
    assert actual.equal(expected)
    square = x * 1
    later = square.square()  # keeps what is then overwritten
    membound.rotary(square, table, table, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        later.sum().backward()


@pytest.mark.gpu
def test_positions_outside_the_tables_are_not_read():
    x = new("cuda")(FP32, 2, 5, 3, 8)
    table = torch.rand(5, 4, device="cuda")
    far = torch.tensor([1 << 20, 0], device="cuda")
    result = membound.rotary(x, table, table, offsets=far)
    assert result[1].equal(membound.rotary(x, table, table)[1])
    torch.cuda.synchronize()
