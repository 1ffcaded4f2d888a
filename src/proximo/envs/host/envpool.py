"""EnvPool: `envpool/Pong-v5`. Its environments are stepped in C++, by threads of this process.

EnvPool resets in the step after an end: that step ignores its action and gives no reward. Here it is a filler, marked
invalid, so that no loss, statistic or count sees it. The observation of the step that ended is the true final one.
"""

from __future__ import annotations

import contextlib
import difflib
import warnings
from collections.abc import Iterator
from typing import Any

import envpool
import numpy as np
from gymnasium import spaces

from proximo.config import EnvConfig
from proximo.envs.api import Batch, Timestep, Tree
from proximo.envs.host.buffers import UNSAID, Buffers, Layout, private_memory
from proximo.envs.host.pool import split_groups, timestep
from proximo.envs.host.workers import num_cores
from proximo.envs.spec import EnvSpec
from proximo.errors import EnvError, UserError
from proximo.seeding import RESET_OFFSET
from proximo.spaces import Path, build, leaves, pick, shown


def names() -> list[str]:
    return sorted(envpool.list_all_envs())


def make(name: str) -> EnvPoolSource:
    """The environment that EnvPool calls `name`."""
    known = envpool.list_all_envs()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1, 0.4)
        hint = f"did you mean envpool/{near[0]}?" if near else "`proximo envs envpool` lists them."
        raise UserError(f"EnvPool has no environment {name}; {hint}")
    return EnvPoolSource(name)


def accepts(env: Any) -> bool:
    return False  # its objects are whole pools, which cannot be seeded anew: an id says more


def mended(space: spaces.Space) -> spaces.Space:
    """EnvPool writes the least positive number where it means no lower bound."""

    def leaf(_: Path, space: spaces.Space) -> spaces.Space:
        if not isinstance(space, spaces.Box) or space.dtype != np.float64:
            return space
        limits = np.finfo(np.float64)
        low = np.where(space.low == limits.tiny, -np.inf, space.low)
        high = np.where(space.high == limits.max, np.inf, space.high)
        return spaces.Box(low, high, space.shape, np.float64)

    built = build(space, leaf)
    return spaces.Dict(built) if isinstance(built, dict) else spaces.Tuple(built) if isinstance(built, tuple) else built


class EnvPoolSource:
    """Lanes of an EnvPool environment."""

    def __init__(self, name: str):
        self.name = name
        with _quiet():
            spec = envpool.make_spec(name)
            observation_space, action_space = spec.gymnasium_observation_space, spec.gymnasium_action_space
        if spec.config.max_num_players > 1:
            raise UserError(f"envpool/{name} has several players; Proximo trains one agent there.")
        self.spec = EnvSpec(
            id=f"envpool/{name}",
            observation_space=mended(observation_space),
            action_space=action_space,
            max_steps=int(spec.config.max_episode_steps),
        )

    def lanes(self, num_envs: int, env: EnvConfig) -> EnvPoolLanes:
        if env.on_error == "restart":
            raise UserError(f"{self.spec.id} cannot be started anew after a failure; use env.on_error=stop.")
        return EnvPoolLanes(self, num_envs, env)


class EnvPoolLanes:
    """A `HostEnv` over one EnvPool per group of lanes, so that one is stepped while the policy looks at another."""

    def __init__(self, source: EnvPoolSource, num_envs: int, env: EnvConfig):
        self.spec = source.spec
        self.num_lanes = num_envs
        self._name = source.name
        self._limit = env.max_steps_per_episode
        groups = split_groups(num_envs, env.groups)
        self.batches: tuple[Batch, ...] = tuple((group,) for group in groups)
        cores = num_cores()
        self._threads = max(env.workers, 1) if isinstance(env.workers, int) else cores
        self.notices = [f"{self.spec.id}: {num_envs} environments on {self._threads} threads (env.workers)."]
        layout = Layout(self.spec, num_envs, 0)
        self._buffers = Buffers(layout, private_memory(layout))
        self._buffers.success[...] = UNSAID
        self._paths = [path for path, _ in leaves(self.spec.observation_space)]
        self._all = timestep(self._buffers, self.spec, slice(0, num_envs))
        self._parts = [timestep(self._buffers, self.spec, group) for group in groups]
        self._groups = groups
        self._pools: list[Any] = []
        self._steps = [0] * len(groups)

    def reset(self, seed: int) -> Timestep:
        self.close()
        self._steps = [0] * len(self._groups)
        with _quiet():
            self._pools = [self._made(seed + RESET_OFFSET, group) for group in self._groups]
            for batch, pool in enumerate(self._pools):
                pool.async_reset()
                self._buffers.valid[self._groups[batch]] = False  # a reset gives no reward
                self._read(batch)
        self._buffers.valid[...] = True
        return self._all

    def send(self, batch: int, action: Tree) -> None:
        self._pools[batch].send(_as_given(action, self.spec))

    def recv(self, batch: int) -> Timestep:
        self._steps[batch] += 1
        lanes, buffers = self._groups[batch], self._buffers
        # What follows an end is the reset.
        np.logical_or(buffers.terminated[lanes], buffers.truncated[lanes], out=buffers.valid[lanes])
        np.logical_not(buffers.valid[lanes], out=buffers.valid[lanes])
        self._read(batch)
        return self._parts[batch]

    def get_states(self) -> list[bytes | None]:
        return [None] * self.num_lanes  # EnvPool does not show them

    def set_states(self, states: list[bytes]) -> bool:
        return False

    def close(self) -> None:
        for pool in self._pools:
            pool.close()
        self._pools = []

    def _made(self, seed: int, group: slice) -> Any:
        count = group.stop - group.start
        limit = {} if self._limit is None else {"max_episode_steps": self._limit}
        return envpool.make(
            self._name,
            env_type="gymnasium",
            num_envs=count,
            num_threads=min(count, self._threads),
            seed=seed + group.start,
            **limit,
        )

    def _read(self, batch: int) -> None:
        """Wait for a group, and take over what it reports, in the order of lanes."""
        obs, reward, terminated, truncated, info = self._pools[batch].recv()
        lanes, buffers, order = self._groups[batch], self._buffers, info["env_id"]
        for path, array, final in zip(self._paths, buffers.obs, buffers.final_obs, strict=True):
            array[lanes][order] = pick(obs, path)
            final[lanes] = array[lanes]
            if array.dtype.kind == "f" and not np.isfinite(array[lanes]).all():
                self._fail(batch, f"observation{shown(path)} is not finite", np.isfinite(array[lanes]))
        buffers.reward[lanes][order] = reward
        buffers.reward[lanes][~buffers.valid[lanes]] = 0  # there some environments write whatever the memory held
        buffers.terminated[lanes][order] = terminated
        buffers.truncated[lanes][order] = truncated & ~terminated
        if not np.isfinite(buffers.reward[lanes]).all():
            self._fail(batch, "the reward is not finite", np.isfinite(buffers.reward[lanes]))

    def _fail(self, batch: int, what: str, well: np.ndarray) -> None:
        lane = int(np.flatnonzero(~well.reshape(len(well), -1).all(axis=1))[0]) + self._groups[batch].start
        self.close()
        raise EnvError(f"The environment {self.spec.id} (lane {lane}, step {self._steps[batch]:,}) failed: {what}.")


def _as_given(action: Tree, spec: EnvSpec) -> np.ndarray:
    """EnvPool takes one array, of just the type that its space has; whole numbers of 32 bits."""
    dtype = np.dtype(spec.action_space.dtype)
    return np.ascontiguousarray(action, np.int32 if dtype.kind in "iu" else dtype)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """EnvPool's spaces are written in double precision, of which Gymnasium warns at each one."""
    with warnings.catch_warnings(action="ignore"):
        yield
