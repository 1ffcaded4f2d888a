"""Who there is in an environment with many agents, and in which groups."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from proximo.spaces import build, mask_shape, pick, space_key

AGENTS, STATE = "agents", "state"
"""The entries of the observation of an environment with many agents."""
MOST_NAMED = 32
"""Agents up to which each is reported by itself."""


@dataclass(frozen=True)
class Roster:
    """Who there is in an environment with many agents, in its own order, before they are put into groups."""

    observation_spaces: Mapping[str, gymnasium.Space]
    action_spaces: Mapping[str, gymnasium.Space]
    groups: Mapping[str, tuple[str, ...]] | None = None
    """The environment's own; None: by the names of the agents, without the numbers at their ends."""
    state_space: gymnasium.Space | None = None
    """What the environment knows of itself as a whole, where it says so."""

    @property
    def agents(self) -> tuple[str, ...]:
        return tuple(self.observation_spaces)


@dataclass(frozen=True)
class Team:
    """Agents in groups: those of a group have the same spaces, and one policy."""

    groups: Mapping[str, tuple[str, ...]]
    observation_spaces: Mapping[str, gymnasium.Space]
    """Of one agent of each group."""
    action_spaces: Mapping[str, gymnasium.Space]
    state_space: gymnasium.Space | None = None

    @property
    def agents(self) -> tuple[str, ...]:
        """In the order in which arrays have them: group by group."""
        return tuple(agent for members in self.groups.values() for agent in members)

    @property
    def key(self) -> Hashable | None:
        """Who is in which group, in order, and what each sees and does, as a value; None if a space has no key."""
        each = (*self.observation_spaces.items(), *self.action_spaces.items())
        spaces = tuple((name, space_key(space)) for name, space in each)
        state = () if self.state_space is None else (space_key(self.state_space),)
        if any(key is None for key in (*(key for _, key in spaces), *state)):
            return None
        return tuple((name, tuple(members)) for name, members in self.groups.items()), spaces, state

    def members(self, group: str) -> slice:
        """Where a group stands among the agents."""
        before = 0
        for name, members in self.groups.items():
            if name == group:
                return slice(before, before + len(members))
            before += len(members)
        raise KeyError(group)

    def in_words(self) -> str:
        """Who shares a policy with whom."""
        if len(self.groups) == 1:
            return f"{len(self.agents)} agents share one policy (agents.policy)."
        groups = (f"{name} ({len(members)})" for name, members in self.groups.items())
        return f"{len(self.groups)} policies, each with its agents (agents.policy): {', '.join(groups)}."

    def by_name(self, each: np.ndarray) -> dict[str, np.ndarray]:
        """Numbers [..., A] of each agent as `agent/NAME`, and their means in each group as `group/NAME`. Groups of one
        are left out, and agents where there are very many."""
        found: dict[str, np.ndarray] = {}
        if len(self.agents) <= MOST_NAMED:
            found |= {f"agent/{name}": each[..., number] for number, name in enumerate(self.agents)}
        if 1 < len(self.groups) < len(self.agents):
            found |= {f"group/{name}": each[..., self.members(name)].mean(-1) for name in self.groups}
        return found

    def apart(self, actions: Mapping[str, Any]) -> dict[str, Any]:
        """Actions {group: [K, ...]} of one environment, by agent."""

        def own(group: str, place: int) -> Any:
            return build(self.action_spaces[group], lambda path, _: pick(actions[group], path)[place])

        return {agent: own(group, i) for group, members in self.groups.items() for i, agent in enumerate(members)}

    @property
    def mask_sizes(self) -> dict[str, int]:
        """Flags in the action mask of one agent of each group."""
        return {name: math.prod(mask_shape(space)) for name, space in self.action_spaces.items()}

    def observation_space(self) -> spaces.Dict:
        """Of all agents: those of a group side by side."""
        seen: dict[str, Any] = {AGENTS: spaces.Dict(self._batched(self.observation_spaces))}
        if self.state_space is not None:
            seen[STATE] = self.state_space
        return spaces.Dict(seen)

    def everything(self) -> spaces.Dict:
        """What all agents see, by agent."""
        seen = {agent: self.observation_spaces[name] for name, members in self.groups.items() for agent in members}
        return spaces.Dict(seen)

    def action_space(self) -> spaces.Dict:
        return spaces.Dict(self._batched(self.action_spaces))

    def _batched(self, each: Mapping[str, gymnasium.Space]) -> dict[str, gymnasium.Space]:
        return {name: batch_space(each[name], len(members)) for name, members in self.groups.items()}
