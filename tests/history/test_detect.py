"""Detection of changes in one series. The first test is the one asv itself fails."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bandwatch.detect.steps import SECONDS, UTILISATION, Series, detect


def series(values, width=0.004, valid=None, code=(), positions=None):
    values = np.asarray(values, float)
    positions = list(range(len(values))) if positions is None else positions
    valid = [True] * len(values) if valid is None else valid
    return Series("s", positions, values, values * (1 - width), values * (1 + width), valid, code)


def verdicts(values, metric=UTILISATION, **kwargs):
    return [c.verdict for c in detect(series(values, **kwargs), metric)]


def noisy(levels, noise=0.003, seed=0):
    return np.asarray(levels) * np.exp(np.random.default_rng(seed).normal(0, noise, len(levels)))


FALL, RISE = [0.90] * 6 + [0.80] * 6, [0.80] * 6 + [0.90] * 6


def test_a_fall_from_90_to_80_percent_of_peak_is_a_regression_and_a_rise_an_improvement():
    assert verdicts(FALL) == ["regression"]
    assert verdicts(RISE) == ["improvement"]


def test_the_same_steps_mirror_for_seconds_where_lower_is_better():
    assert verdicts(FALL, SECONDS) == ["improvement"]
    assert verdicts(RISE, SECONDS) == ["regression"]


def test_effect_has_the_sign_of_the_metric_and_its_interval_holds_the_truth():
    (change,) = detect(series(noisy(FALL)), UTILISATION)
    assert change.effect_low < math.log(0.8 / 0.9) < change.effect_high < 0
    assert (change.good, change.bad) == (5, 6)
    assert change.before == pytest.approx(0.90, rel=0.005)
    assert change.after == pytest.approx(0.80, rel=0.005)
    (slower,) = detect(series([1e-5] * 6 + [2e-5] * 6), SECONDS)
    assert slower.effect == pytest.approx(math.log(2))


@pytest.mark.parametrize("step,expected", [(0.015, []), (0.03, ["regression"])])
def test_the_margin_decides_what_is_worth_a_verdict(step, expected):
    assert verdicts([1.0] * 8 + [1.0 - step] * 8) == expected


def test_flat_noise_raises_no_alarm():
    alarms = [verdicts(noisy([0.8] * 15, 0.005, seed), width=0.006) for seed in range(100)]
    assert sum(bool(found) for found in alarms) <= 2


def test_wide_intervals_keep_a_step_from_counting():
    assert verdicts([1.0] * 3 + [0.96] * 3, width=0.004) == ["regression"]
    assert verdicts([1.0] * 3 + [0.96] * 3, width=0.15) == []


def test_every_step_of_a_short_history_of_real_steps_is_found():
    levels = [0.30, 0.45, 0.45, 0.50, 0.70, 0.70, 0.66, 0.80, 0.80, 0.88, 0.88, 0.88]
    found = detect(series(noisy(levels, 0.002)), UTILISATION)
    assert [(c.bad, c.verdict) for c in found] == [
        (1, "improvement"),
        (3, "improvement"),
        (4, "improvement"),
        (6, "regression"),
        (7, "recovered"),
        (9, "improvement"),
    ]


def test_a_step_only_the_last_point_shows_is_suspected_and_one_more_point_confirms_it():
    assert verdicts([0.9] * 8 + [0.8]) == ["suspected"]
    assert verdicts([0.9] * 8 + [0.8, 0.8]) == ["regression"]


def test_one_odd_point_is_an_outlier_unless_its_code_was_other_than_both_neighbours():
    values = [0.9] * 6 + [0.8] + [0.9] * 6
    assert verdicts(values) == ["outlier"]
    assert verdicts(values, code=["a"] * 13) == ["outlier"]
    assert verdicts(values, code=["a"] * 6 + ["b"] + ["a"] * 6) == ["regression", "recovered"]


def test_recovery_is_reported_and_marks_the_regression():
    regression, recovered = detect(series([0.9] * 5 + [0.7] * 4 + [0.9] * 5), UTILISATION)
    assert (regression.verdict, regression.recovered_at) == ("regression", 9)
    assert recovered.verdict == "recovered"


def test_half_a_recovery_is_an_improvement_and_leaves_the_regression_open():
    regression, half = detect(series([0.9] * 5 + [0.7] * 4 + [0.8] * 5), UTILISATION)
    assert regression.recovered_at is None
    assert half.verdict == "improvement"


def test_invalid_points_never_enter_and_widen_the_range():
    values = [0.9] * 5 + [0.1, math.nan] + [0.8] * 5
    valid = [True] * 5 + [False, True] + [True] * 5
    (change,) = detect(series(values, valid=valid), UTILISATION)
    assert (change.verdict, change.good, change.bad) == ("regression", 4, 7)


def test_few_points_are_insufficient_data():
    (change,) = detect(series([0.9, 0.9, 0.4]), UTILISATION)
    assert change.verdict == "insufficient data"
    assert "3 valid points" in change.reason


def test_points_without_intervals_still_count():
    values = [0.9] * 6 + [0.8] * 6
    nan = [math.nan] * 12
    found = detect(Series("s", range(12), values, nan, nan, [True] * 12), UTILISATION)
    assert [c.verdict for c in found] == ["regression"]


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="2 lows for 3 positions"):
        Series("s", [0, 1, 2], [1, 1, 1], [1, 1], [1, 1, 1], [True] * 3)
    with pytest.raises(ValueError, match="ascend"):
        Series("s", [0, 2, 2], [1] * 3, [1] * 3, [1] * 3, [True] * 3)
