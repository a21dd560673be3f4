"""On a Hopper GPU: every element of every result and gradient, and not one byte beside it."""

import dataclasses
import os
import traceback
from unittest import mock

import membound
import pytest
import torch
from membound.runtime import cache

from asv_bench import workloads
from asv_bench.workloads.cross_entropy import IGNORED
from bandwatch.measure import backward, correctness

from .cases import (
    FP32,
    OPS,
    as_leaves,
    bits,
    cases,
    gpu_kernels,
    has_backward,
    huge_cases,
    new,
    run,
    special_cases,
    special_gradient_cases,
    typical,
    varying_rows,
)
from .numerics import assert_right, assert_right_where_special, make_special, special_result

pytestmark = pytest.mark.gpu

TYPICAL = {case.id: case for op in OPS.values() for case in typical(op)}
SPECIAL = {case.id: case for op in OPS.values() for case in special_cases(op)}
SPECIAL_GRADIENTS = {case.id: case for op in OPS.values() for case in special_gradient_cases(op)}
HUGE = {case.id: case for op in OPS.values() for case in huge_cases(op)}

every_op = pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
typical_calls = pytest.mark.parametrize("case", TYPICAL.values(), ids=list(TYPICAL))


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """All kernels, compiled ahead and in parallel; one that is not listed fails its test."""
    listed = gpu_kernels()
    try:
        membound.runtime.build(listed, jobs=min(16, os.cpu_count() or 1))
    except Exception:
        traceback.print_exc()  # fails again in its test
    compile_into = cache._compile_into

    def refuse(kernel, folder):
        assert kernel in listed, f"{kernel.name} is not among gpu_kernels()"
        return compile_into(kernel, folder)

    with mock.patch.object(cache, "_compile_into", refuse):
        yield compile_into


@pytest.mark.parametrize("case", cases().values(), ids=list(cases()))
def test_every_element_is_right(case):
    assert_right(run(case, "cuda"))


@pytest.mark.parametrize("case", HUGE.values(), ids=list(HUGE))
def test_more_than_2_to_the_31_elements(case):
    torch.cuda.empty_cache()
    assert_right(run(case, "cuda"))


@pytest.mark.parametrize("case", SPECIAL.values(), ids=list(SPECIAL))
def test_special_numbers_give_what_torch_gives_and_stay_in_their_rows(case):
    op, workload = case.op, case.workload
    matrices = [
        name
        for name, value in op.make_inputs(workload, "meta", None).items()
        if value.is_floating_point() and value.shape == workload.shape
    ]
    for name in matrices:
        inputs = dict(case.inputs("cuda")[0])
        make_special(inputs[name], workload.dtype)
        outputs = backward.flat(op.providers["membound"](inputs, workload))
        expected = special_result(op, workload, inputs)
        for i, (output, right) in enumerate(zip(outputs, expected, strict=True)):
            right = right.double() if right.is_floating_point() else right
            correctness.compare(
                output, right, op.tolerance, workload.dtype, own=False, what=f"{name}: result {i}"
            )
        if has_backward(op):
            _ordinary_rows_keep_their_gradients(op, workload, inputs)


def _ordinary_rows_keep_their_gradients(op, workload, inputs):
    generator = torch.Generator("cuda").manual_seed(1)
    own = op.providers["membound"]
    prepared = backward.prepare(own, op, workload, inputs, generator)
    gradients = dict(zip(prepared.leaves, backward.gradients(prepared), strict=True))
    rows = workload.shape[0]

    def even(tensor):
        return tensor[::2] if tensor.dim() and len(tensor) == rows else tensor

    few = dataclasses.replace(workload, shape=(rows // 2, *workload.shape[1:]))
    picked = {name: even(value) for name, value in inputs.items()}
    grads = {i: even(grad) for i, grad in prepared.grads.items()}
    expected = correctness.reference_gradients(op, few, picked, grads)
    sizes = correctness.magnitudes(op, few, picked, grads)
    for name, gradient in gradients.items():
        if even(gradient) is not gradient:
            correctness.compare(
                even(gradient),
                expected[name],
                op.gradient_tolerance,
                workload.dtype,
                size=sizes.get(name),
                what=f"gradient of {name}",
            )


@pytest.mark.parametrize("case", SPECIAL_GRADIENTS.values(), ids=list(SPECIAL_GRADIENTS))
def test_gradients_of_special_numbers_are_what_torch_gives(case):
    op, workload = case.op, case.workload
    inputs = case.inputs("cuda")[0]
    _gradients_are_right(op, workload, inputs, special=True)
    matrices = [
        name
        for name, value in inputs.items()
        if value.is_floating_point() and value.shape == workload.shape and op.takes_special
    ]
    for name in matrices:
        given = {**inputs, name: inputs[name].clone()}
        make_special(given[name], workload.dtype)
        if op.name == "cross_entropy":
            given[name][given["target"] == IGNORED] = float("nan")
        _gradients_are_right(op, workload, given, special=False)


def _gradients_are_right(op, workload, inputs, special):
    """Judge gradients given ordinary gradients of the results, or ``special`` ones."""
    generator = torch.Generator("cuda").manual_seed(1)
    prepared = backward.prepare(op.providers["membound"], op, workload, inputs, generator)
    if special:
        for grad in prepared.grads.values():
            make_special(grad, workload.dtype)
    gradients = dict(zip(prepared.leaves, backward.gradients(prepared), strict=True))
    assert_right_where_special(op, workload, prepared.inputs, prepared.grads, gradients)


def forward_and_backward(op, workload, given, grads=None):
    """Results, and gradients of the leaves for ``grads``, all in one tuple."""
    outputs = backward.flat(op.providers["membound"](given, workload))
    leaves = [value for value in given.values() if value.requires_grad]
    if not leaves:
        return outputs
    differentiable = [output for output in outputs if output.requires_grad]
    if grads is None:
        grads = [torch.ones_like(output) for output in differentiable]
    return *(output.detach() for output in outputs), *torch.autograd.grad(
        differentiable, leaves, grads
    )


@typical_calls
def test_a_graph_replays_on_what_its_inputs_hold_by_then(case):
    op = case.op
    given = as_leaves(op, case.inputs("cuda")[0])
    forward_and_backward(op, case.workload, given)  # loads the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = forward_and_backward(op, case.workload, given)
    for scale in (0.75, -0.5):
        with torch.no_grad():
            for value in given.values():
                if value.is_floating_point():
                    value.mul_(scale)
            for result in results:
                correctness.poison(result)
        graph.replay()
        again = forward_and_backward(op, case.workload, given)
        for result, right in zip(results, again, strict=True):
            assert torch.equal(bits(result), bits(right))


@typical_calls
def test_the_current_stream_is_used(case):
    op = case.op
    given = as_leaves(op, case.inputs("cuda")[0])
    later = {name: value.detach().clone() for name, value in given.items()}
    right = forward_and_backward(op, case.workload, given)
    for value in given.values():
        if value.is_floating_point():
            value.detach().zero_()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # on any other stream a kernel would not wait for inputs
        for name, value in given.items():
            value.detach().copy_(later[name])
        results = forward_and_backward(op, case.workload, given)
    stream.synchronize()
    for result, expected in zip(results, right, strict=True):
        assert torch.equal(bits(result), bits(expected))


@typical_calls
def test_runs_are_equal_bit_by_bit(case):
    op = case.op
    given = as_leaves(op, case.inputs("cuda")[0])
    first = [bits(result) for result in forward_and_backward(op, case.workload, given)]
    for _ in range(19):
        again = forward_and_backward(op, case.workload, given)
        assert all(torch.equal(bits(a), b) for a, b in zip(again, first, strict=True))


@every_op
def test_torch_compiles_calls_into_one_graph(op, kernels, monkeypatch):
    # where eager leaves a gradient out, what is compiled takes zeros: by kernels of its own
    monkeypatch.setattr(cache, "_compile_into", kernels)
    torch._dynamo.reset()
    # what asv_bench adds for older commits is no part of the op
    own = workloads.unbound(membound, op.name)

    def call(inputs, workload):
        return own(inputs, workload)

    # tracing is what can fail; inductor, whose compiling takes seconds, gets one test
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for case in varying_rows(op):  # the second makes the number of rows a symbol
        given = as_leaves(op, case.inputs("cuda")[0])
        results = []
        for function in (own, compiled):
            bound = dataclasses.replace(op, providers={"membound": function})
            results.append(forward_and_backward(bound, case.workload, given))
        for result, expected in zip(*results, strict=True):
            assert torch.equal(bits(result), bits(expected))


def test_inductor_compiles_several_ops_into_one_graph():
    def both(x, weight):
        return membound.softmax(membound.rms_norm(x * 2, (1000,), weight)) + 1

    torch._dynamo.reset()
    compiled = torch.compile(both, fullgraph=True)
    make = new("cuda")
    weight = make(FP32, 1000)
    for rows in (67, 3, 4097):
        x = make(FP32, rows, 1000)
        torch.testing.assert_close(compiled(x, weight), both(x, weight))


@every_op
def test_autocast_changes_nothing(op):
    for case in typical(op)[:2]:
        given = as_leaves(op, case.inputs("cuda")[0])
        expected = forward_and_backward(op, case.workload, given)
        with torch.autocast("cuda", torch.float16):
            results = forward_and_backward(op, case.workload, given)
        for result, right in zip(results, expected, strict=True):
            assert result.dtype == right.dtype
            assert torch.equal(bits(result), bits(right))


@every_op
def test_the_current_device_stays(op):
    before = torch.cuda.current_device()
    run(typical(op)[0], "cuda")
    assert torch.cuda.current_device() == before


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@every_op
def test_the_inputs_device_is_used(op):
    assert torch.cuda.current_device() == 0
    ran = run(typical(op)[0], "cuda:1")
    assert all(output.device.index == 1 for output in ran.outputs)
    assert torch.cuda.current_device() == 0
    assert_right(ran)
