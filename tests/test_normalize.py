"""Running statistics against NumPy's over everything at once, and hand-worked discounted sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proximo.policy import normalize
from proximo.policy.normalize import RunningStats, discounted_sums, initial_stats, scale_rewards, standardize

update_stats = jax.jit(normalize.update_stats)


def stats_of(mean: Any, var: Any, count: float = 10.0) -> RunningStats:
    return RunningStats(jnp.float32(count), jnp.asarray(np.float32(mean)), jnp.asarray(np.float32(var)))


def merged(batches: Sequence[np.ndarray], valid: Any = None) -> RunningStats:
    stats = initial_stats(batches[0].shape[1:])
    for i, batch in enumerate(batches):
        rows = np.ones(len(batch), bool) if valid is None else valid[i]
        stats = update_stats(stats, jnp.asarray(batch), jnp.asarray(rows))
    return stats


# A mean far from zero: the difference of E[x^2] and E[x]^2 would lose the variance in single precision.
RNG = np.random.default_rng(0)
BATCHES = [RNG.normal(1000 + i, 1 + i, (40, 3)).astype(np.float32) for i in range(3)]


def test_merged_batches_equal_all_at_once() -> None:
    together = np.concatenate(BATCHES).astype(float)
    stats = merged(BATCHES)
    assert stats.count == 120
    np.testing.assert_allclose(stats.mean, together.mean(0), rtol=1e-6)
    np.testing.assert_allclose(stats.var, together.var(0), rtol=1e-3)


def test_numbers_without_a_shape() -> None:
    batches = [batch[:, 0] for batch in BATCHES]
    stats = merged(batches)
    assert stats.mean.shape == stats.var.shape == ()
    np.testing.assert_allclose(stats.var, np.concatenate(batches).astype(float).var(), rtol=1e-3)


@pytest.mark.parametrize("garbage", [0.0, 1e30, np.nan, np.inf])
def test_invalid_rows_are_ignored(garbage: float) -> None:
    valid = [RNG.random(40) < 0.5 for _ in BATCHES]
    spoiled = [np.where(rows[:, None], batch, np.float32(garbage)) for batch, rows in zip(BATCHES, valid, strict=True)]
    kept = np.concatenate([batch[rows] for batch, rows in zip(BATCHES, valid, strict=True)]).astype(float)
    stats = merged(spoiled, valid)
    assert stats.count == len(kept)
    np.testing.assert_allclose(stats.mean, kept.mean(0), rtol=1e-6)
    np.testing.assert_allclose(stats.var, kept.var(0), rtol=1e-3)


def test_a_batch_without_valid_rows_changes_nothing() -> None:
    for stats in (initial_stats((3,)), merged(BATCHES)):
        after = update_stats(stats, jnp.full((4, 3), 7.0), jnp.zeros(4, bool))
        assert after.count == stats.count
        np.testing.assert_array_equal(after.mean, stats.mean)
        np.testing.assert_array_equal(after.var, stats.var)


def test_first_use_is_the_identity() -> None:
    values = jnp.array([[-9.5, 0.0, 0.3], [1e-3, 7.0, 9.9]])
    np.testing.assert_array_equal(standardize(initial_stats((3,)), values), values)
    np.testing.assert_array_equal(scale_rewards(initial_stats(()), values), values)


def test_standardize() -> None:
    # (7 - 5) / 2, (2 - 5) / 2; no deviation at all divides by sqrt(1e-8) and is clipped.
    stats = stats_of([5, 5, 0], [4, 4, 0])
    result = standardize(stats, jnp.array([[7.0, 2.0, 1.0], [100.0, -100.0, 0.0]]))
    np.testing.assert_allclose(result, np.array([[1, -1.5, 10], [10, -10, 0]]), rtol=1e-6)


def test_rewards_are_divided_by_the_deviation_and_never_shifted() -> None:
    rewards = scale_rewards(stats_of(5, 4), jnp.array([[6.0, 0.0], [100.0, -100.0]]))
    np.testing.assert_allclose(rewards, [[3, 0], [10, -10]], rtol=1e-6)


@pytest.mark.slow
def test_discounted_sums_begin_anew_after_an_end() -> None:
    # Lane 0, from 4:  1 + 4/2 = 3;  2 + 3/2 = 3.5, the end;  3;  4 + 3/2 = 5.5.
    # Lane 1, from 0:  8;  8/2 = 4;  2;  1, the end, so that nothing is carried on.
    rewards = jnp.array([[1.0, 8.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]])
    ended = jnp.array([[False, False], [True, False], [False, False], [False, True]])
    last, sums = discounted_sums(jnp.array([4.0, 0.0]), rewards, ended, 0.5)
    assert sums.tolist() == [[3, 8], [3.5, 4], [3, 2], [5.5, 1]]
    assert last.tolist() == [5.5, 0]
