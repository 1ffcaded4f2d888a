"""What is known of an environment before it runs. Free of JAX, so that worker processes start quickly."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium

from proximo.spaces import mask_shape
from proximo.teams import Team


@dataclass(frozen=True)
class EnvSpec:
    """An environment's name, spaces and limits."""

    id: str
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    max_steps: int | None = None
    """The environment's own time limit, where it has one."""
    has_mask: bool = False
    """Whether it says at each step which actions are allowed (host environments; compiled ones show it)."""
    team: Team | None = None
    """The agents, where there are many. Observations are then {"agents": {group: [K, ...]}, "state": ...}, actions are
    {group: [K, ...]}, and the mask is one vector: agent by agent, in the team's order."""

    @property
    def mask_shape(self) -> tuple[int, ...]:
        if self.team is None:
            return mask_shape(self.action_space)
        return (sum(self.team.mask_sizes[name] * len(members) for name, members in self.team.groups.items()),)


def team_spec(env_id: str, team: Team, max_steps: int | None, has_mask: bool = False) -> EnvSpec:
    """The description of an environment of many agents."""
    return EnvSpec(env_id, team.observation_space(), team.action_space(), max_steps, has_mask, team)
