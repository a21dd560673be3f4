"""Suites side by side in one process, each under a name of its own."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from asv_bench import sides, workloads  # noqa: E402
from bandwatch.measure import backward  # noqa: E402

SUITE = Path(__file__).parents[2] / "kernels" / "membound"
WORKLOAD = next(one for one in workloads.grid() if one.op == "softmax")


@pytest.fixture(scope="module")
def loaded():
    """Two copies of the suite; they stay, for operators cannot be taken back."""
    return {name: sides.load(SUITE, f"membound_{name}") for name in ("a1", "b2")}


def test_copies_share_neither_modules_nor_operators(loaded):
    first, second = loaded.values()
    assert first.runtime.NAMESPACE != second.runtime.NAMESPACE
    for suite in (first, second):
        names = {name for name in sys.modules if name.startswith(f"{suite.__name__}.")}
        assert f"{suite.__name__}.runtime.launcher" in names
    assert hasattr(torch.ops, first.runtime.NAMESPACE)


def test_equal_copies_have_equal_plans_under_any_name(loaded):
    op = sides.side_by_side(loaded, "softmax")
    assert list(op.providers)[:2] == ["a1", "b2"]
    assert {"eager", "anchor"} <= set(op.providers)
    told = []
    for side, suite in loaded.items():
        inputs = op.make_inputs(WORKLOAD, "meta", None)
        with suite.runtime.record_plan() as plan:
            backward.flat(op.providers[side](inputs, WORKLOAD))
        told.append(plan.describe())
    assert told[0] == told[1] and told[0]


def test_one_name_is_one_folder(loaded, tmp_path):
    assert sides.load(SUITE, "membound_a1") is loaded["a1"]
    with pytest.raises(RuntimeError, match="membound_a1 was imported from"):
        sides.load(tmp_path, "membound_a1")


def test_what_cannot_be_imported_leaves_nothing_behind(tmp_path):
    (tmp_path / "__init__.py").write_text("from . import nosuch\n")
    with pytest.raises(ImportError):
        sides.load(tmp_path, "membound_broken")
    assert "membound_broken" not in sys.modules


def test_an_operation_that_no_side_has_is_not_available(loaded, monkeypatch):
    for suite in loaded.values():
        monkeypatch.delattr(suite, "softmax")
    with pytest.raises(NotImplementedError, match="has softmax"):
        sides.side_by_side(loaded, "softmax")
