"""cross_entropy: input that it refuses, and what no generated test knows."""

import membound
import pytest
import torch
import torch.nn.functional as F

from .bad import refused
from .cases import BF16, DTYPES, FP32, new

make = new("meta")
x = make(BF16, 3, 8)
target = torch.zeros(3, dtype=torch.int64, device="meta")

#: Arguments, named ones, error, and what the message must hold after the op's name.
BAD = {
    "a list": (([1.0], target), {}, TypeError, ["input", "torch.Tensor", "list"]),
    "float64": (
        (torch.ones(3, 8, dtype=torch.float64), target),
        {},
        TypeError,
        ["input", "torch.float64", "bfloat16, float16, float32"],
    ),
    "logits on the CPU": ((torch.ones(3, 8), target), {}, ValueError, ["input", "CUDA", "cpu"]),
    "no classes": ((make(BF16, 3, 0), target), {}, ValueError, ["input", "0 columns"]),
    "many classes": (
        (make(BF16, 1, 1_048_577), target[:1]),
        {},
        ValueError,
        ["1048577", "1048576"],
    ),
    "a list of targets": ((x, [0, 1, 2]), {}, TypeError, ["target", "torch.Tensor", "list"]),
    "shares as targets": (
        (x, make(FP32, 3, 8)),
        {},
        TypeError,
        ["target", "torch.float32", "int64, int32"],
    ),
    "other targets": ((x, target[:2]), {}, ValueError, ["target", "(2,)", "(3,)"]),
    "targets elsewhere": (
        (x, torch.zeros(3, dtype=torch.int64)),
        {},
        ValueError,
        ["target", "cpu", "meta"],
    ),
    "other weights": ((x, target, make(BF16, 7)), {}, ValueError, ["weight", "(7,)", "(8,)"]),
    "learnt weights": (
        (x, target, make(FP32, 8).requires_grad_()),
        {},
        ValueError,
        ["weight", "gradient", "weight.detach()"],
    ),
    "another reduction": (
        (x, target),
        {"reduction": "average"},
        ValueError,
        ["reduction", "'average'", "none, mean, sum"],
    ),
    "much smoothing": (
        (x, target),
        {"label_smoothing": 1.5},
        ValueError,
        ["label_smoothing", "1.5", "0 to 1"],
    ),
    "a negative cap": ((x, target), {"softcap": -1.0}, ValueError, ["softcap", "-1.0", "positive"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name):
    args, named, error, parts = BAD[name]
    refused(lambda: membound.cross_entropy(*args, **named), error, ["cross_entropy", *parts])


def given(rows=67, classes=1000, dtype=FP32):
    logits = new("cuda")(dtype, rows, classes)
    generator = torch.Generator("cuda").manual_seed(2)
    return logits, torch.randint(classes, (rows,), device="cuda", generator=generator)


@pytest.mark.gpu
@pytest.mark.parametrize("wrong", [-1, 1000, 1 << 40, -(1 << 40)])
def test_a_target_that_is_no_class_is_an_error_or_nan(wrong):
    logits, target = given()
    target[5] = wrong
    with pytest.raises(ValueError, match=rf"target holds {wrong} .* 0 to 999 and ignore_index"):
        membound.cross_entropy(logits, target)
    logits.requires_grad_()
    losses = membound.cross_entropy(logits, target, reduction="none", check_target=False)
    losses.sum().backward()
    assert losses.isnan().nonzero().tolist() == [[5]]
    assert logits.grad[5].isnan().all()
    assert logits.grad[:5].isfinite().all() and logits.grad[6:].isfinite().all()


@pytest.mark.gpu
def test_rows_that_are_ignored_have_no_loss_and_no_gradient_whatever_they_hold():
    logits, target = given()
    target[3:6] = -100
    logits[3], logits[4, 7], logits[5] = float("nan"), float("inf"), -float("inf")
    logits.requires_grad_()
    losses = membound.cross_entropy(logits, target, reduction="none")
    losses.sum().backward()
    assert losses[3:6].eq(0).all() and logits.grad[3:6].eq(0).all()
    assert losses.isfinite().all() and logits.grad.isfinite().all()


@pytest.mark.gpu
def test_all_rows_ignored_mean_nan_as_in_torch():
    logits, target = given()
    target.fill_(-100)
    assert membound.cross_entropy(logits, target).isnan()
    assert membound.cross_entropy(logits, target, reduction="sum") == 0


@pytest.mark.gpu
@pytest.mark.parametrize("classes", [8, 1000, 1001, 50_257])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_gives_what_torch_gives(dtype, classes):
    logits, target = given(16, classes, dtype)
    inf, nan = float("inf"), float("nan")
    logits[1], logits[3], logits[5] = -inf, nan, inf
    logits[7, 0], logits[9, -1], logits[11, : classes // 2] = nan, inf, -inf
    target[11] = 0
    actual = membound.cross_entropy(logits, target, reduction="none")
    expected = F.cross_entropy(logits.float(), target, reduction="none")
    torch.testing.assert_close(actual.float(), expected, rtol=1e-2, atol=1e-4, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("classes", [1000, 1001, 50_257])
def test_the_gradient_can_take_the_place_of_the_logits(classes):
    logits, target = given(67, classes, BF16)
    apart = logits.clone().requires_grad_()
    membound.cross_entropy(apart, target).backward()
    made = logits.clone().requires_grad_()
    kept = made * 1
    memory = kept.data_ptr()
    loss = membound.cross_entropy(kept, target, inplace_backward=True)
    loss.backward(retain_graph=True)
    assert made.grad.equal(apart.grad)
    assert kept.data_ptr() == memory and kept.detach().equal(apart.grad)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.gpu
def test_dimensions_before_the_classes_may_be_many():
    logits, target = given(60, 1000)
    shaped = logits.view(3, 4, 5, 1000).transpose(0, 1)
    shaped_target = target.view(3, 4, 5).transpose(0, 1)
    actual = membound.cross_entropy(shaped, shaped_target)
    torch.testing.assert_close(actual, membound.cross_entropy(logits, target))
