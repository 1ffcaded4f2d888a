"""The policies of many agents as one: agents of a group share parameters, and stand side by side.

Whatever is collected has the shape [E, ...] of environments; what belongs to agents is a dictionary by group with
leaves [E, K, ...]. Only the update takes a group's part out, with lanes = environments x agents (`proximo.ppo.team`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from proximo.compiling import cached, key_of, settings_key
from proximo.config import AgentsConfig, NetworkConfig, NormalizeConfig
from proximo.errors import UserError
from proximo.policy.policy import ALL, OWN, Policy, part_of, shared_policy
from proximo.spaces import mask_shape
from proximo.teams import AGENTS, STATE, Team

Tree = Any
OPPONENTS = 0x5E1F
"""Folded into keys, for the choice of opponents."""


def shared_team(
    team: Team, network: NetworkConfig, normalize: NormalizeConfig, agents: AgentsConfig, num_envs: int, own: Any = None
) -> TeamPolicy:
    """A `TeamPolicy`; the same one for the same values, and always a new one with networks of a user's own."""
    given = (team, network, normalize, agents, num_envs)
    if own is not None:
        return TeamPolicy(*given, own)
    made: TeamPolicy = cached(key_of("team", team_key(*given)), lambda: TeamPolicy(*copy.deepcopy(given)))
    return made


def team_key(
    team: Team, network: NetworkConfig, normalize: NormalizeConfig, agents: AgentsConfig, num_envs: int
) -> Hashable | None:
    """What a `TeamPolicy` with built-in networks is, as a value; None if a space has no key."""
    return key_of(team.key, *(settings_key(section) for section in (network, normalize, agents)), num_envs)


@dataclass(frozen=True)
class SelfPlay:
    """In the first environments, one side learns and the others play by earlier policies."""

    sides: dict[str, np.ndarray]
    """[A] bool: who is on each side."""
    learns: np.ndarray
    """[E, A] bool: who plays by the policy that learns."""
    num_envs: int
    """Environments with opponents; the first ones."""
    every: int
    size: int


class TeamDistribution:
    """The distributions of all groups; with the methods of one, on dictionaries by group."""

    def __init__(self, groups: dict[str, Policy], team: Team):
        self._parts = {name: policy.distribution for name, policy in groups.items()}
        self._sizes = {name: len(members) for name, members in team.groups.items()}
        self._shapes = {name: mask_shape(space) for name, space in team.action_spaces.items()}

    def noise(self, key: jax.Array, shape: tuple[int, ...]) -> Tree:
        return {
            name: part.noise(jax.random.fold_in(key, number), (*shape, self._sizes[name]))
            for number, (name, part) in enumerate(self._parts.items())
        }

    def sample(self, outputs: Tree, noise: Tree, mask: jax.Array | None = None) -> Tree:
        masks = self.masks(mask)
        return {name: part.sample(outputs[name], noise[name], masks[name]) for name, part in self._parts.items()}

    def mode(self, outputs: Tree, mask: jax.Array | None = None) -> Tree:
        masks = self.masks(mask)
        return {name: part.mode(outputs[name], masks[name]) for name, part in self._parts.items()}

    def to_env(self, action: Tree) -> Tree:
        return {name: part.to_env(action[name]) for name, part in self._parts.items()}

    def masks(self, mask: jax.Array | None) -> dict[str, Any]:
        """From one vector [..., M], agent by agent, to the masks [..., K, ...] of each group; None if it has none."""
        if mask is None:
            return dict.fromkeys(self._parts)
        sizes = [self._sizes[name] * math.prod(shape) for name, shape in self._shapes.items()]
        pieces = jnp.split(mask, np.cumsum(sizes)[:-1].tolist(), axis=-1)
        return {
            name: piece.reshape(*mask.shape[:-1], self._sizes[name], *shape) if math.prod(shape) else None
            for piece, (name, shape) in zip(pieces, self._shapes.items(), strict=True)
        }


class TeamPolicy:
    """A `Policy` for each group of a team, with the same methods on dictionaries by group."""

    def __init__(
        self,
        team: Team,
        network: NetworkConfig,
        normalize: NormalizeConfig,
        agents: AgentsConfig,
        num_envs: int,
        own: Any = None,
    ):
        self.key = team_key(team, network, normalize, agents, num_envs) if own is None else None
        self.team = team
        self.central = agents.critic == "central"
        self.identity = agents.identity
        self.reward = agents.reward
        self.observation_space = team.observation_space()
        self.action_space = team.action_space()
        self.groups = {
            name: shared_policy(self._seen_space(name), space, network, normalize, own, self._critic_space())
            for name, space in team.action_spaces.items()
        }
        self.distribution = TeamDistribution(self.groups, team)
        self.selfplay = self_play(team, agents, num_envs) if agents.selfplay else None

    def init(self, key: jax.Array) -> Tree:
        """Fresh parameters: groups that are alike start from different ones."""
        keys = [key, *(jax.random.fold_in(key, number) for number in range(1, len(self.groups)))]
        return {name: policy.init(own) for own, (name, policy) in zip(keys, self.groups.items(), strict=True)}

    def initial_carry(self, num_envs: int) -> Tree:
        """The memory that every episode starts with, of actors and critics."""
        each = {name: self.split(policy.initial_carry(num_envs * self._size(name)), name) for name, policy in self._all}
        return {part: {name: carry[part] for name, carry in each.items()} for part in ("actor", "critic")}

    def initial_stats(self) -> Tree:
        return {name: policy.initial_stats() for name, policy in self._all}

    @property
    def recurrent(self) -> bool:
        return any(policy.recurrent for policy in self.groups.values())

    @property
    def torso(self) -> Any:
        return next((policy.torso for policy in self.groups.values()), None)

    def act(self, params: Tree, stats: Tree, carry: Tree, obs: Tree) -> tuple[Tree, Tree]:
        """The actors: their new memory, and the distributions' parameters [E, K, P] by group."""
        memory, outputs = {}, {}
        for name, policy in self._all:
            given = (together(carry[name]), together(self._own(name, obs, 1)))
            held, output = policy.act(params[name], stats[name], *given)
            memory[name], outputs[name] = self.split((held, output), name)
        return memory, outputs

    def value(
        self, params: Tree, stats: Tree, carry: Tree, obs: Tree, reward_stats: Tree = None
    ) -> tuple[Tree, jax.Array]:
        """The critics: their new memory, and the mean over all agents of the values [E]; with `reward_stats` of each
        group in the environment's units."""
        memory, values = {}, []
        for name, policy in self._all:
            given = (together(carry[name]), together(self.seen(name, obs, 1)))
            held, value = policy.value(params[name], stats[name], *given, (reward_stats or {}).get(name))
            memory[name], value = self.split((held, value), name)
            values.append(value)
        return memory, jnp.concatenate(values, axis=1).mean(1)

    def forget(self, memory: Tree, anew: jax.Array) -> Tree:
        """The actors' memory, empty where `anew` [E, A] is true."""
        return {
            name: self.split(policy.forget(together(memory[name]), together(anew[:, self.team.members(name)])), name)
            for name, policy in self._all
        }

    def acting(self, train: Any) -> Tree:
        """Of the state of training, what `explore` needs for a rollout: with self-play, also one of the earlier
        policies for each environment with opponents, drawn anew for each rollout."""
        now = {name: part_of(params, "actor") for name, params in train.params.items()}
        if self.selfplay is None:
            return {"now": now}
        key = jax.random.fold_in(jax.random.fold_in(train.keys.action, train.update), OPPONENTS)
        filled = jnp.minimum(train.pool["count"], self.selfplay.size)
        drawn = jax.random.randint(key, (self.selfplay.num_envs,), 0, filled)
        return {"now": now, "then": jax.tree.map(lambda leaf: leaf[drawn], train.pool["kept"])}

    def explore(self, acting: Tree, stats: Tree, carry: Tree, obs: Tree, lanes: slice) -> tuple[Tree, Tree]:
        """What `act` gives for environments that are collected from; of opponents, what their policies give."""
        memory, outputs = self.act(acting["now"], stats, carry, obs)
        if self.selfplay is None or lanes.start >= self.selfplay.num_envs:
            return memory, outputs
        last = min(lanes.stop, self.selfplay.num_envs)
        head = slice(0, last - lanes.start)
        part = lambda tree, where: jax.tree.map(lambda leaf: leaf[where], tree)  # noqa: E731
        then, known = part(acting["then"], slice(lanes.start, last)), part((carry, obs), head)

        def one(then: Tree, carry: Tree, obs: Tree) -> tuple[Tree, Tree]:
            alone = jax.tree.map(lambda leaf: leaf[None], (carry, obs))
            return part(self.act(then["params"], then["stats"], *alone), 0)

        theirs, learns = jax.vmap(one)(then, *known), self.selfplay.learns[lanes.start : last]
        ours = (memory, outputs)
        played = [self.mixed(learns, *both) for both in zip(part(ours, head), theirs, strict=True)]
        found = jax.tree.map(lambda all, some: all.at[head].set(some), ours, tuple(played))
        return found[0], found[1]

    def mixed(self, flags: Any, ours: Tree, theirs: Tree) -> Tree:
        """Of dictionaries by group, what is `ours` for agents whose flags [E, A] or [1, A] are true, else `theirs`."""

        def chosen(name: str, a: jax.Array, b: jax.Array) -> jax.Array:
            own = flags[:, self.team.members(name)]
            return jnp.where(own.reshape(own.shape + (1,) * (a.ndim - 2)), a, b)

        return {name: jax.tree.map(partial(chosen, name), ours[name], theirs[name]) for name in self.groups}

    def split(self, tree: Tree, name: str) -> Tree:
        """Lanes [E * K, ...] of a group as [E, K, ...]."""
        size = self._size(name)
        return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0] // size, size, *leaf.shape[1:]), tree)

    @property
    def _all(self) -> Any:
        return self.groups.items()

    def _size(self, name: str) -> int:
        return len(self.team.groups[name])

    def _seen_space(self, name: str) -> spaces.Space:
        space = self.team.observation_spaces[name]
        if not self.identity:
            return space
        return spaces.Dict({"observation": space, "agent": spaces.Discrete(self._size(name))})

    def _critic_space(self) -> spaces.Space | None:
        if not self.central:
            return None
        return self.team.state_space or self.team.everything()

    def _own(self, name: str, obs: Tree, lead: int) -> Tree:
        """What agents of a group see, [..., K, ...] after `lead` axes."""
        own = obs[AGENTS][name]
        if not self.identity:
            return own
        shape = jax.tree.leaves(own)[0].shape[: lead + 1]
        return {"observation": own, "agent": jnp.broadcast_to(jnp.arange(shape[-1], dtype=jnp.int32), shape)}

    def seen(self, name: str, obs: Tree, lead: int) -> Tree:
        """What a group learns from: with a central critic, also what that sees, the same for each agent."""
        own = self._own(name, obs, lead)
        if not self.central:
            return own
        size = self._size(name)

        def repeated(leaf: jax.Array) -> jax.Array:
            wide = jnp.expand_dims(leaf, lead)
            return jnp.broadcast_to(wide, (*leaf.shape[:lead], size, *leaf.shape[lead:]))

        everything = self._by_agent(obs, lead) if self.team.state_space is None else obs[STATE]
        return {OWN: own, ALL: jax.tree.map(repeated, everything)}

    def _by_agent(self, obs: Tree, lead: int) -> Tree:
        """What each agent sees, [...] after `lead` axes."""
        return {
            agent: jax.tree.map(lambda leaf, i=i: jnp.take(leaf, i, axis=lead), obs[AGENTS][name])
            for name, members in self.team.groups.items()
            for i, agent in enumerate(members)
        }


class Match:
    """Two of a team's policies against each other, for whoever asks a `TeamPolicy` to act. Parameters are {"side": [A]
    bool, who plays by "ours", "ours": parameters, "theirs": parameters of the others}, and so are statistics."""

    def __init__(self, policy: TeamPolicy):
        self._policy = policy
        self.key = key_of("match", policy.key)
        self.distribution, self.recurrent = policy.distribution, policy.recurrent
        self.initial_carry, self.forget = policy.initial_carry, policy.forget

    def act(self, params: Tree, stats: Tree, carry: Tree, obs: Tree) -> tuple[Tree, Tree]:
        ours, theirs = (self._policy.act(params[who], stats[who], carry, obs) for who in ("ours", "theirs"))
        memory, outputs = (self._policy.mixed(params["side"][None], *both) for both in zip(ours, theirs, strict=True))
        return memory, outputs


AnyPolicy = Policy | TeamPolicy


def self_play(team: Team, agents: AgentsConfig, num_envs: int) -> SelfPlay:
    """Who plays against whom, as the settings want it."""
    sides = agents.sides
    if sides is None:
        sides = dict(team.groups) if len(team.groups) > 1 else {agent: (agent,) for agent in team.agents}
    named = [agent for members in sides.values() for agent in members]
    if sorted(named) != sorted(team.agents):
        raise UserError(
            f"agents.sides must name each agent once, and names {', '.join(named) or 'nobody'}; the agents are: "
            f"{', '.join(team.agents)}."
        )
    if len(sides) < 2:
        raise UserError("agents.selfplay needs two sides at least; name them with agents.sides.")
    opposed = round(agents.selfplay * num_envs)
    if not opposed:
        raise UserError(
            f"agents.selfplay={agents.selfplay} of {num_envs} environments is none; raise it, or env.num_envs."
        )
    flags = {name: np.array([agent in members for agent in team.agents]) for name, members in sides.items()}
    each = list(flags.values())
    learns = np.ones((num_envs, len(team.agents)), bool)
    for number in range(opposed):  # every side learns in turn
        learns[number] = each[number % len(each)]
    return SelfPlay(flags, learns, opposed, agents.selfplay_every, agents.selfplay_pool)


def together(tree: Tree, axis: int = 0) -> Tree:
    """[..., E, K, ...] to [..., E * K, ...] in every leaf, at `axis`."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(*leaf.shape[:axis], leaf.shape[axis] * leaf.shape[axis + 1], *leaf.shape[axis + 2 :]),
        tree,
    )
