"""Numbers that are not finite: whether an update has any, and, when one did, where they began."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from proximo.config import Config
from proximo.policy.policy import Policy
from proximo.ppo.loss import Metrics
from proximo.ppo.recipe import BUILT_IN, Recipe
from proximo.ppo.rollout import Rollout
from proximo.ppo.update import TrainState, current_rates, judged_again, normalized_rewards, optimize, training_samples

Tree = Any

WATCHED = ("loss/total", "ppo/gradient_norm", "ppo/parameter_norm")
"""Metrics of which one at least is not finite where anything in an update is not: all of it flows into these."""


def is_finite(metrics: Metrics) -> jax.Array:
    """Whether an update went well."""
    return jnp.isfinite(jnp.stack([metrics[name] for name in WATCHED])).all()


def what_broke(metrics: Mapping[str, Any]) -> str | None:
    """Of an update that did not go well, a metric that shows it, a term of the loss if there is one, such as
    `loss/critic = nan`."""
    if all(math.isfinite(metrics[name]) for name in WATCHED):
        return None
    names = [name for name in metrics if name.startswith("loss/")] + list(WATCHED)
    return next(f"{name} = {metrics[name]}" for name in names if not math.isfinite(metrics[name]))


def broken(
    state: TrainState,
    rollout: Rollout,
    discounted: jax.Array,
    policy: Policy,
    config: Config,
    recipe: Recipe = BUILT_IN,
) -> OrderedDict[str, jax.Array]:
    """Of every tensor of the update that `state` would make of `rollout`: whether it is not finite.

    In the order in which they are computed, so that the first is where it began.
    """
    reward, _, _ = normalized_rewards(state, rollout, discounted, config)
    samples, _ = training_samples(state, rollout, reward, policy, config)
    again = partial(judged_again, state=state, rollout=rollout, reward=reward, policy=policy, config=config)
    rates = current_rates(state, config)
    params, _, metrics = optimize(state, samples, rates, policy, config, recipe, again, watch=True)
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
    found |= {name: _bad(value) for name, value in metrics.items() if name.startswith("loss/")}
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
