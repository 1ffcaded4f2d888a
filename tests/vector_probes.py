"""Vector environments whose every number is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class Counters(VectorEnv[Any, Any, Any]):
    """A simulator of many environments at once. Number i starts at a number below 1 that its seed decides, and each
    step adds 1, with the reward of the action; after 3 + i steps it terminates, or where that is an odd number, is cut.
    Environments succeed that are cut. What only critics see is the seed's number. Only action 1 is allowed in the
    first step."""

    single_observation_space: spaces.Dict = spaces.Dict({"count": spaces.Box(0, 100, (1,), np.float32)})
    single_action_space: spaces.Space[Any] = spaces.Discrete(2)
    critic_state_space = spaces.Box(0, 1, (1,), np.float32)

    def __init__(self, num_envs: int, mode: AutoresetMode = AutoresetMode.SAME_STEP, final: str = "arrays"):
        self.num_envs, self.mode, self.final = num_envs, mode, final
        self.metadata = {"autoreset_mode": mode}
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.length = 3 + np.arange(num_envs)
        self.ended = np.zeros(num_envs, bool)
        self.closed_times = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        which = np.ones(self.num_envs, bool) if not options else options["reset_mask"]
        if seed is not None:
            self.seed = (seed + np.arange(self.num_envs)) % 1000 / 1000
            self.steps = np.zeros(self.num_envs, int)
        self._begin(which)
        return self._seen(), self._said()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert self.action_space.contains(actions)
        assert ((actions == 1) | (self.steps > 0) | self.ended).all(), "an action that is not allowed"
        waking = self.ended & (self.mode is AutoresetMode.NEXT_STEP)
        assert self.mode is not AutoresetMode.DISABLED or not self.ended.any(), "nobody has reset what ended"
        self.steps += 1
        over = (self.steps == self.length) & ~waking
        terminated, truncated = over & (self.length % 2 == 0), over & (self.length % 2 == 1)
        reward = np.where(waking, 0.0, actions)
        self._begin(waking)
        obs, info = self._seen(), self._said()
        info |= {"is_success": truncated.copy(), "_is_success": over.copy()}
        self.ended = over
        if self.mode is AutoresetMode.SAME_STEP and over.any():
            last = {"is_success": truncated.copy(), "_is_success": over.copy(), "critic_state": info["critic_state"]}
            rows = [{"count": obs["count"][i]} if over[i] else None for i in range(self.num_envs)]
            final = obs if self.final == "arrays" else np.array([*rows, None], object)[:-1]
            self._begin(over)
            obs, info = self._seen(), self._said() | {"final_obs": final, "final_info": last}
        return obs, reward, terminated, truncated, info

    def _begin(self, which: Any) -> None:
        self.steps = np.where(which, 0, self.steps)
        self.ended = self.ended & ~which

    def _seen(self) -> Any:
        return {"count": (self.seed + self.steps)[:, None].astype(np.float32)}

    def _said(self) -> dict[str, Any]:
        mask = np.stack([self.steps > 0, np.ones(self.num_envs, bool)], axis=1)
        return {"action_mask": mask, "critic_state": self.seed[:, None].astype(np.float32)}

    def close_extras(self, **given: Any) -> None:
        self.closed_times += 1


class Saving(Counters):
    """`Counters` that can say where they are, and draw on something that no seed sets."""

    def reset(self, **given: Any) -> Any:
        found = super().reset(**given)
        self.seed = np.random.default_rng().random(self.num_envs)
        return self._seen(), found[1] | self._said()

    def get_state(self) -> Any:
        return [self.seed, self.steps, self.ended]

    def set_state(self, state: Any) -> None:
        self.seed, self.steps, self.ended = (np.array(part) for part in state)


class Wrong(Counters):
    """`Counters` of which something is not as it should be, as `how` says."""

    def __init__(self, num_envs: int, how: str = ""):
        super().__init__(num_envs)
        self.how = how
        if how == "mode":
            self.metadata = {}

    def reset(self, **given: Any) -> Any:
        obs, info = super().reset(**given)
        return (obs["count"], info) if self.how == "array" else ({}, info) if self.how == "entry" else (obs, info)

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(actions)
        if self.how == "rewards":
            reward = np.stack([reward, reward], axis=1)
        if self.how == "nan":
            obs["count"][1] = np.nan
        if self.how == "final" and (terminated | truncated).any():
            info.pop("final_obs")
        if self.how == "raises":
            raise RuntimeError("the wheel came off")
        return obs, reward, terminated, truncated, info
