"""Oddities of asv's result files, as found in public histories."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bandwatch.results import asv_files

HEAD = {"commit_hash": "a" * 40, "env_name": "env", "params": {"machine": "m"}, "version": 2}


def write(folder: Path, results: dict, **head) -> Path:
    path = folder / "machine" / "aaaaaaaa-env.json"
    path.parent.mkdir(exist_ok=True)
    columns = ["result", "params", "version", "started_at", "duration"]
    columns += ["stats_ci_99_a", "stats_ci_99_b", "stats_repeat", "samples"]
    path.write_text(json.dumps({"result_columns": columns, "results": results} | HEAD | head))
    return path


def rows(folder: Path, row: list) -> list[asv_files.Row]:
    return list(asv_files.read(write(folder, {"b": row})).rows)


def test_failed_skipped_and_infinite_are_told_apart(tmp_path):
    params = [["1", "2", "3", "4", "5"]]
    found = rows(tmp_path, [[1.5, None, math.nan, math.inf, "text"], params])
    assert [r.outcome for r in found] == [
        "ok", "failed", "not available", "not a number", "not a number",
    ]  # fmt: skip
    assert [r.value for r in found] == [1.5, None, None, None, None]


def test_short_rows_and_null_results(tmp_path):
    assert [r.outcome for r in rows(tmp_path, [None, [["1", "2"]]])] == ["failed", "failed"]
    assert [r.outcome for r in rows(tmp_path, [None])] == ["failed"]
    assert [(r.params, r.value) for r in rows(tmp_path, [[3]])] == [((), 3.0)]


def test_params_are_the_rows_own_in_asvs_order(tmp_path):
    params = [["'bfloat16'", "'it\\'s'"], ["1", "<function f>"]]
    found = rows(tmp_path, [[1, 2, 3, 4], params])
    assert [r.params for r in found] == [
        ("bfloat16", "1"), ("bfloat16", "<function f>"), ("it's", "1"), ("it's", "<function f>"),
    ]  # fmt: skip


def test_statistics_and_infinite_intervals(tmp_path):
    row = [[1.0, 2.0], [["1", "2"]], "1", 5, 1.0, [0.9, -math.inf], [1.1, math.inf], [6, 1]]
    first, second = rows(tmp_path, [*row, [[1.0, 1.1], None]])
    assert (first.ci_99, first.repeat, first.samples) == ((0.9, 1.1), 6, (1.0, 1.1))
    assert (second.ci_99, second.repeat, second.samples) == (None, 1, None)
    assert (first.version, first.started_at) == ("1", 5)


def test_numbers_that_no_float_or_date_can_hold_cost_only_themselves(tmp_path):
    huge = 10**400
    first, second = rows(tmp_path, [[huge, 2.0], [["1", "2"]], "1", huge])
    assert (first.outcome, first.value) == ("not a number", None)
    assert (second.outcome, second.value, second.started_at) == ("ok", 2.0, None)
    assert [row.started_at for row in rows(tmp_path, [[1.0], [], "1", 1e15])] == [None]
    samples = [[1.0], [], "1", 0, 0, None, None, None, [[huge]]]
    file = asv_files.read(write(tmp_path, {"a": samples, "b": [[1.0], []]}))
    assert [row.benchmark for row in file.rows] == ["b"]
    assert "a: left out" in file.warnings[0]


def test_a_damaged_row_is_named_and_the_others_are_read(tmp_path):
    path = write(tmp_path, {"bad": [[1, 2, 3], [["1", "2"]]], "worse": 7, "good": [[1]]})
    file = asv_files.read(path)
    assert [r.benchmark for r in file.rows] == ["good"]
    assert len(file.warnings) == 2
    assert "bad: left out" in file.warnings[0] and "3 entries" in file.warnings[0]


def test_version_1(tmp_path):
    results = {
        "plain": 1.5,
        "failed": None,
        "grid": {
            "params": [["'a'", "'b'"]],
            "result": [1.0, None],
            "stats": [{"ci_99": [0.9, 1.1], "repeat": 5}, None],
        },
    }
    file = asv_files.read(write(tmp_path, results, version=1, benchmark_version={"grid": "v"}))
    plain, failed, a, b = file.rows
    assert (plain.value, failed.outcome, a.params, b.outcome) == (1.5, "failed", ("a",), "failed")
    assert (a.ci_99, a.repeat, a.version) == ((0.9, 1.1), 5, "v")


@pytest.mark.parametrize(
    "text, reason",
    [
        ("{", "not readable as JSON"),
        ("[]", "this is a list"),
        ("{}", "version None"),
        ('{"version": 3}', "version 3"),
        ('{"version": 2, "results": {}}', "no commit_hash"),
        ('{"version": 2, "results": {}, "commit_hash": ""}', "a full hash"),
        ('{"version": 2, "results": {}, "commit_hash": "HEAD"}', "a full hash"),
        ("[" * 100_000, "not readable as JSON"),
    ],
)
def test_what_is_no_result_is_refused_with_a_reason(tmp_path, text, reason):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(asv_files.DamagedFile, match=reason):
        asv_files.read(path)


def test_result_paths_leave_out_what_asv_keeps_beside_results(tmp_path):
    path = write(tmp_path, {})
    for name in ("machine/machine.json", "benchmarks.json", "machine/x.session.jsonl"):
        (tmp_path / name).write_text("{}")
    assert asv_files.result_paths(tmp_path) == [path]


CORPORA = Path(__file__).parents[3] / "shared" / "data" / "asv"
EXTERNAL = pytest.mark.skipif(not CORPORA.is_dir(), reason="../shared/data is not here")


@EXTERNAL
@pytest.mark.parametrize("name", ["conda/dot-asv", "conda", "devito-thematrix"])
def test_public_histories_are_read_whole(name):
    paths = asv_files.result_paths(CORPORA / name / "results")
    files = [asv_files.read(path) for path in paths]
    assert len(files) >= 6
    assert not [w for file in files for w in file.warnings]
    assert sum(row.outcome == "ok" for file in files for row in file.rows) >= 250


@EXTERNAL
def test_version_1_reads_as_asvs_own_conversion_of_it():
    old, new = (
        {
            (path.parent.name, path.name, row.benchmark, row.params): (row.outcome, row.value)
            for path in asv_files.result_paths(CORPORA / "conda" / folder / "results")
            for row in asv_files.read(path).rows
        }
        for folder in ("dot-asv", "v1-updated-by-asv-0.6.6")
    )
    assert old == new
