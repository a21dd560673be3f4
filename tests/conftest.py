"""Markers and the GPU validation record, for all tests."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bandwatch.measure import environment
from ci import validation

ROOT = Path(__file__).parents[1]

# The DSL assumes another architecture where it sees no GPU; set before anything imports it.
os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")


def pytest_addoption(parser):
    parser.addoption(
        "--gpu-record",
        type=Path,
        metavar="FILE",
        help="append a validation record of this run's GPU tests to FILE",
    )


def pytest_configure(config):
    if path := config.getoption("--gpu-record"):
        if reason := environment.unavailable():
            raise pytest.UsageError(f"--gpu-record needs a GPU: {reason}")
        config.pluginmanager.register(GpuRecord(path))


def pytest_collection_modifyitems(items):
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_tests and (reason := environment.unavailable()):
        for item in gpu_tests:
            item.add_marker(pytest.mark.skip(reason=reason))


class GpuRecord:
    """Counts the outcomes of tests marked gpu and writes them at the end."""

    def __init__(self, path):
        self.path = path
        self.started_at = datetime.now(UTC)
        self.outcomes = {}

    def pytest_runtest_logreport(self, report):
        if "gpu" in report.keywords and (report.when == "call" or not report.passed):
            self.outcomes[report.nodeid] = report.outcome

    def pytest_sessionfinish(self):
        outcomes = list(self.outcomes.values())
        counts = {name: outcomes.count(name) for name in ("passed", "failed", "skipped")}
        validation.append(self.path, ROOT, counts, self.started_at)
