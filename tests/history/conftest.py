"""A real git repository with asv results and sidecars beside it, built commit by commit."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path

import pytest

from bandwatch.measure.workload import DTYPE_BYTES

REQUIREMENTS = {"torch": "2.11.0", "nvidia-cutlass-dsl": "4.8.1"}
ENV = "hostenv-py3.11-nvidia-cutlass-dsl4.8.1-torch2.11.0"
DTYPES, SHAPES = ["bfloat16", "float32"], ["4096x4096", "32768x1001"]
PROVIDERS = ["membound", "eager", "control"]
COLUMNS = [
    "result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b",
    "stats_q_25", "stats_q_75", "stats_number", "stats_repeat", "samples", "profile",
]  # fmt: skip
CONTROL_SECONDS = 1e-4


class Repository:
    """A git repository in ``path`` with ``results/`` in asv's layout."""

    def __init__(self, path: Path) -> None:
        self.path, self.results = path, path / "results"
        path.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *args: str) -> str:
        environment = os.environ | {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_AUTHOR_NAME": "A. Author",
            "GIT_AUTHOR_EMAIL": "a@example.org",
            "GIT_COMMITTER_NAME": "A. Author",
            "GIT_COMMITTER_EMAIL": "a@example.org",
        }
        done = subprocess.run(
            ["git", "-C", str(self.path), *args],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    def commit(self, subject: str) -> str:
        self.git("commit", "-q", "--allow-empty", "-m", subject)
        return self.git("rev-parse", "HEAD")

    def merge(self, branch: str) -> str:
        self.git("merge", "-q", "--no-ff", "-m", f"Merge {branch}", branch)
        return self.git("rev-parse", "HEAD")

    def result(self, commit: str, results: dict, machine: str = "gpu", env: str = ENV) -> Path:
        """Write asv's file for ``commit``; ``results`` maps benchmarks to rows."""
        folder = self.results / machine
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "machine.json").write_text(json.dumps({"machine": machine, "version": 1}))
        path = folder / f"{commit[:8]}-{env}.json"
        data = {
            "commit_hash": commit, "env_name": env, "date": 0, "params": {"machine": machine},
            "python": "3.11", "requirements": REQUIREMENTS, "env_vars": {},
            "result_columns": COLUMNS, "results": results, "durations": {}, "version": 2,
        }  # fmt: skip
        path.write_text(json.dumps(data))
        return path

    def measure(self, commit: str, utilisation: float, **kwargs) -> Path:
        """asv's file and its sidecar: every workload of softmax at ``utilisation``."""
        static = kwargs.pop("static", None)
        results = {"bench_softmax.Softmax.track_time": timed_row(utilisation)}
        for metric, value in (static or {}).items():
            results[f"bench_static.Softmax.track_{metric}"] = static_row(value)
        path = self.result(commit, results)
        write_sidecar(path.with_suffix(".session.jsonl"), commit, utilisation, **kwargs)
        return path


def seconds(utilisation: float) -> dict[str, float]:
    return {
        "membound": CONTROL_SECONDS / utilisation,
        "eager": 2 * CONTROL_SECONDS,
        "control": CONTROL_SECONDS,
    }


def timed_row(utilisation: float) -> list:
    times = seconds(utilisation)
    values = [times[provider] for _ in DTYPES for _ in SHAPES for provider in PROVIDERS]
    params = [[repr(value) for value in axis] for axis in (DTYPES, SHAPES, PROVIDERS)]
    low, high = [0.99 * v for v in values], [1.01 * v for v in values]
    return [values, params, "1", 1780000000000, 1.0, low, high, low, high, [1] * 12, [6] * 12]


def static_row(value: float) -> list:
    params = [[repr(value) for value in axis] for axis in (DTYPES, SHAPES)]
    return [[value] * 4, params, "1", 1780000000000, 1.0]


def write_sidecar(
    path: Path,
    commit: str,
    utilisation: float,
    gpu: str = "NVIDIA H200",
    driver: str = "580.1",
    torch: str = "2.11.0",
    kernel: str = "a1",
    verdicts: dict | None = None,
    session: str = "20261201T000000Z-0a0a",
    started_at: str = "2026-12-01T00:00:00+00:00",
    rounds: int = 1,
    slow: float = 1.0,
) -> None:
    """``verdicts`` overrides a provider's; ``slow`` multiplies all times of the session."""
    environment = {
        "gpu": gpu, "card": "deadbeef", "driver": driver, "torch": torch,
        "nvidia-cutlass-dsl": "4.8.1", "python": "3.11",
    }  # fmt: skip
    lines = [
        {
            "schema": 1, "kind": "session", "session": session, "commit": commit,
            "started_at": started_at, "environment": environment,
            "harness": {"control": "copy/1", "placements": 4},
        }
    ]  # fmt: skip
    for dtype in DTYPES:
        for shape in SHAPES:
            for again in range(rounds):
                line = _workload(session, dtype, shape, utilisation, verdicts or {}, kernel, slow)
                lines.append(line | {"started_at": f"2026-12-01T00:00:{1 + again:02}+00:00"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _workload(session, dtype, shape, utilisation, verdicts, kernel, slow) -> dict:
    sizes = [int(n) for n in shape.split("x")]
    moved = math.prod(sizes) * DTYPE_BYTES[dtype]
    providers = {}
    for provider, time in seconds(utilisation).items():
        verdict = verdicts.get(provider, "valid")
        tried = verdict not in ("failed", "not available")
        # A slow placement slows all providers; 0.2 % of each provider's own comes on top.
        own = {"membound": 0.002, "eager": -0.002, "control": 0.0}[provider]
        samples = [
            [process, placement, slow * time * (1 + 0.01 * placement) * (1 + own * (-1) ** process)]
            for process in range(2)
            for placement in range(2)
        ]
        providers[provider] = {
            "verdict": verdict,
            "reason": "" if verdict == "valid" else "because",
            "samples": samples if tried else [],
            "sets": 3,
            "launches_per_replay": 12,
        }
    return {
        "schema": 1, "kind": "workload", "session": session,
        "key": f"softmax/forward/{dtype}/{shape}", "op": "softmax", "direction": "forward",
        "dtype": dtype, "shape": sizes, "options": {}, "bytes_read": moved, "bytes_written": moved,
        "started_at": "2026-12-01T00:00:01+00:00", "host_seconds": 0.5, "providers": providers,
        "kernels": {"softmax_row": kernel},
        "telemetry": {"sm_clock_mhz": [1900, 1950, 1980], "throttle_reasons": []},
    }  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repo")


@pytest.fixture
def history(repository: Repository) -> tuple[Repository, list[str]]:
    """Ten measured commits: softmax at 90 % of the control, from the seventh on at 80 %."""
    commits = [repository.commit(f"Commit {i}") for i in range(10)]
    for i, commit in enumerate(commits):
        broken = i >= 6
        repository.measure(
            commit,
            0.80 if broken else 0.90,
            kernel="b2" if broken else "a1",
            static={"registers": 128 if broken else 64, "spills": 40 if broken else 0},
        )
    return repository, commits
