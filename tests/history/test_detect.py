"""Detection of changes in one series. The first test is the one asv itself fails."""

from __future__ import annotations

import math
import time
from dataclasses import replace

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


def test_an_outlier_may_lie_at_a_step():
    # Without the 0.88, the level that it seemed to leave falls apart.
    values = [0.92, 0.93, 0.88, 0.91, 0.95, 0.91, 0.90]
    found = detect(series(values), UTILISATION)
    (outlier, *_) = [c for c in found if c.verdict == "outlier"]
    assert outlier.good < outlier.bad


def test_many_outliers_are_found_in_one_go():
    values = noisy([0.8] * 400 + [0.76] * 400)
    odd = list(range(10, 790, 20))
    values[odd] *= 0.9
    begin = time.perf_counter()
    found = detect(series(values), UTILISATION)
    assert time.perf_counter() - begin < 5
    assert [c.bad for c in found if c.verdict == "outlier"] == odd
    assert [(c.verdict, c.bad) for c in found if c.verdict != "outlier"] == [("regression", 400)]


@pytest.mark.parametrize("seed", range(20))
def test_verdicts_depend_neither_on_the_unit_nor_on_which_way_is_good(seed):
    rng = np.random.default_rng(seed)
    levels = np.repeat(np.exp(rng.normal(0, 0.05, 8)), rng.integers(1, 4, 8))
    values = noisy(levels, 0.004, seed)
    low, high = values * 0.996, values * 1.004
    args = [True] * len(values)
    positions = range(len(values))
    plain = detect(Series("s", positions, values, low, high, args), UTILISATION)
    scaled = detect(Series("s", positions, values * 1e9, low * 1e9, high * 1e9, args), UTILISATION)
    lower = replace(UTILISATION, higher_is_better=False)
    mirrored = detect(Series("s", positions, 1 / values, 1 / high, 1 / low, args), lower)
    expected = [(c.verdict, c.good, c.bad, c.recovered_at) for c in plain]
    assert [(c.verdict, c.good, c.bad, c.recovered_at) for c in scaled] == expected
    assert [(c.verdict, c.good, c.bad, c.recovered_at) for c in mirrored] == expected
    assert [c.effect for c in scaled] == pytest.approx([c.effect for c in plain])
    assert [c.effect for c in mirrored] == pytest.approx([-c.effect for c in plain])


@pytest.mark.parametrize("values", [[], [0.9], [math.nan] * 9, [0.0] * 9, [-1.0] * 9])
def test_no_points_are_insufficient_data(values):
    assert verdicts(values) == ["insufficient data"]


def test_a_constant_is_no_change_and_no_or_endless_intervals_are_no_harm():
    assert verdicts([0.8] * 9) == []
    assert verdicts(FALL, width=0.0) == ["regression"]
    endless = Series("s", range(12), FALL, [1e-300] * 12, [1e300] * 12, [True] * 12)
    assert detect(endless, UTILISATION) == []


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
