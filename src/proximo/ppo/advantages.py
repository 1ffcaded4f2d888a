"""Generalised advantage estimation, per lane and in time order."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from proximo.ppo.optimizer import Number


def advantages(
    reward: Float[Array, "T L"],
    value: Float[Array, "T L"],
    terminated: Bool[Array, "T L"],
    truncated: Bool[Array, "T L"],
    final_value: Float[Array, "T L"],
    last_value: Float[Array, " L"],
    gamma: Number,
    gae_lambda: Number,
) -> tuple[Float[Array, "T L"], Float[Array, "T L"]]:
    """Advantages and value targets.

        delta_t = r_t + gamma (1 - terminated_t) V(s_{t+1}) - V(s_t)
        A_t     = delta_t + gamma lambda (1 - ended_t) A_{t+1},   ended = terminated or truncated
        target  = A_t + V(s_t)

    V(s_{t+1}) is `final_value` where the episode was truncated: the value of the observation that the step
    truly led to, never of the one after the reset. `last_value` bootstraps the cut at the end of the rollout.
    """
    following = jnp.concatenate([value[1:], last_value[None]])
    following = jnp.where(truncated, final_value, following)
    delta = reward + gamma * jnp.where(terminated, 0.0, following) - value
    decay = gamma * gae_lambda * (1.0 - (terminated | truncated).astype(value.dtype))

    def step(trace: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta_t, decay_t = now
        trace = delta_t + decay_t * trace
        return trace, trace

    _, advantage = jax.lax.scan(step, jnp.zeros_like(last_value), (delta, decay), reverse=True)
    return advantage, advantage + value
