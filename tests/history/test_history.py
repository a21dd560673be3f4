"""The read helpers, on ingested repositories."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from bandwatch import history as questions
from bandwatch.results.dataset import open_dataset
from bandwatch.results.ingest import ingest

from .conftest import timed_row


def opened(repository):
    target = repository.path / "dataset"
    ingest(repository.results, repository.path, target)
    return open_dataset(target)


def test_today_counts_open_regressions_and_means_over_a_fixed_set(history):
    repository, commits = history
    repository.commit("Not measured")
    with opened(repository) as dataset:
        now = questions.today(dataset)
    assert (now.state, now.open_regressions, now.behind) == ("1 open regression", 1, 1)
    assert now.newest["commit"] == commits[9]
    (line,) = now.ops
    assert (line.op, line.provider, line.gpu) == ("softmax", "membound", "NVIDIA H200")
    assert (line.workloads, line.available) == (4, 4)
    assert line.positions == tuple(range(10))
    assert line.values == pytest.approx([0.9] * 6 + [0.8] * 4, rel=1e-3)
    assert line.utilisation_low < line.utilisation < line.utilisation_high
    assert line.speedup == pytest.approx(1.6, rel=1e-3)
    assert line.worst_utilisation == pytest.approx(0.8, rel=1e-3)


def test_the_fixed_set_leaves_out_a_workload_that_was_invalid_once(repository):
    for i in range(6):
        path = repository.measure(repository.commit(f"Commit {i}"), 0.9)
        if i == 2:
            sidecar = path.with_suffix(".session.jsonl")
            lines = sidecar.read_text().splitlines()
            lines[1] = lines[1].replace('"valid"', '"throttled"')
            sidecar.write_text("\n".join(lines) + "\n")
    with opened(repository) as dataset:
        (line,) = questions.today(dataset).ops
    assert (line.workloads, line.available) == (3, 4)
    assert line.positions == tuple(range(6))


def test_a_step_at_the_last_point_is_suspected_and_main_stays_fine(repository):
    for i in range(8):
        repository.measure(repository.commit(f"Commit {i}"), 0.8 if i == 7 else 0.9)
    with opened(repository) as dataset:
        now = questions.today(dataset)
        assert questions.incidents(dataset).empty
    assert (now.state, now.suspected) == ("fine", 4)


def test_no_data_is_said(repository):
    commit = repository.commit("One")
    repository.result(commit, {})
    with opened(repository) as dataset:
        assert questions.today(dataset).state == "no data"


def test_series_filters_joins_commits_and_limits(history):
    repository, commits = history
    with opened(repository) as dataset:
        one = questions.series(
            dataset, "softmax", "forward", "bfloat16", "4096x4096", provider="membound"
        )
        short = questions.series(dataset, "softmax", "forward", limit=3)
    assert list(one["commit"]) == commits
    assert list(one["subject"]) == [f"Commit {i}" for i in range(10)]
    assert set(one["author"]) == {"A. Author"}
    assert set(short["position"]) == {7, 8, 9} and len(short) == 3 * 12


def test_choices_are_sorted_by_row_length(history):
    repository, _ = history
    with opened(repository) as dataset:
        found = questions.choices(dataset)
    assert found["shapes"] == ["32768x1001", "4096x4096"]
    assert found["providers"] == ["control", "eager", "membound"]
    assert found["dtypes"] == ["bfloat16", "float32"]


def test_static_facts_by_commit(history):
    repository, _ = history
    with opened(repository) as dataset:
        found = questions.static(dataset, "softmax", dtype="float32", metric="registers")
    assert set(found["series"]) == {
        f"softmax/forward/float32/{shape}|registers|nvidia-cutlass-dsl 4.8.1"
        for shape in ("32768x1001", "4096x4096")
    }
    assert found["value"].tolist() == ([64] * 6 + [128] * 4) * 2


def test_unknown_incident(history):
    repository, _ = history
    with opened(repository) as dataset, pytest.raises(questions.NotFound, match="no incident 'x'"):
        questions.incident(dataset, "x")


def test_plain_times_without_a_control_still_have_a_state(repository):
    for i in range(8):
        row = timed_row(0.8 if i >= 4 else 0.9)
        row[0], row[1][2] = row[0][::3], ["'membound'"]
        row[5:] = [row[5][::3], row[6][::3]]
        repository.result(
            repository.commit(f"Commit {i}"), {"bench_softmax.Softmax.track_time": row}
        )
    with opened(repository) as dataset:
        now = questions.today(dataset)
        (facts,) = questions.incidents(dataset).to_dict("records")
        assert set(questions.changes(dataset)["metric"]) == {"seconds"}
    assert (now.state, now.gpu, now.ops) == ("1 open regression", "unknown", ())
    assert facts["worst_effect"] > 0.1  # seconds rose


def test_one_dataset_serves_several_threads(history):
    repository, _ = history
    with opened(repository) as dataset, ThreadPoolExecutor(4) as pool:
        frames = list(pool.map(lambda _: questions.commits(dataset), range(40)))
    assert all(len(frame) == 10 for frame in frames)
