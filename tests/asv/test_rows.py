"""The rows over the real session, on a simulated device."""

import dataclasses
import datetime
import functools

import pytest

torch = pytest.importorskip("torch")

from asv_bench import rows  # noqa: E402
from bandwatch import sidecar  # noqa: E402
from bandwatch.measure import session  # noqa: E402
from bandwatch.measure.lock import GpuBusy  # noqa: E402
from bandwatch.measure.sampling import Plan  # noqa: E402
from bandwatch.measure.workload import Workload  # noqa: E402
from tests.measure.stand_ins import CloneControl, SimulatedDevice, right, softmax_op  # noqa: E402

WORKLOAD = Workload("softmax", "float32", (48, 33))


@pytest.fixture
def device():
    return SimulatedDevice(lambda run: 2e-6)


@pytest.fixture
def spool(device, tmp_path, monkeypatch):
    simulated = functools.partial(session.Session, seed=1, device=device, control=CloneControl())
    monkeypatch.setattr(session, "Session", simulated)
    path = tmp_path / "sessions" / "toy.session.jsonl"
    for name, value in {
        "ASV_QUICK": "0",
        "ASV_COMMIT": "c" * 40,
        "ASV_SESSION": "20260101T000000Z-00000000",
        "ASV_SESSION_STARTED": "2026-01-01T00:00:00+00:00",
        "ASV_SESSION_FILE": str(path),
        "ASV_PROCESS": "3",
        "ASV_ROUND": "0",
        "ASV_ROUNDS": "2",
        "ASV_RESULTS": str(tmp_path / "results"),
    }.items():
        monkeypatch.setenv(name, value)
    return path


def test_one_measurement_answers_each_provider_once(spool):
    timings = rows.Timings()
    op = softmax_op()
    placements = {"membound": Plan().pilot, "eager": Plan().baseline, "control": Plan().pilot}

    for provider in ("membound", "eager", "control"):
        answer = timings.answer(op, WORKLOAD, provider)
        assert answer["verdict"] == "valid"
        assert [sample[:2] for sample in answer["samples"]] == [
            [3, n] for n in range(placements[provider])
        ]
    (line,) = sidecar.read(spool).workloads
    assert set(line["providers"]) == {"membound", "eager", "control"}

    timings.answer(op, WORKLOAD, "eager")
    assert len(sidecar.read(spool).workloads) == 2


@pytest.fixture
def recorded(spool, tmp_path, monkeypatch):
    """Record a session of another commit: ``recorded(digest, days_ago)`` with both rounds."""

    def record(digest, days_ago=0, eager=right, commit="d" * 40):
        op = dataclasses.replace(
            softmax_op(membound=right, eager=eager), digest=lambda workload: digest
        )
        begun = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        at = begun - datetime.timedelta(days=days_ago)
        for turn in ("0", "1"):
            set_session(monkeypatch, spool, commit, f"before-{digest}", at, turn)
            timings = rows.Timings()
            for provider in ("membound", "eager", "control"):
                timings.answer(op, WORKLOAD, provider)
        target = tmp_path / "results" / "toy" / f"{commit[:8]}{digest}-env.session.jsonl"
        target.parent.mkdir(parents=True, exist_ok=True)
        spool.rename(target)
        set_session(monkeypatch, spool, "c" * 40, "now", begun, "0")
        return sidecar.read(target)

    return record


def set_session(monkeypatch, spool, commit, session, started, turn):
    monkeypatch.setenv("ASV_COMMIT", commit)
    monkeypatch.setenv("ASV_SESSION", session)
    monkeypatch.setenv("ASV_SESSION_STARTED", started.isoformat())
    monkeypatch.setenv("ASV_ROUND", turn)
    monkeypatch.setenv("ASV_PROCESS", turn)


def now(digest, timings=None, provider="membound"):
    op = dataclasses.replace(softmax_op(), digest=lambda workload: digest)
    return (timings or rows.Timings()).answer(op, WORKLOAD, provider)


def test_equal_work_of_another_commit_is_shared_each_sample_once(
    recorded, spool, device, monkeypatch
):
    before = recorded("aa" * 32)
    timed = len(device.orders)

    answers = []
    for turn in ("0", "1"):
        monkeypatch.setenv("ASV_ROUND", turn)
        timings = rows.Timings()
        answers += now("aa" * 32, timings)["samples"]
        assert now("aa" * 32, timings, "eager")["verdict"] == "valid"

    assert len(device.orders) == timed  # nothing ran
    samples = [s for line in before.workloads for s in line["providers"]["membound"]["samples"]]
    assert sorted(answers) == sorted(samples)
    line = sidecar.read(spool).workloads[0]
    assert line["shared"] == {"session": before.session["session"], "commit": "d" * 40}
    assert line["providers"] == {} and line["digest"] == "aa" * 32


def test_a_provider_that_the_shared_session_lacks_is_not_available(recorded, spool, device):
    recorded("aa" * 32)
    timed = len(device.orders)
    op = dataclasses.replace(
        softmax_op(membound=right, eager=right, quack=right), digest=lambda workload: "aa" * 32
    )
    timings = rows.Timings()
    assert timings.answer(op, WORKLOAD, "membound")["verdict"] == "valid"
    assert timings.answer(op, WORKLOAD, "quack")["verdict"] == "not available"
    assert len(device.orders) == timed
    assert len(sidecar.read(spool).workloads) == 1


@pytest.mark.parametrize(
    ("digest", "change"),
    [
        ("bb" * 32, None),  # other work
        (None, None),  # unknown work
        ("aa" * 32, ("environment", {"gpu": "another"})),
        ("aa" * 32, ("harness", {"control": "another/2"})),
        ("aa" * 32, ("harness", {"placements": 100})),  # what is known is too little
        ("aa" * 32, "same commit"),
        ("aa" * 32, "fresh"),
    ],
)
def test_what_may_not_be_shared_is_measured(recorded, spool, device, monkeypatch, digest, change):
    recorded("aa" * 32, commit=("c" if change == "same commit" else "d") * 40)
    if change == "fresh":
        monkeypatch.setenv("BANDWATCH_FRESH", "1")
    elif isinstance(change, tuple):
        name, facts = change
        was = getattr(session.Session, "func", session.Session)
        known = getattr(was, name)
        monkeypatch.setattr(was, name, lambda self: known(self) | facts)
    timed = len(device.orders)

    assert now(digest)["verdict"] == "valid"

    assert len(device.orders) > timed
    assert "shared" not in sidecar.read(spool).workloads[0]


def test_a_recent_baseline_is_linked_by_the_control(recorded, spool, device):
    def slower(inputs, workload):
        return right(inputs)

    device.speed = lambda run: 6e-6 if run is slower else 2e-6
    recorded("aa" * 32, days_ago=3, eager=slower)
    device.speed = lambda run: 1e-6  # today's card is twice as fast

    timings = rows.Timings()
    now("bb" * 32, timings)
    eager = now("bb" * 32, timings, "eager")

    assert eager["reused"] == "before-" + "aa" * 32
    (line,) = sidecar.read(spool).workloads
    control = {tuple(s[:2]): s[2] for s in line["providers"]["control"]["samples"]}
    assert len(eager["samples"]) == 4  # two of each of two rounds then, four placements now
    for process, placement, seconds in eager["samples"]:
        assert seconds == pytest.approx(3 * control[process, placement])


def test_an_old_baseline_is_measured_again(recorded, spool):
    recorded("aa" * 32, days_ago=8)
    timings = rows.Timings()
    now("bb" * 32, timings)
    assert "reused" not in now("bb" * 32, timings, "eager")


def test_a_second_round_goes_on_from_the_first(spool, monkeypatch):
    first = now("aa" * 32)["samples"]
    monkeypatch.setenv("ASV_ROUND", "1")
    monkeypatch.setenv("ASV_PROCESS", "4")
    second = now("aa" * 32)["samples"]
    assert [process for process, _, _ in first] == [3] * Plan().pilot
    assert [process for process, _, _ in second] == [4] * len(second)
    assert Plan().least <= len(second) <= Plan().most


def test_a_busy_gpu_is_waited_for_once(monkeypatch, spool):
    waited = []

    def busy(*args, **kwargs):
        waited.append(1)
        raise GpuBusy("the GPU is being measured on by process 1")

    monkeypatch.setattr(session, "Session", busy)
    monkeypatch.setattr(rows.environment, "unavailable", lambda: None)
    monkeypatch.setattr(rows, "compile_all", lambda: None)
    rows._timings.cache_clear()
    try:
        for _ in range(3):
            with pytest.raises(GpuBusy, match="process 1"):
                rows.timings()
    finally:
        rows._timings.cache_clear()
    assert len(waited) == 1


def test_a_run_leaves_out_what_it_was_not_asked_for(spool, monkeypatch):
    with pytest.raises(NotImplementedError, match="liger has no softmax"):
        now("aa" * 32, provider="liger")
    monkeypatch.setenv("ASV_QUICK", "1")
    with pytest.raises(NotImplementedError, match="left out of a quick run"):
        now("aa" * 32)
    monkeypatch.setenv("ASV_QUICK", "0")
    taken = []
    for i in (1, 2, 3):
        monkeypatch.setenv("BANDWATCH_SHARD", f"{i}/3")
        try:
            taken.append(now("aa" * 32)["verdict"])
        except NotImplementedError as error:
            assert "another shard" in str(error)
    assert taken == ["valid"]
    monkeypatch.setenv("BANDWATCH_SHARD", "4/3")
    with pytest.raises(ValueError, match="4/3"):
        rows.Timings()


def test_a_lost_device_ends_the_process_and_the_next_one_goes_on_without_its_provider(
    spool, device
):
    def breaks(inputs, workload):
        device.lost = True
        return right(inputs)

    op = softmax_op(membound=breaks, eager=right)
    with pytest.raises(SystemExit, match="illegal memory access"):
        rows.Timings().answer(op, WORKLOAD, "membound")

    device.lost = False
    assert rows.Timings().answer(op, WORKLOAD, "eager")["verdict"] == "valid"
    first, second = sidecar.read(spool).workloads
    assert first["providers"]["membound"]["verdict"] == "failed"
    assert "illegal memory access" in first["providers"]["membound"]["reason"]
    assert set(second["providers"]) == {"eager", "control"}


def test_a_wrong_result_fails_its_row_with_the_reason(spool):
    op = softmax_op(membound=lambda inputs, workload: right(inputs) * 1.01, eager=right)
    row = rows.TimeRows()
    row._answer = rows.Timings().answer(op, WORKLOAD, "membound")

    with pytest.raises(RuntimeError, match="values are wrong"):
        row.seconds("float32", "48x33", "membound")
