"""Statistics against numbers worked out by hand, closed forms and simulated data."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from proximo.experiment import statistics as st

# Twice the integral of the quantile function -ln(1 - p) from 1/4 to 3/4.
IQM_OF_EXPONENTIAL = 2 * ((0.75 - 0.75 * math.log(0.75)) - (0.25 - 0.25 * math.log(0.25)))
DRAWS: dict[str, tuple[Callable[[np.random.Generator, int], list[float]], float]] = {
    "normal": (lambda rng, n: rng.standard_normal(n).tolist(), 0.0),
    "exponential": (lambda rng, n: rng.exponential(size=n).tolist(), IQM_OF_EXPONENTIAL),
}


def ends(interval: st.Interval) -> tuple[float, float]:
    """Of an interval that is there."""
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


# The interquartile mean


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 5.0], 3.0),  # half of each
        ([30.0, 0.0, 3.0], (0.25 * 0 + 3 + 0.25 * 30) / 1.5),
        ([100.0, 1.0, 2.0, 0.0], 1.5),
        ([0.0, 100.0, 1.0, 10.0, 0.0], (0.75 * 0 + 1 + 0.75 * 10) / 2.5),
        ([9.0, 1.0, 2.0, 3.0, 5.0, 80.0, -70.0, 0.0], (1 + 2 + 3 + 5) / 4),
    ],
)
def test_iqm_by_hand(values: list[float], expected: float) -> None:
    assert st.iqm(np.array(values)) == pytest.approx(expected)


@pytest.mark.parametrize("n", [4, 8, 20, 100])
def test_iqm_is_scipys_trimmed_mean_where_four_divides_n(n: int) -> None:
    values = np.random.default_rng(n).exponential(size=(6, n))
    np.testing.assert_allclose(st.iqm(values), stats.trim_mean(values, 0.25, axis=1))


def test_iqm_of_a_distribution() -> None:
    assert st.iqm(np.random.default_rng(0).exponential(size=400_001)) == pytest.approx(IQM_OF_EXPONENTIAL, abs=0.005)


def test_equal_values_are_their_own_iqm_to_the_bit() -> None:
    for n in range(1, 12):
        assert st.iqm(np.full(n, 0.1)) == 0.1
        assert st.iqm(np.full(n, 0.1), np.arange(1.0, n + 1)) == 0.1


def test_strata_count_the_same_whatever_their_number_of_runs() -> None:
    # Half of the mass is at 0 and half at 1; by runs, three quarters would be at 1.
    assert st.strata_iqm({"a": [0.0], "b": [1.0, 1.0, 1.0]}) == pytest.approx(0.5)
    assert st.strata_iqm({"a": [0.0, 1.0, 2.0, 100.0]}) == pytest.approx(1.5)
    assert st.strata_iqm({"a": [0.0, 100.0], "b": [1.0, 2.0]}) == pytest.approx(1.5)


def test_description_by_hand() -> None:
    found = st.describe([1.0, 2.0, 6.0])
    assert found == {"n": 3, "mean": 3.0, "median": 2.0, "std": pytest.approx(math.sqrt(7)), "min": 1.0, "max": 6.0}
    assert st.describe([1.0])["std"] is None


# Its interval


@pytest.mark.parametrize("n", [3, 5, 10, 20])
@pytest.mark.parametrize("name", DRAWS)
def test_coverage_is_as_stated(name: str, n: int) -> None:
    """300 experiments each: two standard errors are at most 5 points. The report names these numbers."""
    (draw, truth), rng = DRAWS[name], np.random.default_rng(n)
    held = 0
    for _ in range(300):
        low, high = ends(st.iqm_interval({"env": draw(rng, n)}))
        held += low <= truth <= high
    assert held / 3 == pytest.approx(st.COVERAGE[n], abs=5)


@pytest.mark.slow
def test_coverage_over_environments() -> None:
    """Ten runs in each of three environments, one of them with another spread: as with many runs."""
    rng, held = np.random.default_rng(1), 0
    for _ in range(300):
        spread = {"a": 1.0, "b": 1.0, "c": 3.0}
        low, high = ends(st.iqm_interval({env: rng.normal(0, scale, 10).tolist() for env, scale in spread.items()}))
        held += low <= 0 <= high
    assert 0.91 <= held / 300 <= 0.98


def test_width_of_many_runs_is_the_closed_form() -> None:
    """The trimmed mean's asymptotic variance is (E[x^2; |x| < q] + 2 a q^2) / (1 - 2 a)^2 / n, with q the quartile."""
    n, q, density = 2_000, 0.67449, 0.31778
    variance = ((0.5 - 2 * q * density) + 0.5 * q * q) / 0.25 / n
    low, high = ends(st.iqm_interval({"env": np.random.default_rng(2).standard_normal(n).tolist()}))
    assert (high - low) == pytest.approx(2 * 1.96 * math.sqrt(variance), rel=0.12)


def test_resampling_stays_within_strata() -> None:
    """Environments that each have one score for all their runs: there is nothing to be unsure of. Each counts the
    same, however many runs it has."""
    scores = {"a": [1.0] * 4, "b": [9.0] * 14}
    assert st.strata_iqm(scores) == pytest.approx(5.0)
    assert st.iqm_interval(scores)[:2] == pytest.approx((5.0, 5.0))


def test_too_few_seeds_have_no_interval() -> None:
    assert st.iqm_interval({"env": [1.0, 2.0]}) == (None, None, "too few seeds")
    assert st.iqm_interval({"a": [1.0, 2.0, 3.0], "b": [1.0]}) == (None, None, "too few seeds")
    assert st.improvement({"env": [1.0, 2.0]}, {"env": [1.0, 2.0, 3.0]}).interval.note == "too few seeds"


def test_the_same_scores_give_the_same_bits() -> None:
    scores = {"env": [1.0, 5.0, 2.0, 8.0, 3.0]}
    first = st.iqm_interval(scores)
    np.random.seed(7)
    st.improvement(scores, {"env": [2.0, 3.0, 4.0]})
    assert st.iqm_interval(scores) == first


# Probability of improvement


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1.0, 2.0, 3.0], [2.0, 2.0], 3 / 6),
        ([3.0, 4.0], [1.0, 3.0], 3.5 / 4),
        ([1.0], [2.0], 0.0),
        ([1.0, 2.0, 3.0], [0.0], 1.0),
        ([5.0, 5.0], [5.0, 5.0, 5.0], 0.5),
    ],
)
def test_probability_by_hand(first: list[float], second: list[float], expected: float) -> None:
    assert st.probability(first, second) == pytest.approx(expected)
    assert st.probability(second, first) == pytest.approx(1 - expected)


def test_probability_is_mann_and_whitneys_statistic() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.integers(0, 9, 13).astype(float).tolist(), rng.integers(0, 9, 7).astype(float).tolist()
    u = stats.mannwhitneyu(first, second).statistic
    assert st.probability(first, second) == pytest.approx(u / (13 * 7))
    assert st.improvement({"e": first}, {"e": second}).probability == pytest.approx(u / (13 * 7))


@pytest.mark.parametrize("n", [3, 5, 20])
def test_a_trial_against_itself_shows_nothing(n: int) -> None:
    normal, exponential = np.random.default_rng(n).normal(size=n), np.random.default_rng(n).exponential(size=n)
    scores = {"a": normal.tolist(), "b": exponential.tolist()}
    found = st.improvement(scores, scores)
    assert (found.probability, found.shown, found.p_value) == (0.5, 0, 1.0)
    low, high = ends(found.interval)
    assert low < 0.5 < high
    constant = st.improvement({"a": [500.0] * n}, {"a": [500.0] * n})
    assert (constant.probability, constant.interval[:2], constant.shown) == (0.5, (0.5, 0.5), 0)


@pytest.mark.slow
@pytest.mark.parametrize("n", [4, 5, 10])
def test_chance_is_seldom_called_a_difference(n: int) -> None:
    rng = np.random.default_rng(n)
    drawn = (({"e": rng.normal(size=n).tolist()}, {"e": rng.normal(size=n).tolist()}) for _ in range(300))
    shown = sum(st.improvement(*pair).shown != 0 for pair in drawn)
    assert shown / 300 <= 0.07  # one standard error is 1.3 points


def test_a_clear_difference_is_shown_in_its_direction() -> None:
    low, high = {"e": [1.0, 2.0, 3.0, 4.0, 5.0]}, {"e": [6.0, 7.0, 8.0, 9.0, 10.0]}
    assert [st.improvement(high, low).shown, st.improvement(low, high).shown] == [1, -1]
    assert st.improvement(high, low).interval[:2] == (1.0, 1.0)


@pytest.mark.parametrize(("n", "ways"), [(3, 20), (4, 70), (5, 252)])
def test_p_value_counts_the_ways_to_deal(n: int, ways: int) -> None:
    """Of all ways to deal 2 n scores to two trials, two separate them completely."""
    found = st.improvement({"e": (np.arange(n) + 10.0).tolist()}, {"e": (np.arange(n) * 1.0).tolist()})
    assert found.p_value == pytest.approx(2 / ways, abs=0.015)
    assert found.shown == (n > 3), "three runs against three separate by chance in one of ten experiments"


def test_environments_count_the_same() -> None:
    first, second = {"a": [2.0] * 3, "b": [0.0] * 9}, {"a": [1.0] * 3, "b": [1.0] * 9}
    found = st.improvement(first, second)
    assert (found.probability, found.per_env, found.shown) == (0.5, {"a": 1.0, "b": 0.0}, 0)


# Profiles, curves, scales


def test_profile_by_hand() -> None:
    fraction, band = st.profile({"e": [1.0, 2.0, 3.0, 4.0]}, np.array([0.0, 2.0, 2.5, 4.0, 5.0]))
    assert fraction.tolist() == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert band is not None
    assert band[:, 0].tolist() == [1.0, 1.0]
    assert band[:, 4].tolist() == [0.0, 0.0]
    mixed, none = st.profile({"a": [1.0, 1.0, 1.0], "b": [0.0]}, np.array([0.5]))
    assert (mixed.tolist(), none) == ([0.5], None)


def test_band_of_a_profile_is_the_binomial_one() -> None:
    n = 40
    _, band = st.profile({"e": [0.0] * (n // 2) + [1.0] * (n // 2)}, np.array([0.5]))
    assert band is not None
    low, high = band
    assert [low[0], high[0]] == pytest.approx(stats.binom.ppf([0.025, 0.975], n, 0.5) / n, abs=1 / n)


def test_curves_on_a_grid() -> None:
    found = st.on_grid([10.0, 20.0, 40.0], [0.0, 1.0, 5.0], np.array([5.0, 10.0, 15.0, 30.0, 40.0, 60.0]))
    np.testing.assert_array_equal(found, [np.nan, 0.0, 0.5, 3.0, 5.0, 5.0])


def test_band_of_curves() -> None:
    curves = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 100.0]])
    middle, band = st.curve_band(curves)
    assert middle.tolist() == [0.0, 2.5]
    assert band is not None
    assert band[:, 0].tolist() == [0.0, 0.0]
    assert 1.0 <= band[0, 1] < 2.5 < band[1, 1] <= 100.0
    assert st.curve_band(curves[:2])[1] is None


@pytest.mark.slow
def test_one_scale() -> None:
    assert st.to_one_scale([-10.0, 0.0, 30.0], -10.0, 30.0).tolist() == [0.0, 0.25, 1.0]
    assert st.to_one_scale([5.0, 5.0], 5.0, 5.0).tolist() == [0.5, 0.5]
