"""Baselines: compiled or failed, never silently eager; what a library lacks is not available."""

import ast
import dataclasses
import importlib
import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from asv_bench import providers, workloads  # noqa: E402
from bandwatch.measure import backward, correctness  # noqa: E402


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


def test_tensors_for_which_a_workload_is_compiled_anew_fail(compiled):
    baseline, _ = compiled
    op, workload, (inputs, *_) = softmax()
    run = baseline.bind(op)
    run(inputs, workload)
    with pytest.raises(RuntimeError, match="softmax/forward/float32/8x64 anew"):
        run({"input": torch.randn(8, 65)}, workload)


def test_what_failed_to_compile_is_not_taken_for_compiled(compiled):
    baseline, graphs = compiled
    op, workload, (inputs, *_) = softmax()
    with pytest.raises(Exception, match="input"):
        baseline.bind(op)({}, workload)
    baseline.bind(op)(inputs, workload)
    assert len(graphs) == 1


@pytest.mark.parametrize("name", workloads.OPS)
def test_each_operation_is_compiled_once_and_its_gradients_repeat(compiled, name):
    baseline, graphs = compiled
    op = workloads.describe(name)
    for workload in {one.direction: _small(op, one) for one in op.benchmarks}.values():
        graphs.clear()
        for _ in range(3):
            inputs = op.make_inputs(workload, "cpu", None)
            if workload.direction == "forward":
                with torch.no_grad():
                    baseline.bind(op)(inputs, workload)
                continue
            prepared = backward.prepare(baseline.bind(op), op, workload, inputs, None)
            first, second = backward.gradients(prepared), backward.gradients(prepared)
            assert all(map(torch.equal, first, second))
        assert len(graphs) == 1, workload.key


def _small(op, workload):
    *leading, columns = workload.shape
    shape = (*(min(size, 16) for size in leading), min(columns, 128))
    options = dict(workload.options)
    return op.workload(workload.dtype, shape, workload.direction, **options)


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
    op = workloads.describe("swiglu")
    gradient = op.workload("bfloat16", (8, 64), "backward")
    with pytest.raises(NotImplementedError, match="liger: its backward overwrites"):
        providers.LIGER.bind(op)(op.make_inputs(gradient, "meta", None), gradient)


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


@pytest.fixture
def quack(monkeypatch):
    """QuACK's functions by torch, with the dtypes that its own have."""

    def layernorm_fwd(x, weight, bias, eps, return_rstd=False, return_mean=False):
        assert weight.dtype == torch.float32
        mean, rstd = x.float().mean(-1), (x.float().var(-1, correction=0) + eps).rsqrt()
        out = torch.nn.functional.layer_norm(x.float(), x.shape[-1:], weight, bias, eps).to(x.dtype)
        return (out, rstd, mean) if return_rstd and return_mean else out

    def layernorm_bwd(x, weight, dout, rstd, mean, has_bias=True):
        normed = (x.float() - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)
        grad = dout.float() * weight
        inner = grad - grad.mean(-1, keepdim=True)
        dx = (inner - normed * (grad * normed).mean(-1, keepdim=True)) * rstd.unsqueeze(-1)
        db = dout.float().sum(0) if has_bias else None
        return dx.to(x.dtype), (dout.float() * normed).sum(0), db

    def cross_entropy(x, target, ignore_index, reduction):
        return torch.nn.functional.cross_entropy(
            x.float(), target, ignore_index=ignore_index, reduction=reduction
        )

    def topk(x, k, softmax):
        values, indices = torch.topk(x, k)
        return values.softmax(-1) if softmax else values, indices.int()

    def apply_rotary_emb(x, cos, sin, interleaved, inplace):
        assert not interleaved
        a, b, c, s = *x.chunk(2, -1), *(t[: x.shape[1], None] for t in (cos, sin))
        out = torch.cat((a * c - b * s, a * s + b * c), -1)
        return x.copy_(out) if inplace else out

    module = SimpleNamespace(
        layernorm_fwd=layernorm_fwd,
        layernorm_bwd=layernorm_bwd,
        cross_entropy=cross_entropy,
        topk=topk,
        apply_rotary_emb=apply_rotary_emb,
    )
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    providers._quack_layer_norm_function.cache_clear()
    yield providers.QUACK
    providers._quack_layer_norm_function.cache_clear()


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("layer_norm", (16, 64), {}),
        ("layer_norm", (16, 64), {"bias": "none"}),
        ("cross_entropy", (16, 64), {}),
        ("cross_entropy", (16, 64), {"reduction": "none"}),
        ("topk", (16, 256), {"softmax": "yes"}),
        ("rotary", (2, 9, 3, 16), {}),
        ("rotary", (2, 9, 3, 16), {"in_place": "yes"}),
    ],
)
def test_results_have_the_form_that_is_checked_and_inputs_are_kept(quack, name, shape, options):
    op = workloads.describe(name)
    workload = op.workload("bfloat16", shape, **options)
    inputs = op.make_inputs(workload, "cpu", None)
    before = {key: value.clone() for key, value in inputs.items()}
    correctness.check(op, workload, inputs, quack.bind(op)(inputs, workload), own=False)
    assert all(torch.equal(inputs[key], value) for key, value in before.items())


@pytest.mark.parametrize("options", [{}, {"bias": "none"}])
def test_the_halves_of_quacks_layer_norm_have_a_gradient(quack, options):
    op = workloads.describe("layer_norm")
    workload = op.workload("bfloat16", (16, 64), "backward", **options)
    inputs = op.make_inputs(workload, "cpu", None)
    prepared = backward.prepare(quack.bind(op), op, workload, inputs, None)
    first, second = backward.gradients(prepared), backward.gradients(prepared)
    assert all(map(torch.equal, first, second))
    correctness.check_gradients(op, workload, prepared, first, own=False)


def test_a_gradient_that_would_be_turned_in_place_is_not_available(quack):
    op = workloads.describe("rotary")
    workload = op.workload("bfloat16", (2, 9, 3, 16), "backward", in_place="yes")
    with pytest.raises(NotImplementedError, match="turns the gradient"):
        quack.bind(op)(op.make_inputs(workload, "cpu", None), workload)


def test_liger_overwrites_separate_halves_but_not_packed_ones(monkeypatch):
    run = SimpleNamespace(apply=lambda gate: gate.chunk(2, -1)[0])
    module = SimpleNamespace(LigerFusedGateUpSiLUMulFunction=run)
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    op = workloads.describe("swiglu")
    for halves, available in (("packed", True), ("separate", False)):
        workload = op.workload("bfloat16", (8, 64), "backward", halves=halves)
        inputs = op.make_inputs(workload, "cpu", None)
        if available:
            assert providers.LIGER.bind(op)(inputs, workload).shape == (8, 64)
            continue
        with pytest.raises(NotImplementedError, match="overwrites"):
            providers.LIGER.bind(op)(inputs, workload)


@pytest.mark.parametrize("name", ["cross_entropy", "rotary"])
def test_what_liger_does_to_its_inputs_is_not_available(name):
    op = workloads.describe(name)
    for workload in op.benchmarks:
        with pytest.raises(NotImplementedError, match=r"liger: its .*(over the logits|in place)"):
            providers.LIGER.bind(op)({}, workload)


def test_names_of_library_functions_are_those_of_the_installed_package():
    used = [
        (node.func.id, *(argument.value for argument in node.args))
        for node in ast.walk(ast.parse(Path(providers.__file__).read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("_quack", "_liger")
    ]
    assert len(used) > 10
    for package in ("quack", "liger_kernel"):
        if (found := importlib.util.find_spec(package)) is None:
            pytest.skip(f"{package} is not installed")
        folder = Path(found.origin).parent
        for library, *where in used:
            if library == "_quack" and package == "quack":
                module, name = where
                source = folder / f"{module}.py"
            elif library == "_liger" and package == "liger_kernel":
                (name,), source = where, folder / "ops" / "__init__.py"
            else:
                continue
            assert name in _defined(source), f"{source} has no {name}"


def _defined(source):
    """Names that a module's top level defines or imports."""
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def test_rows_have_every_provider():
    assert providers.PROVIDERS == ("membound", "eager", "compile", "quack", "liger", "control")
    assert len(set(providers.PROVIDERS)) == len(providers.PROVIDERS)
    assert all(re.fullmatch(r"[a-z]+", name) for name in providers.PROVIDERS)
