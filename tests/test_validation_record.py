import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bandwatch.measure import environment
from ci import validation

ROOT = Path(__file__).parents[1]
CARD = {"gpu": "NVIDIA H200", "card": "0123abcd", "driver": "580.1", "torch": "2.11.0+cu130"}


def test_the_kernels_were_validated_on_a_gpu():
    assert validation.problem(ROOT) is None, validation.problem(ROOT)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A small tree with a kernel, and a card that stands in for the GPU host."""
    (tmp_path / "kernels/suite").mkdir(parents=True)
    (tmp_path / "kernels/suite/op.py").write_text("threads = 128\n")
    monkeypatch.setattr(environment, "describe", lambda: CARD)
    return tmp_path


def record(tree, minute=0, **tests):
    started_at = datetime(2026, 12, 1, 12, minute, tzinfo=UTC)
    return validation.append(tree / validation.FOLDER / "h200.jsonl", tree, tests, started_at)


def test_no_record_is_a_problem_that_says_how_to_make_one(tree):
    assert "--gpu-record results/validation/" in validation.problem(tree)


def test_a_record_of_a_pass_validates_these_kernels(tree):
    written = record(tree, passed=3, failed=0, skipped=1)
    assert validation.problem(tree) is None
    assert json.loads((tree / validation.FOLDER / "h200.jsonl").read_text()) == written
    assert written["gpu"] == "NVIDIA H200"


def test_a_changed_a_new_and_a_renamed_kernel_each_make_the_record_old(tree):
    record(tree, passed=3, failed=0, skipped=0)
    kernel = tree / "kernels/suite/op.py"
    source = kernel.read_text()

    kernel.write_text("threads = 256\n")
    assert "older than the kernels" in validation.problem(tree)
    kernel.write_text(source)
    assert validation.problem(tree) is None

    (tree / "kernels/suite/other.py").write_text("")
    assert "older than the kernels" in validation.problem(tree)
    (tree / "kernels/suite/other.py").unlink()

    kernel.rename(kernel.with_name("moved.py"))
    assert "older than the kernels" in validation.problem(tree)


def test_a_failed_run_and_an_empty_run_validate_nothing(tree):
    record(tree, minute=1, passed=3, failed=1, skipped=0)
    assert "not of a pass" in validation.problem(tree)
    record(tree, minute=2, passed=0, failed=0, skipped=4)
    assert "not of a pass" in validation.problem(tree)
    record(tree, minute=3, passed=4, failed=0, skipped=0)
    assert validation.problem(tree) is None


def test_a_damaged_record_is_named_with_its_line(tree):
    record(tree, passed=3, failed=0, skipped=0)
    path = tree / validation.FOLDER / "h200.jsonl"
    path.write_text(path.read_text() + "{torn\n")
    with pytest.raises(ValueError, match=r"h200\.jsonl:2"):
        validation.newest(tree)


def test_a_record_cannot_be_made_without_a_gpu(tmp_path):
    hidden = subprocess.run(
        [sys.executable, "-m", "pytest", "--gpu-record", tmp_path / "x.jsonl", __file__],
        cwd=ROOT,
        env={"PATH": "", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert hidden.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--gpu-record needs a GPU" in hidden.stderr
    assert not (tmp_path / "x.jsonl").exists()
