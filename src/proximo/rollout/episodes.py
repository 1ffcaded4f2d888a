"""Episodes, counted: how long each was, what its agents were paid, whether it succeeded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from types import ModuleType
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int8

from proximo.envs.api import Timestep
from proximo.rollout.types import Episodes, RunningInfo
from proximo.types import AnyArray

Running = tuple[Int[AnyArray, " E"], dict[str, Float[AnyArray, "E _"]], RunningInfo | None]
"""Of the running episodes: their lengths, the sums of each agent's rewards [E, K] by group, and what is tracked of
infos."""
SuccessReturn = float | Float[Array, ""] | None
"""The setting `track.success_return`: as it stands, or as the argument of a compiled program."""
MOST_NAMED = 20
"""Entries of an info in a sentence."""


def count_episodes(
    running: Running, moved: Timestep, success_return: SuccessReturn, xp: ModuleType = jnp
) -> tuple[Running, Episodes]:
    """The running episodes after a step, and those that ended with it. A step counts if anybody's action did. The
    return of an episode is the mean of its agents' returns. Arrays of JAX, or of NumPy (`xp`)."""
    length, returns, told = running
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
    if told is not None and moved.info is not None:
        told = add_info(told, moved.info, counts, xp)
        count = xp.maximum(told.count, 1).astype(told.total.dtype)
        mean = xp.where(told.count > 0, told.total / count, xp.full_like(told.total, xp.nan))
        episodes = replace(episodes, info=told.last, info_mean=mean)
        told = _forgotten(told, moved.reset, xp)
    left = {name: xp.where(moved.reset[:, None], xp.zeros_like(own), own) for name, own in each.items()}
    return (xp.where(moved.reset, xp.zeros_like(length), length), left, told), episodes


def no_info(num_envs: int, num_names: int, xp: ModuleType = jnp) -> RunningInfo | None:
    """At the start of an episode; None where nothing is tracked."""
    if not num_names:
        return None
    shape = (num_envs, num_names)
    kind = xp.float32 if xp is jnp else xp.float64  # as of returns
    return RunningInfo(xp.full(shape, xp.nan, kind), xp.zeros(shape, kind), xp.zeros(shape, xp.int32))


def add_info(
    told: RunningInfo, info: Float[AnyArray, "E I"], counts: Bool[AnyArray, " E"], xp: ModuleType = jnp
) -> RunningInfo:
    """What is tracked of infos, after a step that had these, where it `counts`."""
    there = counts[:, None] & xp.isfinite(info)
    return RunningInfo(
        last=xp.where(there, info, told.last),
        total=told.total + xp.where(there, info, xp.zeros_like(info)),
        count=told.count + there.astype(told.count.dtype),
    )


def _forgotten(told: RunningInfo, reset: Bool[AnyArray, " E"], xp: ModuleType) -> RunningInfo:
    """Nothing where the next episode begins."""
    ends, nothing = reset[:, None], xp.zeros_like(told.total)
    return RunningInfo(
        last=xp.where(ends, xp.full_like(told.last, xp.nan), told.last),
        total=xp.where(ends, nothing, told.total),
        count=xp.where(ends, xp.zeros_like(told.count), told.count),
    )


def info_metrics(names: Sequence[str]) -> list[str]:
    """What is tracked of infos, as metrics: at the end of each episode, and in the mean over its steps."""
    return [f"{kind}/{name}" for kind in ("info", "info_mean") for name in names]


def lacks_info(names: Sequence[str], known: Sequence[str], env_id: str) -> list[str]:
    """What is said where entries of infos are to be tracked that are not there; `known` are those that are."""
    has = f"its entries are {', '.join(map(repr, known[:MOST_NAMED]))}" if known else "it is empty"
    more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
    return [f"The info of {env_id} has had no {name!r} so far (track.info); {has}{more}." for name in names]


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
