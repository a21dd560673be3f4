"""The ops over ragged rows: input that they refuse, and what no generated test knows."""

import membound
import pytest
import torch

from .bad import refused
from .cases import BF16, DTYPES, FP32, bits, new

make = new("meta")
x = make(BF16, 9)
ends = torch.zeros(4, dtype=torch.int32, device="meta")
target = torch.zeros(3, dtype=torch.int64, device="meta")

FORMS = {
    "ragged_softmax": lambda x, ends: membound.ragged_softmax(x, ends),
    "ragged_rms_norm": lambda x, ends: membound.ragged_rms_norm(x, ends),
    "ragged_cross_entropy": lambda x, ends: membound.ragged_cross_entropy(x, target, ends),
}
every_form = pytest.mark.parametrize("form", FORMS)

#: Input and offsets, error, and what the message must hold after the op's name.
BAD = {
    "a list": (([1.0], ends), TypeError, ["input", "torch.Tensor", "list"]),
    "float64": (
        (torch.ones(9, dtype=torch.float64), ends),
        TypeError,
        ["input", "torch.float64", "bfloat16, float16, float32"],
    ),
    "a matrix": ((make(BF16, 3, 3), ends), ValueError, ["input", "(3, 3)", "(T,)"]),
    "a CPU tensor": ((torch.ones(9), ends), ValueError, ["input", "CUDA", "cpu"]),
    "no offsets": ((x, None), TypeError, ["cu_seqlens", "torch.Tensor", "NoneType"]),
    "offsets of floats": (
        (x, make(FP32, 4)),
        TypeError,
        ["cu_seqlens", "torch.float32", "int32, int64"],
    ),
    "offsets of two dimensions": ((x, ends.view(2, 2)), ValueError, ["cu_seqlens", "(2, 2)"]),
    "offsets elsewhere": (
        (x, torch.zeros(4, dtype=torch.int32)),
        ValueError,
        ["cu_seqlens", "cpu", "meta"],
    ),
}


@every_form
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(form, name):
    args, error, parts = BAD[name]
    refused(lambda: FORMS[form](*args), error, [form, *parts])


@pytest.mark.parametrize(
    ("other", "error", "parts"),
    [
        ([0, 1, 2], TypeError, ["target", "list"]),
        (make(FP32, 3), TypeError, ["target", "torch.float32"]),
        (target[:2], ValueError, ["target", "(2,)", "(3,)"]),
    ],
)
def test_bad_targets_are_refused_by_name(other, error, parts):
    refused(lambda: membound.ragged_cross_entropy(x, other, ends), error, parts)


@pytest.mark.parametrize("size", [2, 4])
def test_tiles_of_all_rows_have_numbers_of_their_own(size):
    from membound.device.stretches import tile

    length = tile(size)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, 4 * length, (1000,), generator=generator)
    lengths[::3] = 0
    lengths[1::5] = length
    begins = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    first = begins // length + torch.arange(len(begins))
    assert (first.diff() >= -(-lengths // length).clamp(min=-(1 << 60))).all()
    assert (first.diff() >= 1).all()
    assert first[-1] == begins[-1] // length + len(lengths)  # the host's count of tiles


def rows(dtype, *lengths):
    values = new("cuda")(dtype, sum(lengths))
    ends = torch.tensor([0, *lengths], device="cuda").cumsum(0)
    return values, ends


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_as_if_alone(dtype):
    lengths = (1, 8184, 8185, 0, 8192, 7, 8180, 100_000, 3, 0)
    values, ends = rows(dtype, *lengths)
    whole = membound.ragged_softmax(values, ends)
    for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        if begin < end:
            alone = torch.softmax(values[begin:end].double(), -1)
            torch.testing.assert_close(whole[begin:end].double(), alone, rtol=1e-2, atol=1e-7)
    again = [membound.ragged_softmax(values, ends) for _ in range(20)]
    assert all(bits(one).equal(bits(whole)) for one in again)


@pytest.mark.gpu
def test_what_is_no_number_stays_in_its_row():
    inf, nan = float("inf"), float("nan")
    values, ends = rows(FP32, 20_000, 100, 20_000, 100, 20_000, 100, 20_000)
    values[ends[1] - 1], values[ends[2] + 9] = nan, inf
    values[ends[4] : ends[5]] = -inf
    result = membound.ragged_softmax(values, ends)
    for i in range(7):
        begin, end = int(ends[i]), int(ends[i + 1])
        expected = torch.softmax(values[begin:end], -1)
        torch.testing.assert_close(result[begin:end], expected, equal_nan=True)


@pytest.mark.gpu
def test_nested_tensors_have_rows_of_their_own():
    parts = [new("cuda")(FP32, length) for length in (3, 10_000, 1)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    result = membound.ragged_softmax(nested)
    assert result.is_nested
    for one, part in zip(result.unbind(), parts, strict=True):
        torch.testing.assert_close(one, torch.softmax(part, -1))
    grad = torch.randn(10_004, device="cuda")
    result.values().backward(grad)
    flat = torch.cat(parts).requires_grad_()
    ends = torch.tensor([0, 3, 10_003, 10_004], device="cuda")
    membound.ragged_softmax(flat, ends).backward(grad)
    assert nested.grad.values().equal(flat.grad)


@pytest.mark.gpu
def test_targets_outside_their_row_are_nan_and_ignored_ones_nothing():
    values, ends = rows(FP32, 5, 9000, 0, 20_000)
    values.requires_grad_()
    target = torch.tensor([5, 8999, -100, -100], device="cuda")
    losses = membound.ragged_cross_entropy(values, target, ends, reduction="none")
    losses.sum().backward()
    assert losses.isnan().tolist() == [True, False, False, False]
    assert losses[2:].eq(0).all()
    assert values.grad[:5].isnan().all() and values.grad[9005:].eq(0).all()
