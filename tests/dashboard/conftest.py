"""A synthetic dataset, written straight from the tables' schemas. No number in it was measured.

Twenty commits, two of them unmeasured; an improvement at commit 3, an invalid point at 5, a
regression of softmax at 10 that recovers at 16, and one of rms_norm at 17 that stays open.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bandwatch.results.schema import TABLES

APP = Path(__file__).parents[2] / "dashboard" / "app.py"
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "**bold** [link](http://x) @team",
    "`code` | $x^2$ :red[red] \u202egnirts",
)
GPU = "NVIDIA H200"
OPS, DTYPES = ("softmax", "rms_norm"), ("bfloat16", "float32")
SHAPES = ("32768x256", "4096x4096", "32768x1001")
PROVIDERS = ("membound", "eager", "control")
UNMEASURED, INVALID = (7, 13), 5
START = datetime(2026, 11, 1, 12, tzinfo=UTC)


def commit(position: int) -> str:
    """The commit at a position, as 40 hex digits."""
    return hashlib.sha1(f"synthetic {position}".encode()).hexdigest()


def level(op: str, dtype: str, shape: str, position: int) -> float:
    """Utilisation of membound before noise."""
    value = 0.88 - 0.12 * SHAPES.index(shape) - 0.05 * OPS.index(op) + 0.02 * DTYPES.index(dtype)
    if position < 3:
        value *= 0.7
    if op == "softmax" and dtype == "bfloat16" and 10 <= position < 16:
        value *= 0.85
    if op == "rms_norm" and dtype == "float32" and position >= 17:
        value *= 0.9
    return value


class Synthetic:
    """The tables as lists of rows, changed freely before ``write``."""

    def __init__(self, commits: int = 20, hostile: bool = False) -> None:
        self.hostile = hostile
        self.ops = ("softmax", HOSTILE[0] if hostile else "rms_norm")
        self.gpu = HOSTILE[1] if hostile else GPU
        self.commits = [self._commit(position) for position in range(commits)]
        self.points = [
            self._point(op, dtype, shape, provider, position)
            for op in OPS
            for dtype in DTYPES
            for shape in SHAPES
            for provider in PROVIDERS
            for position in range(commits)
            if position not in UNMEASURED
        ]
        self.static = [
            self._fact(op, dtype, shape, metric, position)
            for op in OPS
            for dtype in DTYPES
            for shape in SHAPES
            for metric in ("registers", "spills", "shared_bytes", "narrow_access_share")
            for position in range(commits)
        ]
        self.changes: list[dict] = []
        self.incidents: list[dict] = []
        if commits > 17:
            self._incident("i-1", "improvement", "open", 3, OPS, DTYPES, "")
            self._incident(
                "i-2", "regression", "recovered", 10, OPS[:1], DTYPES[:1], "registers up"
            )
            self._incident("i-3", "recovered", "recovered", 16, OPS[:1], DTYPES[:1], "")
            cause = HOSTILE[0] if hostile else "narrow accesses from 0 % to 50 %"
            self._incident("i-4", "regression", "open", 17, OPS[1:], DTYPES[1:], cause)
        self.warnings: list[dict] = []

    def write(self, folder: Path) -> Path:
        """One complete generation; returns the dataset's folder."""
        generation = folder / "generations" / "synthetic"
        generation.mkdir(parents=True)
        rows = {}
        for name, schema in TABLES.items():
            table = pa.Table.from_pylist(getattr(self, name), schema=schema)
            pq.write_table(table, generation / f"{name}.parquet")
            rows[name] = table.num_rows
        (generation / "generation.json").write_text(json.dumps({"rows": rows}))
        (folder / "CURRENT").write_text("synthetic\n")
        return folder

    def name(self, op: str) -> str:
        return self.ops[OPS.index(op)]

    def series(self, op: str, dtype: str, shape: str, provider: str) -> str:
        return f"{self.name(op)}/forward/{dtype}/{shape}|{provider}|{self.gpu}"

    def _commit(self, position: int) -> dict:
        moment = START + timedelta(hours=7 * position)
        hostile = self.hostile and position % 3 == 1
        return {
            "commit": commit(position),
            "position": position,
            "subject": HOSTILE[0] if hostile else f"Synthetic step {position}",
            "author": HOSTILE[1] if hostile else ("Ada Example", "Bo Example")[position % 2],
            "authored_at": moment,
            "committed_at": moment,
            "measured": position not in UNMEASURED,
        }

    def _point(self, op: str, dtype: str, shape: str, provider: str, position: int) -> dict:
        rows, columns = (int(n) for n in shape.split("x"))
        moved = 2 * rows * columns * (2 if dtype == "bfloat16" else 4)
        noise = 1 + 0.003 * math.sin(7 * position + len(shape) + len(dtype))
        utilisation = {
            "membound": level(op, dtype, shape, position) * noise,
            "eager": 0.55 * noise,
            "control": 1.0,
        }[provider]
        control = moved / 4.2e12
        seconds = control / utilisation
        speedup = utilisation / (0.55 * noise)
        invalid = position == INVALID and provider == "membound"
        values = {"seconds": seconds, "utilisation": utilisation, "speedup": speedup}
        intervals = {f"{key}_low": value * 0.994 for key, value in values.items()}
        intervals |= {f"{key}_high": value * 1.006 for key, value in values.items()}
        reason = HOSTILE[0] if self.hostile else "clock fell to 1,200 MHz"
        return {
            "series": self.series(op, dtype, shape, provider),
            "op": self.name(op),
            "direction": "forward",
            "dtype": dtype,
            "shape": shape,
            "options": "",
            "provider": provider,
            "gpu": self.gpu,
            "machine": "synthetic",
            "env": "synthetic",
            "commit": commit(position),
            "position": position,
            "placement": "main",
            "benchmark": f"bench_{op}.{op.title()}.track_time",
            **values,
            **intervals,
            "bytes": moved,
            "bytes_per_second": moved / seconds,
            "peak_share": moved / seconds / 4.8e12,
            "samples": 12,
            "call_seconds": seconds + 6e-6,
            "verdict": "throttled" if invalid else "valid",
            "reason": reason if invalid else "",
            "card": "0a1b2c3d",
            "sm_clock_mhz": 1200.0 if invalid else 1980.0,
            "memory_clock_mhz": 3201.0,
            "temperature_c": 41.0,
            "power_w": 410.0,
            "toolchain": "synthetic 1.0",
            "driver": "000.00",
            "kernels": "{}",
            "session": f"session {position}",
            "started_at": START + timedelta(hours=7 * position + 1),
        }

    def _fact(self, op: str, dtype: str, shape: str, metric: str, position: int) -> dict:
        worse = level(op, dtype, shape, position) < 0.99 * level(op, dtype, shape, 4)
        value, unit = {
            "registers": (96.0 if worse else 64.0, "count"),
            "spills": (0.0, "count"),
            "shared_bytes": (1024.0, "bytes"),
            "narrow_access_share": (0.5 if worse else 0.0, "share"),
        }[metric]
        return {
            "series": f"{self.name(op)}/forward/{dtype}/{shape}|{metric}|synthetic 1.0",
            "op": self.name(op),
            "direction": "forward",
            "dtype": dtype,
            "shape": shape,
            "metric": metric,
            "unit": unit,
            "toolchain": "synthetic 1.0",
            "machine": "synthetic",
            "commit": commit(position),
            "position": position,
            "value": value,
        }

    def _incident(
        self, id: str, verdict: str, status: str, bad: int, ops: tuple, dtypes: tuple, cause: str
    ) -> None:
        good = bad - 1
        span = {
            "verdict": verdict,
            "good_commit": commit(good),
            "bad_commit": commit(bad),
            "good_position": good,
            "bad_position": bad,
        }
        effects = []
        for op in ops:
            for dtype in dtypes:
                for shape in SHAPES:
                    before = level(op, dtype, shape, good)
                    after = level(op, dtype, shape, bad)
                    effects.append(math.log(after / before))
                    series = self.series(op, dtype, shape, "membound")
                    self.changes.append(
                        {
                            "change": f"{id} {series}",
                            "incident": id,
                            "series": series,
                            "metric": "utilisation",
                            **span,
                            "before": before,
                            "after": after,
                            "effect": effects[-1],
                            "effect_low": effects[-1] - 0.01,
                            "effect_high": effects[-1] + 0.01,
                            "reason": HOSTILE[2] if self.hostile else "",
                        }
                    )
        self.incidents.append(
            {
                "incident": id,
                **span,
                "status": status,
                "gpu": self.gpu,
                "ops": ",".join(self.name(op) for op in ops),
                "workloads": len(effects),
                "worst_effect": max(effects, key=abs),
                "median_effect": sorted(effects)[len(effects) // 2],
                "cause": cause,
            }
        )


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Synthetic().write(tmp_path_factory.mktemp("dataset"))


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Synthetic(hostile=True).write(tmp_path_factory.mktemp("hostile"))


@contextmanager
def serve(dataset: Path) -> Iterator[str]:
    """The dashboard over ``dataset`` on a free port; yields its address without a final slash."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", str(APP), f"--server.port={port}"]
    command += ["--server.fileWatcherType=none", "--", "--dataset", str(dataset)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=dataset)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            assert server.poll() is None, f"streamlit stopped with exit code {server.returncode}"
            try:
                with urllib.request.urlopen(f"{address}/_stcore/health", timeout=1):
                    break
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        else:
            raise TimeoutError(f"no answer from {address} within 30 s")
        yield address
    finally:
        server.terminate()
        server.wait()


@contextmanager
def chromium(*, width: int = 1280, height: int = 800, dark: bool = False) -> Iterator:
    """A page in the system's headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
        )
        yield page
        browser.close()
