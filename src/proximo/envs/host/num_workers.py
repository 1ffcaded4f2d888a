"""How long a step of an environment takes, and how many worker processes that is worth."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from proximo.config import MAX_WORKERS, EnvConfig
from proximo.envs.host.transfer import choices, read_mask
from proximo.envs.host.workers import num_cores
from proximo.spaces import Path, build, to_mask

PROBE_SECONDS, PROBE_STEPS = 0.2, 500
# A step that is mostly waiting gains from a process per environment, whatever the number of cores.
WAITING_SHARE, WAITING_SECONDS = 0.5, 300e-6
# What stepping all environments must take before worker processes pay for the signals to and from them.
WORTHWHILE_SECONDS, LONG_SECONDS = 40e-6, 4e-3


class StepTime:
    """Measures one environment, when that is first asked for. `env` is at hand; `make` makes another."""

    def __init__(
        self,
        name: str,
        env: gymnasium.Env[Any, Any],
        make: Callable[[], gymnasium.Env[Any, Any]],
        mask_source: str | None,
    ):
        self.seconds: tuple[float, float] | None = None
        """What a step takes, on the clock and of the processor; None before it was measured."""
        self._name = name
        self._env: gymnasium.Env[Any, Any] | None = env
        self._make = make
        self._mask_source = mask_source

    def choose_num_workers(self, num_envs: int, env: EnvConfig) -> tuple[int, list[str]]:
        """Processes for `num_envs` environments, and what the user should know of that. The one at hand is closed."""
        chosen = (env.workers, []) if env.workers != "auto" else self._chosen(num_envs)
        if self._env is not None:
            self._env.close()
            self._env = None
        return chosen

    def _chosen(self, num_envs: int) -> tuple[int, list[str]]:
        """As many processes as pay, judged by how long a step takes."""
        if self.seconds is None:
            self._env = self._env or self._make()
            self.seconds = measure(self._env, self._mask_source)
        wall, busy = self.seconds
        waiting = wall > WAITING_SECONDS and busy < WAITING_SHARE * wall
        if waiting:
            workers = min(num_envs, MAX_WORKERS) if num_envs > 1 else 0
        elif wall * num_envs < WORTHWHILE_SECONDS:
            workers = 0
        else:
            # One core is left to this process, unless the environments take so long that it has little to do.
            workers = min(num_envs, num_cores() - (wall * num_envs < LONG_SECONDS))
        how = f"{workers} worker process{'es' if workers > 1 else ''}" if workers else "this process"
        spent = f"{wall * 1e6:,.0f} us{', mostly waiting' if waiting else ''}"
        return workers, [f"A step of {self._name} takes {spent}: {num_envs} environments in {how} (env.workers)."]


def measure(env: gymnasium.Env[Any, Any], mask_source: str | None = None) -> tuple[float, float]:
    """Seconds that a step with a random action takes in the middle of many: on the clock, and of the processor."""
    times: list[tuple[float, float]] = []
    with contextlib.suppress(Exception):  # faults show, and are named, in the pool
        player = Player(env, mask_source)
        started = time.perf_counter()
        while len(times) < PROBE_STEPS and time.perf_counter() - started < PROBE_SECONDS:
            action = player.action()
            wall, busy = time.perf_counter(), time.process_time()
            obs, _, terminated, truncated, info = env.step(action)
            times.append((time.perf_counter() - wall, time.process_time() - busy))
            if terminated or truncated:
                player.reset()
            else:
                player.see(obs, info)
    walls, busys = np.median(times or [(0.0, 0.0)], axis=0)
    return float(walls), float(busys)


class Player:
    """Draws random actions for an environment, of those that are allowed."""

    def __init__(self, env: Any, mask_source: str | None):
        self.env = env
        self._mask: np.ndarray | None = None
        self._mask_source = mask_source
        self._random = np.random.default_rng(0)
        self._space = copy.deepcopy(env.action_space)  # whose own generator may be part of the environment
        self.reset(seed=0)

    def reset(self, **given: Any) -> None:
        self.see(*self.env.reset(**given))

    def see(self, obs: Any, info: Any) -> None:
        """Take in what is allowed now."""
        if self._mask_source is not None:
            given = read_mask(self.env, obs, info, self._mask_source)
            self._mask = to_mask(self.env.action_space, given).reshape(-1)

    def action(self) -> Any:
        """The next action."""
        return random_action(self._space, self._mask, self._random)


def random_action(space: spaces.Space[Any], mask: np.ndarray | None, random: np.random.Generator) -> Any:
    """A member of `space` that `mask` allows. Boxes of `space` are given the generator `random`."""
    sizes = choices(space)
    allowed = np.ones(sum(sizes), bool) if mask is None else mask.reshape(-1)
    flags = iter(np.split(allowed, np.cumsum(sizes)[:-1]))

    def drawn(_: Path, leaf: spaces.Space[Any]) -> Any:
        picked = [int(random.choice(np.flatnonzero(next(flags)))) for _ in choices(leaf)]
        if isinstance(leaf, spaces.Discrete):
            return picked[0] + int(leaf.start)
        if isinstance(leaf, spaces.MultiDiscrete):
            return (np.reshape(picked, leaf.shape) + leaf.start).astype(leaf.dtype)
        if isinstance(leaf, spaces.MultiBinary):
            return np.reshape(picked, leaf.shape).astype(leaf.dtype)
        leaf._np_random = random
        return leaf.sample()

    return build(space, drawn)
