"""The policies of many agents with their parameters: what acts for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from proximo.config import Config
from proximo.envs.groups import Group, Groups
from proximo.errors import UserError
from proximo.hints import AGENT_METHODS, HintsAtNames
from proximo.policy.agent import PPOAgent
from proximo.policy.agents import Agents, agents_from_tensors
from proximo.policy.custom_networks import own_parts
from proximo.run_dir import tensors
from proximo.spaces import mask_shape, space_key, to_mask
from proximo.types import PyTree


class TeamAgent(Agents, HintsAtNames):
    """Acts for all agents of an environment.

        team = TeamAgent.load("runs/.../models")
        actions = team.act(observations)      # dictionaries by agent, as PettingZoo has them

    Each group of agents is a `PPOAgent`, in `groups`, and is saved as one: `final_actor.wolf.safetensors`; where all
    share one policy, as `final_actor.safetensors`.
    """

    _others = AGENT_METHODS

    @property
    def public(self) -> TeamAgent:
        return self

    @property
    def params(self) -> dict[str, PyTree]:
        """The parameters of each group."""
        return {name: agent.params for name, agent in self.groups.items()}

    @property
    def networks(self) -> list[str]:
        return next(iter(self.groups.values())).networks

    def reset(self) -> None:
        """Forget: an episode begins."""
        for agent in self.groups.values():
            agent.reset()

    def act(
        self,
        observations: Mapping[str, PyTree],
        deterministic: bool = True,
        action_masks: Mapping[str, PyTree] | None = None,
    ) -> dict[str, Any]:
        """The actions of all agents that `observations` has; of agents that were not there before, memory is empty."""
        actions: dict[str, Any] = {}
        unknown = set(observations) - set(self.policies.groups.agents)
        if unknown:
            raise UserError(f"There is no agent {min(unknown)}; there are {', '.join(self.policies.groups.agents)}.")
        for name, agent in self.groups.items():
            members = self.policies.groups[name].members
            there = [member for member in members if member in observations]
            if not there:
                agent.reset()
                continue
            acted = agent.act(*self._batch(name, observations, action_masks or {}, deterministic))
            if agent.policy.recurrent:
                agent.reset(np.array([member not in observations for member in members]))
            for row, member in enumerate(members):
                if member in observations:
                    actions[member] = jax.tree.map(lambda leaf, row=row: leaf[row], acted)
        return actions

    def _batch(
        self, name: str, observations: Mapping[str, PyTree], masks: Mapping[str, PyTree], deterministic: bool
    ) -> tuple[PyTree, bool, PyTree]:
        """What the `PPOAgent` of a group takes: a row for each agent of it, zeros for those that are not there."""
        group = self.policies.groups[name]
        space, members = group.observation_space, group.members
        empty = jax.tree.map(lambda leaf: leaf[0], create_empty_array(space, 1))
        bare = {member: _without_mask(observations.get(member, empty), space) for member in members}
        rows = [bare[member] for member in members]
        batch = concatenate(space, rows, create_empty_array(space, len(rows)))
        if self.policies.settings.identity:
            batch = {"observation": batch, "agent": np.arange(len(members))}
        found = {member: masks.get(member, _mask_in(observations.get(member), space)) for member in members}
        if all(mask is None for mask in found.values()):
            return batch, deterministic, None
        action_space = group.action_space
        every = np.ones(mask_shape(action_space), bool)
        flags = [every if mask is None else to_mask(action_space, mask) for mask in found.values()]
        return batch, deterministic, np.stack(flags)

    @classmethod
    def load(
        cls, folder: str | Path, name: str = "final_actor", network: Any = None, distribution: Any = None
    ) -> TeamAgent:
        """The team whose files in `folder` are called `name`."""
        agents = load_agents(Path(folder), name, own_parts(network, distribution))
        if not isinstance(agents, TeamAgent):
            raise UserError(
                f"{Path(folder) / name}.safetensors is the policy of a single agent; PPOAgent.load loads it."
            )
        return agents

    @classmethod
    def _of(cls, agents: dict[str, PPOAgent], network: Any) -> TeamAgent:
        first = next(iter(agents.values()))

        def bare(space: spaces.Space[Any]) -> spaces.Space[Any]:
            return space["observation"] if isinstance(space, spaces.Dict) and first.config.agents.identity else space

        made = {
            name: Group(tuple(agent.role["agents"]), bare(agent.policy.observation_space), agent.policy.action_space)
            for name, agent in agents.items()
            if agent.role is not None
        }
        groups, critic = Groups(made, many=True), first.policy.critic_space
        if critic is not None and space_key(critic) != space_key(groups.everything()):
            groups = Groups(made, critic, many=True)
        return cls(
            groups,
            first.config,
            {name: agent.params for name, agent in agents.items()},
            {name: agent.obs_stats for name, agent in agents.items()},
            network,
            {name: agent.reward_stats for name, agent in agents.items()},
        )


def make_agents(groups: Groups, config: Config, network: Any = None) -> Agents:
    """Fresh agents for an environment with these groups."""
    return (TeamAgent if groups.many else Agents)(groups, config, network=network)


def load_agents(folder: Path, name: str, network: Any = None) -> Agents:
    """The agents whose files in `folder` are called `name`; `network` is what they were handed in with."""
    files = sorted(folder.glob(f"{name}.safetensors")) or sorted(folder.glob(f"{name}.*.safetensors"))
    if not files:
        raise UserError(f"{folder} has no {name}.safetensors, and no {name}.GROUP.safetensors.")
    agents = {file: PPOAgent.load(file, network) for file in files}
    alone = [file for file, agent in agents.items() if agent.role is None]
    if alone and len(files) == 1:
        return Agents.of_one(agents[alone[0]])
    if alone:
        raise UserError(f"{alone[0]} is the policy of a single agent; PPOAgent.load loads it.")
    by_group = {agent.role["group"]: agent for agent in agents.values() if agent.role is not None}
    order = next(agent.role["groups"] for agent in by_group.values() if agent.role is not None)
    missing = [group for group in order if group not in by_group]
    if missing:
        raise UserError(f"{folder} has no {name} of the group {missing[0]}.")
    return TeamAgent._of({group: by_group[group] for group in order}, network)


def as_agents(agent: PPOAgent | Agents) -> Agents:
    """What a user handed in, an agent or a team, as the agents of an environment."""
    return agent if isinstance(agent, Agents) else Agents.of_one(agent)


def agents_from(given: tensors.Tensors, meta: dict[str, Any], path: Path, network: Any = None) -> Agents:
    """The agents that a checkpoint holds."""
    agents = agents_from_tensors(given, meta, path, network)
    if len(agents) == 1 and all(agent.role is None for agent in agents.values()):
        return Agents.of_one(next(iter(agents.values())))
    if any(agent.role is None for agent in agents.values()):
        raise UserError(f"{path} does not say who its agents are.")
    return TeamAgent._of(agents, network)


def _mask_in(obs: PyTree, space: Any) -> PyTree:
    """The mask that stands in an observation, and is no part of what the policy sees."""
    named = isinstance(obs, Mapping) and "action_mask" in obs
    return obs["action_mask"] if named and "action_mask" not in getattr(space, "spaces", ()) else None


def _without_mask(obs: PyTree, space: Any) -> PyTree:
    """An observation as the policy takes it."""
    if not isinstance(obs, Mapping):
        return obs
    if _mask_in(obs, space) is None:
        return obs
    kept = {key: value for key, value in obs.items() if key != "action_mask"}
    return kept if hasattr(space, "spaces") else kept["observation"]
