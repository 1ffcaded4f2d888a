"""Episodes, counted: how long each was, what its agents were paid, whether it succeeded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from types import ModuleType
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int8

from proximo.envs.api import Timestep
from proximo.rollout.types import Episodes
from proximo.types import AnyArray

Running = tuple[Int[AnyArray, " E"], dict[str, Float[AnyArray, "E _"]]]
"""Of the running episodes: their lengths, and the sums of each agent's rewards [E, K] by group."""
SuccessReturn = float | Float[Array, ""] | None
"""The setting `track.success_return`: as it stands, or as the argument of a compiled program."""


def count_episodes(
    running: Running, moved: Timestep, success_return: SuccessReturn, xp: ModuleType = jnp
) -> tuple[Running, Episodes]:
    """The running episodes after a step, and those that ended with it. A step counts if anybody's action did. The
    return of an episode is the mean of its agents' returns. Arrays of JAX, or of NumPy (`xp`)."""
    length, returns = running
    counts = env_valid(moved.groups, length.shape[0])
    length = length + counts.astype(length.dtype)
    each = {
        name: own + xp.where(counts[:, None], moved.groups[name].reward.reshape(own.shape), xp.zeros_like(own))
        for name, own in returns.items()
    }
    total = xp.concatenate(list(each.values()), axis=1).mean(-1)
    terminated = any_member({name: step.terminated for name, step in moved.groups.items()}, length.shape[0])
    episodes = Episodes(
        length=xp.where(moved.reset & counts, length, xp.zeros_like(length)),
        episode_return=total,
        success=succeeded(moved.success, terminated, total, success_return),
        members=each,
    )
    left = {name: xp.where(moved.reset[:, None], xp.zeros_like(own), own) for name, own in each.items()}
    return (xp.where(moved.reset, xp.zeros_like(length), length), left), episodes


@runtime_checkable
class Counted(Protocol):
    """Of lanes, whether their actions counted."""

    @property
    def valid(self) -> Bool[AnyArray, "*T L"]: ...


def env_valid(groups: Mapping[str, Counted], num_envs: int) -> Bool[AnyArray, "*T {num_envs}"]:
    """The steps that count: those in which anybody's action did."""
    return any_member({name: step.valid for name, step in groups.items()}, num_envs)


def any_member(flags: dict[str, Bool[AnyArray, "*T _"]], num_envs: int) -> Bool[AnyArray, "*T {num_envs}"]:
    """Whether flags [T, L] are true of any agent of an environment."""
    found: AnyArray = reduce(or_, (own.reshape(*own.shape[:-1], num_envs, -1).any(-1) for own in flags.values()))  # type: ignore[assignment]
    return found


def succeeded(
    said: Int8[AnyArray, " E"],
    terminated: Bool[AnyArray, " E"],
    episode_return: Float[AnyArray, " E"],
    success_return: SuccessReturn,
) -> Bool[AnyArray, " E"]:
    """Whether each ending episode was a success: as the environment says, else by `track.success_return`, else if it
    terminated. Where `said` is negative, the environment does not say."""
    reached: AnyArray = terminated if success_return is None else episode_return >= success_return
    found: AnyArray = (said == 1) | ((said < 0) & reached)
    return found
