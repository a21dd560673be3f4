"""Baselines: compiled or failed, never silently eager; what a library lacks is not available."""

import dataclasses
import importlib
import importlib.util
import re

import pytest

torch = pytest.importorskip("torch")

from asv_bench import providers, workloads  # noqa: E402
from bandwatch.measure import backward  # noqa: E402


@pytest.fixture(autouse=True)
def dynamo():
    """Nothing that is compiled, or fails to be, stays for other tests."""
    yield
    torch._dynamo.reset()


@pytest.fixture
def compiled(monkeypatch):
    """torch.compile without inductor, which needs a compiler; counts what is compiled."""
    graphs = []

    def backend(module, example_inputs):
        graphs.append(module)
        return module.forward

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **given: real(f, backend=backend, **given))
    return providers.Compiled(), graphs


def softmax(columns=64, direction="forward"):
    op = workloads.describe("softmax")
    workload = op.workload("float32", (8, columns), direction)
    return op, workload, [op.make_inputs(workload, "cpu", None) for _ in range(3)]


def test_a_workload_is_compiled_once_for_all_its_sets(compiled):
    baseline, graphs = compiled
    op, workload, sets = softmax()
    run = baseline.bind(op)
    for inputs in sets:
        assert torch.allclose(run(inputs, workload), torch.softmax(inputs["input"], -1))
    assert len(graphs) == 1


def test_more_shapes_than_dynamo_recompiles_are_all_compiled(compiled):
    baseline, graphs = compiled
    for i in range(12):
        op, workload, (inputs, *_) = softmax(64 + i)
        baseline.bind(op)(inputs, workload)
    assert len(graphs) == 12


def test_a_fallback_to_eager_fails(compiled):
    baseline, _ = compiled
    op, workload, (inputs, *_) = softmax()

    def breaks(inputs, workload):
        print("a graph break")
        return torch.softmax(inputs["input"], -1)

    op = dataclasses.replace(op, providers={"membound": breaks, "eager": breaks})
    with pytest.raises(Exception, match=r"(?i)unsupported|graph break|print"):
        baseline.bind(op)(inputs, workload)


def test_what_compiles_nothing_fails(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **given: function)
    op, workload, (inputs, *_) = softmax()
    with pytest.raises(RuntimeError, match="compiled nothing"):
        providers.Compiled().bind(op)(inputs, workload)


def test_a_gradient_can_be_computed_again_and_again(compiled):
    baseline, _ = compiled
    op, workload, (inputs, *_) = softmax(direction="backward")
    prepared = backward.prepare(baseline.bind(op), op, workload, inputs, None)
    (first,), (second,) = backward.gradients(prepared), backward.gradients(prepared)
    assert torch.equal(first, second)
    y, grad = torch.softmax(inputs["input"].detach(), -1), prepared.grads[0]
    assert torch.allclose(first, y * (grad - (y * grad).sum(-1, keepdim=True)), atol=1e-6)


def test_inductor_really_runs_where_it_can():
    baseline = providers.Compiled()
    op, workload, (inputs, *_) = softmax()
    try:
        result = baseline.bind(op)(inputs, workload)
    except Exception as error:
        if "compiler" in str(error).lower():
            pytest.skip("inductor needs a C++ compiler")
        raise
    assert torch.allclose(result, torch.softmax(inputs["input"], -1), atol=1e-6)


@pytest.mark.parametrize("library", [providers.QUACK, providers.LIGER], ids=lambda one: one.name)
def test_what_a_library_lacks_is_not_available(library, monkeypatch):
    monkeypatch.setattr(library, "package", "nosuch")
    monkeypatch.setattr(importlib, "import_module", _absent)
    assert library.bind(workloads.describe("sum")) is None
    for name in library.functions:
        op = workloads.describe(name)
        for workload in op.benchmarks:
            inputs = op.make_inputs(workload, "meta", None)
            with pytest.raises(NotImplementedError):
                library.bind(op)(inputs, workload)


def _absent(name):
    raise ModuleNotFoundError(f"No module named {name!r}", name="nosuch")


def test_options_and_gradients_that_a_library_lacks_are_named():
    op = workloads.describe("cross_entropy")
    smooth = op.workload("bfloat16", (8, 64), smoothing="0.1")
    inputs = op.make_inputs(smooth, "meta", None)
    with pytest.raises(NotImplementedError, match="quack has no cross_entropy with smoothing=0.1"):
        providers.QUACK.bind(op)(inputs, smooth)
    gradient = op.workload("bfloat16", (8, 64), "backward")
    with pytest.raises(NotImplementedError, match="liger: it computes the gradient in the forward"):
        providers.LIGER.bind(op)(inputs, gradient)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("softmax", (8, 1001), "whole vectors of 16 bytes"),
        ("cross_entropy", (8, 50_257), "whole vectors of 16 bytes"),
        ("topk", (8, 8192), "powers of two up to 4096"),
        ("topk", (8, 96), "powers of two up to 4096"),
    ],
)
def test_shapes_that_quack_cannot_do_are_not_available(name, shape, message):
    op = workloads.describe(name)
    workload = op.workload("bfloat16", shape)
    with pytest.raises(NotImplementedError, match=message):
        providers.QUACK.bind(op)(op.make_inputs(workload, "meta", None), workload)


def test_another_missing_package_is_an_error_of_its_own(monkeypatch):
    def absent(name):
        raise ModuleNotFoundError("No module named 'triton'", name="triton")

    monkeypatch.setattr(importlib, "import_module", absent)
    op, workload, (inputs, *_) = softmax()
    with pytest.raises(ModuleNotFoundError, match="triton"):
        providers.LIGER.bind(op)(inputs, workload)


@pytest.mark.parametrize("library", [providers.QUACK, providers.LIGER], ids=lambda one: one.name)
def test_options_are_those_of_the_operation(library):
    for name, (_, takes) in library.functions.items():
        options = workloads.describe(name).options
        for option, values in takes.items():
            assert set(values) & set(options[option]), (name, option)


def test_rows_have_every_provider():
    assert providers.PROVIDERS == ("membound", "eager", "compile", "quack", "liger", "control")
    assert len(set(providers.PROVIDERS)) == len(providers.PROVIDERS)
    assert all(re.fullmatch(r"[a-z]+", name) for name in providers.PROVIDERS)
