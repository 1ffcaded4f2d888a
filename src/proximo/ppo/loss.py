"""The loss of a minibatch: named terms with a number for each sample, and the weighted sum of their means.

Every mean is over valid samples only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from proximo.errors import UserError
from proximo.policy.networks import flatten_time
from proximo.policy.policy import Policy
from proximo.ppo.optimizer import Number
from proximo.ppo.samples import Samples
from proximo.shards import sum_over_shards
from proximo.types import PyTree, Struct

Metrics = dict[str, Shaped[Array, ""]]
"""Numbers of an update by name."""
Terms = dict[str, tuple[Number | int, Float[Array, " N"]]]
"""The parts of a loss by name: the weight, and a number for each sample [N]. The mean of each is logged as `loss/NAME`;
one whose weight is the number 0 is logged and not learned from."""


class Outputs(Struct):
    """What the networks make of a minibatch of N samples, as they are now."""

    distribution: Float[Array, "N P"]
    """Parameters of the action distribution."""
    log_prob: Float[Array, " N"]
    """Of the actions that were taken."""
    log_ratio: Float[Array, " N"]
    """log_prob - samples.log_prob; 0 where a sample is not valid."""
    entropy: Float[Array, " N"]
    """Of the action distribution."""
    value: Float[Array, " N"]

    @property
    def ratio(self) -> Float[Array, " N"]:
        """How much likelier the actions are than when they were taken."""
        return jnp.exp(self.log_ratio)


class Hyper(Struct):
    """The settings that a loss reads, as they are in this update."""

    clip_epsilon: Number
    entropy_coef: Number
    value_coef: Number
    clip_value: Number | None


Loss = Callable[[Outputs, Samples, Hyper], Terms]


def masked_mean(
    values: Float[Array, " N"], valid: Bool[Array, " N"], count: Float[Array, ""] | None = None
) -> Float[Array, ""]:
    """Mean over the valid entries; 0 where there are none. With the `count` of those in all shards, this shard's part
    of the mean over all of them, which is the sum of these parts."""
    count = jnp.maximum(valid.sum().astype(values.dtype), 1.0) if count is None else count
    return jnp.where(valid, values, 0.0).sum() / count


def valid_count(valid: Bool[Array, " N"]) -> Float[Array, ""]:
    """The valid entries of all shards; 1 where there are none."""
    count: jax.Array = jnp.maximum(sum_over_shards(valid.sum().astype(jnp.float32)), 1.0)
    return count


def standardize_advantages(advantage: Float[Array, " N"], valid: Bool[Array, " N"]) -> Float[Array, " N"]:
    """(A - mean) / (std + 1e-8) over the valid entries of all shards."""
    count = valid_count(valid)
    mean = sum_over_shards(masked_mean(advantage, valid, count))
    std = jnp.sqrt(sum_over_shards(masked_mean(jnp.square(advantage - mean), valid, count)))
    standardized: jax.Array = (advantage - mean) / (std + 1e-8)
    return standardized


def clipped_surrogate(
    log_ratio: Float[Array, " N"], advantage: Float[Array, " N"], clip_epsilon: Number
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


def approximate_kl(
    log_ratio: Float[Array, " N"], valid: Bool[Array, " N"], count: Float[Array, ""] | None = None
) -> Float[Array, ""]:
    """KL(old || new) by the estimator mean((r - 1) - log r), never negative."""
    return masked_mean(jnp.expm1(log_ratio) - log_ratio, valid, count)


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


def in_time(sequences: PyTree[Shaped[Array, "B S ..."]]) -> PyTree[Shaped[Array, "S B ..."]]:
    """[B, S, ...] to [S, B, ...] in every leaf."""
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), sequences)


def clip_loss(outputs: Outputs, samples: Samples, hyper: Hyper) -> Terms:
    """PPO's own: -L_clip + c1 L_value - c2 entropy."""
    objective = clipped_surrogate(outputs.log_ratio, samples.advantage, hyper.clip_epsilon)
    critic = value_loss(outputs.value, samples.value, samples.target, hyper.clip_value)
    return {
        "objective": (-1.0, objective),
        "critic": (hyper.value_coef, critic),
        "entropy": (-hyper.entropy_coef, outputs.entropy),
    }


def minibatch_loss(
    params: PyTree[Float[Array, "..."]],
    stats: PyTree[Float[Array, "..."]],
    samples: Samples,
    policy: Policy,
    loss: Loss,
    hyper: Hyper,
    standardize: bool,
    critic_state: PyTree[Shaped[Array, "rows ..."]] = None,
    count: Float[Array, ""] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """The loss of one minibatch, with its advantages standardised if asked for; and what is to be said of it. Where the
    critic sees a `critic_state`, that of each sample. With the `count` of valid samples in all shards, this shard's
    part of all that, to be summed over the shards."""
    outputs, samples = evaluated(params, stats, samples, policy, critic_state)
    if standardize:
        samples = replace(samples, advantage=standardize_advantages(samples.advantage, samples.valid))
    terms = loss(outputs, samples, hyper)
    check_terms(terms, samples.valid.shape[0])
    total, metrics = weighted_sum(terms, samples.valid, count)
    clipped = jnp.abs(jnp.expm1(outputs.log_ratio)) > hyper.clip_epsilon
    metrics |= {
        "ppo/approx_kl": approximate_kl(outputs.log_ratio, samples.valid, count),
        "ppo/clip_fraction": masked_mean(clipped.astype(jnp.float32), samples.valid, count),
    }
    return total, metrics


def evaluated(
    params: PyTree[Float[Array, "..."]],
    stats: PyTree[Float[Array, "..."]],
    samples: Samples,
    policy: Policy,
    critic_state: PyTree[Shaped[Array, "rows ..."]] = None,
) -> tuple[Outputs, Samples]:
    """What the networks make of samples, and those [N, ...]. With memory, a minibatch is one of sequences [B, S], each
    from the memory that it started from when it was collected."""
    if samples.carry is None or samples.episode_start is None:
        carry = policy.initial_carry(samples.valid.shape[0])
        _, outputs, value = policy.act_and_value(params, stats, carry, samples.obs, critic_state)
    else:
        carry, start = samples.carry, in_time(samples.episode_start)
        samples = in_time(replace(samples, carry=None))
        _, outputs, value = policy.unroll(params, stats, carry, samples.obs, start, in_time(critic_state))
        outputs, value, samples = flatten_time((outputs, value, samples))
    log_prob = policy.distribution.log_prob(outputs, samples.action, samples.action_mask)
    entropy = policy.distribution.entropy(outputs, samples.action_mask)
    log_ratio = jnp.where(samples.valid, log_prob - samples.log_prob, 0.0)
    return Outputs(outputs, log_prob, log_ratio, entropy, value), samples


def weighted_sum(
    terms: Terms, valid: Bool[Array, " N"], count: Float[Array, ""] | None = None
) -> tuple[Float[Array, ""], Metrics]:
    """sum of weight * mean over the terms that have a weight; and the mean of each, and the sum, as metrics."""
    means = {name: masked_mean(term.astype(jnp.float32), valid, count) for name, (_, term) in terms.items()}
    learned = [weight * means[name] for name, (weight, _) in terms.items() if not _is_zero(weight)]
    total = sum(learned[1:], learned[0])
    return total, {f"loss/{name}": mean for name, mean in means.items()} | {"loss/total": total}


def check_terms(terms: Any, num: int) -> None:
    """Refuse what a loss must not return, in words: it would be an error about shapes far from its cause."""
    pairs = isinstance(terms, dict) and all(isinstance(term, tuple) and len(term) == 2 for term in terms.values())
    if not pairs:
        raise UserError("A loss returns a dictionary: the name of each term, and its weight and its numbers as a pair.")
    for name, (weight, term) in terms.items():
        if name == "total" or not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
            raise UserError(
                f"A term of a loss cannot be called {name!r}: a name has letters, digits, _, - and ., and total is the "
                f"sum of all."
            )
        if jnp.ndim(weight) != 0:
            raise UserError(f"The weight of the loss's {name} has the shape {jnp.shape(weight)}; it is one number.")
        if jnp.shape(term) != (num,):
            raise UserError(
                f"The loss's {name} has the shape {jnp.shape(term)}; it has one number for each sample, ({num},). "
                f"The mean is taken afterwards, over the valid ones."
            )
    if all(_is_zero(weight) for weight, _ in terms.values()):
        raise UserError("A loss needs a term whose weight is not 0: there is nothing to learn from.")


def _is_zero(weight: Number | int) -> bool:
    """Whether this is the number 0, and not one that a schedule or a setting may change."""
    return not isinstance(weight, jax.core.Tracer) and float(weight) == 0
