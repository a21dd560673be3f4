"""Joining result folders: a split history joined again is the history; nothing is lost."""

import copy
import itertools
import json
import math
import shutil
import subprocess
import sys
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


def test_asv_compares_what_was_joined_as_it_does_the_whole(original, parts, tmp_path):
    pytest.importorskip("asv")
    repository, commits = str(tmp_path / "repository"), []
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", repository]
    subprocess.run(["git", "init", "-q", "-b", "main", repository], check=True)
    for message in ("before", "after"):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", message], check=True)
        head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True)
        commits.append(head.stdout.decode().strip())
    for folder in (original, *parts):  # the recorded commit under the names of both
        (path,) = asv_files.result_paths(folder)
        document = json.loads(path.read_text())
        for commit in commits:
            renamed = path.with_name(path.name.replace("15f0a34c", commit[:8]))
            renamed.write_text(json.dumps(document | {"commit_hash": commit}))
        path.unlink()
    merge(parts, tmp_path / "joined")

    def compared(results):
        settings = {"version": 1, "project": "p", "repo": repository, "branches": ["main"]}
        config = tmp_path / "asv.conf.json"
        config.write_text(json.dumps(settings | {"results_dir": str(results)}))
        command = [sys.executable, "-m", "asv", "--config", str(config), "compare", *commits]
        done = subprocess.run([*command, "--machine", "h200"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return sorted(done.stdout.splitlines())

    assert compared(tmp_path / "joined") == compared(original)
    assert any("BiasAct.track_time" in line for line in compared(original))


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


def set_cell(folder, column, value):
    def change(document):
        document["results"][TIME][document["result_columns"].index(column)] = value

    alter(folder, change)


def measured(folder):
    return {v for v in cell(folder, TIME, "result") if v is not None and not math.isnan(v)}


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


def test_of_versions_the_higher_stays_not_the_later(original, tmp_path):
    old = shifted(original, tmp_path / "old", 9000, 2.0)
    new = shifted(original, tmp_path / "new", 0, 10.0)
    for folder, version in ((old, "9"), (new, "10")):
        set_cell(folder, "version", version)
        path = folder / "benchmarks.json"
        benchmarks = json.loads(path.read_text())
        benchmarks[TIME]["version"] = version
        path.write_text(json.dumps(benchmarks))
    summaries = merge([old, new], tmp_path / "joined")
    assert cell(tmp_path / "joined", TIME, "version") == "10"
    assert measured(tmp_path / "joined") == {10.0}
    described = json.loads((tmp_path / "joined" / "benchmarks.json").read_text())
    assert described[TIME]["version"] == "10"
    assert any("not as in" in note for one in summaries for note in one.notes)


def test_a_version_that_measured_nothing_replaces_nothing(original, tmp_path):
    other = shifted(original, tmp_path / "other", 1000, math.nan)
    set_cell(other, "version", "9")
    merge([original, other], tmp_path / "joined")
    assert rows(tmp_path / "joined") == rows(original)


def test_a_run_that_measured_nothing_makes_nothing_newer(original, tmp_path):
    """Else the measurement made between the two would be taken for the older."""
    nothing = shifted(original, tmp_path / "nothing", 5000, math.nan)
    between = shifted(original, tmp_path / "between", 3000, 3.0)
    for folder in (original, nothing, between):
        merge([folder], tmp_path / "joined")
    assert measured(tmp_path / "joined") == {3.0}


def test_the_older_of_two_measurements_is_named(original, tmp_path):
    newer = shifted(original, tmp_path / "newer", 1000, 7.0)
    (summary,) = merge([newer, original], tmp_path / "joined")
    assert measured(tmp_path / "joined") == {7.0}
    (note,) = summary.notes
    count = sum(r[0] == "ok" for key, r in rows(original).items() if key[0] == TIME)
    assert note.startswith(f"{TIME}: {count} older rows of {original}")


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


@pytest.mark.parametrize(("column", "value"), [("result", [1.0]), ("params", 5)])
def test_a_damaged_row_is_named_and_nothing_is_written(original, tmp_path, column, value):
    other = tmp_path / "other"
    shutil.copytree(original, other)
    set_cell(other, column, value)
    with pytest.raises(MergeError, match=rf"other/.* is damaged \({TIME}"):
        merge([original, other], tmp_path / "joined")
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


def sessions(folder):
    return {p.name: sidecar.read(p).session["session"] for p in folder.glob(f"*/*{sidecar.SUFFIX}")}


def named(folder, identity):
    """Give the only session its own name; returns the plain name and this one."""
    (path,) = folder.glob(f"*/*{sidecar.SUFFIX}")
    own = path.name.replace(sidecar.SUFFIX, f".{identity}{sidecar.SUFFIX}")
    path.rename(path.with_name(own))
    return path.name, own


def test_a_session_is_once_in_the_target_whatever_its_name(original, tmp_path):
    shutil.copytree(original, tmp_path / "joined")
    ((_, identity),) = sessions(original).items()
    plain, _ = named(tmp_path / "joined", identity)
    merge([original], tmp_path / "joined")
    assert sessions(tmp_path / "joined") == {plain: identity}


def test_sessions_without_a_result_are_kept_as_they_are(original, tmp_path):
    ((_, identity),) = sessions(original).items()
    _, own = named(original, identity)
    (path,) = asv_files.result_paths(original)
    path.unlink()
    merge([original], tmp_path / "joined")
    assert sessions(tmp_path / "joined") == {own: identity}


def test_an_environment_that_begins_like_another_keeps_its_sessions(original, tmp_path):
    (path,) = asv_files.result_paths(original)
    (session,) = original.glob(f"*/*{sidecar.SUFFIX}")
    session.rename(path.with_name(f"15f0a34c-torch2.11.0{sidecar.SUFFIX}"))
    for env in ("torch2.11", "torch2.11.0"):
        text = json.dumps(json.loads(path.read_text()) | {"env_name": env})
        path.with_name(f"15f0a34c-{env}.json").write_text(text)
    path.unlink()
    merge([original], tmp_path / "joined")
    assert list(sessions(tmp_path / "joined")) == [f"15f0a34c-torch2.11.0{sidecar.SUFFIX}"]


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
