"""parallelize: what is recognised, what stays torch's and why, and that results stay the same."""

import copy
import importlib
import io
import os
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

import membound
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

ROOT = Path(__file__).parents[2]

parallelization = importlib.import_module("membound.parallelize")
graph = importlib.import_module("membound.parallelize.graph")


@pytest.fixture(autouse=True)
def fresh_captures():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# Plain torch in place of the kernels: what is tested here is the rewriting.


def rms_norm(
    x, shape, weight=None, eps=None, *, residual=None, residual_dtype=None, weight_offset=0.0
):
    wide = x.float() if residual is None else x.float() + residual.float()
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    dims = tuple(range(-len(shape), 0))
    out = wide * torch.rsqrt(wide.square().mean(dims, keepdim=True) + eps)
    if weight is not None:
        out = out * (weight.float() + weight_offset)
    out = out.to(x.dtype)
    return out if residual is None else (out, wide.to(residual_dtype or residual.dtype))


def layer_norm(x, shape, weight=None, bias=None, eps=1e-5, *, residual=None):
    wide = x.float() if residual is None else x.float() + residual.float()
    weight, bias = (None if one is None else one.float() for one in (weight, bias))
    out = F.layer_norm(wide, shape, weight, bias, eps).to(x.dtype)
    return out if residual is None else (out, wide.to(residual.dtype))


def softmax(x, dim=-1):
    return F.softmax(x.float(), dim).to(x.dtype)


def log_softmax(x, dim=-1):
    return F.log_softmax(x.float(), dim).to(x.dtype)


def cross_entropy(x, target, *, check_target=True, **options):
    assert not check_target
    return F.cross_entropy(x.float(), target, **options).to(x.dtype)


def swiglu(gate, up=None):
    gate, up = gate.chunk(2, -1) if up is None else (gate, up)
    return (F.silu(gate.float()) * up.float()).to(gate.dtype)


def geglu(gate, up=None, *, approximate="none"):
    gate, up = gate.chunk(2, -1) if up is None else (gate, up)
    return (F.gelu(gate.float(), approximate=approximate) * up.float()).to(gate.dtype)


def reglu(gate, up=None):
    gate, up = gate.chunk(2, -1) if up is None else (gate, up)
    return F.relu(gate) * up


def bias_act(x, bias, activation="gelu"):
    approximate = {"gelu": "none", "gelu_tanh": "tanh"}[activation]
    return F.gelu(x.float() + bias.float(), approximate=approximate).to(x.dtype)


STANDINS = (
    *(rms_norm, layer_norm, softmax, log_softmax, cross_entropy),
    *(swiglu, geglu, reglu, bias_act),
)


@pytest.fixture
def calls(monkeypatch):
    """The names of the suite's functions in the order in which they were called."""
    called = []

    def noting(function):
        def call(*args, **named):
            called.append(function.__name__)
            return function(*args, **named)

        call.__name__ = function.__name__
        return call

    for function in STANDINS:
        monkeypatch.setattr(membound, function.__name__, noting(function), raising=False)
    monkeypatch.setattr(graph, "unsupported", lambda device: "")
    return called


def tensors(*shapes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def results(function, inputs):
    """What ``function`` returns, and the gradients of its inputs."""
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    wanted = [one for one in inputs if one.requires_grad]
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(out.shape, generator=generator).to(out) for out in outputs]
    return [*outputs, *torch.autograd.grad(outputs, wanted, grads, allow_unused=True)]


def assert_same(function, parallel, inputs, tolerance=None):
    """Equal in kind, and in value up to ``tolerance``; what 16 bits lose is not compared."""
    expected, found = results(function, inputs), results(parallel, inputs)
    exact = expected
    if inputs[0].dtype.itemsize == 2:
        exact = results(function, [one.detach().double().requires_grad_() for one in inputs])
    tolerance = tolerance or (3e-2 if inputs[0].dtype.itemsize == 2 else 1e-5)
    for one, other, value in zip(found, expected, exact, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == other.dtype and one.stride() == other.stride()
            torch.testing.assert_close(one.double(), value.double(), atol=tolerance, rtol=tolerance)


EPS = 1e-6


def llama(x, w):
    def norm(x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)

    return norm(x.float()).type_as(x) * w


def transformers(x, w):
    dtype = x.dtype
    x = x.to(torch.float32)
    variance = x.pow(2).mean(-1, keepdim=True)
    x = x * torch.rsqrt(variance + EPS)
    return w * x.to(dtype)


def gemma(x, w):
    out = x.float()
    out = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + EPS)
    return (out * (1.0 + w.float())).type_as(x)


def divided(x, w):
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + EPS) * w


def inverted(x, w):
    return w * (x * (1 / (x**2).mean([-1], True).add(EPS).sqrt()))


def powered(x, w):
    return x * (torch.mean(torch.square(x), axis=-1, keepdims=True) + EPS) ** -0.5 * w


def unweighted(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) + w


def post_norm(x, y, w):
    return F.rms_norm(x + y, (8,), w)


def pre_norm(x, y, w):
    total = torch.add(x, y)
    return F.layer_norm(total, (8,), w) + total, total


def shared_conversion(x, w):
    wide = x.float()
    return llama(wide, w.float()) + wide


def used_between(x, y, w):
    total = x + y
    double = total * 2
    return double + F.rms_norm(total, (8,), w * 2)


def llama_residual(x, y, w):
    total = x + y
    return llama(total, w), total


ROWS, VECTOR = (4, 8), (8,)
RECOGNISED = {
    "softmax": (lambda x: F.softmax(x, dim=1), [ROWS], ["softmax"]),
    "torch.softmax": (lambda x: torch.softmax(x, -1), [ROWS], ["softmax"]),
    "torch.special.softmax": (lambda x: torch.special.softmax(x, -1), [ROWS], ["softmax"]),
    "Tensor.softmax": (lambda x: x.softmax(dim=-1), [(2, 3, 5)], ["softmax"]),
    "Softmax": (nn.Softmax(-1), [ROWS], ["softmax"]),
    "log_softmax": (lambda x: x.log_softmax(-1), [ROWS], ["log_softmax"]),
    "softmax in float32": (
        lambda x: F.softmax(x, -1, dtype=torch.float32).to(x.dtype),
        [ROWS],
        ["softmax"],
    ),
    "RMSNorm": (lambda x, w: F.rms_norm(x, (8,), w, 1e-5), [ROWS, VECTOR], ["rms_norm"]),
    "rms_norm": (lambda x: torch.rms_norm(x, (4, 8)), [(3, 4, 8)], ["rms_norm"]),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (8,), w, b, eps=1e-3),
        [ROWS, VECTOR, VECTOR],
        ["layer_norm"],
    ),
    "swiglu": (lambda x, y: F.silu(x) * y, [ROWS, ROWS], ["swiglu"]),
    "swiglu, swapped": (lambda x, y: torch.mul(y, F.silu(x)), [ROWS, ROWS], ["swiglu"]),
    "swiglu, chunked": (
        lambda x: (lambda gate, up: F.silu(gate) * up)(*x.chunk(2, dim=-1)),
        [(4, 16)],
        ["swiglu"],
    ),
    "geglu": (lambda x, y: F.gelu(x, approximate="tanh") * y, [ROWS, ROWS], ["geglu"]),
    "reglu": (lambda x, y: x.relu() * y, [ROWS, ROWS], ["reglu"]),
    "gelu": (lambda x, b: F.gelu(x + b), [ROWS, VECTOR], ["bias_act"]),
    "gelu, tanh": (
        lambda x, b: F.gelu(b + x, approximate="tanh"),
        [(2, 3, 8), VECTOR],
        ["bias_act"],
    ),
    "llama": (llama, [ROWS, VECTOR], ["rms_norm"]),
    "transformers": (transformers, [(2, 3, 8), VECTOR], ["rms_norm"]),
    "gemma": (gemma, [ROWS, VECTOR], ["rms_norm"]),
    "divided": (divided, [ROWS, VECTOR], ["rms_norm"]),
    "inverted": (inverted, [ROWS, VECTOR], ["rms_norm"]),
    "powered": (powered, [ROWS, VECTOR], ["rms_norm"]),
    "unweighted": (unweighted, [ROWS, VECTOR], ["rms_norm"]),
    "post-norm": (post_norm, [ROWS, ROWS, VECTOR], ["rms_norm"]),
    "pre-norm": (pre_norm, [ROWS, ROWS, VECTOR], ["layer_norm"]),
    "sum used between": (used_between, [ROWS, ROWS, VECTOR], ["rms_norm"]),
    "shared conversion": (shared_conversion, [ROWS, VECTOR], ["rms_norm"]),
    "llama, residual": (llama_residual, [ROWS, ROWS, VECTOR], ["rms_norm"]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", RECOGNISED)
def test_recognised(calls, case, dtype):
    function, shapes, expected = RECOGNISED[case]
    parallel = membound.parallelize(function, fullgraph=True)
    inputs = tensors(*shapes, dtype=dtype)
    assert_same(function, parallel, inputs)
    assert calls == expected
    assert [entry.replaced for entry in parallel.explanation.entries] == [True]
    if not isinstance(function, nn.Module):
        assert "test_parallelize.py:" in str(parallel.explanation)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", RECOGNISED)
def test_within_torch_compile(calls, case, backend):
    """Another torch.compile is left the replaced graph, as a whole."""
    function, shapes, expected = RECOGNISED[case]
    parallel = membound.parallelize(function)

    def outer(*inputs):
        found = parallel(*(one * 2 for one in inputs))
        return found if isinstance(found, tuple) else found + 1

    def plain(*inputs):
        found = function(*(one * 2 for one in inputs))
        return found if isinstance(found, tuple) else found + 1

    inputs = tensors(*shapes)
    assert_same(plain, torch.compile(outer, fullgraph=True, backend=backend), inputs)
    assert set(calls) == set(expected)
    assert [entry.replaced for entry in parallel.explanation.entries] == [True]


@pytest.mark.parametrize("rest", ["eager", "aot_eager"])
def test_backend(calls, rest):
    explanation = membound.Explanation()
    compiled = torch.compile(
        pre_norm,
        backend=parallelization.backend,
        options={"rest": rest, "explain": explanation},
        fullgraph=True,
    )
    assert_same(pre_norm, compiled, tensors(ROWS, ROWS, VECTOR))
    assert set(calls) == {"layer_norm"}
    (entry,) = explanation.entries
    assert entry.op == "add + layer_norm"
    assert entry.what == "membound.layer_norm, with the addition before it"


def test_backend_is_an_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["membound"].partition(":")
    assert getattr(importlib.import_module(module), name) is parallelization.backend


def test_backend_by_name(tmp_path):
    """As torch finds it where the package is installed."""
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    group = "torch_dynamo_backends"
    info = tmp_path / "installed-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1\n")
    lines = [f"{name} = {target}" for name, target in entries[group].items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]))
    code = """
import torch
function = torch.compile(
    lambda x: x.softmax(-1), backend="membound", options={"explain": True}, fullgraph=True
)
function(torch.ones(2, 3))
"""
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "kernels")])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "membound: 0 of 1 ops replaced" in found.stderr


def cross_entropy_of(**options):
    def function(x, target):
        return F.cross_entropy(x, target, **options)

    return function


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reduction": "none", "ignore_index": 2},
        {"reduction": "sum", "label_smoothing": 0.1},
        {"weight": torch.arange(1.0, 9.0)},
    ],
    ids=lambda options: ", ".join(options) or "default",
)
def test_cross_entropy(calls, options):
    function = cross_entropy_of(**options)
    parallel = membound.parallelize(function)
    inputs = [*tensors(ROWS), torch.tensor([1, 2, 3, 7])]
    assert_same(function, parallel, inputs)
    assert calls == ["cross_entropy"]
    module = nn.CrossEntropyLoss(**options)
    assert_same(module, membound.parallelize(module), inputs)
    assert calls == ["cross_entropy"] * 2


def changed_between(x, y):
    gate = F.silu(x)
    y += 1
    return gate * y


def changed_afterwards(x, b):
    x = x * 1
    out = F.gelu(x + b)
    x.mul_(2)
    return out + x


def shared_silu(x, y):
    gate = F.silu(x)
    return gate * y + gate


def across_modes(x, y):
    gate = F.silu(x)
    with torch.no_grad():
        return gate * y


def shared_factor(x):
    factor = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
    return x * factor, factor


KEPT = {
    "dim": (lambda x: F.softmax(x, 0), [ROWS], "dim is 0, not the last of 2"),
    "dtype": (lambda x: F.softmax(x.double(), -1), [ROWS], "input has dtype float64"),
    "narrowed": (
        lambda x: F.softmax(x, -1, dtype=torch.bfloat16),
        [ROWS],
        "torch's result is bfloat16, that of a kernel would be float32",
    ),
    "no dim": (lambda x: F.softmax(x), [ROWS], "dim is not given"),
    "long rows": (
        lambda x: torch.softmax(x.expand(1, (1 << 20) + 1), -1),
        [(1, 1)],
        "input has rows of 1048577 elements; the longest supported is 1048576",
    ),
    "no columns": (lambda x: torch.softmax(x, -1), [(4, 0)], "input has rows of 0 elements"),
    "probabilities": (
        lambda x, y: F.cross_entropy(x, y.softmax(1).detach() * 1),
        [ROWS, ROWS],
        "target holds no class indices in int64",
    ),
    "classes": (
        lambda x: F.cross_entropy(x, torch.zeros(2, 4, dtype=torch.int64)),
        [(2, 3, 4)],
        "the classes are not the last dimension",
    ),
    "silu": (lambda x: F.silu(x), [ROWS], "its result is not just a factor of another tensor"),
    "shared silu": (shared_silu, [ROWS, ROWS], "what it computes on the way is used elsewhere"),
    "broadcast": (lambda x, y: F.silu(x) * y, [ROWS, VECTOR], "the factor is broadcast"),
    "strided": (
        lambda x, y: F.silu(x.t()) * y.t(),
        [ROWS, ROWS],
        "torch's result is not contiguous, that of a kernel is",
    ),
    "gelu": (lambda x: F.gelu(x), [ROWS], "no bias is added just before it"),
    "linear": (
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        [ROWS, (8, 8), VECTOR],
        "no bias is added just before it",
    ),
    "residual": (
        lambda x, y: F.gelu(x + y),
        [ROWS, ROWS],
        "what is added before it is no vector of biases",
    ),
    "afterwards": (changed_afterwards, [ROWS, VECTOR], "is changed in place afterwards"),
    "modes": (across_modes, [ROWS, ROWS], "autograd or autocast is switched in the midst of it"),
    "shared factor": (shared_factor, [ROWS], "what it computes on the way is used elsewhere"),
    "vmap": (torch.func.vmap(lambda x: x.softmax(-1)), [ROWS], "under a transform of torch.func"),
}


@pytest.mark.parametrize("case", KEPT)
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_kept(calls, case):
    function, shapes, reason = KEPT[case]
    parallel = membound.parallelize(function)
    inputs = tensors(*shapes)
    if case == "modes":
        assert torch.equal(function(*inputs), parallel(*inputs))
    else:
        assert_same(function, parallel, inputs, tolerance=1e-6)
    (entry,) = parallel.explanation.kept
    assert reason in entry.what
    assert str(parallel.explanation).count("kept: ") == 1
    if case != "probabilities":
        assert not calls and not parallel.explanation.replaced


def test_changed_in_the_midst(calls):
    parallel = membound.parallelize(changed_between)
    x, y = (one.detach() for one in tensors(ROWS, ROWS))
    expected = changed_between(x, y.clone())
    assert torch.equal(parallel(x, y.clone()), expected)
    assert not calls
    assert "changed in place in the midst" in str(parallel.explanation)


def test_other_devices_and_missing_functions(monkeypatch):
    function = nn.Softmax(-1)
    (x,) = tensors(ROWS)
    parallel = membound.parallelize(function)
    assert torch.equal(parallel(x), function(x))
    assert [entry.what for entry in parallel.explanation.kept] == [
        "input is on cpu; kernels run on Hopper GPUs"
    ]
    monkeypatch.setattr(graph, "unsupported", lambda device: "")
    monkeypatch.delattr(membound, "softmax")
    torch._dynamo.reset()
    parallel = membound.parallelize(function)
    assert torch.equal(parallel(x), function(x))
    assert [entry.what for entry in parallel.explanation.kept] == [
        "it is not in this version of the suite"
    ]


def test_unsupported_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA B200")
    for capability, reason in (((9, 0), ""), ((10, 0), "NVIDIA B200; kernels run on Hopper GPUs")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, at=capability: at)
        assert graph.unsupported(torch.device("cuda", 0)) == reason


def test_rounded_weight_stays_outside(calls):
    """A float32 weight on a rounded result: the rounding is not skipped."""

    def function(x, w):
        return w * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPS)).to(
            x.dtype
        )

    x, w = *tensors(ROWS, dtype=torch.bfloat16), *tensors(VECTOR, seed=1)
    parallel = membound.parallelize(function)
    out = parallel(x, w)
    assert calls == ["rms_norm"]
    assert out.dtype == torch.float32 and torch.equal((out / w).bfloat16().float() * w, out)


@pytest.mark.parametrize("first", [torch.float32, torch.bfloat16], ids=str)
def test_mixed_sum(calls, first):
    """A residual stream in float32 and what autocast computed in 16 bits."""
    second = torch.bfloat16 if first == torch.float32 else torch.float32

    def function(x, y, w):
        total = x.to(first) + y.to(second)
        return F.rms_norm(total, (8,), w), total

    parallel = membound.parallelize(function)
    assert_same(function, parallel, tensors(ROWS, ROWS, VECTOR))
    assert calls == ["rms_norm"] and "with the addition" in str(parallel.explanation)


def test_autocast(calls):
    """Torch computes these ops in float32 under autocast, and returns that."""

    def function(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.mm(x, x.t())
            return F.cross_entropy(y, torch.tensor([0, 1, 2, 3])), F.rms_norm(y, (4,), w)

    parallel = membound.parallelize(function)
    assert_same(function, parallel, tensors(ROWS, (4,)), tolerance=3e-2)
    assert len(calls) == 2


def test_dynamic_rows(calls):
    parallel = membound.parallelize(llama_residual, dynamic=None)
    for count in (3, 5, 7, 9):
        assert_same(llama_residual, parallel, tensors((count, 8), (count, 8), VECTOR))
    assert len(parallel.explanation.graphs) == 2  # the first size, then any
    assert calls == ["rms_norm"] * 4
    assert str(parallel.explanation).startswith("graph 1: 1 of 1 ops replaced")


def test_dynamic_columns(calls):
    parallel = membound.parallelize(lambda x: torch.softmax(x, -1))
    for columns in (3, 5, 7):
        assert_same(nn.Softmax(-1), parallel, tensors((4, columns)))
    assert calls == ["softmax"] * 3
    with torch.no_grad():
        long = torch.zeros(1, (1 << 20) + 1)
        assert torch.equal(parallel(long), long.softmax(-1))
    assert calls == ["softmax"] * 3


@pytest.mark.parametrize("rest", ["eager", "aot_eager"])
def test_dynamic_numbers(calls, rest):
    def function(x, eps):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)

    parallel = membound.parallelize(function, dynamic=True, rest=rest)
    for columns, eps in ((8, 1e-5), (9, 1e-5), (9, 1.0)):
        inputs = tensors((4, columns))
        assert_same(
            lambda x, eps=eps: function(x, eps), lambda x, eps=eps: parallel(x, eps), inputs
        )
    assert parallel.explanation.replaced and not parallel.explanation.kept


@pytest.mark.parametrize("rest", ["eager", "aot_eager"])
def test_dynamic_normalized_shape(monkeypatch, rest):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    parallel = membound.parallelize(
        lambda x: F.layer_norm(x, x.shape[-2:]) + 1, dynamic=True, rest=rest
    )
    with FakeTensorMode(allow_non_fake_inputs=True):
        for columns in (8, 9):
            shape = (4, 2, columns)
            assert parallel(torch.empty(shape, device="cuda")).shape == shape
    assert len(parallel.explanation.entries) == len(parallel.explanation.replaced) == 1


@pytest.mark.parametrize("outer", [False, True], ids=["alone", "within torch.compile"])
def test_checkpoint(calls, outer):
    def function(x, w):
        return checkpoint(llama, x, w, use_reentrant=False)

    parallel = membound.parallelize(function)
    compiled = torch.compile(parallel, fullgraph=True, backend="aot_eager") if outer else parallel
    assert_same(function, compiled, tensors(ROWS, VECTOR))
    assert len(parallel.explanation.replaced) == 1 and "rms_norm" in calls


class Norm(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, columns))

    def forward(self, x):
        return llama(x, self.weight)


class Block(nn.Module):
    """A block as Llama's, without attention."""

    def __init__(self, columns=8, hidden=16):
        super().__init__()
        self.before, self.after = Norm(columns), nn.RMSNorm(columns)
        self.mix = nn.Linear(columns, columns, bias=False)
        self.gate = nn.Linear(columns, hidden, bias=False)
        self.up = nn.Linear(columns, hidden, bias=False)
        self.down = nn.Linear(hidden, columns, bias=False)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        x = x + self.mix(self.before(x).softmax(-1))
        y = self.after(x)
        return x + self.dropout(self.down(F.silu(self.gate(y)) * self.up(y)))


EXPECTED = ["rms_norm", "softmax", "rms_norm", "swiglu"]


def gradients(module, x):
    module.zero_grad()
    module(x).square().sum().backward()
    return {name: one.grad.clone() for name, one in module.named_parameters()}


def assert_same_module(module, parallel, x, tolerance=1e-5):
    torch.testing.assert_close(parallel(x), module(x), atol=tolerance, rtol=tolerance)
    expected, found = gradients(module, x), gradients(parallel, x)
    assert found.keys() == expected.keys()
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, atol=tolerance, rtol=tolerance)


def test_module(calls):
    torch.manual_seed(0)
    module = Block().eval()
    parallel = membound.parallelize(module, fullgraph=True)
    (x,) = tensors((2, 4, 8))
    assert_same_module(module, parallel, x)
    assert calls == EXPECTED * 2

    assert isinstance(parallel, Block) and not isinstance(module, type(parallel))
    assert parallel.state_dict().keys() == module.state_dict().keys()
    assert all(map(lambda one, other: one is other, parallel.parameters(), module.parameters()))
    parallel.train()
    assert module.training and module.dropout.training
    assert parallel.explanation.entries and not hasattr(module, "explanation")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copied_module(calls, copied):
    parallel = copied(membound.parallelize(Block().eval()))
    (x,) = tensors((4, 8))
    with torch.no_grad():
        for weight in parallel.parameters():
            weight.mul_(2)
    parallel(x)
    assert calls == EXPECTED
    assert type(parallel).__mro__[1] is Block


def test_module_within_torch_compile(calls):
    module = Block().eval()
    parallel = membound.parallelize(module)
    (x,) = tensors((4, 8))
    compiled = torch.compile(parallel, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), module(x))
    assert calls == EXPECTED
    sequence = nn.Sequential(parallel, nn.Softmax(-1), membound.parallelize(nn.Softmax(-1)))
    torch.testing.assert_close(
        torch.compile(sequence, fullgraph=True, backend="eager")(x),
        module(x).softmax(-1).softmax(-1),
    )
    assert calls == [*EXPECTED, *EXPECTED, "softmax"]


class Model(nn.Module):
    """A small language model under autocast, its blocks checkpointed."""

    def __init__(self, width=128):
        super().__init__()
        self.embedding = nn.Embedding(257, width)
        self.blocks = nn.ModuleList(Block(width, 2 * width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 257, bias=False)

    def forward(self, tokens, target):
        with torch.autocast(tokens.device.type, torch.bfloat16):
            x = self.embedding(tokens)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            logits = self.head(self.norm(x))
            return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def check_training(device):
    """Loss and gradients of a step."""
    torch.manual_seed(0)
    module = Model().to(device).eval()
    parallel = membound.parallelize(module, fullgraph=True)
    tokens, target = torch.randint(257, (2, 3, 33), device=device)
    losses, grads = [], []
    for one in (module, parallel):
        one.zero_grad()
        loss = one(tokens, target)
        loss.backward()
        losses.append(loss.detach())
        grads.append([weight.grad.clone() for weight in one.parameters()])
    torch.testing.assert_close(*losses, atol=2e-2, rtol=2e-2)
    for one, other in zip(*grads, strict=True):
        assert (one - other).norm() <= 3e-2 * other.norm() + 1e-6
    ops = [entry.op.removesuffix(" (written out)") for entry in parallel.explanation.replaced]
    block = ["rms_norm", "softmax", "add + rms_norm", "silu * up"]
    assert ops == [*block, *block, "layer_norm", "cross_entropy"]
    assert not parallel.explanation.kept


def test_training(calls):
    check_training("cpu")


def test_submodules_and_containers(calls):
    module = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.LogSoftmax(-1))
    parallel = membound.parallelize(module)
    (x,) = tensors(ROWS)
    assert_same_module(module, parallel, x)
    assert calls == ["layer_norm", "log_softmax"] * 2
    assert len(parallel) == 3 and parallel[1] is module[1]
    module[1] = membound.parallelize(module[1])
    module(x)
    assert calls[4:] == ["layer_norm"]


def test_method_and_hooks(calls):
    class Model(nn.Module):
        @membound.parallelize
        def forward(self, x):
            return x.softmax(-1)

    model = Model()
    model.register_forward_hook(lambda module, args, out: out * 2)
    (x,) = tensors(ROWS)
    torch.testing.assert_close(model(x), 2 * x.softmax(-1))
    torch.testing.assert_close(membound.parallelize(model)(x), 2 * x.softmax(-1))
    assert calls == ["softmax"] * 2


def test_graph_breaks(calls):
    def function(x):
        y = x.softmax(-1)
        if y.sum() > 0:
            return y.log_softmax(-1)
        return y

    parallel = membound.parallelize(function)
    assert_same(function, parallel, tensors(ROWS))
    assert calls == ["softmax", "log_softmax"]
    assert len(parallel.explanation.graphs) == 2
    # the other torch.compile breaks at the same place
    assert_same(function, torch.compile(parallel, backend="eager"), tensors(ROWS))


def test_branches_are_told(calls):
    def function(x, flag):
        return torch.cond(flag, lambda x: x.softmax(-1), lambda x: x.exp(), (x,))

    parallel = membound.parallelize(function)
    x = tensors(ROWS)[0].detach()
    assert torch.equal(parallel(x, torch.tensor(True)), x.softmax(-1))
    assert [entry.what for entry in parallel.explanation.kept] == ["it is inside of cond"]


def test_forward_mode(calls):
    parallel = membound.parallelize(nn.Softmax(-1))
    (x,) = tensors(ROWS)
    parallel(x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x * 2)
        tangents = [
            torch.autograd.forward_ad.unpack_dual(function(dual)).tangent
            for function in (parallel, nn.Softmax(-1))
        ]
    torch.testing.assert_close(*tangents)
    assert calls == ["softmax"]


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.jacrev])
def test_transforms(calls, transform):
    """torch captures nothing under its transforms from outside."""
    (x,) = tensors(ROWS)
    found = transform(membound.parallelize(lambda x: x.softmax(-1)))(x)
    torch.testing.assert_close(found, transform(lambda x: x.softmax(-1))(x))


def test_explain(calls, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    (x,) = tensors(ROWS)

    def function(x):
        for _ in range(3):
            x = x.softmax(-1)
        return F.gelu(x)

    parallel = membound.parallelize(function, explain=True)
    assert str(parallel.explanation) == "Nothing has been captured yet: call the function first."
    parallel(x)
    printed = stream.getvalue().splitlines()
    assert printed[0] == "membound: 3 of 4 ops replaced"
    line = function.__code__.co_firstlineno + 2
    path = os.path.relpath(__file__)
    file = f"{__file__ if path.startswith('..') else path}:{line} in function"
    assert printed[1].split() == ["3x", "softmax", *file.split(), "membound.softmax"]
    assert printed[2].endswith("kept: no bias is added just before it")
    assert str(parallel.explanation).splitlines()[1:] == printed[1:]
    parallel(x)
    assert len(stream.getvalue().splitlines()) == 3


@pytest.mark.parametrize("given", [3, nn.Softmax, "softmax"])
def test_refuses(given):
    with pytest.raises(TypeError, match="parallelize: fn_or_module must be a function"):
        membound.parallelize(given)
    module = nn.Softmax(-1)
    module.forward = lambda x: x
    with pytest.raises(TypeError, match="forward was replaced on the instance"):
        membound.parallelize(module)


# The suite's own functions on tensors without memory: calls, shapes, dtypes and strides.

UNMEASURED = {
    **RECOGNISED,
    "cross_entropy": (
        lambda x, w: F.cross_entropy(
            *(x, torch.arange(4, device=x.device), w.detach()),
            label_smoothing=0.1,
            reduction="none",
        ),
        [ROWS, VECTOR],
        ["cross_entropy"],
    ),
}


@pytest.mark.parametrize("outer", [False, True], ids=["alone", "within torch.compile"])
@pytest.mark.parametrize("case", UNMEASURED)
def test_functions_of_the_suite(case, outer, monkeypatch):
    function, shapes, _ = UNMEASURED[case]
    monkeypatch.setattr(membound.ops.checks, "on_device", lambda op, name, x: None)
    monkeypatch.setattr(graph, "unsupported", lambda device: "")
    parallel = membound.parallelize(function, fullgraph=True)
    compiled = parallel
    if outer:
        compiled = torch.compile(parallel, fullgraph=True, backend="aot_eager", dynamic=True)
    inputs = [
        torch.empty(shape, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for shape in shapes
    ]
    for one, other in zip(results(compiled, inputs), results(function, inputs), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == other.dtype
            assert (one.shape, one.stride()) == (other.shape, other.stride())
    assert parallel.explanation.replaced and not parallel.explanation.kept


# On the GPU: the kernels themselves.


def gpu_inputs(*shapes, dtype):
    return [one.detach().cuda().requires_grad_() for one in tensors(*shapes, dtype=dtype)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", RECOGNISED)
def test_recognised_on_gpu(case, dtype):
    function, shapes, _ = RECOGNISED[case]
    parallel = membound.parallelize(function, fullgraph=True)
    tolerance = 5e-5 if dtype == torch.float32 else 3e-2
    assert_same(function, parallel, gpu_inputs(*shapes, dtype=dtype), tolerance)
    assert parallel.explanation.replaced and not parallel.explanation.kept


WAYS = {
    "alone": lambda module: membound.parallelize(module, fullgraph=True),
    "rest by inductor": lambda module: membound.parallelize(module, rest="inductor"),
    "within torch.compile": lambda module: torch.compile(
        membound.parallelize(module), fullgraph=True
    ),
    "backend": lambda module: torch.compile(module, backend=parallelization.backend),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_module_on_gpu(way, dtype):
    torch.manual_seed(0)
    module = Block(columns=512, hidden=1024).to("cuda", dtype).eval()
    compiled = WAYS[way](module)
    tolerance = 1e-3 if dtype == torch.float32 else 6e-2
    for rows in (5, 64, 7):
        x = torch.randn(2, rows, 512, device="cuda", dtype=dtype, requires_grad=True)
        expected, found = results(module, [x]), results(compiled, [x])
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x), atol=tolerance, rtol=tolerance)


@pytest.mark.gpu
def test_training_on_gpu():
    check_training("cuda")


@pytest.mark.gpu
def test_devices_on_gpu():
    """One function for tensors on the CPU and on the GPU."""
    parallel = membound.parallelize(lambda x: x.softmax(-1))
    x = torch.randn(4, 50257)
    assert torch.equal(parallel(x), x.softmax(-1))
    torch.testing.assert_close(parallel(x.cuda()).cpu(), x.softmax(-1))
    assert [len(parallel.explanation.kept), len(parallel.explanation.replaced)] == [1, 1]


@pytest.mark.gpu
def test_cuda_graph_on_gpu():
    parallel = membound.parallelize(lambda x, w: llama(x, w).softmax(-1))
    x, w = (one.detach() for one in gpu_inputs((64, 1024), (1024,), dtype=torch.bfloat16))
    parallel(x, w)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = parallel(x, w)
    x.copy_(x.flip(0))
    captured.replay()
    torch.testing.assert_close(out, parallel(x, w), atol=0, rtol=0)
