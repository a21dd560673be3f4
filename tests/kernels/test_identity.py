"""What a kernel is: its code and its launch, whatever the package that holds it is called."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import membound
import pytest
import torch

from .variants import VARIANTS

PACKAGE = Path(membound.__file__).parent
#: Device modules, each of which a plan of the same name launches once.
PLANS = ("softmax", "softmax_backward")
#: A length whose rows need a cluster.
COLUMNS = 65_536

#: In each package of a folder records the plans, compiles their kernels, and tells what came of it.
COMPILE = """
import hashlib, importlib, json, os, sys
from pathlib import Path

folder, columns = Path(sys.argv[1]), int(sys.argv[2])
sys.path.insert(0, str(folder))
import torch
import cutlass.cute as cute

found = {}
for package in sorted(path.name for path in folder.iterdir()):
    suite = importlib.import_module(package)
    compiler = importlib.import_module(f"{package}.runtime.compiler")
    os.environ["MEMBOUND_CACHE_DIR"] = str(Path(sys.argv[3], package))
    x = torch.empty(3, columns, dtype=torch.bfloat16, device="meta", requires_grad=True)
    with suite.runtime.record_plan() as forward:
        y = suite.softmax(x, scale=0.5)
    grad = torch.empty_like(y)
    with suite.runtime.record_plan() as backward:
        y.backward(grad)
    found[package] = {}
    for plan in (forward, backward):
        (kernel,) = plan.kernels
        artifact = suite.runtime.artifact(kernel)
        function, arguments = kernel.device_module().trace(kernel)
        options = f"{compiler.OPTIONS} --keep-ptx --dump-dir {sys.argv[3]}"
        facts = {"name": kernel.name, "digest": artifact.digest, "plan": plan.digest()}
        facts["ptx"] = cute.compile(function, *arguments, options=options).__ptx__
        for file in ("kernel.o", "kernel.cubin"):
            content = (artifact.folder / file).read_bytes()
            facts[file] = hashlib.sha256(content).hexdigest()
            assert package.encode() not in content
        found[package][kernel.module] = facts
print(json.dumps(found))
"""

ROWS = "cute.ceil_div(rows, tiling.rows)"
CLUSTER = '"cluster": [1, tiling.cluster, 1] if tiling.cluster > 1 else None'
SHARED = '"smem": self.shared_bytes'
EMPTY = "made = allocate(shape, dtype=dtype, device=device)"
KERNEL = "\n    @cute.kernel\n"
STRIDE = "stride = cute.sym_int64(divisibility=vector)"

#: Copies of the package: the files to edit, what is there once, and what takes its place.
COPIES = {
    "same": ([], "", ""),
    "another": ([], "", ""),
    "commented": (
        ["device/softmax", "device/softmax_backward"],
        KERNEL,
        f"\n    # A remark.{KERNEL}",
    ),
    "memory": (["device/row_kernel"], SHARED, f"{SHARED} + 1024"),
    "cluster": (["device/row_kernel"], CLUSTER, '"cluster": [1, 1, 1]'),
    "grid": (["device/row_kernel"], ROWS, f"{ROWS} + 1"),
    "dispatch": (["ops/tiling"], "_MAX_CLUSTER = 8", "_MAX_CLUSTER = 1"),
    "calls": (["runtime/resources"], EMPTY, f"{EMPTY}.zero_()"),
    "static_stride": (["device/arguments"], STRIDE, "stride = tiling.columns"),
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """By copy and plan: kernel's name, digests, hashes and PTX, all from one process."""
    folder, caches = tmp_path_factory.mktemp("copies"), tmp_path_factory.mktemp("caches")
    for name, (modules, old, new) in COPIES.items():
        copy = folder / f"suite_{name}"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for module in modules:
            path = copy / f"{module}.py"
            source = path.read_text()
            assert source.count(old) == 1, f"{module}.py no longer holds {old!r} once"
            path.write_text(source.replace(old, new))
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(folder), str(COLUMNS), str(caches)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {copy: found[f"suite_{copy}"] for copy in COPIES}


both = pytest.mark.parametrize("plan", PLANS)


@both
def test_package_name_and_process_are_no_part_of_an_object(compiled, plan, tmp_path, monkeypatch):
    assert compiled["another"][plan] == compiled["same"][plan]
    monkeypatch.setenv("MEMBOUND_CACHE_DIR", str(tmp_path))
    own = recorded()[plan]
    assert own.digest() == compiled["same"][plan]["plan"]
    (kernel,) = own.kernels
    artifact = membound.runtime.artifact(kernel)
    assert artifact.digest == compiled["same"][plan]["digest"]
    for file in ("kernel.o", "kernel.cubin"):
        content = (artifact.folder / file).read_bytes()
        assert hashlib.sha256(content).hexdigest() == compiled["same"][plan][file]
        assert b"membound" not in content


def recorded():
    """The plans of COMPILE, of the package itself."""
    x = torch.empty(3, COLUMNS, dtype=torch.bfloat16, device="meta", requires_grad=True)
    with membound.runtime.record_plan() as forward:
        y = membound.softmax(x, scale=0.5)
    grad = torch.empty_like(y)
    with membound.runtime.record_plan() as backward:
        y.backward(grad)
    return dict(zip(PLANS, (forward, backward), strict=True))


@both
def test_a_comment_is_no_part_of_an_object(compiled, plan):
    for fact in ("digest", "plan", "kernel.o", "kernel.cubin"):
        assert compiled["commented"][plan][fact] == compiled["same"][plan][fact]


@both
@pytest.mark.parametrize("copy", ["memory", "cluster", "grid"])
def test_how_a_kernel_is_launched_is_part_of_its_digest(compiled, copy, plan):
    assert compiled[copy][plan]["name"] == compiled["same"][plan]["name"]
    assert compiled[copy][plan]["digest"] != compiled["same"][plan]["digest"]


@both
def test_which_kernel_is_chosen_is_part_of_its_name(compiled, plan):
    assert compiled["dispatch"][plan]["name"] != compiled["same"][plan]["name"]


@both
def test_a_call_of_torch_is_seen_by_the_plan_alone(compiled, plan):
    assert compiled["calls"][plan]["digest"] == compiled["same"][plan]["digest"]


@both
@pytest.mark.parametrize("copy", ["memory", "cluster", "grid", "dispatch", "calls"])
def test_what_changes_the_work_changes_the_digest_of_its_plan(compiled, copy, plan):
    assert compiled[copy][plan]["plan"] != compiled["same"][plan]["plan"]


@both
@pytest.mark.parametrize("copy", ["memory", "grid"])
def test_the_cubin_alone_would_not_tell(compiled, copy, plan):
    assert compiled[copy][plan]["kernel.cubin"] == compiled["same"][plan]["kernel.cubin"]


def test_no_two_variants_share_a_name_or_a_digest(built):
    assert len({kernel.name for kernel in VARIANTS}) == len(VARIANTS)
    assert len({one.artifact.digest for one in built.values()}) == len(VARIANTS)


def wide_row_offsets(ptx):
    """How many row strides are 64-bit arguments that only 64-bit products use.

    A matrix is passed as its pointer, its rows (32 bits) and its row stride at byte 16.
    """
    strides = set(re.findall(r"ld\.param\.b64\s+(%rd\d+), \[\w+_param_\d+\+16\];", ptx))
    uses = re.findall(r"^\s*(?:@\S+ )?(\S+)\s+%\S+, (.*);$", ptx, re.MULTILINE)
    for stride in strides:
        of_it = {name for name, operands in uses if stride in re.findall(r"%rd\d+", operands)}
        if not of_it or not of_it <= {"mul.lo.s64", "mad.lo.s64"}:
            return 0
    return len(strides)


@both
def test_row_offsets_are_taken_in_64_bits(compiled, plan):
    matrices = {"softmax": 2, "softmax_backward": 3}[plan]
    assert wide_row_offsets(compiled["same"][plan]["ptx"]) == matrices
    assert wide_row_offsets(compiled["static_stride"][plan]["ptx"]) == 0
