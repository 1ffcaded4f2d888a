"""One environment of many agents, as Gymnasium would have it: to be measured, tried and filmed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from proximo.envs.host.buffers import Buffers, Layout, as_tree, private_memory
from proximo.envs.host.lane import LaneOptions
from proximo.envs.host.rows import MASK
from proximo.envs.host.team_lane import TeamLane
from proximo.spaces import build, pick
from proximo.teams import Team

Tree = Any


class TeamEnv(gymnasium.Env):
    """`env` without a reset of its own. Observations are those of lanes; actions are a dictionary by agent; rewards
    [A] are in the order of the team; it has ended when it is over for all. A mask is in the info."""

    def __init__(self, env: Any, options: LaneOptions):
        self.env = env
        self.metadata = env.metadata
        self.render_mode = getattr(env, "render_mode", None)
        self._team: Team = options.spec.team  # type: ignore[assignment]
        self.observation_space = options.spec.observation_space
        self.action_space = spaces.Dict(
            {name: self._team.action_spaces[group] for group, names in self._team.groups.items() for name in names}
        )
        layout = Layout(options.spec, 1, 0)
        self._buffers = Buffers(layout, private_memory(layout))
        self._actions = as_tree(options.spec.action_space, [array[0] for array in self._buffers.action])
        # Whoever calls has seeds, and a limit on steps, of their own.
        self.lane = TeamLane(0, lambda: env, self._buffers, replace(options, reset_offset=0, limit=None))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        if seed is None:
            self.lane.begin()
        else:
            self.lane.reset(seed)
        return self._seen(self._buffers.obs)

    def step(self, action: Any) -> tuple[Tree, Any, bool, bool, dict[str, Any]]:
        for group, names in self._team.groups.items():
            for place, name in enumerate(names):
                self._write(group, place, action[name])
        buffers, over = self._buffers, self.lane.move()
        obs, info = self._seen(buffers.final_obs if over else buffers.obs)
        by_itself = bool(buffers.terminated[0].any())
        return obs, buffers.reward[0].copy(), over and by_itself, over and not by_itself, info

    @property
    def forgotten(self) -> np.ndarray:
        """[1, A] bool: whose memory is empty after the last step."""
        buffers = self._buffers
        assert buffers.absent is not None
        assert buffers.there is not None
        return buffers.terminated | buffers.truncated | buffers.absent | ~buffers.there

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _write(self, group: str, place: int, action: Any) -> None:
        def put(path: Any, _: spaces.Space) -> None:
            pick(self._actions[group], path)[place] = pick(action, path)

        build(self._team.action_spaces[group], put)

    def _seen(self, arrays: list[np.ndarray]) -> tuple[Tree, dict[str, Any]]:
        obs = as_tree(self.observation_space, [array[0].copy() for array in arrays])
        mask = self._buffers.action_mask
        return obs, {} if mask is None else {MASK: mask[0].copy()}
