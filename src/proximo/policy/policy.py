"""The policy as pure functions: observation in, action distribution and value out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array

from proximo.config import NetworkConfig, NormalizeConfig
from proximo.policy.composite import build_distribution
from proximo.policy.networks import build_actor, build_critic
from proximo.policy.normalize import RunningStats, initial_stats, standardize, update_stats
from proximo.policy.observation import Features, ObservationAdapter

Tree = Any


class Policy:
    """Actor, critic, action distribution and observation adapter for a pair of spaces.

    Nothing here changes: parameters, statistics and memory are handed in and come back.
    Parameters and memory are dictionaries with the entries "actor" and "critic".
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        network: NetworkConfig,
        normalize: NormalizeConfig,
    ):
        self.observation_space = observation_space
        self.action_space = action_space
        self.adapter = ObservationAdapter(observation_space, network.embed is not None)
        self.distribution = build_distribution(action_space, network)
        self.actor = build_actor(network, self.distribution.num_params, self.distribution.num_log_std)
        self.critic = build_critic(network)
        self._normalize = normalize.observations and bool(self.adapter.continuous.any())

    def init(self, key: jax.Array) -> Tree:
        """Fresh parameters."""
        actor_key, critic_key = jax.random.split(key)
        features = self._example()
        return {"actor": self.actor.init(actor_key, features)[0], "critic": self.critic.init(critic_key, features)[0]}

    def initial_carry(self, num_lanes: int) -> Tree:
        """The memory that every episode starts with: zeros [L, ...]."""

        def zeros(network: Any) -> Tree:
            _, carry = jax.eval_shape(network.init, jax.random.key(0), self._example())
            return jax.tree.map(lambda leaf: jnp.zeros((num_lanes, *leaf.shape[1:]), leaf.dtype), carry)

        return {"actor": zeros(self.actor), "critic": zeros(self.critic)}

    def initial_stats(self) -> RunningStats | None:
        """Statistics of the observations' vector, or None where none are kept."""
        return initial_stats((self.adapter.vector_size,)) if self._normalize else None

    def features(self, stats: RunningStats | None, obs: Tree) -> Features:
        """What the networks read of observations [B, ...]."""
        features = self.adapter(obs)
        if stats is None:
            return features
        vector = jnp.where(self.adapter.continuous[None], standardize(stats, features.vector), features.vector)
        return replace(features, vector=vector)

    def update_stats(self, stats: RunningStats | None, obs: Tree, valid: jax.Array) -> RunningStats | None:
        """Merge observations [B, ...] where `valid` [B]."""
        return None if stats is None else update_stats(stats, self.adapter(obs).vector, valid)

    def act(self, params: Tree, stats: RunningStats | None, carry: Tree, obs: Tree) -> tuple[Tree, jax.Array]:
        """The actor alone: its new memory and the distribution's parameters [B, P]."""
        return self.actor.apply(params["actor"], carry, self.features(stats, obs))

    def value(self, params: Tree, stats: RunningStats | None, carry: Tree, obs: Tree) -> tuple[Tree, jax.Array]:
        """The critic alone: its new memory and values [B]."""
        carry, value = self.critic.apply(params["critic"], carry, self.features(stats, obs))
        return carry, value[:, 0]

    def _example(self) -> Features:
        return self.adapter(create_empty_array(self.observation_space, 1))
