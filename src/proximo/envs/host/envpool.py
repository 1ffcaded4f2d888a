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
from numpy.typing import NDArray

from proximo.config import EnvConfig
from proximo.envs.api import Part, Timestep
from proximo.envs.arguments import made_with
from proximo.envs.groups import ONE
from proximo.envs.host.pool import split_parts, timestep
from proximo.envs.host.shared_memory import UNSAID, Buffers, Layout, private_memory
from proximo.envs.host.workers import num_cores
from proximo.envs.spec import EnvSpec
from proximo.errors import EnvError, UserError
from proximo.host_seeds import RESET_OFFSET
from proximo.spaces import Path, build, leaves, pick, shown
from proximo.types import PyTree

OWN = {
    "num_envs": "env.num_envs says how many there are",
    "batch_size": "env.groups says how many are stepped together",
    "num_threads": "env.workers says how many threads step them",
    "seed": "the setting seed seeds it",
    "env_seed": "the setting seed seeds it",
    "max_num_players": "Proximo trains one agent there",
}
"""Arguments of EnvPool that settings stand for."""


def names() -> list[str]:
    return sorted(envpool.list_all_envs())


def make(name: str, /, **kwargs: Any) -> EnvPoolSource:
    """The environment that EnvPool calls `name`, made with `kwargs`."""
    known = envpool.list_all_envs()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1, 0.4)
        hint = f"did you mean envpool/{near[0]}?" if near else "`proximo envs envpool` lists them."
        raise UserError(f"EnvPool has no environment {name}; {hint}")
    for setting, own in OWN.items():
        if setting in kwargs:
            raise UserError(f"envpool/{name} cannot be given the argument {setting}; {own}.")
    with made_with(f"envpool/{name}", kwargs):
        return EnvPoolSource(name, kwargs)


def accepts(env: Any) -> bool:
    return False  # its objects are whole pools, which cannot be seeded anew: an id says more


def mended(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """EnvPool writes the least positive number where it means no lower bound."""

    def leaf(_: Path, space: spaces.Space[Any]) -> spaces.Space[Any]:
        if not isinstance(space, spaces.Box) or space.dtype != np.float64:
            return space
        limits = np.finfo(np.float64)
        low = np.where(space.low == limits.tiny, -np.inf, space.low)
        high = np.where(space.high == limits.max, np.inf, space.high)
        return spaces.Box(low, high, space.shape, np.float64)

    built = build(space, leaf)
    return spaces.Dict(built) if isinstance(built, dict) else spaces.Tuple(built) if isinstance(built, tuple) else built


class EnvPoolSource:
    """Environments of EnvPool's."""

    def __init__(self, name: str, kwargs: dict[str, Any]):
        self.name, self.kwargs = name, kwargs
        with _quiet():
            spec = envpool.make_spec(name, **kwargs)
            observation_space, action_space = spec.gymnasium_observation_space, spec.gymnasium_action_space
        if spec.config.max_num_players > 1:
            raise UserError(f"envpool/{name} has several players; Proximo trains one agent there.")
        self.spec = EnvSpec(
            id=f"envpool/{name}",
            observation_space=mended(observation_space),
            action_space=action_space,
            max_steps=int(spec.config.max_episode_steps),
        )

    def open_envs(self, num_envs: int, env: EnvConfig) -> EnvPoolEnvs:
        if env.on_error == "restart":
            raise UserError(f"{self.spec.id} cannot be started anew after a failure; use env.on_error=stop.")
        return EnvPoolEnvs(self, num_envs, env)


class EnvPoolEnvs:
    """A `HostEnv` over one EnvPool for each part, so that one is stepped while the policy looks at another."""

    def __init__(self, source: EnvPoolSource, num_envs: int, env: EnvConfig):
        self.spec = source.spec
        self.num_envs = num_envs
        self._name, self._kwargs = source.name, source.kwargs
        self._limit = env.max_steps_per_episode
        self._envs = split_parts(num_envs, env.groups)
        self.parts: tuple[Part, ...] = tuple((envs,) for envs in self._envs)
        cores = num_cores()
        self._threads = max(env.workers, 1) if isinstance(env.workers, int) else cores
        self.notices = [f"{self.spec.id}: {num_envs} environments on {self._threads} threads (env.workers)."]
        layout = Layout(self.spec, num_envs, 0)
        self._buffers = Buffers(layout, private_memory(layout))
        self._buffers.success[...] = UNSAID
        self._own = self._buffers.groups[ONE]
        self._paths = [path for path, _ in leaves(self.spec.observation_space)]
        self._all = timestep(self._buffers, self.spec, slice(0, num_envs))
        self._views = [timestep(self._buffers, self.spec, envs) for envs in self._envs]
        self._pools: list[Any] = []
        self._steps = [0] * len(self._envs)

    def reset(self, seed: int, options: dict[str, Any] | None = None) -> Timestep:
        if options is not None:
            raise UserError(f"{self.spec.id} takes no options at a reset.")
        self.close()
        self._steps = [0] * len(self._envs)
        with _quiet():
            self._pools = [self._made(seed + RESET_OFFSET, envs) for envs in self._envs]
            for part, pool in enumerate(self._pools):
                pool.async_reset()
                self._own.valid[self._envs[part]] = False  # a reset gives no reward
                self._read(part)
        self._own.valid[...] = True
        return self._all

    def send(self, part: int, action: dict[str, PyTree]) -> None:
        self._pools[part].send(_as_given(action[ONE], self.spec))

    def recv(self, part: int) -> Timestep:
        self._steps[part] += 1
        envs, own = self._envs[part], self._own
        # What follows an end is the reset.
        np.logical_or(own.terminated[envs], own.truncated[envs], out=own.valid[envs])
        np.logical_not(own.valid[envs], out=own.valid[envs])
        self._read(part)
        return self._views[part]

    def get_states(self) -> list[bytes | None]:
        return [None] * self.num_envs  # EnvPool does not show them

    def set_states(self, states: list[bytes]) -> bool:
        return False

    def close(self) -> None:
        for pool in self._pools:
            pool.close()
        self._pools = []

    def _made(self, seed: int, envs: slice) -> Any:
        count = envs.stop - envs.start
        limit = {} if self._limit is None else {"max_episode_steps": self._limit}
        return envpool.make(
            self._name,
            env_type="gymnasium",
            num_envs=count,
            num_threads=min(count, self._threads),
            seed=seed + envs.start,
            **self._kwargs | limit,
        )

    def _read(self, part: int) -> None:
        """Wait for a part, and take over what it reports, in the order of environments."""
        obs, reward, terminated, truncated, info = self._pools[part].recv()
        envs, own, order = self._envs[part], self._own, info["env_id"]
        for path, array, final in zip(self._paths, own.obs, own.final_obs, strict=True):
            array[envs][order] = pick(obs, path)
            final[envs] = array[envs]
            if array.dtype.kind == "f" and not np.isfinite(array[envs]).all():
                self._fail(part, f"observation{shown(path)} is not finite", np.isfinite(array[envs]))
        own.reward[envs][order] = reward
        own.reward[envs][~own.valid[envs]] = 0  # there some environments write whatever the memory held
        own.terminated[envs][order] = terminated
        own.truncated[envs][order] = truncated & ~terminated
        np.logical_or(own.terminated[envs], own.truncated[envs], out=self._buffers.reset[envs])
        if not np.isfinite(own.reward[envs]).all():
            self._fail(part, "the reward is not finite", np.isfinite(own.reward[envs]))

    def _fail(self, part: int, what: str, well: NDArray[Any]) -> None:
        number = int(np.flatnonzero(~well.reshape(len(well), -1).all(axis=1))[0]) + self._envs[part].start
        self.close()
        raise EnvError(f"The environment {self.spec.id} (number {number}, step {self._steps[part]:,}) failed: {what}.")


def _as_given(action: PyTree, spec: EnvSpec) -> NDArray[Any]:
    """EnvPool takes one array, of just the type that its space has; whole numbers of 32 bits."""
    dtype = np.dtype(spec.action_space.dtype)
    return np.ascontiguousarray(action, np.int32 if dtype.kind in "iu" else dtype)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """EnvPool's spaces are written in double precision, of which Gymnasium warns at each one."""
    with warnings.catch_warnings(action="ignore"):
        yield
