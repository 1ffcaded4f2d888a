"""Optimisation helpers: schedules, and clipping and Adam as transformations of Optax. They know nothing of PPO, so
another algorithm can use them."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from proximo.types import PyTree

Number = float | Float[Array, ""]
"""A setting: as it stands, or as the argument of a compiled program."""
KL_FACTOR = 2.0
RATE_FACTOR = 1.5
RATE_RANGE = (1e-6, 1e-2)


def scheduled(schedule: str, start: Number, end: Number, progress: Float[Array, ""]) -> Float[Array, ""]:
    """The value at `progress` (0 to 1) of the way from `start` to `end`.

    linear: start + (end - start) p;  cosine: end + (start - end) (1 + cos(pi p)) / 2;  constant: start.
    """
    if schedule == "linear":
        remaining = 1 - progress
    elif schedule == "cosine":
        remaining = (1 + jnp.cos(math.pi * progress)) / 2
    else:
        return jnp.full_like(progress, start)
    return end + (start - end) * remaining


def adapted_rate(rate: Float[Array, ""], kl: Float[Array, ""], target_kl: Number) -> Float[Array, ""]:
    """Steer the KL of an update to `target_kl`: divide the rate by 1.5 where the KL was over twice the target,
    multiply it by 1.5 where it was under half of it; within 1e-6 to 1e-2."""
    lower, raised = rate / RATE_FACTOR, rate * RATE_FACTOR
    rate = jnp.where(kl > target_kl * KL_FACTOR, lower, jnp.where(kl < target_kl / KL_FACTOR, raised, rate))
    return jnp.clip(rate, *RATE_RANGE)


def clip_by_norm(max_norm: Number) -> optax.GradientTransformation:
    """Scale by min(1, max_norm / (norm + 1e-8)), with the norm over everything."""
    return optax.stateless(lambda gradients, _: _clipped(gradients, max_norm))


def clip_each_by_norm(max_norm: Number) -> optax.GradientTransformation:
    """The same for each network on its own."""
    return optax.stateless(lambda gradients, _: {name: _clipped(part, max_norm) for name, part in gradients.items()})


def scale_by_rates() -> optax.GradientTransformationExtraArgs:
    """Times -learning_rate, the critic's part times -critic_learning_rate: both are arguments of `update`, since they
    are scheduled. The last of a chain that follows the settings."""

    def update(
        direction: PyTree,
        state: optax.EmptyState,
        params: PyTree = None,
        *,
        learning_rate: Float[Array, ""],
        critic_learning_rate: Float[Array, ""],
        **_: Any,
    ) -> tuple[PyTree, optax.EmptyState]:
        rates = dict.fromkeys(direction, learning_rate) | {"critic": critic_learning_rate}
        moved = {name: jax.tree.map(lambda d, rate=rates[name]: -rate * d, part) for name, part in direction.items()}
        return moved, state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def adam(max_norm: Number | None, epsilon: Number, separate: bool) -> optax.GradientTransformationExtraArgs:
    """Clipped gradients, together or each network's on its own; Adam's direction m / (sqrt(v) + epsilon), with m and v
    corrected for their start at zero; the scheduled rates."""
    clip = clip_each_by_norm if separate else clip_by_norm
    clips = () if max_norm is None else (clip(max_norm),)
    return optax.with_extra_args_support(optax.chain(*clips, optax.scale_by_adam(eps=epsilon), scale_by_rates()))


def descended(
    optimizer: optax.GradientTransformationExtraArgs,
    gradients: PyTree[Float[Array, "..."]],
    state: PyTree,
    params: PyTree[Float[Array, "..."]],
    learning_rate: Float[Array, ""],
    critic_learning_rate: Float[Array, ""],
) -> tuple[PyTree[Float[Array, "..."]], PyTree]:
    """Parameters and state after one step."""
    rates = {"learning_rate": learning_rate, "critic_learning_rate": critic_learning_rate}
    # Optax raises a float to its integer step count, for example, which strict promotion forbids.
    with jax.numpy_dtype_promotion("standard"):
        moves, state = optimizer.update(gradients, state, params, **rates)
        return optax.apply_updates(params, moves), state


def _clipped(gradients: PyTree[Float[Array, "..."]], max_norm: Number) -> PyTree[Float[Array, "..."]]:
    scale = jnp.minimum(1.0, max_norm / (optax.tree.norm(gradients) + 1e-8))
    return jax.tree.map(lambda g: g * scale, gradients)
