"""quantize_fp8 and swiglu_fp8: input that they refuse, and what no generated test knows."""

import membound
import pytest
import torch

from .bad import refused
from .cases import BF16, DTYPES, FP32, bits, new

make = new("meta")
x = make(BF16, 3, 8)

#: Arguments, error, and what the message must hold.
BAD = {
    "a list": (lambda: membound.quantize_fp8([1.0]), TypeError, ["quantize_fp8: input", "list"]),
    "float64": (
        lambda: membound.quantize_fp8(torch.ones(3, 8, dtype=torch.float64)),
        TypeError,
        ["quantize_fp8: input", "torch.float64"],
    ),
    "a CPU tensor": (
        lambda: membound.quantize_fp8(torch.ones(3, 8)),
        ValueError,
        ["quantize_fp8: input", "CUDA", "cpu"],
    ),
    "another block": (
        lambda: membound.quantize_fp8(x, 64),
        ValueError,
        ["quantize_fp8: block is 64", "None", "128"],
    ),
    "one half": (
        lambda: membound.swiglu_fp8(make(BF16, 3, 7)),
        ValueError,
        ["swiglu_fp8: gate has 7 columns", "even"],
    ),
    "unlike halves": (
        lambda: membound.swiglu_fp8(x, make(BF16, 3, 7)),
        ValueError,
        ["swiglu_fp8: up has shape (3, 7)", "(3, 8)"],
    ),
    "halves of two types": (
        lambda: membound.swiglu_fp8(x, make(FP32, 3, 8)),
        TypeError,
        ["swiglu_fp8: up has dtype torch.float32", "torch.bfloat16"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name):
    call, error, parts = BAD[name]
    refused(call, error, parts)


@pytest.mark.gpu
@pytest.mark.parametrize("block", [None, 128])
@pytest.mark.parametrize("columns", [8, 1000, 1001, 4096])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_those_that_torch_converts(dtype, columns, block):
    x = new("cuda")(dtype, 67, columns)
    q, scales = membound.quantize_fp8(x, block)
    each = scales.unsqueeze(-1)
    if block:
        each = each.expand(*scales.shape, block).flatten(-2)[:, :columns]
    expected = (x.float() / each).clamp(-448, 448).to(torch.float8_e4m3fn)
    # a quotient that lies within a rounding of a tie may go either way
    apart = (bits(q).int() - bits(expected).int()).abs()
    assert apart.max() <= 1 and (apart != 0).float().mean() < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [8, 1001])
def test_zeros_and_nan(columns):
    x = new("cuda")(FP32, 9, columns)
    x[3], x[5, 1] = 0, float("nan")
    q, scales = membound.quantize_fp8(x)
    assert q[3].float().eq(0).all() and scales[3] == 1
    assert q[5].float().isnan().any()
    others = [0, 1, 2, 4, 6, 7, 8]
    assert q[others].float().isfinite().all() and scales[others].isfinite().all()
