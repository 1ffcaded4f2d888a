"""Windows, patience, best average: worked by hand."""

import numpy as np
import pytest

from proximo.config import StopConfig
from proximo.train.convergence import Convergence


def watch(target=10.0, window=3, patience=2):
    return Convergence(StopConfig(target_reward=target, convergence_window=window, early_stopping_patience=patience))


def test_needs_full_windows_and_patience():
    monitor = watch()
    # Windows: (12, 12, 12) is the first full one; the fourth episode completes the second.
    assert not monitor.observe(np.array([12.0, 12.0]))
    assert not monitor.observe(np.array([12.0]))
    assert monitor.observe(np.array([12.0]))


def test_a_window_below_the_target_starts_the_count_anew():
    monitor = watch()
    # Averages of three: 10, then 8, then 10, then 11.
    assert not monitor.observe(np.array([10.0, 10.0, 10.0, 4.0]))
    assert monitor.streak == 0
    assert not monitor.observe(np.array([16.0]))
    assert monitor.streak == 1
    assert monitor.observe(np.array([13.0]))


def test_exactly_at_the_target_counts():
    assert watch(patience=1).observe(np.array([9.0, 10.0, 11.0]))


def test_best_average_counts_from_the_first_episode():
    monitor = watch()
    monitor.observe(np.array([30.0]))
    monitor.observe(np.array([0.0, 0.0, 0.0]))
    assert monitor.best_average == 30
    assert monitor.average == 0


def test_without_a_target_nothing_converges():
    assert not watch(target=None, patience=1).observe(np.full(100, 1e9))


def test_no_episode_changes_nothing():
    monitor = watch()
    assert not monitor.observe(np.zeros(0))
    assert np.isnan(monitor.average)


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 50])
def test_batches_of_any_size_agree(cut):
    returns = np.random.default_rng(0).normal(10, 3, 50)
    whole, parts = watch(patience=4), watch(patience=4)
    whole.observe(returns)
    for start in range(0, 50, cut):
        parts.observe(returns[start : start + cut])
    assert (parts.converged, parts.streak) == (whole.converged, whole.streak)
    assert parts.best_average == pytest.approx(whole.best_average)
    assert parts.average == pytest.approx(whole.average)
