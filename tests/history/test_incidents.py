"""Grouping of changes to incidents."""

from __future__ import annotations

import math

from bandwatch.detect.incidents import group
from bandwatch.detect.steps import Change

COMMITS = [f"{i:040x}" for i in range(40)]


def change(series, good, bad, verdict="regression", effect=-0.1, recovered_at=None):
    values = (0.9, 0.9 * math.exp(effect), effect, effect - 0.01, effect + 0.01)
    return Change(series, "utilisation", verdict, good, bad, *values, "", recovered_at)


def grouped(*changes, gpu="H200"):
    return group([(gpu, c) for c in changes], COMMITS)


def test_overlapping_ranges_are_one_incident_of_their_intersection():
    (incident,) = grouped(change("a", 3, 6), change("b", 4, 9, effect=-0.3), change("c", 2, 5))
    assert (incident.good, incident.bad) == (4, 5)
    assert len(incident.changes) == 3
    assert (incident.worst_effect, incident.median_effect) == (-0.3, -0.1)


def test_touching_ranges_share_no_commit():
    assert len(grouped(change("a", 3, 5), change("b", 5, 7))) == 2


def test_a_chain_of_overlaps_that_no_one_commit_explains_is_not_one_incident():
    found = grouped(change("a", 1, 3), change("b", 2, 5), change("c", 4, 7))
    assert [(i.good, i.bad) for i in found] == [(2, 3), (4, 7)]


def test_direction_and_gpu_separate():
    up = change("b", 3, 5, "improvement", effect=0.1)
    assert [i.verdict for i in grouped(change("a", 3, 5), up)] == ["improvement", "regression"]
    both = group([("H100", change("a", 3, 5)), ("H200", change("b", 3, 5))], COMMITS)
    assert len({i.id for i in both}) == 2


def test_the_id_does_not_depend_on_members_order_or_later_incidents():
    (alone,) = grouped(change("a", 3, 5))
    more = grouped(change("c", 20, 22), change("b", 3, 6), change("a", 3, 5))
    assert alone.id in {i.id for i in more}


def test_a_regression_is_open_until_all_its_series_recovered():
    a, b = change("a", 3, 5, recovered_at=9), change("b", 3, 5)
    assert [i.status for i in grouped(a, b)] == ["open"]
    assert [i.status for i in grouped(a)] == ["recovered"]
    assert [i.status for i in grouped(change("c", 3, 5, "improvement", effect=0.1))] == ["closed"]


def test_other_verdicts_make_no_incident():
    kinds = ("suspected", "outlier", "recovered", "environment event")
    assert grouped(*(change("a", 3, 5, kind) for kind in kinds)) == []
