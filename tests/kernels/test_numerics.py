"""The checks that judge the GPU's results can say no."""

import pytest
import torch

from .cases import PAD, Call, new
from .numerics import assert_guards_hold, assert_right

DTYPES = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 2.0**-23}


def call(op, dtype):
    make = new("cpu")
    name = str(dtype).removeprefix("torch.")
    return Call(op, make(name, 5, 1000), make(name, 1000) if op == "rms_norm" else None)


def right(one):
    """What a good kernel gives: float32 arithmetic, one rounding."""
    x = one.x.float()
    if one.op == "softmax":
        return torch.softmax(x, -1).to(one.x.dtype)
    scale = (x.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).rsqrt()
    return (x * scale * one.weight.float()).to(one.x.dtype)


def drop_the_tail(one, out):
    out[:, -1] = 0


def leave_one_unwritten(one, out):
    out[4, 999] = float("nan")


def overflow(one, out):
    out[2, 3] = float("inf")


def shift_by_one_column(one, out):
    out.copy_(out.roll(1, -1))


def shift_by_one_row(one, out):
    out.copy_(out.roll(1, 0))


def forget_a_term(one, out):
    """The reduction misses one element: the largest of the first row."""
    x = one.x.float().clone()
    x[0, x[0].abs().argmax()] = 0 if one.op == "rms_norm" else -float("inf")
    total = {"softmax": lambda v: v.exp().sum(), "rms_norm": lambda v: v.square().mean().sqrt()}
    ratio = total[one.op](one.x[0].float()) / total[one.op](x[0])
    out[0] = (out[0].float() * ratio).to(out.dtype)


def round_twice(one, out):
    """Each value two units in the last place off."""
    out.mul_(1 + 2 * DTYPES[out.dtype] + (1e-4 if out.dtype == torch.float32 else 0))


FAULTS = [
    drop_the_tail,
    leave_one_unwritten,
    overflow,
    shift_by_one_column,
    shift_by_one_row,
    forget_a_term,
    round_twice,
]


@pytest.mark.parametrize("op", ["softmax", "rms_norm"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_right_result_passes(op, dtype):
    one = call(op, dtype)
    assert_right(one, right(one))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("op", ["softmax", "rms_norm"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_fault_is_found(op, dtype, fault):
    one = call(op, dtype)
    out = right(one)
    fault(one, out)
    with pytest.raises(AssertionError, match="values are wrong, first at row"):
        assert_right(one, out)


def test_shape_and_dtype_count():
    one = call("softmax", torch.bfloat16)
    with pytest.raises(AssertionError):
        assert_right(one, right(one).float())
    with pytest.raises(AssertionError):
        assert_right(one, right(one)[:4])


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("beside", [-1, 5000])
def test_a_write_beside_the_output_is_found(beside, offset, monkeypatch):
    one = call("softmax", torch.bfloat16)
    monkeypatch.setattr(Call, "__call__", lambda self: torch.empty_like(self.x).copy_(right(self)))
    out, buffer = one.guarded(offset)
    assert_guards_hold(buffer, offset)
    assert_right(one, out)
    buffer[PAD + offset + beside] = 0
    with pytest.raises(AssertionError, match="1 elements (before|behind) the output"):
        assert_guards_hold(buffer, offset)
