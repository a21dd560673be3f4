"""The rows over the real session, on a simulated device."""

import functools

import pytest

torch = pytest.importorskip("torch")

from asv_bench import rows  # noqa: E402
from bandwatch import sidecar  # noqa: E402
from bandwatch.measure import session  # noqa: E402
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
    }.items():
        monkeypatch.setenv(name, value)
    return path


def test_one_measurement_answers_each_provider_once(spool):
    timings = rows.Timings()
    op = softmax_op()

    for provider in ("membound", "eager", "control"):
        answer = timings.answer(op, WORKLOAD, provider)
        assert answer["verdict"] == "valid"
        assert [sample[:2] for sample in answer["samples"]] == [[3, n] for n in range(6)]
    (line,) = sidecar.read(spool).workloads
    assert set(line["providers"]) == {"membound", "eager", "control"}

    timings.answer(op, WORKLOAD, "eager")
    assert len(sidecar.read(spool).workloads) == 2


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
