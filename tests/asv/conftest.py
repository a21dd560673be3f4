"""Toy repositories: our real benchmarks and asv plugin over a suite of a few lines."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("asv", reason="asv is not installed")

ROOT = Path(__file__).parents[2]

SUITE = """
import os, sys, time

def softmax(x, dim=-1):
    {softmax}
"""

# Stands in for the GPU: the suite's function returns its own time; what was measured is logged.
SESSION = """
import os
from pathlib import Path
from types import SimpleNamespace

LOG = Path(os.environ.get("ASV_CONF_DIR", os.getcwd()), "measured.log")

class DeviceLost(RuntimeError):
    def __init__(self, message, result):
        super().__init__(message)
        self.result = result

CONTROL_PROVIDER, ANCHOR_PROVIDER = "control", "anchor"

class Session:
    def __init__(self, plan=None, *, process=0, identity="none"):
        self.plan = plan or SimpleNamespace(pilot=4)
        self.process, self.identity = process, identity

    def environment(self):
        return {"gpu": "Toy", "python": "3"}

    def harness(self):
        return {"control": "toy/1", "placements": self.plan.pilot}

    def shared(self, op, workload, digest, session, commit):
        record = dict(self.measure(op, workload, ["control"]).record()) | {"providers": {}}
        return record | {"digest": digest, "shared": {"session": session, "commit": commit}}

    def measure(
        self, op, workload, providers=None, earlier=(), finish=True, own=("membound",)
    ):
        providers = providers or [*op.providers, "control"]
        with LOG.open("a") as log:
            log.write(f"{workload.key} {','.join(providers)} {os.getpid()}\\n")
        answers, lost = {}, ""
        for name in providers:
            answers[name] = {"verdict": "valid", "reason": "", "sets": 1, "launches_per_replay": 1}
            seconds = 1e-3
            if name in own:
                x = SimpleNamespace(dtype=workload.dtype, shape=workload.shape)
                try:
                    seconds = op.providers[name]({"input": x}, workload)
                except ValueError as error:
                    answers[name] |= {"verdict": "failed", "reason": str(error)}
                except NotImplementedError as error:
                    answers[name] |= {"verdict": "not available", "reason": str(error)}
                except RuntimeError as error:
                    lost = str(error)
            if lost:
                answers[name] |= {"verdict": "failed", "reason": lost}
            bad = answers[name]["verdict"] != "valid"
            answers[name]["samples"] = [] if bad else [
                [self.process, n, seconds * (1 + n / 1e4)] for n in range(self.plan.pilot)
            ]
        record = {
            "session": self.identity, "key": workload.key, "op": workload.op,
            "direction": workload.direction, "dtype": workload.dtype,
            "shape": list(workload.shape), "options": {}, "bytes_read": 1, "bytes_written": 1,
            "started_at": "2026-01-01T00:00:00+00:00", "host_seconds": 0.1,
            "providers": answers, "kernels": {}, "telemetry": {},
        }
        result = SimpleNamespace(record=lambda: record)
        if lost:
            raise DeviceLost(lost, result)
        return result
"""


# A suite that "compiles": kernels are named by dtype and whether the rows are long.
COMPILED = """
from . import runtime

def softmax(x, dim=-1):
    runtime.launched.append(runtime.Launch(f"softmax_{{x.dtype}}_{{x.shape[-1] > 4096}}"))
"""
RUNTIME = """
import hashlib
from contextlib import contextmanager
from types import SimpleNamespace

launched = []

class Launch:
    def __init__(self, kernel):
        self.kernel = kernel

@contextmanager
def record_launches():
    launched.clear()
    yield launched

def build(kernels, jobs):
    print("built", len(kernels))

def artifact(kernel):
    {compiler}
    return SimpleNamespace(
        name=kernel, digest=hashlib.sha256(kernel.encode()).hexdigest(), cubin=b"",
        threads=128, dynamic_smem=0, cluster=1,
    )
"""


@dataclass
class Toy:
    """A git repository with our benchmarks, our plugin and a suite that each commit replaces."""

    path: Path
    python: str = sys.executable

    def commit(self, softmax: str | None) -> str:
        """Commit a suite whose softmax has this body (None: no suite); returns the hash."""
        package = self.path / "kernels" / "membound"
        shutil.rmtree(package, ignore_errors=True)
        if softmax is not None:
            self.write("kernels/membound/__init__.py", SUITE.format(softmax=softmax))
        return self.commit_all()

    def commit_compiled(self, compiler: str = "") -> str:
        """Commit a suite with a runtime; ``compiler`` is what compiling does first."""
        self.write("kernels/membound/__init__.py", COMPILED.format())
        self.write("kernels/membound/runtime.py", RUNTIME.format(compiler=compiler))
        return self.commit_all()

    def commit_all(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-qm", "change", "--allow-empty")
        return self.git("rev-parse", "HEAD")

    def write(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)

    def configure(self, **settings: object) -> None:
        path = self.path / "asv.conf.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))

    def git(self, *args: str) -> str:
        return subprocess.check_output(["git", *args], cwd=self.path, text=True).strip()

    def asv(self, *args: str, check: bool = True) -> subprocess.CompletedProcess:
        home = {"HOME": str(self.path.parent), "PYTHONPATH": ""}
        done = subprocess.run(
            [self.python, "-m", "asv", *args],
            cwd=self.path,
            env={**os.environ, **home},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        if check and done.returncode:
            pytest.fail(f"asv {' '.join(args)} ended with {done.returncode}:\n{done.stdout}")
        return done

    def run(self, commits: str, *args: str, **kwargs: bool) -> subprocess.CompletedProcess:
        return self.asv(
            "run", commits, "--machine", "toy", "--show-stderr", "--record-samples", *args, **kwargs
        )

    def result_file(self, commit: str) -> Path:
        (path,) = (self.path / "results" / "toy").glob(f"{commit[:8]}-*.json")
        return path

    def rows(self, commit: str, benchmark: str) -> dict[tuple[str, ...], object]:
        """asv's results of one benchmark by its parameters; NaN is n/a, None failed."""
        return self._column(commit, benchmark, "result")

    def samples(self, commit: str, benchmark: str) -> dict[tuple[str, ...], list[float]]:
        """asv's samples of one benchmark by its parameters."""
        return self._column(commit, benchmark, "samples")

    def _column(self, commit: str, benchmark: str, column: str) -> dict[tuple[str, ...], object]:
        data = json.loads(self.result_file(commit).read_text())
        row = dict(zip(data["result_columns"], data["results"][benchmark], strict=False))
        names = [[name.strip("'") for name in axis] for axis in row["params"]]
        keys = [(a, *b) for a in names[0] for b in _product(names[1:])]
        return dict(zip(keys, row[column] or [None] * len(keys), strict=True))

    def sidecar(self, commit: str) -> list[dict]:
        path = self.result_file(commit).with_suffix(".session.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    def measured(self) -> list[list[str]]:
        """What the stand-in for the GPU was asked: key, providers, process."""
        log = self.path / "measured.log"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def _product(axes: list[list[str]]) -> list[tuple[str, ...]]:
    return [(a, *b) for a in axes[0] for b in _product(axes[1:])] if axes else [()]


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    """A toy whose host has a (pretended) GPU."""
    toy = Toy(tmp_path / "repo")
    for name in ("asv_bench", "ci", "bandwatch"):
        shutil.copytree(
            ROOT / name, toy.path / name, ignore=shutil.ignore_patterns("__pycache__", "tests")
        )
    shutil.copy(ROOT / "asv.conf.json", toy.path)
    toy.write(".gitignore", ".asv/\nresults/\n__pycache__/\n*.log\n")
    toy.write("bandwatch/measure/session.py", SESSION)
    toy.write(
        "bandwatch/measure/environment.py",
        "def unavailable():\n    return None\n\n\ndef versions():\n    return {}\n",
    )
    toy.git("init", "-q", "-b", "main")
    toy.git("config", "user.name", "Toy")
    toy.git("config", "user.email", "toy@example.org")
    toy.commit(None)
    toy.asv("machine", "--machine", "toy", "--yes")
    return toy


@pytest.fixture
def stale_host(tmp_path: Path) -> str:
    """A host interpreter on top of this one, with an editable install of some other membound."""
    stale = tmp_path / "stale"
    (stale / "membound").mkdir(parents=True)
    (stale / "membound" / "__init__.py").write_text("def softmax(x, dim=-1):\n    return 99.0\n")
    host = tmp_path / "host"
    subprocess.check_call([sys.executable, "-m", "venv", "--without-pip", str(host)])
    (packages,) = host.glob("lib/python3*/site-packages")
    here = sysconfig.get_path("purelib")
    (packages / "zz_host.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    (packages / "aa_stale.pth").write_text(f"import sys; sys.path.insert(0, {str(stale)!r})\n")
    return str(host / "bin" / "python")
