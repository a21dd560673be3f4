"""The project as a whole: what a wheel holds, which way imports go, what is tracked."""

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def python(*args, path, cwd):
    return subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which the wheel, built without a network, is installed alone."""
    dist, target = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", dist, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = dist.glob("bandwatch-*.whl")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
        + ["--target", target, wheel],
        check=True,
    )
    return target


def test_a_wheel_puts_only_the_engine_and_the_suite_into_site_packages(site):
    names = {path.name for path in site.iterdir() if path.suffix != ".dist-info"}
    assert names == {"bandwatch", "membound", "bin"}
    assert [path.name for path in (site / "bin").iterdir()] == ["bandwatch"]


@pytest.mark.parametrize(
    "module",
    [
        "bandwatch.cli",
        "bandwatch.ci.kernels",
        "bandwatch.ci.watch",
        "bandwatch.dashboard",
        "membound",
    ],
)
def test_a_wheel_imports_its_own_modules(site, module, tmp_path):
    result = python("-c", f"import {module} as m; print(m.__file__)", path=site, cwd=tmp_path)
    assert Path(result.stdout.strip()).is_relative_to(site), result.stderr


@pytest.mark.parametrize("file", ["sidecar.schema.json", "dashboard/app.py"])
def test_a_wheel_holds_the_files_that_are_not_imported(site, file):
    assert (site / "bandwatch" / file).is_file()


@pytest.mark.parametrize("layout", ["checkout", "wheel"])
def test_the_command_line_has_the_subcommands_of_ci(request, layout, tmp_path):
    path = request.getfixturevalue("site") if layout == "wheel" else ROOT
    for command in ("watch", "kernels"):
        result = python("-m", "bandwatch.cli", command, "--help", path=path, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert f"usage: bandwatch {command}" in result.stdout


def test_every_registered_subcommand_loads_in_a_checkout():
    registered = entry_points(group="bandwatch.commands")
    assert {entry.name for entry in registered} >= {"kernels", "watch"}
    for entry in registered:
        assert callable(entry.load())


def test_the_command_line_starts_without_the_heavy_packages(tmp_path):
    code = "import sys, bandwatch.cli; print(*{'torch', 'cutlass', 'streamlit'} & {*sys.modules})"
    result = python("-c", code, path=ROOT, cwd=tmp_path)
    assert (result.returncode, result.stdout.strip()) == (0, ""), result.stderr


def test_imports_follow_the_arrows():
    result = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_ci_runs_the_test_command_of_the_readme():
    commands = re.findall(r"^make \w+", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands == ["make watch", "make test", "make bench"]
    assert (ROOT / ".ci/run").read_text().rstrip().endswith("\nmake test")


def test_links_of_the_docs_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_tracked_files_name_no_path_of_a_machine():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    homes = "|".join(("home", "root", "Users", "work", "workspace", "mnt", "scratch"))
    pattern = re.compile(rf"(?<![\w./~-])/(?:{homes})/[\w.-]".encode())
    found = []
    for name in filter(None, listed):
        path = ROOT / name
        content = path.read_bytes() if path.is_file() else b""
        if b"\0" not in content and (match := pattern.search(content)):
            line = content.count(b"\n", 0, match.start()) + 1
            found.append(f"{name}:{line}: {match[0].decode()}…")
    assert not found, "\n".join(found)
