"""The policies of an environment: one for each group of agents."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces
from jaxtyping import Array, Key, Shaped

from proximo.compile import cached, key_of, settings_key
from proximo.config import AgentsConfig, NetworkConfig, NormalizeConfig
from proximo.envs.groups import Groups
from proximo.policy.policy import Params, Policy, Stats, shared_policy
from proximo.seeding import group_key
from proximo.types import AnyArray, PyTree


def shared_policies(
    groups: Groups, network: NetworkConfig, normalize: NormalizeConfig, agents: AgentsConfig, own: Any = None
) -> Policies:
    """`Policies`; the same ones for the same values, and always new ones with networks of a user's own."""
    given = (groups, network, normalize, agents)
    if own is not None:
        return Policies(*given, own)
    made: Policies = cached(key_of("policies", policies_key(*given)), lambda: Policies(*copy.deepcopy(given)))
    return made


def policies_key(
    groups: Groups, network: NetworkConfig, normalize: NormalizeConfig, agents: AgentsConfig
) -> Hashable | None:
    """What `Policies` with built-in networks are, as a value; None if a space has no key."""
    return key_of(groups.key, *(settings_key(section) for section in (network, normalize, agents)))


class Policies(Mapping[str, Policy]):
    """A `Policy` for each group, in order. Parameters, statistics and memory are dictionaries by group. `own` are
    networks of a user's, `made` policies that there are already."""

    def __init__(
        self,
        groups: Groups,
        network: NetworkConfig,
        normalize: NormalizeConfig,
        agents: AgentsConfig,
        own: Any = None,
        made: Mapping[str, Policy] | None = None,
    ):
        self.key = policies_key(groups, network, normalize, agents) if own is None else None
        self.groups = groups
        """With the observation spaces that the environment has, as it is stacked."""
        self.settings = agents
        self.everything = agents.critic == "central" and groups.critic_state_space is None
        """Whether critics see the observations of all agents."""
        judged = groups.everything() if self.everything else groups.critic_state_space
        self._policies = dict(made or {}) or {
            name: shared_policy(self.seen_space(name), group.action_space, network, normalize, own, judged)
            for name, group in groups.items()
        }

    def __getitem__(self, name: str) -> Policy:
        return self._policies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._policies)

    def __len__(self) -> int:
        return len(self._policies)

    def init(self, key: Key[Array, ""]) -> dict[str, Params]:
        """Fresh parameters: groups that are alike start from different ones."""
        return {name: policy.init(group_key(key, number)) for number, (name, policy) in enumerate(self.items())}

    def initial_stats(self) -> dict[str, Stats]:
        return {name: policy.initial_stats() for name, policy in self.items()}

    def initial_carry(self, network: str, num_envs: int) -> dict[str, PyTree[Shaped[Array, "_ ..."]]]:
        """The memory that every episode starts with, of the `actor` or the `critic` of each group: zeros [L, ...]."""
        return {name: policy.initial_carry(num_envs * self.groups[name].size)[network] for name, policy in self.items()}

    @property
    def recurrent(self) -> bool:
        """Whether anything is remembered from one step to the next."""
        return any(policy.recurrent for policy in self.values())

    @property
    def has_torso(self) -> bool:
        return any(policy.torso is not None for policy in self.values())

    def seen_space(self, name: str) -> spaces.Space[Any]:
        """What networks see of a group: with `agents.identity`, also who it is."""
        space = self.groups[name].observation_space
        if not self.settings.identity:
            return space
        return spaces.Dict({"observation": space, "agent": spaces.Discrete(self.groups[name].size)})

    def seen(self, name: str, obs: PyTree[Shaped[AnyArray, "..."]], lead: int = 0) -> PyTree[Shaped[AnyArray, "..."]]:
        """Observations of a group, leaves [..., L, ...] with `lead` axes before the lanes, as its networks see them."""
        if not self.settings.identity:
            return obs
        shape = jax.tree.leaves(obs)[0].shape[: lead + 1]
        numbers = jnp.arange(shape[-1], dtype=jnp.int32) % self.groups[name].size
        return {"observation": obs, "agent": jnp.broadcast_to(numbers.reshape((1,) * lead + (-1,)), shape)}

    def all_observations(
        self, obs: Mapping[str, PyTree[Shaped[AnyArray, "..."]]], lead: int
    ) -> dict[str, PyTree[Shaped[Array, "..."]]]:
        """What each agent sees, by agent, from what lanes see: leaves [..., L, ...] with `lead` axes before that."""
        found = {}
        for name, group in self.groups.items():
            for i, agent in enumerate(group.members):
                found[agent] = jax.tree.map(
                    lambda leaf, i=i, size=group.size: jnp.take(
                        leaf.reshape(*leaf.shape[:lead], -1, size, *leaf.shape[lead + 1 :]), i, axis=lead + 1
                    ),
                    obs[name],
                )
        return found
