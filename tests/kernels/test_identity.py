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

from .variants import VARIANTS

PACKAGE = Path(membound.__file__).parent
OPS = ("softmax", "rms_norm")
#: A length whose rows need a cluster.
COLUMNS = 65_536

#: Compiles one kernel an operation in each package of a folder and tells what they became.
COMPILE = """
import hashlib, importlib, json, sys, tempfile
from pathlib import Path

folder, scratch, columns = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
sys.path.insert(0, str(folder))
import torch
import cutlass.cute as cute

found = {}
for package in sorted(path.name for path in folder.iterdir()):
    suite = importlib.import_module(package)
    compiler = importlib.import_module(f"{package}.runtime.compiler")
    x = torch.empty(3, columns, dtype=torch.bfloat16, device="meta")
    with suite.runtime.record_launches() as launches:
        suite.softmax(x)
        suite.rms_norm(x, columns, x[0])
    found[package] = {}
    for kernel in (launch.kernel for launch in launches):
        out = Path(tempfile.mkdtemp(dir=scratch))
        digest = compiler.compile_kernel(kernel, out)
        function, arguments = kernel.device_module().trace(kernel)
        options = f"{compiler.OPTIONS} --keep-ptx --dump-dir {out}"
        facts = {"name": kernel.name, "digest": digest}
        facts["ptx"] = cute.compile(function, *arguments, options=options).__ptx__
        for file in ("kernel.o", "kernel.cubin"):
            facts[file] = hashlib.sha256((out / file).read_bytes()).hexdigest()
        found[package][kernel.module] = facts
print(json.dumps(found))
"""

ROWS = "cute.ceil_div(x.shape[0], self.tiling.rows)"
CLUSTER = "cluster=[1, self.tiling.cluster, 1] if self.tiling.cluster > 1 else None"

#: Copies of the package: the files to edit, what is there once, and what takes its place.
COPIES = {
    "same": ([], "", ""),
    "commented": (OPS, "\n    @cute.kernel\n", "\n    # A remark.\n\n    @cute.kernel\n"),
    "memory": (OPS, "smem=self.shared_bytes", "smem=self.shared_bytes + 1024"),
    "cluster": (OPS, CLUSTER, "cluster=[1, 1, 1]"),
    "grid": (OPS, ROWS, f"{ROWS} + 1"),
    "static_stride": (["arguments"], "cute.sym_int64(divisibility=vector)", "tiling.columns"),
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """By copy and operation: name, digest, hashes and PTX, all from one process."""
    folder, scratch = tmp_path_factory.mktemp("copies"), tmp_path_factory.mktemp("compiled")
    for name, (modules, old, new) in COPIES.items():
        copy = folder / f"suite_{name}"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for module in modules:
            path = copy / "device" / f"{module}.py"
            source = path.read_text()
            assert source.count(old) == 1, f"{module}.py no longer holds {old!r} once"
            path.write_text(source.replace(old, new))
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(folder), str(scratch), str(COLUMNS)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {copy: found[f"suite_{copy}"] for copy in COPIES}


both = pytest.mark.parametrize("op", OPS)


@both
def test_package_name_and_process_are_no_part_of_an_object(compiled, built, op):
    (kernel,) = (kernel for kernel in VARIANTS if kernel.name == compiled["same"][op]["name"])
    original = built[kernel].artifact
    assert original.digest == compiled["same"][op]["digest"]
    for file in ("kernel.o", "kernel.cubin"):
        content = (original.folder / file).read_bytes()
        assert hashlib.sha256(content).hexdigest() == compiled["same"][op][file]
        assert b"membound" not in content


@both
def test_a_comment_is_no_part_of_an_object(compiled, op):
    for fact in ("digest", "kernel.o", "kernel.cubin"):
        assert compiled["commented"][op][fact] == compiled["same"][op][fact]


@both
@pytest.mark.parametrize("copy", ["memory", "cluster", "grid"])
def test_how_a_kernel_is_launched_is_part_of_its_digest(compiled, copy, op):
    assert compiled[copy][op]["name"] == compiled["same"][op]["name"]
    assert compiled[copy][op]["digest"] != compiled["same"][op]["digest"]


@both
@pytest.mark.parametrize("copy", ["memory", "grid"])
def test_the_cubin_alone_would_not_tell(compiled, copy, op):
    assert compiled[copy][op]["kernel.cubin"] == compiled["same"][op]["kernel.cubin"]


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
def test_row_offsets_are_taken_in_64_bits(compiled, op):
    assert wide_row_offsets(compiled["same"][op]["ptx"]) == 2  # of x and of the output
    assert wide_row_offsets(compiled["static_stride"][op]["ptx"]) == 0
