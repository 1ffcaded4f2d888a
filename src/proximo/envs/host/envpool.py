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
import jax
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proximo.config import EnvConfig
from proximo.envs.arguments import made_with
from proximo.envs.host.batched import Batch, BatchedEnvs, Report, info_table
from proximo.envs.host.pool import split_parts
from proximo.envs.host.workers import num_cores
from proximo.envs.spec import EnvSpec
from proximo.errors import UserError
from proximo.spaces import Path, build
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
NUMBERS = {"env_id", "players"}
"""Of an info: which environments it is about."""


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

    def open_envs(self, num_envs: int, env: EnvConfig) -> BatchedEnvs:
        if env.on_error == "restart":
            raise UserError(f"{self.spec.id} cannot be started anew after a failure; use env.on_error=stop.")
        threads = max(env.workers, 1) if isinstance(env.workers, int) else num_cores()

        def open_batch(envs: slice) -> EnvPoolBatch:
            return EnvPoolBatch(self, envs.stop - envs.start, threads, env.max_steps_per_episode)

        opened = BatchedEnvs(self.spec, num_envs, env, split_parts(num_envs, env.groups), open_batch)
        opened.notices.append(f"{self.spec.id}: {num_envs} environments on {threads} threads (env.workers).")
        return opened


class EnvPoolBatch(Batch):
    """One of EnvPool's pools."""

    def __init__(self, source: EnvPoolSource, num_envs: int, threads: int, limit: int | None):
        super().__init__()
        self._source = source
        self._options = source.kwargs | ({} if limit is None else {"max_episode_steps": limit})
        self._sizes = {"num_envs": num_envs, "num_threads": min(num_envs, threads)}
        self._order = np.arange(num_envs)
        self._pool: Any = None
        self._ended = np.zeros(num_envs, bool)

    def reset(self, seed: int, options: dict[str, Any] | None) -> Report:
        if options is not None:
            raise UserError(f"{self._source.spec.id} takes no options at a reset.")
        self.close()
        with _quiet():
            made = self._options | self._sizes
            self._pool = envpool.make(self._source.name, env_type="gymnasium", seed=seed, **made)
            self._pool.async_reset()
            report = self._report()
        self._ended[...] = False
        return Report(report.obs)  # some environments write whatever the memory held in the place of a reward

    def send(self, action: Any) -> None:
        self._pool.send(_as_given(action, self._source.spec))

    def recv(self) -> Report:
        report = self._report()
        valid = ~self._ended  # what follows an end is the reset
        self._ended = np.asarray(report.terminated | report.truncated)
        return report._replace(valid=valid)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _report(self) -> Report:
        """Wait, and put what is reported into the order of environments."""
        obs, reward, terminated, truncated, info = self._pool.recv()
        told = None
        if names := self._source.spec.info:
            told = info_table(names, info, len(self._order))
            self.info_names = sorted(set(info) - NUMBERS)
        if not np.array_equal(info["env_id"], self._order):
            order = np.argsort(info["env_id"])
            given = (obs, reward, terminated, truncated, told)
            obs, reward, terminated, truncated, told = jax.tree.map(lambda leaf: leaf[order], given)
        return Report(obs, reward, terminated, truncated, info=told)


def _as_given(action: PyTree, spec: EnvSpec) -> NDArray[Any]:
    """EnvPool takes one array, of just the type that its space has; whole numbers of 32 bits."""
    dtype = np.dtype(spec.action_space.dtype)
    return np.ascontiguousarray(action, np.int32 if dtype.kind in "iu" else dtype)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """EnvPool's spaces are written in double precision, of which Gymnasium warns at each one."""
    with warnings.catch_warnings(action="ignore"):
        yield
