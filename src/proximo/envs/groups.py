"""The agents of an environment, in groups that share a policy. Free of JAX, so that worker processes start quickly.

E environments have L = E * K lanes of a group with K members: a lane is one agent of one environment, and
lane = env * K + member, always in that order. An environment with one agent has one group with one member.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
from gymnasium import spaces
from numpy.typing import NDArray

from proximo.spaces import mask_shape, space_key

ONE = "agent"
"""The only group of an environment with one agent, and its only member."""
MOST_NAMED = 32
"""Agents up to which each is reported by itself."""


@dataclass(frozen=True)
class Group:
    """Agents that see and do the same kind of things, and share a policy."""

    members: tuple[str, ...]
    observation_space: gymnasium.Space[Any]
    """Of one member."""
    action_space: gymnasium.Space[Any]
    has_mask: bool = False
    """Whether it is said at each step which actions are allowed (host environments; compiled ones show it)."""

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def mask_shape(self) -> tuple[int, ...]:
        """Of one member's action mask."""
        return mask_shape(self.action_space)


@dataclass(frozen=True)
class Groups(Mapping[str, Group]):
    """The groups of an environment by name, in order; and what its critics may see besides."""

    groups: Mapping[str, Group]
    critic_state_space: gymnasium.Space[Any] | None = None
    """Of what only critics see, one for each environment."""
    many: bool = False
    """Whether the environment is one of many agents: agents then have names, and may be absent."""

    def __getitem__(self, name: str) -> Group:
        return self.groups[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def agents(self) -> tuple[str, ...]:
        """All of them, group by group: the order of everything that has one column for each agent."""
        return tuple(agent for group in self.values() for agent in group.members)

    @property
    def columns(self) -> dict[str, slice]:
        """Where each group stands among `agents`."""
        found, start = {}, 0
        for name, group in self.items():
            found[name] = slice(start, start := start + group.size)
        return found

    @property
    def key(self) -> Hashable | None:
        """Who is in which group, in order, and what each sees and does, as a value; None if a space has no key."""
        state = () if self.critic_state_space is None else (space_key(self.critic_state_space),)
        each = [(space_key(group.observation_space), space_key(group.action_space)) for group in self.values()]
        if any(key is None for keys in (*each, state) for key in keys):
            return None
        who = tuple((name, group.members) for name, group in self.items())
        return who, tuple(each), state, self.many

    def seen_through(self, change: Callable[[gymnasium.Space[Any]], gymnasium.Space[Any]]) -> Groups:
        """The same groups with other observation spaces."""
        changed = {
            name: replace(group, observation_space=change(group.observation_space)) for name, group in self.items()
        }
        return replace(self, groups=changed)

    def everything(self) -> spaces.Dict:
        """What all agents see, by agent."""
        return spaces.Dict({agent: group.observation_space for group in self.values() for agent in group.members})

    def in_words(self) -> list[str]:
        """Who shares a policy with whom, where there are many."""
        if not self.many:
            return []
        if len(self) == 1:
            return [f"{len(self.agents)} agents share one policy (agents.policy)."]
        groups = (f"{name} ({group.size})" for name, group in self.items())
        return [f"{len(self)} policies, each with its agents (agents.policy): {', '.join(groups)}."]

    def by_name(self, each: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Numbers [..., A] of each agent as `agent/NAME`, and their means in each group as `group/NAME`. Groups of one
        are left out, and agents where there are very many; there is nothing to tell apart where there is one."""
        found: dict[str, NDArray[Any]] = {}
        if self.many and len(self.agents) <= MOST_NAMED:
            found |= {f"agent/{name}": each[..., number] for number, name in enumerate(self.agents)}
        if 1 < len(self) < len(self.agents):
            found |= {f"group/{name}": each[..., columns].mean(-1) for name, columns in self.columns.items()}
        return found


def one_group(
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    has_mask: bool = False,
    critic_state_space: gymnasium.Space[Any] | None = None,
) -> Groups:
    """Of an environment with one agent."""
    return Groups({ONE: Group((ONE,), observation_space, action_space, has_mask)}, critic_state_space)
