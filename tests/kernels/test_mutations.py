"""On a Hopper GPU: bugs planted into a copy of the suite turn generated tests red."""

import importlib
import shutil
import sys
from pathlib import Path

import membound
import pytest
import torch

from asv_bench import workloads
from bandwatch.measure.correctness import WrongResult

from .cases import OPS, Case, run
from .numerics import assert_right

PACKAGE = Path(membound.__file__).parent

#: Bugs: the device module, what is there once and what takes its place, and calls that must see
#: it: dtype, shape, layout of the input.
ODD, STRIDED = ("bfloat16", (67, 1001), ""), ("bfloat16", (67, 1000), "first columns")
ROWS_OF_CTAS = ("float32", (4097, 4096), "")
BUGS = {
    "dropped tail": (
        "rows",
        "inside = begin + self.vector <= self.columns + phase",
        "inside = begin + self.vector < self.columns + phase",
        [("float32", (67, 1000), ""), ("bfloat16", (3, 1152), "")],
    ),
    "dropped last column": (
        "rows",
        "                    if column >= 0 and column < self.columns:\n"
        "                        row[column] = fragment[v, i]",
        "                    if column >= 0 and column < self.columns - 1:\n"
        "                        row[column] = fragment[v, i]",
        [ODD],
    ),
    "neighbours' columns in a sum": (
        "rows",
        "if column < 0 or column >= self.columns:\n"
        "                                fragment[v, i] = row.element_type(fill)",
        "if column < 0:\n                                fragment[v, i] = row.element_type(fill)",
        [ODD],
    ),
    "wrong stride": (
        "scores",
        "self.rows.load(x[row, None], values,",
        "self.rows.load(cute.make_tensor(x.iterator, cute.make_layout((1 << 20, "
        "self.rows.columns), stride=(self.rows.columns, 1)))[row, None], values,",
        [STRIDED],
    ),
    "missing barrier": ("reduce", "            cute.arch.barrier()\n", "", [ROWS_OF_CTAS]),
    "wrong gradient": (
        "softmax_backward",
        "result = results * (grads - total)",
        "result = results * grads",
        [("float32", (67, 1000), "")],
    ),
}


def copied(folder, name, edit=None):
    """A copy of the suite as package ``name``, with one edit of a device module."""
    copy = folder / name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    if edit is not None:
        module, old, new = edit
        path = copy / "device" / f"{module}.py"
        source = path.read_text()
        assert source.count(old) == 1, f"{module}.py no longer holds {old!r} once"
        path.write_text(source.replace(old, new))
    return copy


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Imports a copy of the suite under a name of its own."""
    monkeypatch.syspath_prepend(tmp_path)

    def import_copy(name, edit=None):
        copied(tmp_path, name, edit)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield import_copy
    for name in [name for name in sys.modules if name.startswith("planted_")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", BUGS)
def test_the_place_of_a_bug_is_there(name, tmp_path):
    module, old, new, _ = BUGS[name]
    path = copied(tmp_path, "copy", (module, old, new)) / "device" / f"{module}.py"
    compile(path.read_text(), str(path), "exec")


def judged(suite, calls):
    """Run and judge calls of softmax against ``suite``, as the generated tests do."""
    op = workloads.ops(suite)["softmax"]
    for dtype, shape, view in calls:
        case = Case(OPS["softmax"].workload(dtype, shape), "input" if view else "", view)
        assert_right(run(case, "cuda", op, suite), op)
        torch.cuda.synchronize()


@pytest.mark.gpu
def test_a_copy_without_a_bug_passes(imported):
    suite = imported("planted_nothing")
    for *_, calls in BUGS.values():
        judged(suite, calls)


@pytest.mark.gpu
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name, imported):
    module, old, new, calls = BUGS[name]
    suite = imported(f"planted_{name.replace(' ', '_').replace(chr(39), '')}", (module, old, new))
    for call in calls:
        with pytest.raises((WrongResult, AssertionError)):
            judged(suite, [call])
