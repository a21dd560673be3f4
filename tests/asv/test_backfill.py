"""bandwatch backfill over a toy repository: what is measured, written, and lost by a kill."""

import json
import math
import os
import subprocess
import sys

import pytest
from bandwatch.ci import backfill
from bandwatch.ci.backfill import Commit

from bandwatch.measure import shards
from bandwatch.measure.known import Measured

TIME = "bench_softmax.Softmax.track_time"
ROW = ("bfloat16", "32768x256")

# A suite with a runtime: the kernel of a softmax is named by its dtype and a version, its time is
# the number beside it.
SUITE = """
import os
from . import runtime

def softmax(x, dim=-1):
    dtype = str(x.dtype).removeprefix("torch.")
    version, seconds = {versions!r}[dtype]
    runtime.launched.append(runtime.Launch(f"softmax_{{dtype}}_{{version}}"))
    if seconds == "dies":
        if x.__class__.__name__ == "SimpleNamespace":
            os.abort()
        return x
    return seconds if x.__class__.__name__ == "SimpleNamespace" else x
"""


def commit(toy, **versions):
    """Commit a suite; ``bfloat16=("v1", 1e-3)`` names the kernel and its time."""
    kernels = {"bfloat16": ("v1", 1e-3), "float16": ("v1", 1e-3), "float32": ("v1", 1e-3)}
    count = toy.git("rev-list", "--count", "HEAD")  # or git would see no change
    text = SUITE.format(versions=kernels | versions) + f"# {count}\n"
    toy.write("kernels/membound/__init__.py", text)
    return toy.commit_all()


@pytest.fixture
def history(toy):
    """Six commits of which the third changes bfloat16 and the fifth float16."""
    toy.commit_compiled()
    commit(toy)
    slow, half = {"bfloat16": ("v2", 2e-3)}, {"float16": ("v2", 5e-4)}
    changes = [{}, {}, slow, slow, slow | half, slow | half]
    return toy, [commit(toy, **one) for one in changes]


def run(toy, *args, check=True, **environ):
    done = subprocess.run(
        [sys.executable, "-m", "bandwatch.cli", "backfill", "--machine", "toy", *args],
        cwd=toy.path,
        env={**os.environ, "HOME": str(toy.path.parent), "PYTHONPATH": "", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    if check and done.returncode:
        pytest.fail(f"backfill ended with {done.returncode}:\n{done.stdout}")
    return done


def measured_at(toy, hashes, dtype):
    """Which of the commits have a measured row of a dtype."""
    found = []
    for i, one in enumerate(hashes):
        files = list((toy.path / "results" / "toy").glob(f"{one[:8]}-*.json"))
        if files and not math.isnan(toy.rows(one, TIME)[dtype, "32768x256", "membound"] or 1):
            found.append(i)
    return found


def test_both_sides_of_every_change_are_measured_and_asv_can_read_them(history):
    toy, hashes = history
    run(toy, "HEAD~6..HEAD")

    # the first end is the commit before the range
    assert measured_at(toy, hashes, "bfloat16") == [1, 2, 5]
    assert measured_at(toy, hashes, "float16") == [3, 4, 5]
    assert measured_at(toy, hashes, "float32") == [5]  # nothing changed it
    assert toy.rows(hashes[1], TIME)[*ROW, "membound"] == pytest.approx(1e-3, rel=1e-3)
    assert toy.rows(hashes[2], TIME)[*ROW, "membound"] == pytest.approx(2e-3, rel=1e-3)
    for provider in ("eager", "control"):
        assert toy.rows(hashes[2], TIME)[*ROW, provider] == pytest.approx(1e-3, rel=1e-3)
    session, *lines = toy.sidecar(hashes[2])
    assert session["commit"] == hashes[2]
    (line,) = (line for line in lines if line["key"] == "softmax/forward/bfloat16/32768x256")
    assert set(line["providers"]) == {"membound", "eager", "control"}
    assert list(line["kernels"]) == ["softmax_bfloat16_v2"]
    # a workload's commits were measured together
    assert all(len(providers.split(",")) > 3 for _, providers, _ in toy.measured()[:1])

    table = toy.asv("compare", hashes[1], hashes[2], "--machine", "toy").stdout
    assert "2.00" in table
    toy.asv("publish")


def test_what_is_recorded_is_not_measured_again_unless_asked(history):
    toy, hashes = history
    run(toy, "HEAD~6..HEAD")
    before, texts = len(toy.measured()), [toy.result_file(one).read_text() for one in hashes[-2:]]

    assert "0 measurements" in run(toy, "HEAD~6..HEAD").stdout
    assert len(toy.measured()) == before
    assert [toy.result_file(one).read_text() for one in hashes[-2:]] == texts
    run(toy, "HEAD~6..HEAD", "--fresh")
    assert len(toy.measured()) == 2 * before


def test_after_a_kill_it_goes_on_and_nothing_is_lost(history):
    toy, hashes = history
    toy.write("bandwatch/measure/session.py", slow_session(toy))
    running = subprocess.Popen(
        [sys.executable, "-m", "bandwatch.cli", "backfill", "--machine", "toy", "HEAD~6..HEAD"],
        cwd=toy.path,
        env={**os.environ, "HOME": str(toy.path.parent), "PYTHONPATH": ""},
        stdout=subprocess.DEVNULL,
    )
    while len(toy.measured()) < 5:
        assert running.poll() is None
    running.kill()
    running.wait()
    (spool,) = (toy.path / ".bandwatch/backfill").glob("*.jsonl")
    kept = len(spool.read_text().splitlines())
    assert kept >= 4
    before = len(toy.measured())

    done = run(toy, "HEAD~6..HEAD")

    assert f"{kept} workloads are done" in done.stdout
    keys = {key for key, *_ in toy.measured()}
    assert len(toy.measured()) - before == len(keys) - kept
    assert measured_at(toy, hashes, "bfloat16") == [1, 2, 5]
    assert not spool.exists()


def slow_session(toy):
    text = (toy.path / "bandwatch/measure/session.py").read_text()
    return text.replace(
        "        answers, lost", "        import time; time.sleep(0.2)\n        answers, lost"
    )


def test_a_commit_that_kills_the_process_costs_its_own_workloads_alone(toy):
    toy.commit_compiled()
    commit(toy)
    good, bad = commit(toy), commit(toy, float16=("v2", "dies"))

    done = run(toy, "HEAD~2..HEAD", check=False)

    assert done.returncode == 1
    assert "ended their process" in done.stdout
    assert measured_at(toy, [bad], "bfloat16") == [0]
    assert measured_at(toy, [bad], "float32") == [0]
    assert measured_at(toy, [bad], "float16") == []
    assert measured_at(toy, [good], "float16") == [0]


def test_shards_are_disjoint_and_complete(history):
    toy, _ = history
    for part in ("1/2", "2/2"):
        run(toy, "HEAD~6..HEAD", "--shard", part)
    keys = [key for key, *_ in toy.measured()]
    assert len(set(keys)) == len(keys)
    assert all(shards.parse("1/2").takes(key) for key in keys[: len(keys) // 3])


def test_preparing_needs_no_gpu(history):
    toy, _ = history
    toy.write("bandwatch/measure/environment.py", environment("return 'no CUDA device is visible'"))
    run(toy, "HEAD~6..HEAD", "--prepare")
    assert len(list((toy.path / ".bandwatch/backfill/plans").glob("*.json"))) == 7
    assert not toy.measured()
    done = run(toy, "HEAD~6..HEAD", check=False)
    assert done.returncode == 1 and "no CUDA device is visible" in done.stdout


def environment(body):
    return f"def unavailable():\n    {body}\n\n\ndef versions():\n    return {{}}\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["HEAD"], "expected A..B"),
        (["nosuch..HEAD"], "git rev-list"),
        (["HEAD..HEAD"], "no commit of HEAD..HEAD changes kernels/membound"),
        (["HEAD~1..HEAD", "--shard", "3/2"], "3/2"),
        (["HEAD~1..HEAD", "--jobs", "0"], "--jobs is 0"),
        (["HEAD~1..HEAD", "--machine", "nosuch"], "nosuch"),
    ],
)
def test_bad_arguments_are_named(history, args, message):
    toy, _ = history
    done = run(toy, *args, check=False)
    assert done.returncode == 1
    assert message in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout


def test_only_changes_of_the_workload_itself_count(tmp_path):
    def made(*identities):
        plans = [
            {"k": {"digest": one, "launches": []}} if one else {"k": {"missing": "no"}}
            for one in identities
        ]
        return [Commit(f"{i:040x}", tmp_path, plan) for i, plan in enumerate(plans)]

    def chosen(*identities):
        return [int(one.hash, 16) for one in backfill.chosen(made(*identities), "k")]

    assert chosen("a", "a", "a", "b", "b", "b") == [0, 2, 3, 5]
    assert chosen(None, "a", None, "a", "a") == [4]
    assert chosen("a", "b", "c") == [0, 1, 2]
    assert chosen(None, "a", "b", "b", None) == [1, 2, 3]
    assert chosen("a") == [0]
    assert chosen("a", "a", "a") == [2]
    assert chosen(None, None) == []


def test_both_sides_of_a_change_are_measured_together(tmp_path):
    plans = ("a", "a", "b", "b", "b", "c")
    commits = [
        Commit(f"{i:040x}", tmp_path, {"k": {"digest": digest, "launches": []}})
        for i, digest in enumerate(plans)
    ]

    def wanted(known, among=commits):
        found = Measured(
            frozenset((commits[i].hash, "k") for i in known),
            frozenset(("k", plans[i]) for i in known),
        )
        return [int(one.hash, 16) for one in backfill.wanted(among, "k", found)]

    assert wanted([]) == [0, 1, 2, 4, 5]
    assert wanted([0, 1, 2, 4, 5]) == []
    assert wanted([0, 1, 2, 4]) == [4, 5]
    assert wanted([0, 2, 4, 5]) == [1, 2]
    # what nothing changed and another commit measured
    assert wanted([2], commits[3:5]) == []
    assert wanted([0], commits[3:5]) == [4]


def test_commits_that_record_no_plans_are_told_apart_by_their_kernels(tmp_path):
    plans = [(None, ["x"]), (None, ["x"]), (None, ["y"]), ("a", ["y"]), ("b", ["y"])]
    commits = [
        Commit(f"{i:040x}", tmp_path, {"k": {"digest": digest, "launches": launches}})
        for i, (digest, launches) in enumerate(plans)
    ]
    assert [int(one.hash, 16) for one in backfill.chosen(commits, "k")] == [0, 1, 2, 3, 4]
    assert [int(one.hash, 16) for one in backfill.chosen(commits[:4], "k")] == [0, 1, 2, 3]
    assert [int(one.hash, 16) for one in backfill.chosen(commits[2:4], "k")] == [3]


def test_a_commit_that_cannot_be_imported_is_passed_over(history):
    toy, hashes = history
    toy.write("kernels/membound/__init__.py", "from .nosuch import softmax\n")
    broken = toy.commit_all()
    assert "0 measurements" not in run(toy, "HEAD~1..HEAD").stdout
    assert measured_at(toy, [hashes[-1], broken], "bfloat16") == [0]


def test_a_plan_of_another_checkout_is_refused(history, monkeypatch):
    toy, hashes = history
    run(toy, "HEAD~1..HEAD", "--prepare")
    (plan, *_) = (toy.path / ".bandwatch/backfill/plans").glob(f"{hashes[-1][:12]}*.json")
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "suite": str(toy.path)}))
    done = run(toy, "HEAD~1..HEAD", "--prepare", check=False)
    assert done.returncode == 1 and "delete it" in " ".join(done.stdout.split())
