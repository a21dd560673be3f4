"""``bandwatch kernels``: what is built, what is listed, and what is said where it cannot be."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import membound
import pytest
from membound.runtime import key, toolchain

from bandwatch.measure import static
from ci import kernels

ROOT = Path(__file__).parents[2]

#: In a file or as code; one kernel forward and one backward.
CALLS = """
x = torch.empty(3, 8, requires_grad=True)
membound.softmax(x).sum().backward()
"""


def bandwatch(*arguments):
    parser = argparse.ArgumentParser()
    kernels.add_parser(parser.add_subparsers())
    args = parser.parse_args(["kernels", *map(str, arguments)])
    return args.run(args)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache of this test's own."""
    monkeypatch.setenv("MEMBOUND_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache that holds the kernels of CALLS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMBOUND_CACHE_DIR", str(tmp_path_factory.mktemp("built") / "cache"))
        assert bandwatch("build", "-c", CALLS) == 0
        return membound.runtime.cache_folder()


@pytest.fixture
def filled(folder, cache):
    shutil.copytree(cache, folder)
    return folder


def listed(capsys, *arguments):
    capsys.readouterr()
    assert bandwatch("list", "--json", *arguments) == 0
    return json.loads(capsys.readouterr().out)


def test_code_is_built_forward_and_backward(filled, capsys):
    rows = listed(capsys)
    assert [row["kernel"].partition("_float32")[0] for row in rows] == [
        "softmax_backward_softmax",
        "softmax_softmax",
    ]
    assert bandwatch("build", "-c", CALLS) == 0
    assert capsys.readouterr().out.startswith("0 kernels compiled")


def test_a_file_runs_as_a_script_with_the_modules_beside_it(filled, tmp_path, capsys):
    (tmp_path / "shapes.py").write_text("rows = 3")
    script = tmp_path / "calls.py"
    script.write_text(
        "import sys, torch, membound\nfrom shapes import rows\n"
        "assert sys.argv[1:] == []\n"
        "if __name__ == '__main__':\n    membound.softmax(torch.empty(rows, 8))\n"
    )
    before = (sys.argv, sys.path)
    assert bandwatch("build", script) == 0
    assert (sys.argv, sys.path) == before
    assert "0 kernels compiled" in capsys.readouterr().out


BROKEN = {
    "import torch\n\nraise ValueError('no')": r"calls\.py:3: ValueError: no",
    "import torch, membound\nmembound.softmax(3)": r"calls\.py:2: TypeError: softmax: input must",
    "import sys\nsys.exit('stop')": r"calls\.py:2: SystemExit: stop",
    "a b": r"calls\.py:1: SyntaxError",
    "x = 1": r"calls\.py launches no kernel of membound",
}


@pytest.mark.parametrize("text", BROKEN)
def test_an_error_in_a_file_names_its_line(folder, tmp_path, capsys, text):
    script = tmp_path / "calls.py"
    script.write_text(text)
    assert bandwatch("build", script) == 1
    message = capsys.readouterr().err
    assert re.search(BROKEN[text], message), message
    assert not folder.exists()
    assert not membound.runtime.recording()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to build"),
        (("missing.py",), "missing.py: no such file"),
        (("-c", "membound.softmax("), "<code>:1: SyntaxError"),
    ],
)
def test_what_cannot_be_built_is_said(folder, capsys, arguments, message):
    assert bandwatch("build", *arguments) == 1
    assert message in capsys.readouterr().err


def test_a_missing_compiler_is_said(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cutlass", None)
    monkeypatch.setitem(sys.modules, "cutlass.cute", None)
    assert bandwatch("build", "--jobs", 1, "-c", "membound.softmax(torch.empty(3, 8))") == 1
    assert "pip install" in capsys.readouterr().err


def test_the_list_tells_what_is_known_of_a_kernel(filled, capsys):
    row = listed(capsys, "softmax_softmax")[0]
    assert row["state"] == "current"
    assert row["toolchain"] == toolchain()
    assert 8 <= row["registers"] <= 64
    assert (row["spills"], row["stack_bytes"]) == (0, 0)
    assert row["size_bytes"] > 10_000
    assert 0 <= row["age_seconds"] < 3600
    capsys.readouterr()
    assert bandwatch("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        *("kernel", "registers", "spills", "shared", "size", "toolchain", "age", "state")
    ]
    assert [line.split()[-1] for line in lines[1:3]] == ["current", "current"]
    assert lines[-1].startswith("2 kernels")


def test_what_is_not_there_is_said(filled, capsys):
    assert bandwatch("list", "no_such") == 0
    assert "no kernel with 'no_such' in its name" in capsys.readouterr().out


def test_without_the_tools_the_list_has_gaps(filled, capsys, monkeypatch):
    def missing(tool):
        raise static.StaticAnalysisError(f"{tool} is not installed")

    monkeypatch.setattr(static, "_find", missing)
    assert bandwatch("list") == 0
    out, err = capsys.readouterr()
    assert "cuobjdump is not installed" in err
    assert out.splitlines()[1].split()[1:3] == ["?", "?"]


def stale(filled, monkeypatch):
    monkeypatch.setattr(key, "toolchain", lambda: {"nvidia-cutlass-dsl": "0"})


def gone(filled, monkeypatch):
    monkeypatch.setattr(key, "DEVICE", filled / "empty")


def damaged(filled, monkeypatch):
    for library in filled.glob("*/kernel.so"):
        library.write_bytes(b"")


@pytest.mark.parametrize(
    ("change", "state"), [(stale, "stale"), (gone, "stale"), (damaged, "damaged")]
)
def test_what_cannot_be_used_is_told_and_cleaned(filled, capsys, monkeypatch, change, state):
    change(filled, monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [row["state"] for row in listed(capsys)] == [state] * 2
        assert bandwatch("list") == 0
        assert bandwatch("clean") == 0
    assert "2 kernels deleted, 0 kept" in capsys.readouterr().out
    assert list(filled.glob("*/")) == []


def test_clean_keeps_what_can_be_used(filled, capsys):
    assert bandwatch("clean") == 0
    assert "0 kernels deleted, 2 kept" in capsys.readouterr().out
    assert bandwatch("clean", "--all") == 0
    assert listed(capsys) == []


def test_the_grid_is_that_of_the_benchmarks_around_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT / "docs")
    found = kernels._of_grid()
    assert {"softmax", "softmax_backward"} <= {kernel.module for kernel in found}
    assert len(set(found)) == len(found) > 20
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kernels.KernelsError, match=r"no asv\.conf\.json"):
        kernels._of_grid()


def test_it_runs_where_nothing_but_the_path_is_set_up(folder, tmp_path):
    """As one command in a process of its own, which starts others to compile in."""
    script = f"""
import argparse, sys
sys.path[:0] = {[str(ROOT), str(ROOT / "kernels")]!r}
if __name__ == "__main__":
    from ci import kernels
    parser = argparse.ArgumentParser()
    kernels.add_parser(parser.add_subparsers())
    args = parser.parse_args(["kernels", "build", "--jobs", "2", "-c", {CALLS!r}])
    sys.exit(args.run(args))
"""
    (tmp_path / "main.py").write_text(script)
    variables = {k: v for k, v in os.environ.items() if k not in ("CUTE_DSL_ARCH", "PYTHONPATH")}
    done = subprocess.run(
        [sys.executable, tmp_path / "main.py"],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 kernels compiled"), done.stdout
    assert len(list(folder.glob("*/facts.json"))) == 2
