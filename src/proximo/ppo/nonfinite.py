"""Numbers that are not finite: whether an update has any, and, when one did, where they began."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from proximo.config import Config
from proximo.policy.networks import flatten_time
from proximo.policy.policies import Policies
from proximo.policy.policy import Policy
from proximo.ppo.loss import Metrics
from proximo.ppo.recipe import BUILT_IN, Recipe
from proximo.ppo.types import LearnerLanes, TrainState
from proximo.ppo.update import current_rates, judged_again, normalized_rewards, optimize, training_samples
from proximo.rollout.types import CriticState, Rollout
from proximo.shards import sum_over_shards
from proximo.types import AnyArray, PyTree

WATCHED = ("loss/total", "ppo/gradient_norm", "ppo/parameter_norm")
"""Metrics of which one at least is not finite where anything in an update is not: all of it flows into these."""


def is_finite(metrics: Metrics) -> Bool[Array, ""]:
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
    train: TrainState,
    lanes: dict[str, LearnerLanes],
    rollouts: dict[str, Rollout],
    critic_state: CriticState | None,
    policies: Policies,
    config: Config,
    recipe: Recipe = BUILT_IN,
) -> OrderedDict[str, Bool[Array, ""]]:
    """Of every tensor of the update that `train` would make of the rollouts: whether it is not finite.

    Of each group in the order in which they are computed, so that the first is where it began.
    """
    found: OrderedDict[str, Bool[Array, ""]] = OrderedDict()
    for name, policy in policies.items():
        given = (train, name, lanes[name], rollouts[name], critic_state)
        whose = "" if len(policies) == 1 else f" (group {name})"
        found |= {f"{key}{whose}": bad for key, bad in _broken_group(*given, policy, config, recipe).items()}
    in_any = sum_over_shards(jnp.stack(list(found.values())).astype(jnp.int32)) > 0
    return OrderedDict(zip(found, in_any, strict=True))


def _broken_group(
    train: TrainState,
    name: str,
    lanes: LearnerLanes,
    rollout: Rollout,
    critic_state: CriticState | None,
    policy: Policy,
    config: Config,
    recipe: Recipe,
) -> dict[str, Bool[Array, ""]]:
    learner, rates = train.groups[name], current_rates(train, name, config)
    reward, _, _ = normalized_rewards(learner, rollout, lanes.discounted, config)
    given = (lanes, rollout, critic_state, reward, policy, config)
    samples, _ = training_samples(learner, *given)
    states = None if critic_state is None else flatten_time(critic_state.seen)
    again = partial(judged_again, learner, *given)
    params, _, metrics = optimize(train, name, samples, states, rates, policy, config, recipe, again, watch=True)
    seen = jax.tree.map(lambda leaf: _bad(leaf, rollout.valid), rollout.obs)
    cut = jax.tree.map(lambda leaf: _bad(leaf, rollout.truncated), rollout.final_obs)
    found = {
        **_named("observation", seen),
        **_named("final observation", cut),
        **_named("last observation", jax.tree.map(_bad, rollout.last_obs)),
        **({} if critic_state is None else _named("critic state", jax.tree.map(_bad, critic_state.seen))),
        "reward": _bad(rollout.reward, rollout.valid),
        **_named("parameter before it,", jax.tree.map(_bad, learner.params)),
        "value": _bad(samples.value, samples.valid),
        "log-probability": _bad(samples.log_prob, samples.valid),
        "advantage": _bad(samples.advantage, samples.valid),
    }
    found |= {name: _bad(value) for name, value in metrics.items() if name.startswith("loss/")}
    gradients = (name for name in metrics if name.startswith("gradient/"))
    found |= {name.replace("/", " of ", 1): _bad(metrics[name]) for name in gradients}
    return found | _named("parameter", jax.tree.map(_bad, params))


def _bad(array: AnyArray, where: Bool[AnyArray, "*W"] | None = None) -> Bool[Array, ""]:
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return jnp.zeros((), bool)
    wrong: jax.Array = ~jnp.isfinite(array)
    if where is not None:
        wrong = wrong & where.reshape(where.shape + (1,) * (wrong.ndim - where.ndim))
    found: jax.Array = wrong.any()
    return found


def _named(what: str, tree: PyTree[Bool[Array, ""]]) -> dict[str, Bool[Array, ""]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {f"{what} {jax.tree_util.keystr(path, simple=True, separator='/')}".rstrip(): leaf for path, leaf in leaves}
