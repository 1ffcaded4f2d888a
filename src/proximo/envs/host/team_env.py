"""One environment of many agents, as Gymnasium would have it: to be measured and tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from proximo.envs.host.shared_memory import Buffers, Layout, private_memory
from proximo.envs.host.slot import SlotOptions
from proximo.envs.host.team_slot import TeamSlot
from proximo.envs.host.transfer import MASK
from proximo.spaces import leaves, pick


class TeamEnv(gymnasium.Env[Any, Any]):
    """`env` without a reset of its own. Observations are the arrays of all agents; actions are a dictionary by agent;
    rewards [A] are in the order of the groups; it has ended when it is over for all. A mask is in the info."""

    def __init__(self, env: Any, options: SlotOptions):
        self.env = env
        self._groups = options.spec.groups
        self.action_space = spaces.Dict(
            {agent: group.action_space for group in self._groups.values() for agent in group.members}
        )
        layout = Layout(options.spec, 1, 0)
        self._buffers = Buffers(layout, private_memory(layout))
        # Whoever calls has a limit on steps of their own.
        self.slot = TeamSlot(0, lambda: env, self._buffers, replace(options, limit=None))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is None:
            self.slot.begin()
        else:
            self.slot.reset(seed)
        return self._seen("obs")

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        for name, group in self._groups.items():
            for row, agent in enumerate(group.members):
                self._write(name, row, action[agent])
        over, groups = self.slot.move(), self._buffers.groups.values()
        obs, info = self._seen("final_obs" if over else "obs")
        rewards = np.concatenate([own.reward for own in groups])
        by_itself = any(own.terminated.any() for own in groups)
        return obs, rewards, over and by_itself, over and not by_itself, info

    def close(self) -> None:
        self.env.close()

    def _write(self, name: str, row: int, action: Any) -> None:
        paths = [path for path, _ in leaves(self._groups[name].action_space)]
        for path, array in zip(paths, self._buffers.groups[name].action, strict=True):
            array[row] = pick(action, path)

    def _seen(self, field: str) -> tuple[Any, dict[str, Any]]:
        buffers = self._buffers
        obs = [array.copy() for own in buffers.groups.values() for array in getattr(own, field)]
        state = [array.copy() for array in (buffers.critic_state if field == "obs" else buffers.final_critic_state)]
        if all(own.action_mask is None for own in buffers.groups.values()):
            return obs + state, {}
        masks = [
            np.ones((group.size, *group.mask_shape), bool)
            if (mask := buffers.groups[name].action_mask) is None
            else mask
            for name, group in self._groups.items()
        ]
        return obs + state, {MASK: np.concatenate([mask.reshape(-1) for mask in masks])}
