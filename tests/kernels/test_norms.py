"""rms_norm and layer_norm: input they refuse, and what the generated tests cannot know."""

import membound
import pytest
import torch

from asv_bench.workloads import norms
from bandwatch.measure import correctness

from .bad import refused
from .cases import BF16, FP32, OPS, new

make = new("meta")
x = make(BF16, 3, 8)
residual = make(BF16, 3, 8)


def rms_norm(*args, **kwargs):
    return lambda: membound.rms_norm(*args, **kwargs)


def layer_norm(*args, **kwargs):
    return lambda: membound.layer_norm(*args, **kwargs)


#: Call, error, and what the message must hold: the argument, what it was, what is accepted.
BAD = {
    "rms_norm of nothing": (
        rms_norm(None, 8),
        TypeError,
        ["rms_norm: input", "torch.Tensor", "NoneType"],
    ),
    "rms_norm of complex numbers": (
        rms_norm(torch.ones(3, 8, dtype=torch.complex64), 8),
        TypeError,
        ["rms_norm: input", "torch.complex64", "bfloat16, float16, float32"],
    ),
    "rms_norm on the CPU": (
        rms_norm(torch.ones(3, 8), 8),
        ValueError,
        ["rms_norm: input", "CUDA", "cpu"],
    ),
    "rms_norm of no columns": (
        rms_norm(make(BF16, 3, 0), 0),
        ValueError,
        ["rms_norm: input", "0 columns", "(3, 0)", "at least 1"],
    ),
    "rms_norm over another length": (
        rms_norm(x, 7),
        ValueError,
        ["rms_norm: normalized_shape (7,)", "last dimensions of input", "(3, 8)"],
    ),
    "rms_norm over the first dimension": (
        rms_norm(x, (3,)),
        ValueError,
        ["rms_norm: normalized_shape (3,)", "last dimensions of input", "(3, 8)"],
    ),
    "rms_norm over more dimensions than there are": (
        rms_norm(x, (2, 3, 8)),
        ValueError,
        ["rms_norm: normalized_shape (2, 3, 8)", "(3, 8)"],
    ),
    "rms_norm over no dimension": (
        rms_norm(x, ()),
        ValueError,
        ["rms_norm: normalized_shape ()", "last dimensions of input", "(3, 8)"],
    ),
    "rms_norm of no columns in several dimensions": (
        rms_norm(make(BF16, 3, 0, 5), (0, 5)),
        ValueError,
        ["rms_norm: ", "0 elements", "(3, 0, 5)", "at least 1"],
    ),
    "rms_norm over a fraction": (
        rms_norm(x, 8.0),
        TypeError,
        ["rms_norm: normalized_shape", "8.0", "int"],
    ),
    "rms_norm over fractions": (
        rms_norm(x, (8.0,)),
        TypeError,
        ["rms_norm: normalized_shape", "(8.0,)", "int"],
    ),
    "rms_norm of long rows": (
        rms_norm(make(BF16, 1, 1024, 1025), (1024, 1025)),
        ValueError,
        ["rms_norm: ", "1049600", "1048576"],
    ),
    "a weight of another shape": (
        rms_norm(x, 8, make(BF16, 7)),
        ValueError,
        ["rms_norm: weight", "(7,)", "expected (8,)"],
    ),
    "a weight of more dimensions": (
        rms_norm(x, 8, make(BF16, 1, 8)),
        ValueError,
        ["rms_norm: weight", "(1, 8)", "expected (8,)"],
    ),
    "a weight of another type": (
        rms_norm(x, 8, torch.ones(8, dtype=torch.float64, device="meta")),
        TypeError,
        ["rms_norm: weight", "torch.float64", "bfloat16, float16, float32"],
    ),
    "a weight that is no tensor": (
        rms_norm(x, 8, [1.0] * 8),
        TypeError,
        ["rms_norm: weight", "torch.Tensor", "list"],
    ),
    "a weight on the CPU": (
        rms_norm(x, 8, torch.ones(8)),
        ValueError,
        ["rms_norm: weight", "CUDA", "cpu"],
    ),
    "weights of too few heads": (
        layer_norm(make(BF16, 2, 3, 8), 8, make(BF16, 2, 8)),
        ValueError,
        ["layer_norm: weight", "(2, 8)", "expected (8,) or (3, 8)"],
    ),
    "a bias of another shape": (
        layer_norm(x, 8, make(BF16, 8), make(BF16, 7)),
        ValueError,
        ["layer_norm: bias", "(7,)", "expected (8,)"],
    ),
    "one bias beside weights of heads": (
        layer_norm(x, 8, make(BF16, 3, 8), make(BF16, 8)),
        ValueError,
        ["layer_norm: bias", "(8,)", "that of weight, (3, 8)"],
    ),
    "layer_norm of no tensor": (
        layer_norm([1.0], 1),
        TypeError,
        ["layer_norm: input", "torch.Tensor", "list"],
    ),
    "a residual of another shape": (
        rms_norm(x, 8, residual=make(BF16, 3, 7)),
        ValueError,
        ["rms_norm: residual", "(3, 7)", "(3, 8)"],
    ),
    "a residual in another type": (
        rms_norm(x, 8, residual=residual.double()),
        TypeError,
        ["rms_norm: residual", "torch.float64", "bfloat16, float16, float32"],
    ),
    "a dtype of a residual that is not there": (
        rms_norm(x, 8, residual_dtype=torch.float32),
        ValueError,
        ["rms_norm: residual_dtype", "torch.float32", "no residual"],
    ),
    "another dtype of the residual": (
        rms_norm(x, 8, residual=residual, residual_dtype=torch.float64),
        TypeError,
        ["rms_norm: residual_dtype", "torch.float64", "bfloat16, float16, float32"],
    ),
    "dropout and nothing to add": (
        rms_norm(x, 8, dropout_p=0.5),
        ValueError,
        ["rms_norm: dropout_p", "0.5", "no residual"],
    ),
    "dropout of more than all": (
        layer_norm(x, 8, residual=residual, dropout_p=1.5),
        ValueError,
        ["layer_norm: dropout_p", "1.5", "from 0 to 1"],
    ),
    "blocks of another size": (
        lambda: membound.rms_norm_fp8(x, 8, block=64),
        ValueError,
        ["rms_norm_fp8: block", "64", "None", "128"],
    ),
    "rms_norm_fp8 over another length": (
        lambda: membound.rms_norm_fp8(x, 7),
        ValueError,
        ["rms_norm_fp8: normalized_shape (7,)", "(3, 8)"],
    ),
    "a seed that is no tensor": (
        rms_norm(x, 8, residual=residual, dropout_p=0.5, dropout_seed=7),
        TypeError,
        ["rms_norm: dropout_seed", "int64", "int"],
    ),
    "a seed of two values": (
        rms_norm(
            x,
            8,
            residual=residual,
            dropout_p=0.5,
            dropout_seed=torch.empty(2, dtype=torch.int64, device="meta"),
        ),
        TypeError,
        ["rms_norm: dropout_seed", "int64", "(2,)"],
    ),
    "a seed on the CPU": (
        rms_norm(x, 8, residual=residual, dropout_p=0.5, dropout_seed=torch.ones(1).long()),
        ValueError,
        ["rms_norm: dropout_seed", "cpu", "meta"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name):
    refused(*BAD[name])


def test_draws_are_those_of_philox():
    """The known answers that come with Random123, for Philox4x32-10: a counter and a key of 0."""
    words = 0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8
    none = torch.zeros(1, dtype=torch.int64)
    for column, word in enumerate(words):
        limit = (word >> 8) / (1 << 24)
        assert norms.keep(none, limit, 1, 4)[0, column]
        assert not norms.keep(none, limit + 2.0**-24, 1, 4)[0, column]


def modules(call):
    with membound.runtime.record_launches() as launches:
        call()
    return [launch.kernel.module for launch in launches]


def backward_modules(columns, *needing, rows=300, dtype=BF16):
    inputs = {
        "input": make(dtype, rows, columns),
        "weight": make(dtype, columns),
        "bias": make(dtype, columns),
    }
    for name in needing:
        inputs[name].requires_grad_()
    given = inputs["input"], columns, inputs["weight"], inputs["bias"]
    with membound.runtime.record_launches():
        out = membound.layer_norm(*given)
    return modules(lambda: out.backward(torch.empty_like(out)))


def test_only_the_gradients_that_are_needed_are_computed():
    assert backward_modules(1000, "input") == ["norm_backward"]
    assert set(backward_modules(1000, "weight")) == {"norm_columns", "columns"}
    assert set(backward_modules(1000, "bias")) == {"norm_columns", "columns"}
    assert backward_modules(1000, "input", "weight", "bias")[0] == "norm_gradients"


def test_long_rows_have_a_kernel_for_rows_and_one_for_sums():
    for columns, dtype in ((65_537, BF16), (1 << 20, FP32)):
        found = backward_modules(columns, "input", "weight", dtype=dtype)
        assert found[:2] == ["norm_backward", "norm_columns"]


def test_the_work_of_a_call_without_gradients_is_one_launch():
    weight = make(BF16, 8)
    assert modules(rms_norm(x, 8, weight)) == ["norm"]
    assert modules(layer_norm(x, 8, weight, residual=residual, return_stats=True)) == ["norm"]


def test_fp8_is_one_launch_where_rows_allow():
    for block in (None, 128):
        for columns, count in ((96, 1), (4096, 1), (1000, 1), (1001, 2), (1 << 20, 2)):
            value = make(BF16, 3, columns)
            found = modules(
                lambda value=value, block=block: membound.rms_norm_fp8(
                    value, value.shape[-1], block=block
                )
            )
            assert len(found) == count, (block, columns, found)


@pytest.mark.gpu
@pytest.mark.parametrize("block", [None, 128])
def test_fp8_in_one_launch_and_in_two_are_equal(block):
    """A row that starts between boundaries takes two launches."""
    gpu = new("cuda")
    value, weight = gpu(FP32, 67, 1000), gpu(FP32, 1000)
    late = torch.empty(67 * 1000 + 1, device="cuda")[1:].view(67, 1000).copy_(value)
    one, two = (membound.rms_norm_fp8(each, 1000, weight, block=block) for each in (value, late))
    assert torch.allclose(one[1], two[1], rtol=1e-6, atol=0)
    assert (one[0].view(torch.uint8) != two[0].view(torch.uint8)).float().mean() < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_dropout_draws_anew_and_as_torch_is_seeded(name):
    gpu = new("cuda")
    given = gpu(FP32, 512, 1000), 1000
    zeros = torch.zeros(512, 1000, device="cuda")

    def dropped():
        return getattr(membound, name)(*given, residual=zeros, dropout_p=0.25)[1]

    torch.manual_seed(3)
    first, second = dropped(), dropped()
    torch.manual_seed(3)
    assert torch.equal(first, dropped())
    assert not torch.equal(first, second)
    for one in (first, second):
        assert abs((one == 0).float().mean().item() - 0.25) < 0.005
        kept = one != 0
        assert torch.allclose(one[kept], given[0][kept] / 0.75)
    both = ((first == 0) & (second == 0)).float().mean().item()
    assert abs(both - 0.0625) < 0.003

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = dropped()
    graph.replay()
    before = replayed.clone()
    graph.replay()
    assert not torch.equal(before, replayed)


@pytest.mark.gpu
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_nothing_and_of_all(p):
    gpu = new("cuda")
    value, added = gpu(BF16, 67, 1000), gpu(FP32, 67, 1000)
    value.requires_grad_()
    out, total = membound.rms_norm(value, 1000, residual=added, dropout_p=p)
    assert torch.equal(total, added + value if p == 0 else added)
    (gradient,) = torch.autograd.grad([out, total], value, [out, total])
    assert gradient.count_nonzero() == 0 if p == 1 else gradient.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("used", [0, 1])
def test_gradients_where_one_result_is_used(name, used):
    """Of the result alone, or of the sum alone: of the latter it is the gradient that comes in."""
    gpu = new("cuda")
    value, added = (gpu(FP32, 67, 1000).requires_grad_() for _ in range(2))
    results = getattr(membound, name)(value, 1000, residual=added)
    grad = torch.randn_like(value)
    gradients = torch.autograd.grad(results[used], [value, added], grad)
    if used == 1:
        assert all(torch.equal(gradient, grad) for gradient in gradients)
    else:
        total = (value + added).detach().requires_grad_()
        one = getattr(membound, name)(total, 1000)
        (expected,) = torch.autograd.grad(one, total, grad)
        assert all(torch.equal(gradient, expected) for gradient in gradients)


@pytest.mark.gpu
def test_columns_that_are_not_there_stay_out_of_a_variance():
    """A mean far from 0, of which a padding of zeros would show."""
    for columns in (1, 3, 1000, 1001, 50_257, 300_000):
        value = torch.randn(5, columns, device="cuda") + 1000
        _, mean, rstd = membound.layer_norm(value, columns, return_stats=True)
        wide = value.double()
        variance = wide.var(-1, correction=0)
        assert torch.allclose(mean.double(), wide.mean(-1), rtol=1e-6, atol=0)
        assert torch.allclose(rstd.double(), (variance + 1e-5).rsqrt(), rtol=2e-5, atol=0)


@pytest.mark.gpu
def test_squares_that_overflow_float16():
    op = OPS["rms_norm"]
    workload = op.workload("float16", (67, 1000))
    inputs = dict(op.make_inputs(workload, "cuda", torch.Generator("cuda").manual_seed(0)))
    inputs["input"] = inputs["input"] + 300
    assert inputs["input"].square().isinf().any()
    correctness.check(op, workload, inputs, op.providers["membound"](inputs, workload))
