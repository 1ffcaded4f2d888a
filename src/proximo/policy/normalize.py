"""Running statistics: of observations, and of the discounted return that scales rewards."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32

from proximo.shards import sum_over_shards
from proximo.types import Struct

CLIP = 10.0
EPSILON = 1e-8


class RunningStats(Struct):
    """Count, mean and variance (of the population) of everything seen."""

    count: Float32[Array, ""]
    mean: Float32[Array, "*S"]
    var: Float32[Array, "*S"]


def initial_stats(shape: tuple[int, ...]) -> RunningStats:
    """Nothing seen: mean 0 and variance 1, so that normalising changes nothing."""
    return RunningStats(jnp.zeros((), jnp.float32), jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32))


def update_stats(stats: RunningStats, values: Float[Array, "N *S"], valid: Bool[Array, " N"]) -> RunningStats:
    """Merge the valid rows of `values`, of all shards, into `stats` (Chan's parallel formula):

    d = m_b - m_a;  m = m_a + d n_b / n;  n v = n_a v_a + n_b v_b + d^2 n_a n_b / n
    """
    weights = valid.astype(jnp.float32).reshape(valid.shape + (1,) * (values.ndim - 1))
    # Not by weights alone: what an invalid row holds may be NaN, and 0 * NaN is NaN.
    values = jnp.where(weights > 0, values, 0.0)
    count, summed = sum_over_shards((weights.sum(), (values * weights).sum(0)))
    total = stats.count + count
    safe = jnp.maximum(count, 1)
    mean = summed / safe
    var = sum_over_shards((jnp.square(values - mean[None]) * weights).sum(0)) / safe
    delta = mean - stats.mean
    share = count / jnp.maximum(total, 1)
    merged = RunningStats(
        count=total,
        mean=stats.mean + delta * share,
        var=(stats.var * stats.count + var * count) / jnp.maximum(total, 1)
        + jnp.square(delta) * share * (stats.count / jnp.maximum(total, 1)),
    )
    chosen: RunningStats = jax.tree.map(lambda new, old: jnp.where(count > 0, new, old), merged, stats)
    return chosen


def standardize(stats: RunningStats, values: Float[Array, "N D"]) -> Float[Array, "N D"]:
    """(x - mean) / sqrt(var + 1e-8), clipped to +-10."""
    centred = (values - stats.mean[None]) / jnp.sqrt(stats.var + EPSILON)[None]
    return jnp.clip(centred, -CLIP, CLIP)


def reward_scale(stats: RunningStats) -> Float[Array, ""]:
    """sqrt(var(G) + 1e-8): what rewards are divided by, and values multiplied with to be in the environment's units."""
    return jnp.sqrt(stats.var + EPSILON)


def scale_rewards(stats: RunningStats, rewards: Float[Array, "T L"]) -> Float[Array, "T L"]:
    """r / sqrt(var(G) + 1e-8), clipped to +-10; G is the discounted return so far."""
    return jnp.clip(rewards / reward_scale(stats), -CLIP, CLIP)


def discounted_sums(
    start: Float[Array, " L"], rewards: Float[Array, "T L"], ended: Bool[Array, "T L"], gamma: float | Float[Array, ""]
) -> tuple[Float[Array, " L"], Float[Array, "T L"]]:
    """G_t = r_t + gamma G_{t-1} from `start`, starting again after each end; the last G, and all of them."""

    def step(
        running: Float[Array, " L"], now: tuple[Float[Array, " L"], Bool[Array, " L"]]
    ) -> tuple[Float[Array, " L"], Float[Array, " L"]]:
        reward, end = now
        running = reward + gamma * running
        return jnp.where(end, 0.0, running), running

    return jax.lax.scan(step, start, (rewards, ended))
