"""Joining result folders: a split history joined again is the history; nothing is lost."""

import copy
import itertools
import json
import math
import shutil
from pathlib import Path

import pytest

from bandwatch import cli, sidecar
from bandwatch.measure import shards
from bandwatch.results import asv_files
from bandwatch.results.merge import MergeError, merge
from bandwatch.results.rows import row_workload

RECORDED = Path(__file__).parents[2] / "results" / "h200"
ASV = Path(__file__).parents[3] / "shared" / "data" / "asv"


@pytest.fixture
def original(tmp_path):
    """A recorded commit, alone in a folder."""
    (file,) = RECORDED.glob("15f0a34c-*.json")
    folder = tmp_path / "original" / "h200"
    folder.mkdir(parents=True)
    for path in (file, file.with_suffix(sidecar.SUFFIX), RECORDED / "machine.json"):
        shutil.copy(path, folder)
    shutil.copy(RECORDED.parent / "benchmarks.json", folder.parent)
    return folder.parent


def part(original, target, takes):
    """What a run that measured only some workloads would have written."""
    shutil.copytree(original, target)
    (path,) = asv_files.result_paths(target)
    document = json.loads(path.read_text())
    columns = document["result_columns"]
    for name, row in document["results"].items():
        params = row[columns.index("params")]
        for index, combination in enumerate(itertools.product(*params)):
            dtype, case = (text.strip("'") for text in combination[:2])
            workload = row_workload(name.split(".")[-2], dtype, case)
            if takes(workload.key):
                continue
            for column, values in zip(columns, row, strict=False):
                if isinstance(values, list) and column != "params" and len(values) > index:
                    values[index] = math.nan if column == "result" else None
    path.write_text(json.dumps(document))
    lines = path.with_suffix(sidecar.SUFFIX).read_text().splitlines()
    header, rest = json.loads(lines[0]), [json.loads(line) for line in lines[1:]]
    kept = [line for line in rest if takes(line["key"])]
    for line in [header, *kept]:
        line["session"] = f"{header['session'][:17]}{target.name}"
    text = "".join(json.dumps(line) + "\n" for line in [header, *kept])
    path.with_suffix(sidecar.SUFFIX).write_text(text)
    return target


@pytest.fixture
def parts(original, tmp_path):
    return [part(original, tmp_path / f"part{i}", shards.parse(f"{i}/3").takes) for i in (1, 2, 3)]


def rows(folder):
    (path,) = asv_files.result_paths(folder)
    found = asv_files.read(path)
    assert not found.warnings
    return {
        (r.benchmark, r.params): (r.outcome, r.value, r.ci_99, r.samples, r.repeat)
        for r in found.rows
    }


def texts(folder):
    return {
        str(p.relative_to(folder)): p.read_text()
        for p in sorted(folder.glob("**/*"))
        if p.is_file()
    }


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_parts_joined_in_any_order_are_the_whole(original, parts, tmp_path, order):
    target = tmp_path / "joined"
    before = {part: texts(part) for part in parts}
    merge([parts[i] for i in order], target)
    assert rows(target) == rows(original)
    lines = [
        line["key"]
        for path in target.glob(f"*/*{sidecar.SUFFIX}")
        for line in sidecar.read(path).workloads
    ]
    (recorded,) = original.glob(f"*/*{sidecar.SUFFIX}")
    assert sorted(lines) == sorted(line["key"] for line in sidecar.read(recorded).workloads)
    assert {part: texts(part) for part in parts} == before


def test_joining_one_after_the_other_and_twice_changes_nothing_more(parts, tmp_path):
    merge(parts, tmp_path / "at once")
    for one in parts:
        merge([one], tmp_path / "stepwise")
    assert rows(tmp_path / "stepwise") == rows(tmp_path / "at once")
    before = texts(tmp_path / "stepwise")
    summaries = merge(parts, tmp_path / "stepwise")
    assert texts(tmp_path / "stepwise") == before
    assert all(one.added == one.replaced == 0 < one.kept for one in summaries)


def test_asv_reads_what_was_joined(parts, tmp_path):
    results = pytest.importorskip("asv.results")
    merge(parts, tmp_path / "joined")
    (path,) = asv_files.result_paths(tmp_path / "joined")
    loaded = results.Results.load(str(path), machine_name="h200")
    assert any(name.endswith("track_time") for name in loaded.get_all_result_keys())


def alter(folder, change):
    (path,) = asv_files.result_paths(folder)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def cell(folder, name, column):
    (path,) = asv_files.result_paths(folder)
    document = json.loads(path.read_text())
    return document["results"][name][document["result_columns"].index(column)]


TIME = "bench_bias_act.BiasAct.track_time"


def shifted(original, target, later, value):
    """The same rows, measured at another time with other values."""
    shutil.copytree(original, target)

    def change(document):
        columns = document["result_columns"]
        row = document["results"][TIME]
        row[columns.index("started_at")] += later
        result = columns.index("result")
        row[result] = [v if v is None or math.isnan(v) else value for v in row[result]]

    alter(target, change)
    return target


@pytest.mark.parametrize("later", [1000, -1000])
def test_the_newer_measurement_wins_and_the_other_is_counted(original, tmp_path, later):
    other = shifted(original, tmp_path / "other", later, 7.0)
    target = tmp_path / "joined"
    merge([original], target)
    (summary,) = merge([other], target)
    values = [v for v in cell(target, TIME, "result") if v is not None and not math.isnan(v)]
    assert (set(values) == {7.0}) == (later > 0)
    assert (summary.replaced > 0) == (later > 0)


@pytest.mark.parametrize("nothing", [None, math.nan])
def test_what_failed_or_was_not_measured_never_replaces(original, tmp_path, nothing):
    other = shifted(original, tmp_path / "other", 1000, nothing)
    merge([original, other], tmp_path / "joined")
    assert rows(tmp_path / "joined") == rows(original)


def test_versions_are_not_mixed(original, tmp_path):
    other = shifted(original, tmp_path / "other", 1000, 7.0)

    def newer(document):
        document["results"][TIME][document["result_columns"].index("version")] = "2"

    alter(other, newer)
    (summary,) = merge([original, other], tmp_path / "joined")
    assert cell(tmp_path / "joined", TIME, "version") == "2"
    values = cell(tmp_path / "joined", TIME, "result")
    assert {v for v in values if v is not None and not math.isnan(v)} == {7.0}
    assert any("gave way to version 2" in note for note in summary.notes)


def test_parameters_are_matched_by_value(original, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(original, other)

    def reorder(document):
        columns = document["result_columns"]
        row = document["results"][TIME]
        params = row[columns.index("params")]
        combinations = list(itertools.product(*params))
        turned = copy.deepcopy(params)
        turned[1].reverse()
        turned[2].append("'another'")
        index = {c: i for i, c in enumerate(combinations)}
        for column, values in zip(columns, row, strict=False):
            if isinstance(values, list) and column != "params":
                row[columns.index(column)] = [
                    values[index[c]] if c in index else (math.nan if column == "result" else None)
                    for c in itertools.product(*turned)
                ]
        row[columns.index("params")] = turned
        row[columns.index("started_at")] += 1000

    alter(other, reorder)
    merge([original, other], tmp_path / "joined")
    joined, before = rows(tmp_path / "joined"), rows(original)
    assert {key: joined[key] for key in before} == before


def test_different_machines_of_one_name_are_refused(original, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(original, other)
    path = other / "h200" / "machine.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"gpu": "NVIDIA H100 80GB HBM3"}))
    with pytest.raises(MergeError, match="gpu is 'NVIDIA H100 80GB HBM3'.*'NVIDIA H200'"):
        merge([original, other], tmp_path / "joined")
    assert not (tmp_path / "joined").exists()


def test_a_damaged_file_is_named_and_nothing_is_written(original, parts, tmp_path):
    (path,) = asv_files.result_paths(parts[1])
    path.write_text(path.read_text()[:-200])
    with pytest.raises(MergeError, match=rf"{path.name} is damaged"):
        merge(parts, tmp_path / "joined")
    assert not (tmp_path / "joined").exists()


def test_folders_that_cannot_be_joined_are_named(original, tmp_path):
    with pytest.raises(MergeError, match="lie in one another"):
        merge([original], original)
    with pytest.raises(MergeError, match="lie in one another"):
        merge([original], original / "h200")
    with pytest.raises(MergeError, match="nosuch is no folder"):
        merge([tmp_path / "nosuch"], tmp_path / "joined")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MergeError, match="holds no results"):
        merge([tmp_path / "empty"], tmp_path / "joined")


def test_one_session_under_two_contents_is_refused(original, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(original, other)
    (path,) = other.glob(f"*/*{sidecar.SUFFIX}")
    lines = path.read_text().splitlines()
    lines[1] = lines[1].replace('"host_seconds": ', '"host_seconds": 9')
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(MergeError, match="differ and are both session"):
        merge([original, other], tmp_path / "joined")


def test_others_results_join_too(tmp_path):
    source = ASV / "devito-thematrix" / "results"
    if not source.exists():
        pytest.skip("other people's results are not here")
    merge([source], tmp_path / "joined")
    merge([source], tmp_path / "joined")
    paths = asv_files.result_paths(source)
    assert [p.name for p in asv_files.result_paths(tmp_path / "joined")] == [p.name for p in paths]
    for path in paths:
        before, after = (
            asv_files.read(p) for p in (path, tmp_path / "joined" / path.relative_to(source))
        )
        assert [(r.benchmark, r.params, r.value) for r in before.rows] == [
            (r.benchmark, r.params, r.value) for r in after.rows
        ]


def test_the_command_tells_what_it_did(parts, tmp_path, capsys):
    into = str(tmp_path / "joined")
    assert cli.main(["merge", *map(str, parts), "--into", into, "--dry-run"]) == 0
    assert "nothing was written" in capsys.readouterr().out
    assert not (tmp_path / "joined").exists()
    assert cli.main(["merge", *map(str, parts), "--into", into]) == 0
    assert "15f0a34c" in capsys.readouterr().out
    assert cli.main(["merge", str(tmp_path / "nosuch"), "--into", into]) == 1
    assert "nosuch is no folder" in capsys.readouterr().err
