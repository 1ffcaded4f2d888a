"""The update of many agents: group by group, each from its own lanes, environments x agents."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from proximo.config import Config
from proximo.policy.policy import Policy, part_of
from proximo.policy.team import OPPONENTS, AnyPolicy, TeamPolicy, together
from proximo.ppo.finite import broken
from proximo.ppo.loss import Metrics
from proximo.ppo.recipe import BUILT_IN, Recipe
from proximo.ppo.rollout import Episodes, Rollout
from proximo.ppo.update import TrainState, initial_train_state, update

Tree = Any
COMMON = ("keys", "update", "env_steps", "pool")
"""Of the state of training, what groups have in common; everything else is a dictionary by group."""


def initial_state(
    policy: AnyPolicy,
    params: Tree,
    obs_stats: Tree,
    config: Config,
    reward_stats: Tree = None,
    recipe: Recipe = BUILT_IN,
) -> TrainState:
    """The state before the first update."""
    if isinstance(policy, Policy):
        return initial_train_state(params, obs_stats, config, reward_stats, recipe)
    rewards = reward_stats or {}
    groups = {
        name: initial_train_state(params[name], obs_stats[name], config, rewards.get(name), recipe)
        for name in policy.groups
    }
    state = _joined(groups)
    return state if policy.selfplay is None else replace(state, pool=initial_pool(policy, params, obs_stats))


def update_all(
    state: TrainState,
    rollout: Rollout,
    discounted: jax.Array,
    policy: AnyPolicy,
    config: Config,
    recipe: Recipe = BUILT_IN,
) -> tuple[TrainState, jax.Array, Tree, Metrics]:
    """As `update`; with many agents, for each group. Discounted sums are then [E, A]. Metrics are the means over
    groups, and with several groups those of each, as `group/NAME/...`."""
    if isinstance(policy, Policy):
        return update(state, rollout, discounted, policy, config, recipe)
    after, sums, carries, metrics = {}, [], {}, {}
    for name, own in policy.groups.items():
        lanes = together(discounted[:, policy.team.members(name)])
        after[name], lanes, carry, metrics[name] = update(
            group_state(state, name), rollout_of(policy, name, rollout), lanes, own, config, recipe
        )
        sums.append(policy.split(lanes, name))
        carries[name] = policy.split(carry, name)
    state = replace(_joined(after), pool=state.pool)
    if policy.selfplay is not None:
        state = replace(state, pool=updated_pool(policy, state))
    return state, jnp.concatenate(sums, axis=1), carries, merged(metrics)


def broken_all(
    state: TrainState,
    rollout: Rollout,
    discounted: jax.Array,
    policy: AnyPolicy,
    config: Config,
    recipe: Recipe = BUILT_IN,
) -> OrderedDict[str, jax.Array]:
    """As `broken`; with many agents, of each group in turn."""
    if isinstance(policy, Policy):
        return broken(state, rollout, discounted, policy, config, recipe)
    found: OrderedDict[str, jax.Array] = OrderedDict()
    for name, own in policy.groups.items():
        lanes = together(discounted[:, policy.team.members(name)])
        bad = broken(group_state(state, name), rollout_of(policy, name, rollout), lanes, own, config, recipe)
        found |= {f"{key} (group {name})": flag for key, flag in bad.items()}
    return found


def group_state(state: TrainState, name: str) -> TrainState:
    """What one group's learning has changed."""
    own: dict[str, Any] = {field.name: getattr(state, field.name) for field in fields(TrainState)}
    return TrainState(**{key: value if key in COMMON else value[name] for key, value in own.items()} | {"pool": None})


def _joined(groups: dict[str, TrainState]) -> TrainState:
    first = next(iter(groups.values()))
    each: dict[str, Any] = {
        part.name: {name: getattr(own, part.name) for name, own in groups.items()} for part in fields(TrainState)
    }
    return TrainState(**each | {name: getattr(first, name) for name in COMMON})


def merged(metrics: dict[str, Metrics]) -> Metrics:
    """The metrics of an update from those of each group."""
    groups = list(metrics.values())
    if len(groups) == 1:
        return groups[0]
    common = [name for name in groups[0] if all(name in own for own in groups) and not name.startswith("buffer/action")]
    means = {name: jnp.stack([own[name].astype(jnp.float32) for own in groups]).mean() for name in common}
    return means | {f"group/{name}/{key}": value for name, own in metrics.items() for key, value in own.items()}


def rollout_of(policy: TeamPolicy, name: str, rollout: Rollout) -> Rollout:
    """A group's part, with lanes [E * K]. What opponents did counts for nothing."""
    members = policy.team.members(name)
    each = lambda flags: together(flags[:, :, members], 1)  # noqa: E731
    valid = rollout.valid if policy.selfplay is None else rollout.valid & policy.selfplay.learns[None]
    mask = policy.distribution.masks(rollout.action_mask)[name]
    return Rollout(
        obs=together(policy.seen(name, rollout.obs, 2), 1),
        action_mask=None if mask is None else together(mask, 1),
        action=together(rollout.action[name], 1),
        reward=each(rewards(policy, rollout)),
        terminated=each(rollout.terminated),
        truncated=each(rollout.truncated),
        valid=each(valid),
        final_obs=together(policy.seen(name, rollout.final_obs, 2), 1),
        last_obs=together(policy.seen(name, rollout.last_obs, 1)),
        carry={part: together(carry[name]) for part, carry in rollout.carry.items()},
        absent=each(rollout.absent),
        there=each(rollout.there),
        settled=each(settled(rollout)),
    )


def settled(rollout: Rollout) -> jax.Array:
    """[T, E, A] of which actions all is known that came of them: until the agent's next turn, or its end.

    In a game with turns, the last action before the cut of a rollout may not be: others have still to move, and pay the
    agent or end the game, and what the agent sees out of turn is nothing that its critic can judge. Such an action is
    not learned from; the ones before it are, from the value of what the agent saw on that turn.
    """
    assert rollout.acts is not None
    come = jnp.concatenate([rollout.valid | rollout.ended, rollout.acts[None]])
    later = jax.lax.cummax(come.astype(jnp.int8), axis=0, reverse=True)[1:].astype(bool)
    return later | rollout.ended


def rewards(policy: TeamPolicy, rollout: Rollout) -> jax.Array:
    """[T, E, A] to learn from: each agent's own; or the mean over those who could be paid, being there when the step
    was taken: those of the team, or with self-play those of the agent's side, since what one side wins others lose."""
    if policy.reward == "own" or rollout.there is None:
        return rollout.reward
    there = rollout.there.astype(jnp.float32)
    if policy.selfplay is None:
        mean = rollout.reward.sum(-1, keepdims=True) / jnp.maximum(there.sum(-1, keepdims=True), 1.0)
    else:
        flags = np.stack(list(policy.selfplay.sides.values())).astype(np.float32)
        mates = flags.T @ flags  # [A, A] 1 for agents of one side
        mean = (rollout.reward @ mates) / jnp.maximum(there @ mates, 1.0)
    return mean * there


def initial_pool(policy: TeamPolicy, params: Tree, stats: Tree) -> Tree:
    """The earlier policies that opponents play by: at first, the one that there is. That one is kept for ever besides,
    for evaluations."""
    assert policy.selfplay is not None
    size = policy.selfplay.size
    room = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype).at[0].set(leaf), _kept(params, stats))
    return {"kept": room, "count": jnp.int32(1), "first": _kept(params, stats)}


def updated_pool(policy: TeamPolicy, state: TrainState) -> Tree:
    """The pool after an update: a policy more, if one is due. When there is no room, chance decides, so that each
    policy of the whole run is as likely to be kept (reservoir sampling): opponents that are all alike teach little."""
    assert policy.selfplay is not None
    pool, size, due = state.pool, policy.selfplay.size, state.update % policy.selfplay.every == 0
    key = jax.random.fold_in(jax.random.fold_in(state.keys.shuffle, state.update), OPPONENTS)
    slot = jnp.where(pool["count"] < size, pool["count"], jax.random.randint(key, (), 0, pool["count"] + 1))
    taken = due & (slot < size)
    place = lambda room, leaf: jnp.where(taken, room.at[slot].set(leaf, mode="drop"), room)  # noqa: E731
    kept = jax.tree.map(place, pool["kept"], _kept(state.params, state.obs_stats))
    return {"kept": kept, "count": pool["count"] + due.astype(jnp.int32), "first": pool["first"]}


def _kept(params: Tree, stats: Tree) -> Tree:
    return {"params": {name: part_of(own, "actor") for name, own in params.items()}, "stats": stats}


def scores(own: Any, best: Any) -> jax.Array:
    """What a side has won whose agents got `own`, where the best of the other sides got `best`: a draw counts half."""
    return jnp.where(own > best, 1.0, jnp.where(own == best, 0.5, 0.0))


def with_scores(policy: TeamPolicy, episodes: Episodes) -> Episodes:
    """Episodes with how the learning side did in each: 1 for a win over all other sides, 1/2 for a draw, 0 for a loss;
    -1 in environments without opponents."""
    play = policy.selfplay
    if play is None:
        return episodes
    returned, num_sides = episodes.agents, len(play.sides)
    means = jnp.stack([returned @ (flags / flags.sum()).astype(np.float32) for flags in play.sides.values()], axis=-1)
    ours = jax.nn.one_hot(np.arange(play.learns.shape[0]) % num_sides, num_sides, dtype=jnp.bool_)  # [E, S]
    best = jnp.where(ours[None], -jnp.inf, means).max(-1)
    own = jnp.where(ours[None], means, -jnp.inf).max(-1)
    score = scores(own, best)
    opposed = np.arange(play.learns.shape[0]) < play.num_envs
    return replace(episodes, score=jnp.where(opposed[None], score, -1.0))
