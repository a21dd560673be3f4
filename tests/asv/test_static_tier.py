"""A machine without a GPU: static facts are recorded, GPU rows are n/a, asv ends with 0."""

import json
import math
import shutil
from pathlib import Path

import pytest

from asv_bench.providers import PROVIDERS

ROOT = Path(__file__).parents[2]
TIME = "bench_softmax.Softmax.track_time"

# Stands in for NVIDIA's disassembler, which a test machine may lack.
STATIC = """
import os
from pathlib import Path
from types import SimpleNamespace

class StaticAnalysisError(RuntimeError):
    pass

def analyse(cubin, *, threads, dynamic_smem, cluster):
    with Path(os.environ["ASV_CONF_DIR"], "analysed.log").open("a") as log:
        log.write("once\\n")
    return SimpleNamespace(
        registers=32, spills=0, stack_bytes=0, shared_bytes=64, instructions=500,
        narrow_access_share=0.25, idle_warp_share=0.5,
    )

def analyse_all(kernels, jobs):
    names = ("cubin", "threads", "dynamic_smem", "cluster")
    return [analyse(**{name: getattr(kernel, name) for name in names}) for kernel in kernels]
"""


@pytest.fixture
def no_gpu(toy, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    shutil.copy(ROOT / "bandwatch/measure/environment.py", toy.path / "bandwatch/measure")
    (toy.path / "bandwatch/measure/static.py").write_text(STATIC)
    return toy


def test_static_facts_are_recorded_and_gpu_rows_are_not_available(no_gpu):
    commit = no_gpu.commit_compiled()

    done = no_gpu.run("HEAD~1..HEAD")

    assert "no CUDA device is visible" in done.stdout or "without CUDA" in done.stdout
    gpu_rows = no_gpu.rows(commit, TIME)
    assert len(gpu_rows) == 3 * 8 * len(PROVIDERS)
    assert all(math.isnan(value) for value in gpu_rows.values())
    registers = no_gpu.rows(commit, "bench_static.Softmax.track_registers")
    assert set(registers.values()) == {32}
    assert len(registers) == 3 * 8
    shares = no_gpu.rows(commit, "bench_static.Softmax.track_narrow_access_share")
    assert set(shares.values()) == {0.25}
    # This suite has no rms_norm.
    missing = no_gpu.rows(commit, "bench_static.RmsNorm.track_registers")
    assert all(math.isnan(value) for value in missing.values())
    # Seven metrics of 24 workloads, but six different kernels.
    assert len((no_gpu.path / "analysed.log").read_text().splitlines()) == 6
    assert not no_gpu.result_file(commit).with_suffix(".session.jsonl").exists()


def test_without_a_compiler_static_rows_are_not_available(no_gpu):
    commit = no_gpu.commit_compiled("import cutlass_that_is_not_here")

    done = no_gpu.run("HEAD~1..HEAD", "-b", "bench_static.Softmax.track_spills")

    assert "cutlass_that_is_not_here" in done.stdout
    values = no_gpu.rows(commit, "bench_static.Softmax.track_spills").values()
    assert all(math.isnan(value) for value in values)


def test_two_runs_give_the_same_file_but_for_the_times(no_gpu):
    commit = no_gpu.commit_compiled()

    def recorded():
        no_gpu.run("HEAD~1..HEAD", "-b", r"bench_static\.Softmax\.track_")
        data = json.loads(no_gpu.result_file(commit).read_text())
        names = data["result_columns"]
        for row in data["results"].values():
            for name in ("started_at", "duration"):
                row[names.index(name)] = None
        return {key: value for key, value in data.items() if key != "durations"}

    assert recorded() == recorded()
