import math

import numpy as np
import pytest
from scipy import stats

from bandwatch import estimate


def rows(values, process=0):
    return [[process, i, v] for i, v in enumerate(values)]


def test_seconds_is_the_geometric_mean_with_scipys_t_interval():
    values = [1.0e-5, 1.2e-5, 0.9e-5, 1.1e-5]
    got = estimate.seconds(rows(values))
    logs = np.log(values)
    low, high = stats.t.interval(0.95, 3, loc=logs.mean(), scale=stats.sem(logs))
    assert got.n == 4
    assert got.value == pytest.approx(stats.gmean(values))
    assert (got.low, got.high) == pytest.approx((math.exp(low), math.exp(high)))


def test_ratio_is_paired_so_a_slow_placement_cancels():
    placements = np.array([1.0, 1.5, 0.7, 1.2])
    got = estimate.log_ratio(rows(2e-5 * placements), rows(1e-5 * placements))
    assert got.value == pytest.approx(2.0)
    assert (got.low, got.high) == pytest.approx((2.0, 2.0))


def test_ratio_pairs_by_key_not_by_position_and_drops_the_unpaired():
    a = [[0, 0, 2.0], [0, 1, 4.0], [1, 0, 6.0]]
    b = [[1, 0, 3.0], [0, 1, 2.0], [0, 7, 1.0]]
    got = estimate.log_ratio(a, b)
    assert (got.value, got.n) == (pytest.approx(2.0), 2)


def test_swapping_inverts_the_ratio():
    a, b = rows([1.0, 1.1, 1.3]), rows([2.0, 1.9, 2.2])
    ab, ba = estimate.log_ratio(a, b), estimate.log_ratio(b, a)
    assert (ab.value, ab.low, ab.high) == pytest.approx((1 / ba.value, 1 / ba.high, 1 / ba.low))


def test_interval_covers_the_truth_at_its_rate():
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(400):
        got = estimate.seconds(rows(np.exp(rng.normal(0.0, 0.02, size=6))))
        hits += got.low <= 1.0 <= got.high
    assert 0.92 <= hits / 400 <= 0.98


def test_few_samples_have_no_interval():
    one = estimate.seconds(rows([3.0]))
    assert one.value == pytest.approx(3.0) and math.isnan(one.low) and math.isnan(one.high)
    none = estimate.log_ratio(rows([1.0]), [])
    assert none.n == 0 and math.isnan(none.value)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_times_must_be_positive(bad):
    with pytest.raises(ValueError, match="seconds above 0"):
        estimate.seconds(rows([1.0, bad]))


def test_duplicate_placements_are_refused():
    with pytest.raises(ValueError, match="process 0, placement 1"):
        estimate.seconds([[0, 1, 1.0], [0, 1, 1.1]])


def covered(process_sd, placement_sd, counts=(4, 4), tries=4000):
    """How often the interval of a session of two processes holds the truth."""
    rng, held = np.random.default_rng(7), 0
    for _ in range(tries):
        samples = []
        for process, count in enumerate(counts):
            shift = rng.normal(0, process_sd)
            logs = shift + rng.normal(0, placement_sd, count)
            samples += [[process, i, math.exp(log)] for i, log in enumerate(logs)]
        got = estimate.seconds(samples)
        held += got.low <= 1 <= got.high
    return held / tries


def test_the_interval_covers_without_an_effect_of_the_process():
    assert 0.94 < covered(0.0, 0.0028) < 0.975


def test_the_interval_covers_with_the_effect_that_short_kernels_show():
    # measured: processes 0.18 %, placements 0.4 %
    assert 0.91 < covered(0.0018, 0.004) < 0.97


def test_processes_that_differ_widen_the_interval():
    def half(shift):
        samples = [[p, i, math.exp(p * shift + 1e-3 * (-1) ** i)] for p in (0, 1) for i in range(4)]
        got = estimate.seconds(samples)
        return math.log(got.high / got.low) / 2

    assert half(0.0) == pytest.approx(half(1e-5), rel=0.05)
    # two means that lie 1 % apart: the error of their mean is half of that
    assert half(0.01) == pytest.approx(2.3646 * 0.005, rel=0.01)
