"""What an update learned from, in numbers: the metrics `buffer/*`. All of them are over valid samples only."""

from __future__ import annotations

import math
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int, Shaped

from proximo.policy.normalize import RunningStats, reward_scale
from proximo.policy.policy import Policy
from proximo.ppo.loss import Metrics, masked_mean
from proximo.ppo.samples import Samples
from proximo.spaces import Path, leaves, pick
from proximo.types import PyTree

MAX_CHOICES = 32
"""Choices of discrete actions, all parts of the action space together, that are counted; parts beyond are left out."""
MAX_NUMBERS = 8
"""Numbers of continuous actions, in the same way."""


def rollout_metrics(
    reward: Float[Array, " N"], samples: Samples, policy: Policy, reward_stats: RunningStats | None = None
) -> Metrics:
    """Rewards as the environment gave them, advantages before they are standardised, the critic's targets
    (`return`), the share of samples that count, and which actions were taken. All in the environment's units:
    where rewards were normalised, `reward_stats` say by what."""
    valid = samples.valid
    advantage, target = samples.target - samples.value, samples.target
    if reward_stats is not None:
        advantage, target = advantage * reward_scale(reward_stats), target * reward_scale(reward_stats)
    metrics = described("buffer/reward", reward, valid)
    metrics |= described("buffer/advantage", advantage, valid)
    metrics |= described("buffer/return", target, valid)
    metrics["buffer/valid_fraction"] = valid.astype(jnp.float32).mean()
    return metrics | action_metrics(policy.action_space, policy.distribution.to_env(samples.action), valid)


def described(name: str, values: Float[Array, " N"], valid: Bool[Array, " N"]) -> Metrics:
    """Mean, standard deviation and extremes; extremes of nothing are infinite."""
    return mean_and_std(name, values, valid) | {
        f"{name}_min": jnp.where(valid, values, jnp.inf).min(),
        f"{name}_max": jnp.where(valid, values, -jnp.inf).max(),
    }


def mean_and_std(name: str, values: Float[Array, " N"], valid: Bool[Array, " N"]) -> Metrics:
    mean = masked_mean(values, valid)
    return {f"{name}_mean": mean, f"{name}_std": jnp.sqrt(masked_mean(jnp.square(values - mean), valid))}


def fractions(choice: Int[Array, " N"], num: int, valid: Bool[Array, " N"]) -> Float[Array, " {num}"]:
    """How often each of `num` choices was made, as a share."""
    chosen = (choice[:, None] == jnp.arange(num, dtype=choice.dtype)[None]) & valid[:, None]
    return chosen.sum(0).astype(jnp.float32) / jnp.maximum(valid.sum().astype(jnp.float32), 1.0)


def action_metrics(
    space: spaces.Space[Any], actions: PyTree[Shaped[Array, "N ..."]], valid: Bool[Array, " N"]
) -> Metrics:
    """Of actions [N, ...] as the environment takes them: the share of each choice, or mean and deviation.

    Discrete: `buffer/action_0`, by the action's own number. MultiDiscrete: `buffer/action_1_0` is choice 0 of component
    1. Box and MultiBinary: `buffer/action_0_mean` and `_std` of each number. Dict and Tuple: by leaf, such as
    `buffer/action_move_0`.
    """
    metrics: Metrics = {}
    choices, numbers = MAX_CHOICES, MAX_NUMBERS
    for path, leaf in leaves(space):
        name, taken = _named(path), pick(actions, path)
        flat = taken.reshape(taken.shape[0], math.prod(taken.shape[1:]))
        if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
            sizes, starts = (np.atleast_1d(part).reshape(-1).tolist() for part in _range(leaf))
            if sum(sizes) > choices:
                continue
            choices -= sum(sizes)
            for i, (size, start) in enumerate(zip(sizes, starts, strict=True)):
                component = name if isinstance(leaf, spaces.Discrete) else f"{name}_{i}"
                share = fractions(flat[:, i].astype(jnp.int32) - start, size, valid)
                metrics |= {f"{component}_{start + choice}": share[choice] for choice in range(size)}
        elif flat.shape[1] <= numbers:
            numbers -= flat.shape[1]
            for i in range(flat.shape[1]):
                metrics |= mean_and_std(f"{name}_{i}", flat[:, i].astype(jnp.float32), valid)
    return metrics


def _named(path: Path) -> str:
    """The name of a leaf's metrics; characters that trackers refuse in a name are replaced."""
    return "_".join(["buffer/action", *(re.sub(r"[^\w.-]", "-", str(key)) for key in path)])


def _range(leaf: Any) -> tuple[Any, Any]:
    return (leaf.n, leaf.start) if isinstance(leaf, spaces.Discrete) else (leaf.nvec, leaf.start)
