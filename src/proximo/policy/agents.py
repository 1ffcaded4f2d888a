"""The agents of an environment with their parameters: what is trained and saved, a `PPOAgent` for each group."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proximo.compile import cached, jit, key_of, prepare_backend
from proximo.config import Config
from proximo.envs.groups import ONE, Groups, one_group
from proximo.policy.agent import PPOAgent
from proximo.policy.normalize import initial_stats
from proximo.policy.policies import Policies, shared_policies
from proximo.run_dir import tensors
from proximo.seeding import network_key
from proximo.types import PyTree


class Agents:
    """A `PPOAgent` for each group, in `groups`; each is saved as a file: `final_actor.wolf.safetensors`, or where there
    is one group `final_actor.safetensors`."""

    def __init__(
        self,
        groups: Groups,
        config: Config | None = None,
        params: PyTree = None,
        obs_stats: PyTree = None,
        network: Any = None,
        reward_stats: PyTree = None,
    ):
        prepare_backend()
        self.config = config or Config()
        self.network = network
        self.policies = shared_policies(groups, self.config.network, self.config.normalize, self.config.agents, network)
        rewards = reward_stats or {}
        if params is None:
            if reward_stats is None and self.config.normalize.rewards:
                rewards = {name: initial_stats(()) for name in groups}
            init = cached(key_of("init", self.policies.key), lambda: jit(self.policies.init))
            params = init(network_key(self.config.seed))
        stats = self.policies.initial_stats() if obs_stats is None else obs_stats
        self.groups: dict[str, PPOAgent] = {}
        for name, policy in self.policies.items():
            held = (params[name], stats[name], network, policy.critic_space, rewards.get(name), policy)
            self.groups[name] = PPOAgent(policy.observation_space, policy.action_space, self.config, *held)
            if groups.many:
                self.groups[name].role = {
                    "group": name,
                    "agents": list(groups[name].members),
                    "groups": list(groups),
                }

    @classmethod
    def of_one(cls, agent: PPOAgent) -> Agents:
        """The only agent of an environment."""
        made, policy, config = cls.__new__(cls), agent.policy, agent.config
        made.config, made.network, made.groups = config, agent.network, {ONE: agent}
        groups = one_group(policy.observation_space, policy.action_space, critic_state_space=policy.critic_space)
        sections = (config.network, config.normalize, config.agents)
        made.policies = Policies(groups, *sections, agent.network, {ONE: policy})
        return made

    @property
    def public(self) -> Any:
        """What `PPOTrainer.agent` is: the only agent, or all of them."""
        (agent,) = self.groups.values()
        return agent

    def part(self, name: str) -> dict[str, PyTree]:
        """A part of each agent, such as its `params`."""
        return {group: getattr(agent, name) for group, agent in self.groups.items()}

    def adopt(self, learners: Mapping[str, Any]) -> None:
        """Take over what was learned."""
        for name, agent in self.groups.items():
            own = learners[name]
            agent.params, agent.obs_stats, agent.reward_stats = own.params, own.obs_stats, own.reward_stats

    def save_policy_net(self, path: str | Path) -> list[Path]:
        """Write the actors, each to a file of its own."""
        return [agent.save_policy_net(self._file(path, name)) for name, agent in self.groups.items()]

    def save_value_net(self, path: str | Path) -> list[Path]:
        """Write the critics, each to a file of its own."""
        return [agent.save_value_net(self._file(path, name)) for name, agent in self.groups.items()]

    def save(self, path: str | Path) -> list[Path]:
        """Write everything, a file for each group."""
        return [agent.save(self._file(path, name)) for name, agent in self.groups.items()]

    def _file(self, path: str | Path, name: str) -> Path:
        return Path(path) if len(self.groups) == 1 else group_file(Path(path), name)

    def describe(self) -> dict[str, Any]:
        """Everything about these agents that is not an array, as JSON, by group."""
        return {name: agent.describe() for name, agent in self.groups.items()}


def group_file(path: Path, group: str) -> Path:
    """The file of one of several groups."""
    suffix = path.suffix if path.suffix in (".safetensors", ".pth") else ".safetensors"
    name = re.sub(r"[^\w-]+", "-", group)  # as folders, and MLflow, take it
    return path.with_name(f"{path.name.removesuffix(suffix)}.{name}{suffix}")


def agents_from_tensors(
    given: tensors.Tensors, meta: dict[str, Any], path: Path, network: Any = None
) -> dict[str, PPOAgent]:
    """The agents, by group, that `tensors` (`NAME/params/...`) and `meta`, as `describe` made it, from the file `path`
    describe."""
    return {
        name: PPOAgent.from_tensors(tensors.below(given, f"{name}/"), about, path, network)
        for name, about in meta.items()
    }
