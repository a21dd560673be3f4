"""On a Hopper GPU: every element of every result, and not one beside it."""

import os
from unittest import mock

import membound
import pytest
import torch
from membound.runtime import cache

from .cases import (
    BF16,
    DTYPES,
    FP16,
    FP32,
    HUGE,
    MISALIGNED,
    OPS,
    PLAIN,
    VIEWS,
    WEIGHTS,
    Call,
    gpu_kernels,
    new,
    plain,
)
from .numerics import assert_close, assert_guards_hold, assert_right, tolerance

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """All kernels, compiled ahead and in parallel; one that is not listed fails its test."""
    membound.runtime.build(gpu_kernels(), jobs=min(16, os.cpu_count() or 1))

    def refuse(kernel, folder):
        raise AssertionError(f"{kernel.name} is not among gpu_kernels()")

    with mock.patch.object(cache, "_compile_into", refuse):
        yield


@pytest.fixture(scope="module")
def make():
    return new("cuda")


def require(call, offset=0):
    """Require the result to be right, with and without an output buffer of the test's own."""
    # the allocator hands this block out again: what the kernel leaves out stays NaN
    torch.full(call.x.shape, float("nan"), dtype=call.x.dtype, device="cuda")
    result = call()
    assert_right(call, result)
    if call.x.numel():
        guarded, buffer = call.guarded(offset)
        assert_guards_hold(buffer, offset)
        if offset:  # other accesses, another order of sums
            assert_right(call, guarded)
        else:
            assert bits(guarded).equal(bits(result))


def bits(tensor):
    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)


@pytest.mark.parametrize("name", PLAIN)
def test_matrices(name, make):
    require(PLAIN[name](make))


@pytest.mark.parametrize("name", VIEWS)
def test_views(name, make):
    require(VIEWS[name](make))


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name, make):
    require(WEIGHTS[name](make))


@pytest.mark.parametrize("name", MISALIGNED)
def test_misaligned_outputs(name, make):
    build, offset = MISALIGNED[name]
    require(build(make), offset)


@pytest.mark.parametrize("name", HUGE)
def test_more_than_2_to_the_31_elements(name, make):
    call = HUGE[name](make)
    assert call.x.stride(0) * (len(call.x) - 1) > 2**31
    require(call)


def special_rows(dtype, columns):
    """Rows of what is no ordinary number, each beside a row that is."""
    x = new("cuda")(dtype, 24, columns)
    inf, nan, largest = float("inf"), float("nan"), torch.finfo(x.dtype).max
    x[1] = -inf
    x[3] = nan
    x[5] = inf
    x[7, 0] = nan
    x[9, -1] = nan
    x[11, 0] = inf
    x[13, -1] = inf
    x[15, : columns // 2] = -inf
    x[17, :-1] = -inf
    x[19] = 0
    x[21] = largest
    x[23] = largest
    x[23, ::2] = -largest
    return x


@pytest.mark.parametrize("columns", [1, 8, 1000, 1001, 32768, 262144])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_what_is_no_number_spreads_as_in_torch(op, dtype, columns):
    x = special_rows(dtype, columns)
    if op == "softmax":
        actual, expected = membound.softmax(x), torch.softmax(x.float(), -1)
    else:
        weight = torch.full((columns,), 1.5, dtype=x.dtype, device="cuda")
        actual = membound.rms_norm(x, columns, weight)
        # torch's formula by torch's own steps: its kernel for columns that are no multiple of 4
        # makes a whole row NaN where its kernel for others, and the formula, leave zeros
        mean_square = x.float().square().mean(-1, keepdim=True)
        eps = torch.finfo(torch.float32).eps
        expected = x.float() * (mean_square + eps).rsqrt() * weight.float()
    rtol, atol = tolerance(x.dtype, columns, spread=50)
    assert_close(actual, expected, 2 * rtol, 2 * atol)
    assert actual[::2].isfinite().all()


def test_squares_that_overflow_float16(make):
    x = make(FP16, 67, 1000) + 300
    assert x.square().isinf().any()
    require(Call("rms_norm", x, make(FP16, 1000)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_exponents_far_apart(dtype, make):
    require(Call("softmax", make(dtype, 67, 1000) * 50))


@pytest.mark.parametrize("columns", [1000, 262144])
@pytest.mark.parametrize("op", OPS)
def test_a_graph_replays_on_what_its_input_holds_by_then(op, columns, make):
    call = plain(op, BF16, 67, columns, make)
    call()  # loads the kernel: that cannot be captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    for scale in (1.0, -0.5):
        call.x.mul_(scale)
        result.fill_(float("nan"))
        graph.replay()
        assert_right(call, result)


@pytest.mark.parametrize("op", OPS)
def test_the_current_stream_is_used(op, make):
    call = plain(op, BF16, 4097, 1000, make)
    later = make(BF16, 4097, 1000)
    call()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # on any other stream the kernel would not wait for x
        call.x.copy_(later)
        result = call()
    stream.synchronize()
    assert call.x.equal(later)
    assert_right(call, result)


@pytest.mark.parametrize("columns", [1000, 1001, 32768, 262144])
@pytest.mark.parametrize("op", OPS)
def test_runs_are_equal_bit_by_bit(op, columns, make):
    call = plain(op, FP32, 67, columns, make)
    first = bits(call())
    assert all(bits(call()).equal(first) for _ in range(19))


def test_torch_compiles_calls_into_one_graph(make):
    weight = make(BF16, 1000)

    def both(x):
        return membound.softmax(membound.rms_norm(x, (1000,), weight))

    compiled = torch.compile(both, fullgraph=True)
    for rows in (67, 3, 4097):  # the second makes the number of rows a symbol
        x = make(BF16, rows, 1000)
        assert bits(compiled(x)).equal(bits(both(x)))


def test_the_current_device_stays(make):
    before = torch.cuda.current_device()
    plain("softmax", BF16, 3, 1000, make)()
    assert torch.cuda.current_device() == before


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("op", OPS)
def test_the_inputs_device_is_used(op):
    call = plain(op, BF16, 67, 1000, new("cuda:1"))
    assert torch.cuda.current_device() == 0
    result = call()
    assert result.device == call.x.device
    assert_right(call, result)
