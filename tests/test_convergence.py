"""Windows, patience, claims and their confirmation: worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from proximo.config import StopConfig
from proximo.train.convergence import Convergence, window_averages


def watch(target: float | None = 10.0, window: int = 3, patience: int = 2) -> Convergence:
    return Convergence(StopConfig(target_reward=target, convergence_window=window, early_stopping_patience=patience))


def test_only_full_windows_have_an_average() -> None:
    assert window_averages(np.zeros(0), np.array([30.0, 0.0]), 3).tolist() == []
    # After (30, 0): (30, 0, 3) and (0, 3, 6).
    assert window_averages(np.array([30.0, 0.0]), np.array([3.0, 6.0]), 3).tolist() == [11, 3]
    # A window that was full before is not judged twice.
    assert window_averages(np.array([0.0, 3.0, 6.0]), np.array([9.0]), 3).tolist() == [6]
    assert window_averages(np.array([0.0, 3.0, 6.0]), np.zeros(0), 3).tolist() == []


def test_needs_full_windows_and_patience() -> None:
    monitor = watch()
    # Windows: (12, 12, 12) is the first full one; the fourth episode completes the second.
    monitor.observe(np.array([12.0, 12.0]))
    monitor.observe(np.array([12.0]))
    assert monitor.claim is None
    monitor.observe(np.array([12.0]))
    assert monitor.claim == 12


def test_a_window_below_the_target_starts_the_count_anew() -> None:
    monitor = watch()
    # Averages of three: 10, then 8, then 10, then 11.
    monitor.observe(np.array([10.0, 10.0, 10.0, 4.0]))
    assert (monitor.streak, monitor.claim) == (0, None)
    monitor.observe(np.array([16.0]))
    assert (monitor.streak, monitor.claim) == (1, None)
    monitor.observe(np.array([13.0]))
    assert (monitor.streak, monitor.claim) == (2, 11)


def test_a_claim_is_the_average_that_met_the_patience() -> None:
    """Averages of three: 11, 12, 9: the second one did, whatever came later in the same batch."""
    monitor = watch()
    monitor.observe(np.array([11.0, 11.0, 11.0, 14.0, 2.0]))
    assert monitor.claim == 12
    assert not monitor.converged


def test_exactly_at_the_target_counts() -> None:
    monitor = watch(patience=1)
    monitor.observe(np.array([9.0, 10.0, 11.0]))
    assert monitor.claim == 10
    assert monitor.confirm(10.0)
    assert monitor.converged
    assert monitor.claim is None


@pytest.mark.parametrize("played", [9.99, None, -np.inf, np.nan])
def test_after_a_refusal_windows_and_patience_begin_anew(played: float | None) -> None:
    """Three episodes fill a window again, and one more makes it two windows in a row."""
    monitor = watch()
    monitor.observe(np.array([12.0, 12.0, 12.0, 12.0]))
    assert not monitor.confirm(played)
    assert (monitor.converged, monitor.claim, monitor.streak, len(monitor.window)) == (False, None, 0, 0)
    monitor.observe(np.array([12.0, 12.0, 12.0]))
    assert monitor.claim is None
    monitor.observe(np.array([12.0]))
    assert monitor.claim == 12


def test_without_a_target_nothing_is_claimed() -> None:
    monitor = watch(target=None, patience=1)
    monitor.observe(np.full(100, 1e9))
    assert monitor.claim is None
    assert not monitor.meets(1e9)


def test_no_episode_changes_nothing() -> None:
    monitor = watch()
    monitor.observe(np.zeros(0))
    assert (monitor.claim, monitor.streak, len(monitor.window)) == (None, 0, 0)


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 50])
def test_batches_of_any_size_agree(cut: int) -> None:
    returns = np.random.default_rng(0).normal(10, 3, 50)
    whole, parts = watch(patience=4), watch(patience=4)
    whole.observe(returns)
    for start in range(0, 50, cut):
        parts.observe(returns[start : start + cut])
    assert parts.streak == whole.streak
    assert parts.claim == pytest.approx(whole.claim)
    np.testing.assert_array_equal(parts.window, whole.window)
