"""Self-play: in some environments one side learns, and the others play by earlier policies of the run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped
from numpy.typing import NDArray

from proximo.compile import key_of, settings_key
from proximo.config import AgentsConfig
from proximo.envs.api import lanes_of
from proximo.envs.groups import Groups
from proximo.errors import UserError
from proximo.policy.behaviour import Behaviour, ByGroup, Learners, Trained, act_by, actors
from proximo.policy.policies import Policies
from proximo.rollout.types import Episodes
from proximo.types import AnyArray, PyTree

OPPONENTS = 0x5E1F
"""Folded into keys, for the choice of opponents."""


def make_behaviour(policies: Policies, num_envs: int) -> Behaviour:
    """Who acts in training, as the settings of the agents want it."""
    return SelfPlay(policies, num_envs) if policies.settings.selfplay else Learners(policies)


class SelfPlay(Learners):
    """In the first environments, one side plays by the policies that learn, and the others by earlier ones, drawn again
    for each rollout. Chosen are {"now": what those take who learn, "then": [N, ...] what each environment's opponents
    take}."""

    def __init__(self, policies: Policies, num_envs: int):
        super().__init__(policies)
        agents, groups = policies.settings, policies.groups
        self.key = key_of("self-play", policies.key, settings_key(agents), num_envs)
        self.sides = sides(groups, agents)
        """[A] bool: who is on each side."""
        self.num_opposed = round(agents.selfplay * num_envs)
        """Environments with opponents; the first ones."""
        if not self.num_opposed:
            raise UserError(
                f"agents.selfplay={agents.selfplay} of {num_envs} environments is less than one; raise one of the two."
            )
        self.learns = np.ones((num_envs, len(groups.agents)), bool)
        each = list(self.sides.values())
        for number in range(self.num_opposed):  # every side learns in turn
            self.learns[number] = each[number % len(each)]
        self._every, self._size = agents.selfplay_every, agents.selfplay_pool

    def choose(self, train: Trained) -> PyTree:
        key = jax.random.fold_in(jax.random.fold_in(train.keys.action, train.update), OPPONENTS)
        filled = jnp.minimum(train.opponents["count"], self._size)
        drawn = jax.random.randint(key, (self.num_opposed,), 0, filled)
        return {"now": actors(train.groups), "then": jax.tree.map(lambda leaf: leaf[drawn], train.opponents["kept"])}

    def act(self, chosen: PyTree, carry: ByGroup, obs: ByGroup, envs: slice) -> tuple[ByGroup, ByGroup]:
        ours = act_by(self.policies, chosen["now"], carry, obs)
        if envs.start >= self.num_opposed:
            return ours
        last, groups = min(envs.stop, self.num_opposed), self.policies.groups
        head = {name: lanes_of(slice(0, last - envs.start), group.size) for name, group in groups.items()}

        def part(trees: ByGroup) -> ByGroup:
            """The lanes that have opponents."""
            return {name: jax.tree.map(lambda leaf, own=head[name]: leaf[own], tree) for name, tree in trees.items()}

        def by_env(trees: ByGroup) -> dict[str, PyTree[Shaped[Array, "E K ..."]]]:
            return {
                name: jax.tree.map(lambda leaf, k=groups[name].size: leaf.reshape(-1, k, *leaf.shape[1:]), tree)
                for name, tree in trees.items()
            }

        def put(name: str, all: Shaped[Array, "L *S"], some: Shaped[Array, "l *S"]) -> Shaped[Array, "L *S"]:
            return all.at[head[name]].set(some)

        then = jax.tree.map(lambda leaf: leaf[envs.start : last], chosen["then"])
        act = jax.vmap(partial(act_by, self.policies))
        theirs = act(then, by_env(part(carry)), by_env(part(obs)))
        theirs = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), theirs)
        assert self.learns is not None
        found = []
        for own, other in zip(ours, theirs, strict=True):
            some = mixed(groups, self.learns[envs.start : last], part(own), other)
            found.append({name: jax.tree.map(partial(put, name), own[name], some[name]) for name in own})
        return found[0], found[1]

    def initial_opponents(self, train: Trained) -> PyTree:
        """At first, the policy that there is. That one is kept for ever besides, for evaluations."""
        now, size = actors(train.groups), self._size
        room = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype).at[0].set(leaf), now)
        return {"kept": room, "count": jnp.int32(1), "first": now}

    def updated_opponents(self, train: Trained) -> PyTree:
        """A policy more, if one is due. When there is no room, chance decides, so that each policy of the whole run is
        as likely to be kept (reservoir sampling): opponents that are all alike teach little."""
        pool, size, due = train.opponents, self._size, train.update % self._every == 0
        key = jax.random.fold_in(jax.random.fold_in(train.keys.shuffle, train.update), OPPONENTS)
        slot = jnp.where(pool["count"] < size, pool["count"], jax.random.randint(key, (), 0, pool["count"] + 1))
        taken = due & (slot < size)
        place = lambda room, leaf: jnp.where(taken, room.at[slot].set(leaf, mode="drop"), room)  # noqa: E731
        kept = jax.tree.map(place, pool["kept"], actors(train.groups))
        return {"kept": kept, "count": pool["count"] + due.astype(jnp.int32), "first": pool["first"]}

    def scored(self, episodes: Episodes) -> Episodes:
        """Episodes with how the learning side did in each: 1 for a win over all other sides, 1/2 for a draw, 0 for a
        loss; -1 in environments without opponents."""
        assert self.sides is not None
        members, num_sides = [episodes.members[name] for name in self.policies], len(self.sides)
        returns = jnp.concatenate(members, axis=-1)
        means = jnp.stack(
            [returns @ (flags / flags.sum()).astype(np.float32) for flags in self.sides.values()], axis=-1
        )
        num_envs = returns.shape[1]
        ours = jax.nn.one_hot(np.arange(num_envs) % num_sides, num_sides, dtype=jnp.bool_)  # [E, S]
        best = jnp.where(ours[None], -jnp.inf, means).max(-1)
        own = jnp.where(ours[None], means, -jnp.inf).max(-1)
        opposed = np.arange(num_envs) < self.num_opposed
        return replace(episodes, score=jnp.where(opposed[None], scores(own, best), -1.0))


class Match(Learners):
    """Two policies against each other. Chosen are {"side": [A] bool, who plays by "ours", "ours" and "theirs": what
    they take}."""

    def __init__(self, policies: Policies):
        super().__init__(policies)
        self.key = key_of("match", policies.key)

    def act(self, chosen: PyTree, carry: ByGroup, obs: ByGroup, envs: slice) -> tuple[ByGroup, ByGroup]:
        ours, theirs = (act_by(self.policies, chosen[who], carry, obs) for who in ("ours", "theirs"))
        flags = jnp.broadcast_to(chosen["side"][None], (envs.stop - envs.start, chosen["side"].shape[0]))
        memory, outputs = (mixed(self.policies.groups, flags, *both) for both in zip(ours, theirs, strict=True))
        return memory, outputs


def mixed(groups: Groups, flags: Bool[AnyArray, "E A"], ours: ByGroup, theirs: ByGroup) -> ByGroup:
    """What is `ours` for agents whose flags are true, else `theirs`."""

    def chosen(own: Bool[AnyArray, " L"], a: Shaped[Array, "L *S"], b: Shaped[Array, "L *S"]) -> Shaped[Array, "L *S"]:
        return jnp.where(own.reshape(own.shape + (1,) * (a.ndim - 1)), a, b)

    return {
        name: jax.tree.map(partial(chosen, flags[:, columns].reshape(-1)), ours[name], theirs[name])
        for name, columns in groups.columns.items()
    }


def scores(own: Float[AnyArray, "*S"], best: Float[AnyArray, "*S"]) -> Float[Array, "*S"]:
    """What a side has won whose agents got `own`, where the best of the other sides got `best`: a draw counts half."""
    return jnp.where(own > best, 1.0, jnp.where(own == best, 0.5, 0.0))


def sides(groups: Groups, agents: AgentsConfig) -> dict[str, Bool[NDArray[Any], " A"]]:
    """Who plays against whom, as the settings want it: who is on each side."""
    given = agents.sides
    if given is None:
        several = len(groups) > 1
        given = {name: group.members for name, group in groups.items()} if several else {a: (a,) for a in groups.agents}
    named = [agent for members in given.values() for agent in members]
    if sorted(named) != sorted(groups.agents):
        raise UserError(
            f"agents.sides must name each agent once, and names {', '.join(named) or 'nobody'}; the agents are: "
            f"{', '.join(groups.agents)}."
        )
    if len(given) < 2:
        raise UserError("agents.selfplay needs two sides at least; name them with agents.sides.")
    return {name: np.array([agent in members for agent in groups.agents]) for name, members in given.items()}
