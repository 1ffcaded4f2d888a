"""Numbers that are not finite: whether an update has any, and, when one did, where they began."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp

from proximo.config import Config
from proximo.policy.policy import Policy
from proximo.ppo.loss import Metrics
from proximo.ppo.rollout import Rollout
from proximo.ppo.update import TrainState, current_rates, normalized_rewards, optimize, training_samples

Tree = Any

WATCHED = ("loss/objective", "loss/critic", "loss/entropy", "ppo/gradient_norm", "ppo/parameter_norm")
"""Metrics of which one at least is not finite where anything in an update is not: all of it flows into these."""


def is_finite(metrics: Metrics) -> jax.Array:
    """Whether an update went well."""
    return jnp.isfinite(jnp.stack([metrics[name] for name in WATCHED])).all()


def broken(
    state: TrainState, rollout: Rollout, discounted: jax.Array, policy: Policy, config: Config
) -> OrderedDict[str, jax.Array]:
    """Of every tensor of the update that `state` would make of `rollout`: whether it is not finite.

    In the order in which they are computed, so that the first is where it began.
    """
    reward, _, _ = normalized_rewards(state, rollout, discounted, config)
    samples, _ = training_samples(state, rollout, reward, policy, config)
    params, _, metrics = optimize(state, samples, current_rates(state, config), policy, config, watch=True)
    seen = jax.tree.map(lambda leaf: _bad(leaf, rollout.valid), rollout.obs)
    cut = jax.tree.map(lambda leaf: _bad(leaf, rollout.truncated), rollout.final_obs)
    found = {
        **_named("observation", seen),
        **_named("final observation", cut),
        **_named("last observation", jax.tree.map(_bad, rollout.last_obs)),
        "reward": _bad(rollout.reward, rollout.valid),
        **_named("parameter before it,", jax.tree.map(_bad, state.params)),
        "value": _bad(samples.value, samples.valid),
        "log-probability": _bad(samples.log_prob, samples.valid),
        "advantage": _bad(samples.advantage, samples.valid),
    }
    found |= {name: _bad(metrics[name]) for name in WATCHED[:3]}
    gradients = (name for name in metrics if name.startswith("gradient/"))
    found |= {name.replace("/", " of ", 1): _bad(metrics[name]) for name in gradients}
    return OrderedDict(found | _named("parameter", jax.tree.map(_bad, params)))  # JAX would sort a dict


def _bad(array: Any, where: Any = None) -> jax.Array:
    array = jnp.asarray(array)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return jnp.bool_(False)
    wrong = ~jnp.isfinite(array)
    return (wrong if where is None else wrong & where.reshape(where.shape + (1,) * (wrong.ndim - where.ndim))).any()


def _named(what: str, tree: Tree) -> dict[str, jax.Array]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {f"{what} {jax.tree_util.keystr(path, simple=True, separator='/')}".rstrip(): leaf for path, leaf in leaves}
