"""Generalised advantage estimation, per lane and in time order."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from proximo.ppo.optimizer import Number
from proximo.types import AnyArray

Lane = Float[Array, " L"]
"""A number for each lane."""


def advantages(
    reward: Float[Array, "T L"],
    value: Float[Array, "T L"],
    terminated: Bool[AnyArray, "T L"],
    truncated: Bool[AnyArray, "T L"],
    final_value: Float[Array, "T L"],
    last_value: Float[Array, " L"],
    gamma: Number,
    gae_lambda: Number,
    valid: Bool[AnyArray, "T L"] | None = None,
    settled: Bool[AnyArray, "T L"] | None = None,
) -> tuple[Float[Array, "T L"], Float[Array, "T L"]]:
    """Advantages and value targets.

        delta_t = r_t + gamma (1 - terminated_t) V(s_{t+1}) - V(s_t)
        A_t     = delta_t + gamma lambda (1 - ended_t) A_{t+1},   ended = terminated or truncated
        target  = A_t + V(s_t)

    V(s_{t+1}) is `final_value` where the episode was truncated: the value of the observation that the step
    truly led to, never of the one after the reset. `last_value` bootstraps the cut at the end of the rollout.

    Steps that are not `valid` are skipped: t + 1 is the next step that is, and what was paid, or ended, in between
    belongs to the last one before. So the turns of others in a game take no time. Of valid steps that are not `settled`
    the advantage is not known, and is no part of those before, which are bootstrapped from V(s_t) there.
    """
    if valid is not None:
        known = jnp.ones_like(valid) if settled is None else settled
        return _skipping(reward, value, terminated, truncated, final_value, last_value, gamma, gae_lambda, valid, known)
    following = jnp.concatenate([value[1:], last_value[None]])
    following = jnp.where(truncated, final_value, following)
    delta = reward + gamma * jnp.where(terminated, 0.0, following) - value
    decay = gamma * gae_lambda * (1.0 - jnp.logical_or(terminated, truncated).astype(value.dtype))

    def step(trace: Lane, now: tuple[Lane, Lane]) -> tuple[Lane, Lane]:
        delta_t, decay_t = now
        trace = delta_t + decay_t * trace
        return trace, trace

    _, advantage = jax.lax.scan(step, jnp.zeros_like(last_value), (delta, decay), reverse=True, unroll=8)
    return advantage, advantage + value


def _skipping(
    reward: Float[Array, "T L"],
    value: Float[Array, "T L"],
    terminated: Bool[AnyArray, "T L"],
    truncated: Bool[AnyArray, "T L"],
    final_value: Float[Array, "T L"],
    last_value: Float[Array, " L"],
    gamma: Number,
    gae_lambda: Number,
    valid: Bool[AnyArray, "T L"],
    settled: Bool[AnyArray, "T L"],
) -> tuple[Float[Array, "T L"], Float[Array, "T L"]]:
    """From the last step to the first: the trace, the value that follows, what was paid since the last valid one."""

    def step(after: tuple[Lane, Lane, Lane], now: tuple[Array, ...]) -> tuple[tuple[Lane, Lane, Lane], Lane]:
        trace, following, paid = after
        reward_t, value_t, terminated_t, truncated_t, final_t, valid_t, settled_t = now
        ended = terminated_t | truncated_t
        following = jnp.where(ended, jnp.where(terminated_t, 0.0, final_t), following)
        trace, paid = jnp.where(ended, 0.0, trace), reward_t + jnp.where(ended, 0.0, paid)
        advantage = paid + gamma * following - value_t + gamma * gae_lambda * trace
        trace = jnp.where(valid_t, jnp.where(settled_t, advantage, 0.0), trace)
        following = jnp.where(valid_t, value_t, following)
        return (trace, following, jnp.where(valid_t, jnp.zeros_like(paid), paid)), advantage

    zeros = jnp.zeros_like(last_value)
    rows = tuple(map(jnp.asarray, (reward, value, terminated, truncated, final_value, valid, settled)))
    _, advantage = jax.lax.scan(step, (zeros, last_value, zeros), rows, reverse=True)
    return advantage, advantage + value
