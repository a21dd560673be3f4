"""Linking sessions: it takes away what they share, and adds nothing where they share nothing."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from bandwatch import cli, link, sidecar
from bandwatch.link import Observation

RESULTS = Path(__file__).parents[1] / "results"


def simulated(rng, session_sd, family_sd=0.0, noise=0.002, sessions=12, codes=20, cards=3):
    """Every code in every session; codes belong to four families."""
    seen = []
    for s in range(sessions):
        shared = rng.normal(0, session_sd)
        families = [shared + rng.normal(0, family_sd) for _ in range(4)]
        for c in range(codes):
            value = 0.1 * c + families[c % 4] + rng.normal(0, noise)
            card = f"card{s % cards}"
            seen.append(Observation(f"s{s}", "GPU", card, f"f{c % 4}", f"code{c}", value, noise**2))
    return seen


def overall(seen):
    (row,) = (row for row in link.spread(seen) if row.card is None)
    return row


@pytest.mark.parametrize(("session_sd", "family_sd"), [(0.005, 0.0), (0.0, 0.005), (0.004, 0.003)])
def test_what_sessions_share_is_taken_away(session_sd, family_sd):
    rng = np.random.default_rng(1)
    rows = [overall(simulated(rng, session_sd, family_sd)) for _ in range(5)]
    raw, linked = (
        np.mean([getattr(r, name) ** 2 for r in rows]) ** 0.5 for name in ("raw", "linked")
    )
    assert raw > 0.0045
    assert linked < 0.0026


def test_where_sessions_share_nothing_linking_adds_next_to_nothing():
    rng = np.random.default_rng(2)
    rows = [overall(simulated(rng, 0.0)) for _ in range(15)]
    raw, linked = (np.mean([getattr(r, name) ** 2 for r in rows]) for name in ("raw", "linked"))
    assert linked < 1.05 * raw


def test_linking_makes_no_steps_at_the_borders_of_sessions():
    rng = np.random.default_rng(3)
    steps, total = 0, 0
    for _ in range(12):
        seen = simulated(rng, 0.0, sessions=10)
        found = link.offsets(link.deviations(seen))
        for family in range(4):
            values = np.array([found[f"s{s}", f"f{family}"].value for s in range(10)])
            # of one workload, beside its own noise
            steps += int((np.abs(np.diff(values)) > 3 * 0.002).sum())
            total += 9
    assert steps / total < 0.01


def test_the_error_of_an_offset_is_known():
    rng = np.random.default_rng(4)
    standard = []
    for _ in range(25):
        truth = rng.normal(0, 0.005, 12)
        seen = [
            dataclasses.replace(one, value=one.value + truth[int(one.session[1:])])
            for one in simulated(rng, 0.0)
        ]
        found = link.offsets(link.deviations(seen))
        centred = truth - truth.mean()
        standard += [
            (found[f"s{s}", "f0"].value - centred[s]) / found[f"s{s}", "f0"].variance ** 0.5
            for s in range(12)
        ]
    assert 0.7 < np.std(standard) < 1.4


def test_a_workload_does_not_correct_itself():
    rng = np.random.default_rng(5)
    seen = simulated(rng, 0.0, noise=1e-4)
    # one code slower in half of the sessions, alone in its family
    odd = [
        Observation(f"s{s}", "GPU", "card0", "odd", "odd", 0.05 * (s % 2), 1e-8) for s in range(12)
    ]
    deviating = link.deviations([*seen, *odd])
    without = link.offsets(deviating, "odd")
    assert ("s1", "odd") not in without
    assert abs(without["s1", "f0"].value) < 0.002


def test_code_of_one_session_tells_nothing():
    seen = [Observation("s0", "GPU", "c", "f", f"code{i}", 0.1, 1e-6) for i in range(5)]
    assert link.deviations(seen) == []
    assert link.spread(seen) == []


def test_gpu_models_are_never_pooled():
    rng = np.random.default_rng(6)
    seen = simulated(rng, 0.0)
    other = [dataclasses.replace(one, gpu="B", value=one.value + 1) for one in seen]
    assert {row.gpu for row in link.spread([*seen, *other])} == {"GPU", "B"}
    assert max(row.raw for row in link.spread([*seen, *other])) < 0.01


def test_the_recorded_sessions_can_be_compared():
    paths = [
        *RESULTS.glob(f"h200/*{sidecar.SUFFIX}"),
        *RESULTS.glob(f"studies/*/*{sidecar.SUFFIX}"),
    ]
    rows = link.spread(link.observations(map(sidecar.read, paths)))
    whole = rows[0]
    assert whole.card is None and whole.sessions >= 20
    assert 0 < whole.linked < 0.003 and 0 < whole.raw < 0.003
    assert math.isfinite(whole.raw)


def test_the_command_says_when_cards_are_few(capsys):
    assert cli.main(["spread", str(RESULTS), str(RESULTS / "studies")]) == 0
    told = capsys.readouterr().out
    assert "NVIDIA H200" in told
    assert ("only" in told) == (told.count("NVIDIA H200") < 5)
    assert cli.main(["spread", str(RESULTS / "cpu")]) == 0
    assert "nothing can be compared" in capsys.readouterr().err
