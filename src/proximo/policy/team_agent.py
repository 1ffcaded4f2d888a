"""The policies of many agents with their parameters: what acts, and what is saved, a file for each group."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array

from proximo import tensors
from proximo.compiling import cached, jit, key_of
from proximo.config import Config
from proximo.errors import UserError
from proximo.policy.agent import PPOAgent
from proximo.policy.normalize import initial_stats
from proximo.policy.own import own_parts
from proximo.policy.team import TeamPolicy, shared_team
from proximo.seeding import network_key
from proximo.spaces import mask_shape, to_mask
from proximo.teams import Team

Tree = Any


class TeamAgent:
    """Acts for all agents of an environment.

        team = TeamAgent.load("runs/.../models")
        actions = team.act(observations)      # dictionaries by agent, as PettingZoo has them

    Each group of agents is a `PPOAgent`, in `groups`, and is saved as one: `final_actor.wolf.safetensors`; where all
    share one policy, as `final_actor.safetensors`.
    """

    def __init__(
        self,
        team: Team,
        config: Config | None = None,
        params: Tree = None,
        obs_stats: Tree = None,
        network: Any = None,
        reward_stats: Tree = None,
    ):
        self.config = config or Config()
        self.network = network
        given = (team, self.config.network, self.config.normalize, self.config.agents, self.config.env.num_envs)
        self.policy: TeamPolicy = shared_team(*given, network)
        rewards = reward_stats or {}
        if params is None:
            if reward_stats is None and self.config.normalize.rewards:
                rewards = {name: initial_stats(()) for name in self.policy.groups}
            init = cached(key_of("init", self.policy.key), lambda: jit(self.policy.init))
            params = init(network_key(self.config.seed))
        stats = self.policy.initial_stats() if obs_stats is None else obs_stats
        self.groups: dict[str, PPOAgent] = {}
        for name, policy in self.policy.groups.items():
            held = (params[name], stats[name], network, policy.critic_space, rewards.get(name), policy)
            self.groups[name] = PPOAgent(policy.observation_space, policy.action_space, self.config, *held)
            self.groups[name].role = {"group": name, "agents": list(team.groups[name]), "groups": list(team.groups)}

    @property
    def params(self) -> Tree:
        return {name: agent.params for name, agent in self.groups.items()}

    @params.setter
    def params(self, given: Tree) -> None:
        for name, agent in self.groups.items():
            agent.params = given[name]

    @property
    def obs_stats(self) -> Tree:
        return {name: agent.obs_stats for name, agent in self.groups.items()}

    @obs_stats.setter
    def obs_stats(self, given: Tree) -> None:
        for name, agent in self.groups.items():
            agent.obs_stats = given[name]

    @property
    def reward_stats(self) -> Tree:
        return {name: agent.reward_stats for name, agent in self.groups.items()}

    @reward_stats.setter
    def reward_stats(self, given: Tree) -> None:
        for name, agent in self.groups.items():
            agent.reward_stats = given[name]

    @property
    def networks(self) -> list[str]:
        return next(iter(self.groups.values())).networks

    def reset(self) -> None:
        """Forget: an episode begins."""
        for agent in self.groups.values():
            agent.reset()

    def act(
        self,
        observations: Mapping[str, Tree],
        deterministic: bool = True,
        action_masks: Mapping[str, Tree] | None = None,
    ) -> dict[str, Any]:
        """The actions of all agents that `observations` has; of agents that were not there before, memory is empty."""
        actions: dict[str, Any] = {}
        unknown = set(observations) - set(self.policy.team.agents)
        if unknown:
            raise UserError(f"There is no agent {min(unknown)}; there are {', '.join(self.policy.team.agents)}.")
        for name, agent in self.groups.items():
            members = self.policy.team.groups[name]
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
        self, name: str, observations: Mapping[str, Tree], masks: Mapping[str, Tree], deterministic: bool
    ) -> tuple[Tree, bool, Tree]:
        """What the `PPOAgent` of a group takes: a row for each agent of it, zeros for those that are not there."""
        space, members = self.policy.team.observation_spaces[name], self.policy.team.groups[name]
        empty = jax.tree.map(lambda leaf: leaf[0], create_empty_array(space, 1))
        bare = {member: _without_mask(observations.get(member, empty), space) for member in members}
        rows = [bare[member] for member in members]
        batch = concatenate(space, rows, create_empty_array(space, len(rows)))
        if self.policy.identity:
            batch = {"observation": batch, "agent": np.arange(len(members))}
        found = {member: masks.get(member, _mask_in(observations.get(member), space)) for member in members}
        if all(mask is None for mask in found.values()):
            return batch, deterministic, None
        action_space = self.policy.team.action_spaces[name]
        every = np.ones(mask_shape(action_space), bool)
        flags = [every if mask is None else to_mask(action_space, mask) for mask in found.values()]
        return batch, deterministic, np.stack(flags)

    def save_policy_net(self, path: str | Path) -> list[Path]:
        """Write the actors, each to a file of its own."""
        return [agent.save_policy_net(self._file(path, name)) for name, agent in self.groups.items()]

    def save_value_net(self, path: str | Path) -> list[Path]:
        """Write the critics, each to a file of its own."""
        return [agent.save_value_net(self._file(path, name)) for name, agent in self.groups.items()]

    def save(self, path: str | Path) -> list[Path]:
        """Write everything, a file for each group; `load` gives an equal team back."""
        return [agent.save(self._file(path, name)) for name, agent in self.groups.items()]

    def _file(self, path: str | Path, name: str) -> Path:
        path = Path(path)
        if len(self.groups) == 1:
            return path
        suffix = path.suffix if path.suffix in (".safetensors", ".pth") else ".safetensors"
        group = re.sub(r"[^\w-]+", "-", name)  # as folders, and MLflow, take it
        return path.with_name(f"{path.name.removesuffix(suffix)}.{group}{suffix}")

    @classmethod
    def load(
        cls, folder: str | Path, name: str = "final_actor", network: Any = None, distribution: Any = None
    ) -> TeamAgent:
        """The team whose files in `folder` are called `name`."""
        folder = Path(folder)
        files = sorted(folder.glob(f"{name}.safetensors")) or sorted(folder.glob(f"{name}.*.safetensors"))
        if not files:
            raise UserError(f"{folder} has no {name}.safetensors, and no {name}.GROUP.safetensors.")
        agents = {file: PPOAgent.load(file, network, distribution) for file in files}
        for file, agent in agents.items():
            if agent.role is None:
                raise UserError(f"{file} is the policy of a single agent; PPOAgent.load loads it.")
        by_group = {agent.role["group"]: agent for agent in agents.values() if agent.role is not None}
        order = next(agent.role["groups"] for agent in by_group.values() if agent.role is not None)
        missing = [group for group in order if group not in by_group]
        if missing:
            raise UserError(f"{folder} has no {name} of the group {missing[0]}.")
        return cls._of({group: by_group[group] for group in order}, own_parts(network, distribution))

    @classmethod
    def _of(cls, agents: dict[str, PPOAgent], network: Any) -> TeamAgent:
        first = next(iter(agents.values()))
        groups = {name: tuple(agent.role["agents"]) for name, agent in agents.items() if agent.role is not None}
        bare = lambda space: space["observation"] if first.config.agents.identity else space  # noqa: E731
        seen = {name: bare(agent.policy.observation_space) for name, agent in agents.items()}
        done = {name: agent.policy.action_space for name, agent in agents.items()}
        critic = first.policy.critic_space
        team = Team(groups, seen, done)
        if critic is not None and critic != team.everything():
            team = Team(groups, seen, done, critic)
        params, stats, rewards = (
            {name: getattr(agent, part) for name, agent in agents.items()}
            for part in ("params", "obs_stats", "reward_stats")
        )
        return cls(team, first.config, params, stats, network, rewards)

    @classmethod
    def from_tensors(cls, given: tensors.Tensors, meta: dict[str, Any], path: Path, network: Any = None) -> TeamAgent:
        """The team that `tensors` and `meta`, as `describe` made it, from the file `path` describe."""
        agents: dict[str, PPOAgent] = {}
        for name, about in meta["team"].items():
            own: tensors.Tensors = {}
            for part in ("params", "obs_stats", "reward_stats"):
                start = f"{part}/{name}/"
                own |= {f"{part}/{key[len(start) :]}": leaf for key, leaf in given.items() if key.startswith(start)}
            agents[name] = PPOAgent.from_tensors(own, about, path, network)
        return cls._of(agents, network)

    def describe(self) -> dict[str, Any]:
        """Everything about this team that is not an array, as JSON."""
        return {"team": {name: agent.describe() for name, agent in self.groups.items()}}


AnyAgent = PPOAgent | TeamAgent


def agent_from(given: tensors.Tensors, meta: dict[str, Any], path: Path, network: Any = None) -> AnyAgent:
    """The agent, or the team, that a checkpoint holds."""
    kind = TeamAgent if "team" in meta else PPOAgent
    return kind.from_tensors(given, meta, path, network)


def _mask_in(obs: Tree, space: Any) -> Tree:
    """The mask that stands in an observation, and is no part of what the policy sees."""
    named = isinstance(obs, Mapping) and "action_mask" in obs
    return obs["action_mask"] if named and "action_mask" not in getattr(space, "spaces", ()) else None


def _without_mask(obs: Tree, space: Any) -> Tree:
    """An observation as the policy takes it."""
    if not isinstance(obs, Mapping):
        return obs
    if _mask_in(obs, space) is None:
        return obs
    kept = {key: value for key, value in obs.items() if key != "action_mask"}
    return kept if hasattr(space, "spaces") else kept["observation"]
