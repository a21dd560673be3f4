"""The commands, run in a repository as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bandwatch import cli

#: What a command in a process of its own needs to find this checkout's code.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}


def run(capsys, *args: str) -> tuple[int, str, str]:
    code = cli.main(args)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def checkout(history, monkeypatch):
    repository, commits = history
    monkeypatch.chdir(repository.path)
    monkeypatch.setattr(cli.console, "width", 200)
    return repository, commits


def test_ingest_then_status_names_state_commit_and_incident(checkout, capsys):
    _, commits = checkout
    code, out, err = run(capsys, "ingest")
    assert (code, err) == (0, "")
    assert out.startswith("120 points and 80 static facts over 10 commits, 1 incidents")
    assert run(capsys, "ingest")[1].startswith("Nothing new")
    code, out, _ = run(capsys, "status")
    assert code == 0
    assert "1 open regression" in out and commits[9][:10] in out
    assert "80.0 %" in out and "spills 0 → 40" in out


def test_json_is_strict_json_with_the_same_facts(checkout, capsys):
    _, commits = checkout

    def constant(name):
        raise ValueError(name)

    for command in (["ingest"], ["status"], ["incidents"], ["changes"]):
        code, out, _ = run(capsys, *command, "--json")
        assert code == 0
        json.loads(out, parse_constant=constant)
    (facts,) = json.loads(run(capsys, "incidents", "--open", "--json")[1])
    assert facts["bad_commit"] == commits[6]
    detail = json.loads(run(capsys, "incidents", facts["incident"], "--json")[1])
    assert [c["commit"] for c in detail["commits"]] == [commits[6]]
    assert len(detail["workloads"]) == 4
    changes = json.loads(run(capsys, "changes", "--dtype", "float32", "--json")[1])
    assert {c["verdict"] for c in changes} == {"regression"} and len(changes) == 2


def test_an_incident_is_shown_workload_by_workload(checkout, capsys):
    run(capsys, "ingest")
    (facts,) = json.loads(run(capsys, "incidents", "--json")[1])
    code, out, _ = run(capsys, "incidents", facts["incident"])
    assert code == 0
    assert "Commit 6" in out and "softmax float32 32768x1001" in out and "-11.1 %" in out


def test_errors_say_what_to_do_and_exit_1(checkout, capsys):
    code, _, err = run(capsys, "status")
    assert code == 1 and "run `bandwatch ingest` first" in err
    code, _, err = run(capsys, "ingest", "nowhere")
    assert code == 1 and "no asv results in nowhere" in err
    run(capsys, "ingest")
    code, _, err = run(capsys, "incidents", "no-such")
    assert code == 1 and "no incident 'no-such'" in err


def test_a_damaged_file_is_a_warning_on_stderr(checkout, capsys):
    repository, commits = checkout
    path = next(repository.results.glob(f"gpu/{commits[0][:8]}-*.json"))
    path.write_text("{")
    code, _, err = run(capsys, "ingest")
    assert code == 0 and path.name in err and "not readable as JSON" in err


@pytest.mark.parametrize("command", [[], ["ingest"], ["status"], ["changes"], ["incidents"]])
def test_help_has_examples(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([*command, "--help"])
    assert stop.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_subcommands_join_by_entry_point_and_a_broken_one_harms_no_other(monkeypatch, capsys):
    class Works:
        name = "greet"

        def load(self):
            def add(commands):
                commands.add_parser("greet").set_defaults(run=lambda args: 7)

            return add

    class Broken:
        name = "broken"

        def load(self):
            raise ImportError("no such module")

    monkeypatch.setattr(cli.metadata, "entry_points", lambda group: [Broken(), Works()])
    code, _, err = run(capsys, "greet")
    assert code == 7
    assert "no command broken: no such module" in err


def test_many_warnings_are_counted_and_not_all_printed(checkout, capsys):
    repository, _ = checkout
    for i in range(15):
        (repository.results / "gpu" / f"stray{i}.json").write_text("[]")
    _, _, err = run(capsys, "ingest")
    assert err.count("warning:") == 10 and "and 5 more" in err
    _, out, _ = run(capsys, "ingest", "--json")
    assert len(json.loads(out)["warnings"]) == 15


@pytest.mark.parametrize("options", [["--json"], []])
def test_a_reader_that_has_enough_ends_the_command_quietly(checkout, options):
    repository, _ = checkout
    command = [sys.executable, "-m", "bandwatch.cli"]
    subprocess.run([*command, "ingest"], cwd=repository.path, check=True, env=ENVIRONMENT)
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*command, "changes", *options],
        cwd=repository.path, env=ENVIRONMENT, stdout=write, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_pipe_gets_whole_rows(checkout):
    repository, commits = checkout
    command = [sys.executable, "-m", "bandwatch.cli"]
    subprocess.run([*command, "ingest"], cwd=repository.path, check=True, env=ENVIRONMENT)
    out = subprocess.check_output(
        [*command, "changes"], cwd=repository.path, env=ENVIRONMENT, text=True
    )
    assert out.count(commits[6][:10]) == 4
