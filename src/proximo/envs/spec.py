"""What is known of an environment before it runs. Free of JAX, so that worker processes start quickly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium

from proximo.envs.groups import Groups, one_group


@dataclass(frozen=True)
class EnvSpec:
    """An environment's name, spaces and limits."""

    id: str
    observation_space: gymnasium.Space[Any]
    """Of its agent; of many, a dictionary by agent."""
    action_space: gymnasium.Space[Any]
    max_steps: int | None = None
    """The environment's own time limit, where it has one."""
    has_mask: bool = False
    """Whether it says at each step which actions are allowed (host environments; compiled ones show it)."""
    critic_state_space: gymnasium.Space[Any] | None = None
    """Of what its critic may see besides, in training: the `critic_state`."""
    team: Groups | None = None
    """The groups of its agents, where there are many."""
    info: tuple[str, ...] = ()
    """Entries of its info that are reported with each step (host environments, see `with_info`)."""

    @cached_property
    def groups(self) -> Groups:
        """Its agents, in groups that share a policy."""
        if self.team is not None:
            return self.team
        return one_group(self.observation_space, self.action_space, self.has_mask, self.critic_state_space)
