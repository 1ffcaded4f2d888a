"""Optimisation helpers: schedules, clipping, Adam. They know nothing of PPO, so another algorithm can use them."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

Tree = Any
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


def clip_by_global_norm(gradients: Tree, max_norm: Number | None) -> tuple[Tree, Float[Array, ""]]:
    """Gradients scaled by min(1, max_norm / (norm + 1e-8)), and the norm before scaling."""
    norm = optax.tree.norm(gradients)
    if max_norm is None:
        return gradients, norm
    scale = jnp.minimum(1.0, max_norm / (norm + 1e-8))
    return jax.tree.map(lambda g: g * scale, gradients), norm


def adam_init(params: Tree) -> Tree:
    """Adam's moments before the first step."""
    return optax.scale_by_adam().init(params)


def adam_direction(gradients: Tree, moments: Tree, epsilon: Number) -> tuple[Tree, Tree]:
    """Adam's direction m / (sqrt(v) + epsilon), with m and v corrected for their start at zero; and new moments."""
    # Optax raises a float to its integer step count, which strict promotion forbids.
    with jax.numpy_dtype_promotion("standard"):
        return optax.scale_by_adam(eps=epsilon).update(gradients, moments)


def descend(params: Tree, direction: Tree, rate: Float[Array, ""]) -> Tree:
    """params - rate * direction."""
    return jax.tree.map(lambda p, d: p - rate * d, params, direction)
