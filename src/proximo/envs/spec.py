"""What is known of an environment before it runs. Free of JAX, so that worker processes start quickly."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium


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
