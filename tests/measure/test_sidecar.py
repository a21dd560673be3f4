import copy
import json

import pytest

from bandwatch import sidecar

SESSION = {
    "session": "2026-12-01T04:00:00Z-1a2b",
    "commit": "0123456789" * 4,
    "started_at": "2026-12-01T04:00:00Z",
    "environment": {"gpu": "NVIDIA H200", "card": "0123abcd", "python": "3.12", "sm_count": 132},
    "harness": {"control": "copy/1", "placements": 6},
}
WORKLOAD = {
    "session": SESSION["session"],
    "key": "softmax/forward/bfloat16/32768x4096",
    "op": "softmax",
    "direction": "forward",
    "dtype": "bfloat16",
    "shape": [32768, 4096],
    "options": {},
    "bytes_read": 268435456,
    "bytes_written": 268435456,
    "started_at": "2026-12-01T04:00:01Z",
    "host_seconds": 0.7,
    "providers": {
        "membound": {
            "verdict": "valid",
            "reason": "",
            "samples": [[0, 0, 1.3e-4], [0, 1, 1.31e-4]],
            "sets": 2,
            "launches_per_replay": 12,
            "error": {"max_abs": 1e-4, "max_rel": 2e-3},
        },
        "eager": {"verdict": "not available", "reason": "no such op", "samples": []},
    },
    "kernels": {"softmax_ab": "00ff"},
    "telemetry": {"sm_clock_mhz": [1900, 1980, 1980], "throttle_reasons": ["sw_power_cap"]},
}


def workload(**changes):
    return {**copy.deepcopy(WORKLOAD), **changes}


def test_round_trip(tmp_path):
    path = tmp_path / "machine" / "01234567-env.session.jsonl"
    writer = sidecar.Writer(path, SESSION)
    writer.append(workload())
    writer.append(workload(key="softmax/forward/float32/8x8"))
    got = sidecar.read(path)
    assert got.session == {"schema": 1, "kind": "session", **SESSION}
    assert [w["key"] for w in got.workloads] == [WORKLOAD["key"], "softmax/forward/float32/8x8"]
    assert got.workloads[0] == {"schema": 1, "kind": "workload", **WORKLOAD}


def test_the_file_is_valid_after_every_step(tmp_path):
    path = tmp_path / "a.session.jsonl"
    writer = sidecar.Writer(path, SESSION)
    for count in range(3):
        assert len(sidecar.read(path).workloads) == count
        writer.append(workload())


def test_a_crash_while_writing_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "a.session.jsonl"
    writer = sidecar.Writer(path, SESSION)
    before = path.read_bytes()

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(sidecar.os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        writer.append(workload())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_restarted_worker_continues_its_session_and_another_session_replaces(tmp_path):
    path = tmp_path / "a.session.jsonl"
    sidecar.Writer(path, SESSION).append(workload())
    sidecar.Writer(path, SESSION).append(workload())
    assert len(sidecar.read(path).workloads) == 2
    sidecar.Writer(path, {**SESSION, "session": "other"})
    assert sidecar.read(path).workloads == []


def test_an_invalid_line_is_never_written(tmp_path):
    path = tmp_path / "a.session.jsonl"
    writer = sidecar.Writer(path, SESSION)
    bad = workload()
    bad["providers"]["membound"]["verdict"] = "fast"
    with pytest.raises(sidecar.SidecarError, match=r"providers\.membound\.verdict.*'fast'"):
        writer.append(bad)
    nan = workload()
    nan["providers"]["membound"]["error"]["max_abs"] = float("nan")
    with pytest.raises(ValueError):
        writer.append(nan)
    with pytest.raises(sidecar.SidecarError, match="session 'other'"):
        writer.append(workload(session="other"))


def test_a_valid_verdict_needs_samples(tmp_path):
    writer = sidecar.Writer(tmp_path / "a.session.jsonl", SESSION)
    bad = workload()
    bad["providers"]["membound"]["samples"] = []
    with pytest.raises(sidecar.SidecarError, match="samples"):
        writer.append(bad)


def line(**changes):
    return json.dumps({"schema": 1, "kind": "workload", **workload(**changes)})


HEAD = json.dumps({"schema": 1, "kind": "session", **SESSION})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r":1: empty"),
        (HEAD + "\n" + line()[:40], r":2: not a JSON object"),
        (HEAD + "\n\n" + line(), r":2: not a JSON object"),
        (HEAD + "\n[1]", r":2: list where an object"),
        (line(), r":1: line of kind 'workload', 'session' was expected"),
        (HEAD + "\n" + HEAD, r":2: line of kind 'session', 'workload' was expected"),
        (HEAD.replace('"schema": 1', '"schema": 9'), r":1: schema 9, this bandwatch reads 1"),
        (HEAD + "\n" + line(host_seconds=-1), r":2: host_seconds: -1"),
        (HEAD + "\n" + line().replace("0.7", "NaN"), r":2: not a JSON object \(NaN"),
        (HEAD + "\n" + line(session="x"), r":2: of session 'x'"),
        (HEAD.replace('"commit": "01', '"commit": "Z1'), r":1: commit: 'Z1"),
        ("[" * 100_000, r":1: not a JSON object"),
        (HEAD.replace("12-01T", "99-99T"), r":1: started_at: .* is not a 'date-time'"),
        (HEAD + "\n" + line(started_at="2026-12-01T04:00:01"), r":2: started_at"),
        (HEAD + "\n" + line(started_at="0001-01-01T00:00:00+23:00"), r":2: started_at"),
        (HEAD + "\n" + line(started_at="2026-12-01T04:00:01 or so"), r":2: started_at"),
        (HEAD + "\n" + line(bytes_read=10**30), r":2: bytes_read"),
        (HEAD + "\n" + line(digest="d1"), r":2: digest"),
        (HEAD + "\n" + line().replace("0.000131", "1e999"), r":2: .*greater than"),
        (HEAD + "\n" + line().replace("0.000131", "1e-320"), r":2: .*less than the minimum"),
        (HEAD + "\n" + line().replace("[1900,", f"[{10**400},"), r":2: telemetry"),
        (HEAD + "\n" + line().replace("[0, 1, ", "[0, 0, "), r":2: .*membound: two samples at"),
    ],
)
def test_damage_is_named_with_file_and_line(tmp_path, text, message):
    path = tmp_path / "damaged.session.jsonl"
    path.write_text(text)
    with pytest.raises(sidecar.SidecarError, match="damaged.session.jsonl" + message):
        sidecar.read(path)


def test_a_missing_file_is_a_sidecar_error(tmp_path):
    with pytest.raises(sidecar.SidecarError, match="nowhere.session.jsonl"):
        sidecar.read(tmp_path / "nowhere.session.jsonl")
