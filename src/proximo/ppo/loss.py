"""The PPO loss. Every mean is over valid samples only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from proximo.config import PPOConfig
from proximo.policy.policy import Policy
from proximo.ppo.optimizer import Number
from proximo.ppo.rollout import Samples, flatten_lanes

Tree = Any
Metrics = dict[str, Any]


def masked_mean(values: Float[Array, " N"], valid: Bool[Array, " N"]) -> Float[Array, ""]:
    """Mean over the valid entries; 0 where there are none."""
    return jnp.where(valid, values, 0.0).sum() / jnp.maximum(valid.sum().astype(values.dtype), 1.0)


def standardize_advantages(advantage: Float[Array, " N"], valid: Bool[Array, " N"]) -> Float[Array, " N"]:
    """(A - mean) / (std + 1e-8) over the valid entries."""
    mean = masked_mean(advantage, valid)
    std = jnp.sqrt(masked_mean(jnp.square(advantage - mean), valid))
    return (advantage - mean) / (std + 1e-8)


def clipped_surrogate(
    log_ratio: Float[Array, " N"], advantage: Float[Array, " N"], clip_epsilon: Float[Array, ""]
) -> Float[Array, " N"]:
    """min(r A, clip(r, 1 - eps, 1 + eps) A) with r = pi_new / pi_old; to be maximised."""
    ratio = jnp.exp(log_ratio)
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip_epsilon, 1 + clip_epsilon) * advantage)


def value_loss(
    value: Float[Array, " N"], old_value: Float[Array, " N"], target: Float[Array, " N"], clip_value: Number | None
) -> Float[Array, " N"]:
    """(v - target)^2, or with `clip_value` the larger of that and
    (v_old + clip(v - v_old, -c, c) - target)^2."""
    plain = jnp.square(value - target)
    if clip_value is None:
        return plain
    clipped = old_value + jnp.clip(value - old_value, -clip_value, clip_value)
    return jnp.maximum(plain, jnp.square(clipped - target))


def approximate_kl(log_ratio: Float[Array, " N"], valid: Bool[Array, " N"]) -> Float[Array, ""]:
    """KL(old || new) by the estimator mean((r - 1) - log r), never negative."""
    return masked_mean(jnp.expm1(log_ratio) - log_ratio, valid)


def explained_variance(
    value: Float[Array, " N"], target: Float[Array, " N"], valid: Bool[Array, " N"]
) -> Float[Array, ""]:
    """1 - Var(target - v) / Var(target): 1 is a perfect critic, 0 one that knows only the mean.
    NaN where all targets are equal."""

    def variance(x: Float[Array, " N"]) -> Float[Array, ""]:
        return masked_mean(jnp.square(x - masked_mean(x, valid)), valid)

    # Not by the variance of the targets: rounding of their mean may leave it a little above zero.
    lowest, highest = jnp.where(valid, target, jnp.inf).min(), jnp.where(valid, target, -jnp.inf).max()
    return jnp.where(lowest == highest, jnp.nan, 1 - variance(target - value) / variance(target))


def in_time(sequences: Tree) -> Tree:
    """[B, S, ...] to [S, B, ...] in every leaf."""
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), sequences)


def ppo_loss(
    params: Tree,
    stats: Tree,
    samples: Samples,
    policy: Policy,
    ppo: PPOConfig,
    clip_epsilon: Float[Array, ""],
    entropy_coef: Float[Array, ""],
) -> tuple[Float[Array, ""], Metrics]:
    """-L_clip + c1 L_value - c2 entropy on one minibatch, and its parts. With memory, a minibatch is one of sequences
    [B, S], each from the memory that it started from when it was collected."""
    if samples.memory is None or samples.fresh is None:
        carry = policy.initial_carry(samples.valid.shape[0])
        _, outputs, value = policy.act_and_value(params, stats, carry, samples.obs)
    else:
        memory, fresh, samples = samples.memory, in_time(samples.fresh), in_time(replace(samples, memory=None))
        _, outputs, value = policy.unroll(params, stats, memory, samples.obs, fresh)
        outputs, value, samples = flatten_lanes((outputs, value, samples))
    log_prob = policy.distribution.log_prob(outputs, samples.action, samples.action_mask)
    entropy = masked_mean(policy.distribution.entropy(outputs, samples.action_mask), samples.valid)

    advantage = samples.advantage
    if ppo.normalize_advantages == "minibatch":
        advantage = standardize_advantages(advantage, samples.valid)
    log_ratio = jnp.where(samples.valid, log_prob - samples.log_prob, 0.0)
    objective = masked_mean(clipped_surrogate(log_ratio, advantage, clip_epsilon), samples.valid)
    critic = masked_mean(value_loss(value, samples.value, samples.target, ppo.clip_value), samples.valid)
    total = -objective + ppo.value_coef * critic - entropy_coef * entropy

    clipped = jnp.abs(jnp.expm1(log_ratio)) > clip_epsilon
    metrics = {
        "loss/objective": objective,
        "loss/critic": critic,
        "loss/entropy": entropy,
        "loss/total": total,
        "ppo/approx_kl": approximate_kl(log_ratio, samples.valid),
        "ppo/clip_fraction": masked_mean(clipped.astype(jnp.float32), samples.valid),
    }
    return total, metrics
