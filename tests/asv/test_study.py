"""The study of the noise finds what was put into simulated measurements."""

import numpy as np
import pytest

from asv_bench import study


def simulated(process_sd, placement_sd, processes=40, workloads=12, seed=0):
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(workloads):
        for process in range(processes):
            shift = rng.normal(0, process_sd)
            logs = shift + rng.normal(0, placement_sd, study.PLACEMENTS)
            control = np.exp(rng.normal(0, 0.05, study.PLACEMENTS)) * 1e-4
            lines.append(
                {
                    "key": f"op/{i}",
                    "card": "c0",
                    "process": process,
                    "own": list(np.exp(logs) * control),
                    "control": list(control),
                    "replays": [0.001] * study.PLACEMENTS,
                }
            )
    return study.analyse(lines)


def mean(rows, name):
    return float(np.sqrt(np.mean([row[name] ** 2 for row in rows])))


def test_components_of_the_variance_are_found():
    rows = simulated(process_sd=0.004, placement_sd=0.002)
    assert mean(rows, "process") == pytest.approx(0.004, rel=0.15)
    assert mean(rows, "placement") == pytest.approx(0.002, rel=0.1)
    assert mean(rows, "replay") == pytest.approx(0.001)


def test_without_process_effects_the_intervals_cover():
    rows = simulated(process_sd=0.0, placement_sd=0.002)
    covered = sum(row["covered"] for row in rows) / sum(row["intervals"] for row in rows)
    assert mean(rows, "process") < 0.0004
    assert 0.92 < covered < 0.99
    assert mean(rows, "reported") < 0.002 / 6**0.5 * 1.5


def test_process_effects_are_in_the_intervals_as_far_as_two_processes_show_them():
    def covered(rows):
        return sum(row["covered"] for row in rows) / sum(row["intervals"] for row in rows)

    assert covered(simulated(process_sd=0.001, placement_sd=0.003)) > 0.9
    # an effect that dwarfs the placements is more than two processes can tell
    assert covered(simulated(process_sd=0.004, placement_sd=0.001)) < 0.9


def test_files_without_enough_processes_are_named(tmp_path):
    (tmp_path / "few.jsonl").write_text("")
    with pytest.raises(SystemExit, match="few.jsonl: no workload was measured in 4 processes"):
        study.show([tmp_path / "few.jsonl"])


def test_the_workloads_are_of_every_operation():
    dense = {op for op in study.workloads.OPS if not op.startswith("ragged")}
    assert {one.op for one in study.chosen()} == dense


def test_figures_are_printed(tmp_path, capsys):
    import json

    rng = np.random.default_rng(1)
    file = tmp_path / "a.jsonl"
    with file.open("w") as lines:
        for process in range(4):
            own = list(1e-4 * np.exp(rng.normal(0, 0.002, study.PLACEMENTS)))
            line = {
                "key": "sum/forward",
                "card": "c0",
                "process": process,
                "own": own,
                "control": [1e-4] * study.PLACEMENTS,
                "replays": [0.001] * study.PLACEMENTS,
            }
            lines.write(json.dumps(line) + "\n")
    study.show([file])
    told = capsys.readouterr().out
    assert "sum/forward" in told and "4 intervals cover" in told
