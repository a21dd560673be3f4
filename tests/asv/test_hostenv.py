"""asv over toy repositories: which code is measured, what a crash costs, what is kept."""

import json
import math
import os
import subprocess
import time
from pathlib import Path

import pytest

TIME = "bench_softmax.Softmax.track_time"
GPU_ROW = ("bfloat16", "32768x256")


def test_each_commit_is_measured_by_its_own_code(toy, stale_host):
    slow, fast = toy.commit("return 2e-3"), toy.commit("return 1e-3")
    empty = toy.commit(None)
    toy.write("kernels/membound/__init__.py", "def softmax(x, dim=-1):\n    return 77.0\n")
    toy.python = stale_host

    toy.run("HEAD~3..HEAD", "-b", TIME.replace(".", r"\.") + r"\('bfloat16', '32768x(256|1024)'")

    for commit, seconds in ((slow, 2e-3), (fast, 1e-3)):
        rows = toy.rows(commit, TIME)
        assert rows[(*GPU_ROW, "membound")] == pytest.approx(seconds, rel=1e-3)
        session, *lines = toy.sidecar(commit)
        assert session["commit"] == commit
        # asv goes through all commits twice, and the session of each goes on
        assert [line["key"] for line in lines] == 2 * [
            "softmax/forward/bfloat16/32768x256",
            "softmax/forward/bfloat16/32768x1024",
        ]
        assert {line["session"] for line in lines} == {session["session"]}
        samples = [sample for line in lines for sample in line["providers"]["membound"]["samples"]]
        assert {process for process, _, _ in samples} == {0, 1}
        of_one = [s for line in lines[::2] for _, _, s in line["providers"]["membound"]["samples"]]
        assert sorted(toy.samples(commit, TIME)[*GPU_ROW, "membound"]) == sorted(of_one)
    assert all(
        math.isnan(value) for key, value in toy.rows(empty, TIME).items() if key[:2] == GPU_ROW
    )
    # One measurement for the rows of a workload, one process a commit and round.
    assert len(toy.measured()) == 8
    assert len({process for _, _, process in toy.measured()}) == 4
    assert not list((toy.path / ".asv" / "sessions").iterdir())

    table = toy.asv("compare", slow, fast, "--machine", "toy").stdout
    assert "0.50" in table
    toy.asv("publish")
    assert (toy.path / ".asv" / "html" / "index.html").exists()


@pytest.mark.parametrize(
    ("death", "message"),
    [
        ("os._exit(0)", "the process died"),
        ("os.abort()", "the process died"),
        ("time.sleep(60)", "the process died or hung"),
        ("raise RuntimeError('illegal address')", "illegal address"),
    ],
)
def test_a_row_that_ends_the_process_costs_only_itself(toy, death, message):
    body = "if x.dtype == 'float16':\n        print('about to die', flush=True)\n        {}\n"
    commit = toy.commit(body.format(death) + "    return 1e-3")
    toy.configure(host_start_timeout=5)
    toy.write(
        "asv_bench/rows.py",
        (toy.path / "asv_bench/rows.py").read_text().replace("timeout = 120", "timeout = 1"),
    )

    done = toy.run("HEAD~1..HEAD", "-b", TIME + r"\('.*', '32768x256'", check=False)

    assert done.returncode == 2, done.stdout
    assert "about to die" in done.stdout
    assert ("timed out" in done.stdout) == ("sleep" in death)
    rows = {key: value for key, value in toy.rows(commit, TIME).items() if key[1] == "32768x256"}
    failed = {key for key, value in rows.items() if value is None}
    assert failed == {("float16", "32768x256", "membound")}
    assert not any(math.isnan(value) for value in rows.values() if value is not None)
    facts = {}  # of the newest line that has them, as history reads them
    for line in toy.sidecar(commit)[1:]:
        facts |= {(line["dtype"], name): found for name, found in line["providers"].items()}
    assert {key for key, found in facts.items() if found["verdict"] != "valid"} == {
        ("float16", "membound")
    }
    assert facts["float16", "membound"]["reason"].startswith(message)
    # The process that took over has its own number; it measured what was left.
    # The second round began in a third process, and a fourth took over again.
    assert {facts["bfloat16", "eager"]["samples"][0][0]} == {2}
    assert {facts["float16", "eager"]["samples"][0][0]} == {3}


def test_an_ordinary_error_fails_its_row_and_keeps_the_worker(toy):
    commit = toy.commit(
        "if x.dtype == 'float16':\n        raise ValueError('wrong result')\n"
        "    if x.dtype == 'float32':\n        raise NotImplementedError('no float32 yet')\n"
        "    return 1e-3"
    )

    done = toy.run("HEAD~1..HEAD", "-b", TIME + r"\('.*', '32768x256'", check=False)

    assert done.returncode == 2
    assert "RuntimeError: wrong result" in done.stdout
    rows = toy.rows(commit, TIME)
    assert rows[("float16", "32768x256", "membound")] is None
    assert rows[("float16", "32768x256", "eager")] == pytest.approx(1e-3, rel=1e-3)
    assert math.isnan(rows[("float32", "32768x256", "membound")])
    assert len({process for _, _, process in toy.measured()}) == 2  # a process a round


def test_a_repeated_request_is_a_new_measurement_in_a_new_process(toy):
    toy.commit("return 1e-3")

    toy.run("HEAD~1..HEAD", "-a", "rounds=3", "-b", TIME + r"\('bfloat16', '32768x256'")

    assert len({process for _, _, process in toy.measured()}) == 3


def test_a_dry_run_measures_each_commit_by_its_own_code_and_saves_nothing(toy):
    toy.commit("return print('old code') or 2e-3")
    toy.commit("return print('new code') or 1e-3")

    done = toy.run("HEAD~2..HEAD", "--dry-run", "-b", TIME + r"\('bfloat16', '32768x256'")

    assert "old code" in done.stdout
    assert "new code" in done.stdout
    assert len({process for _, _, process in toy.measured()}) == 4
    assert not list((toy.path / "results" / "toy").glob("*hostenv*"))


def test_spawn_mode_and_quick(toy):
    commit = toy.commit("return 3e-3")
    toy.configure(host_worker="spawn")

    toy.run("HEAD~1..HEAD", "--quick", "-b", TIME + r"\('bfloat16', '32768x256', '(eager|mem)")

    rows = toy.rows(commit, TIME)
    assert rows[(*GPU_ROW, "membound")] == pytest.approx(3e-3, rel=1e-3)
    session, *lines = toy.sidecar(commit)
    assert session["harness"]["placements"] == 2
    assert len(lines) == 2  # a process a row: each measured the workload


def test_what_an_earlier_session_measured_is_not_lost(toy):
    commit = toy.commit("return 1e-3")
    toy.run("HEAD~1..HEAD", "-b", TIME + r"\('.*16', '32768x256'")
    (before, *_) = toy.sidecar(commit)
    spool = toy.path / ".asv" / "sessions" / toy.result_file(commit).name
    spool = spool.with_suffix(".session.jsonl")
    spool.write_text("interrupted\n")

    done = toy.run("HEAD~1..HEAD", "-b", TIME + r"\('float16', '32768x256'")

    assert "measured but not saved" in done.stdout
    assert [p.read_text() for p in spool.parent.glob("*.unsaved")] == ["interrupted\n"]
    session, *lines = toy.sidecar(commit)
    assert session["session"] != before["session"]
    assert [line["dtype"] for line in lines] == ["float16", "float16"]
    kept = toy.result_file(commit).with_suffix(f".{before['session']}.session.jsonl")
    assert len(kept.read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pythons": ["3.9"]}, "runs on the interpreter that runs asv"),
        ({"host_worker": "thread"}, "host_worker"),
        ({"host_suite": ...}, "lacks ['host_suite']"),
        ({"host_rounds": 0}, "host_rounds"),
    ],
)
def test_bad_settings_are_named(toy, settings, message):
    path = toy.path / "asv.conf.json"
    config = {**json.loads(path.read_text()), **settings}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))

    done = toy.run("HEAD~1..HEAD", check=False)

    assert done.returncode
    assert message in done.stdout


ONE_ROW = ("-b", TIME + r"\('bfloat16', '32768x256', 'membound'\)")


def test_continuous_tells_a_slower_commit(toy):
    fast = toy.commit("return 1e-3")
    slow = toy.commit("return 2e-3")
    done = toy.asv(
        "continuous", fast, slow, "--machine", "toy", "--factor", "1.05", *ONE_ROW, check=False
    )
    assert done.returncode == 1, done.stdout
    assert "2.00" in done.stdout and "PERFORMANCE DECREASED" in done.stdout


def test_find_names_the_commit_that_made_it_slower(toy):
    first = toy.commit("return 1e-3")
    toy.commit("return 1e-3  # still")
    culprit = toy.commit("return 2e-3")
    last = toy.commit("return 2e-3  # still")
    name = TIME + r"\('bfloat16', '32768x256', 'membound'\)"
    done = toy.asv("find", f"{first}..{last}", name, "--machine", "toy")
    assert f"Greatest regression found: {culprit[:8]}" in done.stdout


def test_killing_asv_ends_its_worker(toy):
    toy.commit("return time.sleep(60) or 1e-3")
    command = [toy.python, "-m", "asv", "run", "HEAD^!", "--machine", "toy", "-b", TIME]
    environ = {**os.environ, "HOME": str(toy.path.parent), "PYTHONPATH": ""}
    asv = subprocess.Popen(command, cwd=toy.path, env=environ, stdout=subprocess.DEVNULL)
    wait_for(lambda: toy.measured())
    worker = int(toy.measured()[0][2])

    asv.kill()
    asv.wait()

    wait_for(lambda: not Path(f"/proc/{worker}").exists())


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)
