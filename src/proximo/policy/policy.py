"""The policy as pure functions: observation in, action distribution and value out."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array
from jaxtyping import Array, Bool, Float, Key, Shaped

from proximo.compile import cached, key_of, settings_key
from proximo.config import NetworkConfig, NormalizeConfig
from proximo.errors import UserError
from proximo.policy.build import build_networks
from proximo.policy.custom_networks import as_own, check_distribution, check_output, check_params, own_networks
from proximo.policy.distributions.composite import build_distribution
from proximo.policy.networks import flatten_time, split_time
from proximo.policy.normalize import RunningStats, initial_stats, reward_scale, standardize, update_stats
from proximo.policy.observation import Features, ObservationAdapter
from proximo.policy.recurrent import forget, unrolled
from proximo.spaces import space_key
from proximo.types import AnyArray, PyTree

Params = dict[str, PyTree[Float[Array, "..."]]]
"""Of the networks: the entries "actor" and "critic", and "torso" where they share one."""
Stats = RunningStats | dict[str, RunningStats] | None
"""Of observations; with a critic space, of what actor and critic see; None where none are kept."""
Obs: TypeAlias = PyTree[Shaped[AnyArray, "B ..."]]
Carry: TypeAlias = PyTree[Shaped[Array, "B ..."]]
OWN, ALL = "own", "all"
"""What a critic that sees more than its actor is shown."""


def shared_policy(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    network: NetworkConfig,
    normalize: NormalizeConfig,
    own: Any = None,
    critic_space: spaces.Space[Any] | None = None,
) -> Policy:
    """A `Policy`; the same one for the same values. With networks of a user's own it is always a new one: what these
    do cannot be told from outside."""
    given = (observation_space, action_space, network, normalize)
    if own is not None:
        return Policy(*given, own, critic_space)
    # What is kept must stay what its key says, whatever becomes of the spaces that were given.
    make = lambda: Policy(*copy.deepcopy((*given, None, critic_space)))  # noqa: E731
    made: Policy = cached(key_of("policy", policy_key(*given, critic_space)), make)
    return made


def policy_key(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    network: NetworkConfig,
    normalize: NormalizeConfig,
    critic_space: spaces.Space[Any] | None = None,
) -> Hashable | None:
    """What a `Policy` with built-in networks is, as a value; None if a space has no key."""
    seen = (space_key(observation_space), space_key(action_space))
    more = () if critic_space is None else space_key(critic_space)
    return key_of(*seen, more, settings_key(network), settings_key(normalize))


class Policy:
    """Actor, critic, action distribution and observation adapter for a pair of spaces.

    Nothing here changes: parameters, statistics and memory are handed in and come back. Parameters and memory are
    dictionaries with the entries "actor" and "critic". With a torso that both share, its parameters are an entry of
    their own, what it gives is what the two read, and each one's memory is the pair of the torso's and its own.
    `own` are networks or a distribution instead of the built-in ones, see `proximo.policy.custom_networks`.

    With a `critic_space`, the critic also sees the `critic_state`, a member of that space for each observation; then
    statistics are a pair of them in a dictionary. Without, it is None.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        network: NetworkConfig,
        normalize: NormalizeConfig,
        own: Any = None,
        critic_space: spaces.Space[Any] | None = None,
    ):
        given = (observation_space, action_space, network, normalize, critic_space)
        self.key = policy_key(*given) if own is None else None
        """What it is, as part of the keys of programs; None with networks of a user's own."""
        self.observation_space = observation_space
        self.action_space = action_space
        self.critic_space = critic_space
        self.adapter = self.critic_adapter = ObservationAdapter(observation_space, network.embed is not None)
        if critic_space is not None:
            whole = spaces.Dict({OWN: observation_space, ALL: critic_space})
            self.critic_adapter = ObservationAdapter(whole, network.embed is not None)
        parts = as_own(own)
        self.distribution = (parts.distribution or build_distribution)(action_space, network)
        if parts.distribution is not None:
            check_distribution(self.distribution, action_space)
        measured = bool(self.adapter.continuous.any() or self.critic_adapter.continuous.any())
        self._normalize = normalize.observations and measured
        num_params, num_log_std = self.distribution.num_params, self.distribution.num_log_std
        own_network = parts.network is not None
        made = own_networks(parts.network, self) if own_network else build_networks(network, num_params, num_log_std)
        self.actor, self.critic, self.torso = made["actor"], made["critic"], made.get("torso")
        if self.torso is not None and critic_space is not None:
            raise UserError(
                "Actor and critic share a torso, and the critic sees more than the actor, its critic_state; use "
                "network.torso=separate."
            )
        if own_network:
            self._check()

    def init(self, key: Key[Array, ""]) -> Params:
        """Fresh parameters."""
        return self._start(key)[0]

    def _start(self, key: Key[Array, ""]) -> tuple[Params, dict[str, PyTree[Shaped[Array, "1 ..."]]]]:
        """Fresh parameters, and memory with a batch axis of 1."""
        read: PyTree = self._example("actor", 1)
        judged: PyTree = self._example("critic", 1)
        shared: Params = {}
        if self.torso is None:
            actor_key, critic_key = jax.random.split(key)
            memory = None
        else:
            torso_key, actor_key, critic_key = jax.random.split(key, 3)
            shared["torso"], memory = self.torso.init(torso_key, read)
            _, read = self.torso.apply(shared["torso"], memory, read)
            judged = read
        actor, actor_carry = self.actor.init(actor_key, read)
        critic, critic_carry = self.critic.init(critic_key, judged)
        if self.torso is not None:
            actor_carry, critic_carry = (memory, actor_carry), (memory, critic_carry)
        return {"actor": actor, "critic": critic} | shared, {"actor": actor_carry, "critic": critic_carry}

    def initial_carry(self, num_lanes: int) -> dict[str, PyTree[Shaped[Array, "{num_lanes} ..."]]]:
        """The memory that every episode starts with: zeros."""
        carry: dict[str, PyTree] = jax.tree.map(
            lambda leaf: jnp.zeros((num_lanes, *leaf.shape[1:]), leaf.dtype), self._carry_types
        )
        return carry

    @cached_property
    def _carry_types(self) -> dict[str, PyTree[jax.ShapeDtypeStruct]]:
        """Shapes and types of the memory, with a batch axis of 1: found once, since it takes milliseconds."""
        carry: dict[str, PyTree] = jax.eval_shape(self._start, jax.random.key(0))[1]
        return carry

    def initial_stats(self) -> Stats:
        """Statistics of the observations' vector, or None where none are kept."""
        if not self._normalize:
            return None
        if self.critic_space is None:
            return initial_stats((self.adapter.vector_size,))
        return {name: initial_stats((self._adapter(name).vector_size,)) for name in ("actor", "critic")}

    def features(self, stats: Stats, obs: Obs, name: str = "actor") -> Features:
        """What a network reads of observations; the critic, with a critic space, of those and the state."""
        adapter = self._adapter(name)
        features = adapter(obs)
        if stats is None:
            return features
        own = stats[name] if isinstance(stats, dict) else stats
        vector = jnp.where(adapter.continuous[None], standardize(own, features.vector), features.vector)
        return replace(features, vector=vector)

    def judged(self, obs: PyTree, critic_state: PyTree) -> PyTree:
        """What the critic sees."""
        return obs if self.critic_space is None else {OWN: obs, ALL: critic_state}

    def _both_features(self, stats: Stats, obs: Obs, critic_state: Obs) -> tuple[Features, Features]:
        """What actor and critic read."""
        features = self.features(stats, obs)
        if self.critic_space is None:
            return features, features
        return features, self.features(stats, self.judged(obs, critic_state), "critic")

    def update_stats(
        self,
        stats: Stats,
        obs: Obs,
        valid: Bool[Array, " B"],
        critic_state: Obs = None,
    ) -> Stats:
        """Merge observations where they are `valid`."""
        if stats is None:
            return None
        if not isinstance(stats, dict):
            return update_stats(stats, self.adapter(obs).vector, valid)
        seen = {"actor": self.adapter(obs), "critic": self.critic_adapter(self.judged(obs, critic_state))}
        return {name: update_stats(stats[name], features.vector, valid) for name, features in seen.items()}

    def _adapter(self, name: str) -> ObservationAdapter:
        return self.adapter if name == "actor" else self.critic_adapter

    def act(
        self,
        params: Params,
        stats: Stats,
        carry: Carry,
        obs: Obs,
    ) -> tuple[Carry, Float[Array, "B P"]]:
        """The actor alone: its new memory and the distribution's parameters."""
        return self._through("actor", params, carry, self.features(stats, obs))

    def value(
        self,
        params: Params,
        stats: Stats,
        carry: Carry,
        obs: Obs,
        critic_state: Obs = None,
        reward_stats: RunningStats | None = None,
    ) -> tuple[Carry, Float[Array, " B"]]:
        """The critic alone: its new memory and values; with `reward_stats` in the environment's units."""
        features = self.features(stats, self.judged(obs, critic_state), "critic")
        carry, value = self._through("critic", params, carry, features)
        return carry, value[:, 0] if reward_stats is None else value[:, 0] * reward_scale(reward_stats)

    def act_and_value(
        self,
        params: Params,
        stats: Stats,
        carry: dict[str, Carry],
        obs: Obs,
        critic_state: Obs = None,
    ) -> tuple[dict[str, Carry], Float[Array, "B P"], Float[Array, " B"]]:
        """Both: their new memory, the distribution's parameters and values. A shared torso runs once, from
        the memory that it has on the actor's side."""
        read, judged = self._both_features(stats, obs, critic_state)
        if self.torso is None:
            actor_carry, outputs = self.actor.apply(params["actor"], carry["actor"], read)
            critic_carry, value = self.critic.apply(params["critic"], carry["critic"], judged)
        else:
            memory, hidden = self.torso.apply(params["torso"], carry["actor"][0], read)
            own, outputs = self.actor.apply(params["actor"], carry["actor"][1], hidden)
            critics, value = self.critic.apply(params["critic"], carry["critic"][1], hidden)
            actor_carry, critic_carry = (memory, own), (memory, critics)
        return {"actor": actor_carry, "critic": critic_carry}, outputs, value[:, 0]

    @cached_property
    def recurrent(self) -> bool:
        """Whether anything is remembered from one step to the next."""
        return bool(jax.tree.leaves(self._carry_types))

    def unroll(
        self,
        params: Params,
        stats: Stats,
        carry: dict[str, Carry],
        obs: PyTree[Shaped[AnyArray, "T B ..."]],
        episode_start: Bool[Array, "T B"],
        critic_state: PyTree[Shaped[AnyArray, "T B ..."]] = None,
    ) -> tuple[dict[str, PyTree[Shaped[Array, "T B ..."]]], Float[Array, "T B P"], Float[Array, "T B"]]:
        """Both over T steps, from the memory `carry`, which is empty before the steps where `episode_start` is true:
        the memory after each step, the distribution's parameters and values."""
        both = self._both_features(stats, flatten_time(obs), flatten_time(critic_state))
        actor, critic = (split_time(features, *episode_start.shape) for features in both)
        read = {"actor": actor, "critic": critic}
        memory = dict(carry)
        own = {name: carry[name] if self.torso is None else carry[name][1] for name in carry}
        if self.torso is not None:
            held, hidden = unrolled(self.torso, params["torso"], carry["actor"][0], read["actor"], episode_start)
            read = dict.fromkeys(read, hidden)
        found = {}
        for name, network in (("actor", self.actor), ("critic", self.critic)):
            memory[name], found[name] = unrolled(network, params[name], own[name], read[name], episode_start)
            if self.torso is not None:
                memory[name] = (held, memory[name])
        return memory, found["actor"], found["critic"][..., 0]

    def _through(self, name: str, params: Params, carry: Carry, features: Features) -> tuple[Carry, PyTree]:
        network = self.actor if name == "actor" else self.critic
        if self.torso is None:
            return network.apply(params[name], carry, features)
        memory, hidden = self.torso.apply(params["torso"], carry[0], features)
        own, output = network.apply(params[name], carry[1], hidden)
        return (memory, own), output

    def _check(self) -> None:
        """Refuse a user's networks that do not fit, before anything is compiled."""
        params = jax.eval_shape(self.init, jax.random.key(0))
        check_params(params)
        for name, width in (("actor", self.distribution.num_params), ("critic", 1)):
            through = partial(self._through, name)
            _, output = jax.eval_shape(through, params, self.initial_carry(2)[name], self._example(name, 2))
            check_output(name, output, 2, width)

    def _example(self, name: str, num: int) -> Features:
        adapter = self._adapter(name)
        return adapter(create_empty_array(adapter.space, num))

    def forget(self, memory: Carry, reset_mask: Bool[Array, " B"]) -> Carry:
        """A network's `memory`, empty where `reset_mask` is true."""
        return forget(memory, reset_mask)


def part_of(params: dict[str, PyTree], *networks: str) -> dict[str, PyTree]:
    """Of a policy's parameters those that the named networks need: their own, and those of a torso."""
    return {name: part for name, part in params.items() if name in networks or name == "torso"}
