"""Results and git history to dataset, over real repositories."""

from __future__ import annotations

import errno
import json
import math
import shutil
import time

import pyarrow.parquet as pq
import pytest

from bandwatch import history as questions
from bandwatch.results import dataset as datasets
from bandwatch.results import ingest as ingesting
from bandwatch.results.commits import HistoryError
from bandwatch.results.dataset import DatasetError, open_dataset
from bandwatch.results.ingest import ingest
from bandwatch.results.schema import TABLES

from .conftest import CONTROL_SECONDS, Repository, timed_row, write_sidecar


def opened(repository: Repository):
    target = repository.path / ".bandwatch" / "dataset"
    ingest(repository.results, repository.path, target)
    return open_dataset(target)


def warnings(dataset) -> str:
    return "\n".join(dataset.sql("SELECT source || ': ' || message AS w FROM warnings")["w"])


def test_a_point_carries_what_the_session_knows(history):
    repository, commits = history
    with opened(repository) as dataset:
        point = dataset.sql(
            "SELECT * FROM points WHERE provider = 'membound' AND dtype = 'bfloat16'"
            " AND shape = '4096x4096' AND position = 0"
        ).iloc[0]
        counts = dataset.sql("SELECT provider, count(*) AS n FROM points GROUP BY 1")
    assert dict(zip(counts["provider"], counts["n"], strict=True)) == {
        "membound": 40,
        "eager": 40,
        "control": 40,
    }
    assert point["series"] == "softmax/forward/bfloat16/4096x4096|membound|NVIDIA H200"
    assert point["commit"] == commits[0]
    assert point["bytes"] == 2 * 2 * 4096 * 4096
    assert point["bytes_per_second"] == pytest.approx(point["bytes"] / point["seconds"])
    assert point["peak_share"] == pytest.approx(point["bytes_per_second"] / 4800e9)
    assert point["utilisation_low"] < point["utilisation"] < point["utilisation_high"]
    assert point["utilisation"] == pytest.approx(0.90, rel=1e-3)
    assert point["speedup"] == pytest.approx(1.80, rel=1e-3)
    # Paired by placement: the 1 % between placements, common to all, does not widen the interval.
    spread = math.log(point["seconds_high"] / point["seconds_low"])
    assert math.log(point["utilisation_high"] / point["utilisation_low"]) < 0.7 * spread
    assert point["samples"] == 4
    assert point["sm_clock_mhz"] == 1950
    assert point["toolchain"] == "torch 2.11.0, nvidia-cutlass-dsl 4.8.1, control copy/1"
    assert (point["verdict"], point["driver"], point["card"]) == ("valid", "580.1", "deadbeef")
    assert json.loads(point["kernels"]) == {"softmax_row": "a1"}


def test_tables_have_their_schema_and_order(history):
    repository, _ = history
    with opened(repository) as dataset:
        for table, schema in TABLES.items():
            assert list(dataset.sql(f"SELECT * FROM {table}").columns) == schema.names
        points = dataset.sql("SELECT series, position FROM points")
    assert points.equals(points.sort_values(["series", "position"], kind="stable"))


def test_a_regression_in_all_workloads_is_one_incident_with_its_cause(history):
    repository, commits = history
    with opened(repository) as dataset:
        found = questions.incidents(dataset)
        assert len(found) == 1
        facts = found.iloc[0]
        detail = questions.incident(dataset, facts["incident"])
    assert (facts["verdict"], facts["status"], facts["workloads"]) == ("regression", "open", 4)
    assert (facts["good_commit"], facts["bad_commit"]) == (commits[5], commits[6])
    assert facts["worst_effect"] == pytest.approx(math.log(8 / 9), rel=1e-2)
    assert facts["cause"] == "spills 0 → 40, registers 64 → 128 (4 of 4 workloads)"
    assert list(detail.commits["commit"]) == [commits[6]]
    assert len(detail.workloads) == 4


def test_the_incident_keeps_its_id_as_points_arrive_and_is_recovered_by_a_fix(history):
    repository, commits = history
    with opened(repository) as dataset:
        before = questions.incidents(dataset).iloc[0]["incident"]
    for i in range(3):
        fixed = repository.commit(f"Fix {i}")
        repository.measure(fixed, 0.90, kernel="c3")
    with opened(repository) as dataset:
        after = questions.incidents(dataset)
        changes = questions.changes(dataset, verdict="recovered")
        assert questions.today(dataset).state == "fine"
        assert len(questions.incident(dataset, before).workloads) == 4
    assert list(after["incident"]) == [before]
    assert list(after["status"]) == ["recovered"]
    assert set(changes["incident"]) == {before}


def test_a_toolchain_change_at_the_step_is_named_as_the_cause(repository):
    for i in range(10):
        new = i >= 5
        commit = repository.commit(f"Commit {i}")
        repository.measure(commit, 0.8 if new else 0.9, driver="590.2" if new else "580.1")
    with opened(repository) as dataset:
        (cause,) = questions.incidents(dataset)["cause"]
    assert cause == "toolchain changed: driver 580.1 → 590.2"


def test_a_move_of_control_and_kernel_together_is_an_environment_event_and_no_incident(repository):
    for i in range(10):
        repository.measure(repository.commit(f"Commit {i}"), 0.9, slow=1.10 if i >= 5 else 1.0)
    with opened(repository) as dataset:
        changes = questions.changes(dataset)
        assert questions.incidents(dataset).empty
    assert set(changes["verdict"]) == {"environment event"}
    assert set(changes["provider"]) == {"control"}


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_move_of_the_control_alone_is_an_environment_event_and_no_incident(repository, factor):
    for i in range(10):
        new = factor if i >= 5 else 1.0
        # A session slower by `new` with utilisation higher by as much: the kernel's time stands.
        repository.measure(repository.commit(f"Commit {i}"), 0.8 * new, slow=new)
    with opened(repository) as dataset:
        changes = questions.changes(dataset)
        assert questions.incidents(dataset).empty
    assert set(changes["verdict"]) == {"environment event"}
    assert set(changes["provider"]) == {"membound"}
    assert "because the control did" in changes["reason"][0]


def test_a_move_of_the_kernel_beside_one_of_the_control_is_still_a_regression(repository):
    for i in range(10):
        new = i >= 5
        repository.measure(
            repository.commit(f"Commit {i}"), 0.8 if new else 0.9, slow=1 + 0.1 * new
        )
    with opened(repository) as dataset:
        (incident,) = questions.incidents(dataset).itertuples()
    assert (incident.verdict, incident.workloads) == ("regression", 4)


def test_invalid_points_are_kept_with_their_reason_and_never_compared(repository):
    for i in range(10):
        bad = i >= 6
        verdicts = {"membound": "throttled"} if bad else {}
        repository.measure(repository.commit(f"Commit {i}"), 0.5 if bad else 0.9, verdicts=verdicts)
    with opened(repository) as dataset:
        assert questions.changes(dataset).empty
        kept = dataset.sql("SELECT * FROM points WHERE verdict = 'throttled'")
    assert len(kept) == 16
    assert set(kept["reason"]) == {"because"}
    assert kept["seconds"].notna().all()


def test_an_invalid_control_leaves_no_utilisation(repository):
    repository.measure(repository.commit("One"), 0.9, verdicts={"control": "not steady"})
    with opened(repository) as dataset:
        rows = dataset.sql("SELECT * FROM points WHERE provider = 'membound'")
    assert rows["utilisation"].isna().all()
    assert set(rows["verdict"]) == {"valid"}


def test_not_available_is_a_row_without_numbers_and_does_not_make_a_commit_measured(repository):
    nothing = dict.fromkeys(["membound", "eager", "control"], "not available")
    repository.measure(repository.commit("Before the kernel"), 0.9, verdicts=nothing)
    repository.measure(repository.commit("The kernel"), 0.9)
    with opened(repository) as dataset:
        rows = dataset.sql("SELECT * FROM points WHERE position = 0")
        measured = list(questions.commits(dataset)["measured"])
    assert len(rows) == 12
    assert rows["seconds"].isna().all()
    assert measured == [False, True]


def test_rounds_of_a_session_are_taken_together_and_a_later_session_replaces(repository):
    commit = repository.commit("One")
    path = repository.measure(commit, 0.9, rounds=2)
    with opened(repository) as dataset:
        assert set(dataset.sql("SELECT samples FROM points")["samples"]) == {8}
    older = path.with_name(f"{path.stem}.20261130T000000Z-0b0b.session.jsonl")
    write_sidecar(older, commit, 0.5, session="old", started_at="2026-11-30T00:00:00+00:00")
    with opened(repository) as dataset:
        assert set(dataset.sql("SELECT samples FROM points")["samples"]) == {8}
        assert warnings(dataset) == ""


def test_a_copied_line_is_not_a_second_round(repository):
    path = repository.measure(repository.commit("One"), 0.9).with_suffix(".session.jsonl")
    head, first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([head, first, first, *rest]) + "\n")
    with opened(repository) as dataset:
        assert set(dataset.sql("SELECT samples FROM points")["samples"]) == {4}


@pytest.mark.parametrize(
    "cells",
    [
        {0: 1e-320},  # asv's value
        {0: -1.0},
        {5: 1e-5, 6: -1.0},  # its interval
        {5: 1e-300, 6: 1e300},
        {5: 2.0, 6: 1.0},
    ],
)
def test_damaged_statistics_of_asv_harm_neither_the_row_nor_the_others(repository, cells):
    row = timed_row(0.9)
    for column, value in cells.items():
        row[column][0] = value
    repository.result(repository.commit("One"), {"bench_softmax.Softmax.track_time": row})
    with opened(repository) as dataset:
        points = dataset.sql("SELECT * FROM points ORDER BY shape, dtype, provider = 'membound'")
    damaged = points[(points["shape"] == "4096x4096") & (points["dtype"] == "bfloat16")].iloc[-1]
    assert len(points) == 12
    if 0 in cells:
        assert (damaged["verdict"], damaged["reason"][-22:]) == ("failed", "is no time of a kernel")
    else:
        assert damaged["verdict"] == "valid" and math.isnan(damaged["utilisation_low"])
    assert (points["verdict"] == "failed").sum() == (0 in cells)


def test_without_a_sidecar_asvs_own_statistics_are_used(history):
    repository, _ = history
    for path in repository.results.glob("*/*.jsonl"):
        path.unlink()
    with opened(repository) as dataset:
        points = dataset.sql("SELECT * FROM points WHERE provider = 'membound' AND position = 0")
        (facts,) = questions.incidents(dataset).to_dict("records")
    assert set(points["gpu"]) == {"unknown"}
    assert points["seconds"].tolist() == pytest.approx([CONTROL_SECONDS / 0.9] * 4)
    assert points["utilisation"].tolist() == pytest.approx([0.9] * 4)
    assert (points["utilisation_low"] < 0.9).all() and (points["utilisation_high"] > 0.9).all()
    assert (facts["verdict"], facts["workloads"]) == ("regression", 4)


def test_rows_that_were_never_tried_make_no_points(repository):
    row = timed_row(0.9)
    row[0] = [math.nan] * 12
    static = repository.commit("No GPU here")
    repository.result(static, {"bench_softmax.Softmax.track_time": row})
    failed = repository.commit("All fails")
    repository.result(failed, {"bench_softmax.Softmax.track_time": [None, row[1], "1", 0, 1.0]})
    with opened(repository) as dataset:
        points = dataset.sql("SELECT * FROM points")
    assert set(points["commit"]) == {failed}
    assert set(points["verdict"]) == {"failed"}


def test_a_damaged_file_is_named_and_the_rest_is_read(history):
    repository, commits = history
    files = sorted(repository.results.glob("gpu/*-*.json"))
    files[0].write_text(files[0].read_text()[:500])
    sidecars = sorted(repository.results.glob("gpu/*.jsonl"))
    sidecars[1].write_text("{")
    (repository.results / "gpu" / "notes.json").write_text("[]")
    with opened(repository) as dataset:
        text = warnings(dataset)
        rest = dataset.sql('SELECT count(DISTINCT "commit") AS n FROM points')["n"][0]
    assert files[0].name in text and "not readable as JSON" in text
    assert sidecars[1].name in text and "notes.json: left out" in text
    assert rest == 9


def test_an_unknown_commit_is_kept_without_a_place(history):
    repository, _ = history
    repository.measure("0123456789" * 4, 0.1)
    with opened(repository) as dataset:
        rows = dataset.sql("SELECT * FROM points WHERE placement = 'unknown'")
        assert len(questions.incidents(dataset)) == 1
        assert "012345678901 is not in the repository" in warnings(dataset)
    assert len(rows) == 12
    assert rows["position"].isna().all()


def test_a_side_branch_is_attached_to_its_merge_and_not_segmented_with_main(history):
    repository, _ = history
    repository.git("checkout", "-q", "-b", "side", "HEAD~8")
    side = repository.commit("On the side")
    repository.measure(side, 0.1)
    repository.git("checkout", "-q", "main")
    merge = repository.merge("side")
    repository.measure(merge, 0.8, kernel="b2")
    repository.git("checkout", "-q", "-b", "never-merged")
    loose = repository.commit("Never merged")
    repository.measure(loose, 0.2)
    repository.git("checkout", "-q", "main")
    with opened(repository) as dataset:
        placed = dataset.sql('SELECT DISTINCT "commit", position, placement FROM points')
        placed = placed.set_index("commit")
        found = questions.changes(dataset)
    assert placed.loc[side, "placement"] == "merged"
    assert placed.loc[side, "position"] == placed.loc[merge, "position"] == 10
    assert placed.loc[loose, "placement"] == "off-branch"
    assert set(found["verdict"]) == {"regression"}
    assert set(found["bad_position"]) == {6}


def test_order_is_that_of_first_parents_and_not_of_dates(repository, monkeypatch):
    commits = []
    for i in range(4):
        monkeypatch.setenv("GIT_AUTHOR_DATE", f"2026-01-0{4 - i}T00:00:00Z")
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"2026-01-0{4 - i}T00:00:00Z")
        commits.append(repository.commit(f"Commit {i}: a \x1b | `pipe` @team"))
        repository.measure(commits[-1], 0.9)
    with opened(repository) as dataset:
        assert list(questions.commits(dataset)["commit"]) == commits


def test_readers_of_an_old_generation_go_on_and_new_ones_see_the_new(history):
    repository, _ = history
    with opened(repository) as old:
        before = old.sql("SELECT count(*) AS n FROM points")["n"][0]
        repository.measure(repository.commit("One more"), 0.8)
        with opened(repository) as new:
            assert new.sql("SELECT count(*) AS n FROM points")["n"][0] == before + 12
        assert old.sql("SELECT count(*) AS n FROM points")["n"][0] == before


def test_old_generations_go_after_the_grace_period(history, monkeypatch):
    repository, _ = history
    target = repository.path / "dataset"
    first = ingest(repository.results, repository.path, target)
    repository.measure(repository.commit("One more"), 0.8)
    ingest(repository.results, repository.path, target)
    assert first.path.exists()
    monkeypatch.setattr(ingesting, "GRACE", -1.0)
    repository.measure(repository.commit("Two more"), 0.8)
    last = ingest(repository.results, repository.path, target)
    assert [p.name for p in (target / "generations").iterdir()] == [last.id]


def test_an_ingest_that_dies_leaves_the_last_generation_current(history, monkeypatch):
    repository, _ = history
    target = repository.path / "dataset"
    first = ingest(repository.results, repository.path, target)
    repository.measure(repository.commit("One more"), 0.8)

    def dies(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ingesting.pq, "write_table", dies)
        with pytest.raises(KeyboardInterrupt):
            ingest(repository.results, repository.path, target)
    assert datasets.current(target).id == first.id
    assert ingest(repository.results, repository.path, target).id != first.id


def damage_nothing(root, generation):
    (root / "generations" / ".DS_Store").write_text("not ours")


def damage_current(root, generation):
    (root / "CURRENT").write_bytes(b"\xff\0")


def name_another(root, generation):
    (root / "CURRENT").write_text("20200101T000000-000000")


def damage_facts(root, generation):
    (generation.path / "generation.json").write_text("{")


def empty_facts(root, generation):
    (generation.path / "generation.json").write_text("[]")


def remove_table(root, generation):
    (generation.path / "points.parquet").unlink()


def truncate_table(root, generation):
    path = generation.path / "incidents.parquet"
    path.write_bytes(path.read_bytes()[:-20])


def age_table(root, generation):
    path = generation.path / "changes.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["reason"]), path)


@pytest.mark.parametrize(
    "damage",
    [
        damage_nothing, damage_current, name_another, damage_facts, empty_facts,
        remove_table, truncate_table, age_table,
    ],
)  # fmt: skip
def test_a_damaged_dataset_is_said_and_the_next_ingest_makes_another(history, damage):
    repository, _ = history
    target = repository.path / "dataset"
    first = ingest(repository.results, repository.path, target)
    damage(target, first)
    if damage is not damage_nothing:
        with pytest.raises(DatasetError, match="run `bandwatch ingest`"):
            open_dataset(target)
    again = ingest(repository.results, repository.path, target)
    assert again.reused == (damage is damage_nothing)
    with open_dataset(target) as dataset:
        assert questions.today(dataset).state == "1 open regression"


def test_a_dataset_removed_while_it_is_read_is_said(history):
    repository, _ = history
    with opened(repository) as dataset:
        shutil.rmtree(repository.path / ".bandwatch")
        with pytest.raises(DatasetError, match="removed, damaged"):
            questions.today(dataset)


def test_a_full_disk_leaves_the_last_generation_and_no_litter(history, monkeypatch):
    repository, _ = history
    target = repository.path / "dataset"
    first = ingest(repository.results, repository.path, target)
    repository.measure(repository.commit("One more"), 0.8)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ingesting.pq, "write_table", full)
        with pytest.raises(DatasetError, match="cannot be written.*No space left"):
            ingest(repository.results, repository.path, target)
    assert datasets.current(target).id == first.id
    assert [p.name for p in (target / "generations").iterdir()] == [first.id]


def test_a_dataset_that_cannot_be_made_is_said(history):
    repository, _ = history
    (repository.path / "file").write_text("")
    for target in ("file", "file/below"):
        with pytest.raises(DatasetError, match="cannot be written"):
            ingest(repository.results, repository.path, repository.path / target)
    with pytest.raises(DatasetError, match="no dataset here"):
        open_dataset(repository.path / "file")


def test_a_broken_link_among_the_results_is_a_warning(history):
    repository, _ = history
    (repository.results / "gpu" / "12345678-env.json").symlink_to("nowhere")
    (repository.results / "gpu" / "12345678-env.session.jsonl").symlink_to("nowhere")
    with opened(repository) as dataset:
        assert "not readable as JSON" in warnings(dataset)
        assert questions.today(dataset).state == "1 open regression"


def test_unchanged_input_is_not_ingested_again(history):
    repository, _ = history
    target = repository.path / "dataset"
    first = ingest(repository.results, repository.path, target)
    start = time.perf_counter()
    again = ingest(repository.results, repository.path, target)
    assert (again.id, again.reused, first.reused) == (first.id, True, False)
    assert time.perf_counter() - start < 1.0
    repository.commit("Main moved on")
    assert not ingest(repository.results, repository.path, target).reused


def test_two_result_folders_make_one_dataset(history):
    repository, commits = history
    other = Repository(repository.path / "elsewhere")
    other.measure(commits[0], 0.7, gpu="NVIDIA H100 80GB HBM3")
    target = repository.path / "dataset"
    ingest([repository.results, other.results], repository.path, target)
    with open_dataset(target) as dataset:
        assert questions.choices(dataset)["gpus"] == ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]


def test_one_ingest_at_a_time(history, monkeypatch):
    repository, _ = history
    target = repository.path / "dataset"
    target.mkdir()
    monkeypatch.setattr(ingesting, "PATIENCE", 0.05)
    with ingesting._only_one(target), pytest.raises(DatasetError, match="another ingest"):
        ingest(repository.results, repository.path, target)
    ingest(repository.results, repository.path, target)


def test_what_cannot_be_ingested_is_said_with_what_to_do(repository, tmp_path, monkeypatch):
    target = tmp_path / "dataset"
    repository.results.mkdir()
    with pytest.raises(HistoryError, match="no commits yet"):
        ingest(repository.results, repository.path, target)
    commit = repository.commit("One")
    with pytest.raises(DatasetError, match=r"no asv results in .*`asv run` writes them"):
        ingest(repository.results, repository.path, target)
    with pytest.raises(DatasetError, match="bandwatch ingest"):
        open_dataset(target)
    repository.measure(commit, 0.9)
    repository.commit("Two")
    plain = tmp_path / "plain"
    plain.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(HistoryError, match="not a git repository"):
        ingest(repository.results, plain, target)
    shallow = tmp_path / "shallow"
    source = f"file://{repository.path}"
    repository.git("clone", "-q", "--depth", "1", source, str(shallow))
    with pytest.raises(HistoryError, match="git fetch --unshallow"):
        ingest(repository.results, shallow, target)
    monkeypatch.setenv("PATH", str(plain))
    with pytest.raises(HistoryError, match="git is not installed"):
        ingest(repository.results, repository.path, target)


def test_a_sidecar_of_another_commit_is_not_believed(history):
    repository, commits = history
    files = sorted(repository.results.glob("gpu/*.jsonl"))
    files[0].write_text(files[1].read_text())
    with opened(repository) as dataset:
        assert "of another commit" in warnings(dataset)
        unknown = dataset.sql("SELECT DISTINCT \"commit\" AS c FROM points WHERE gpu = 'unknown'")
    assert list(unknown["c"]) == [c for c in commits if files[0].name.startswith(c[:8])]
