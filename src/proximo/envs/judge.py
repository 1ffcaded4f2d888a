"""What is said of an environment by numbers that were seen: numbers in, a sentence or None out. `proximo check` and
training judge by these alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proximo.spaces import Path, shown

LARGE_SPREAD, SMALL_SPREAD = 30.0, 1 / 30
"""Standard deviations of the discounted return outside of which a critic that learns from raw rewards is slow."""
MOST_NAMED = 5
LIKE_A_LIMIT = 3
"""Episodes of one length that look like a limit."""


def no_end(episodes: int, steps: int, max_steps: int | None) -> str | None:
    """Of `episodes` that came to an end in `steps` steps of each environment; `max_steps` is the limit that is
    known, of the environment or the settings."""
    if episodes or (max_steps is not None and steps < max_steps):
        return None
    return (
        f"No episode ended within {steps:,} steps of each environment: there is no return to report, and no "
        f"end to learn from. Let the environment say terminated or truncated, or set env.max_steps_per_episode."
    )


def return_spread(rewards: NDArray[Any], ended: NDArray[Any], gamma: float) -> float:
    """The standard deviation of the discounted sum of rewards [T, L], which begins anew where an episode `ended`: what
    normalize.rewards divides by."""
    total, seen = np.zeros(rewards.shape[1:]), []
    for reward, end in zip(rewards, ended, strict=True):
        total = gamma * total + reward
        seen.append(total)
        total = np.where(end, 0.0, total)
    return float(np.std(seen)) if seen else 0.0


def no_reward(low: float, high: float, steps: int) -> str | None:
    """Of the least and the greatest reward of `steps` steps."""
    if low != 0 or high != 0:
        return None
    return (
        f"Every reward of {steps:,} steps was 0: while a policy that acts at random meets no other reward, there "
        f"is nothing to learn from. Reward steps on the way, or make the first goals easier to reach."
    )


def reward_scale(spread: float, normalized: bool) -> str | None:
    """Of the standard deviation of the discounted return (`return_spread`), where rewards are `normalized` or not."""
    if normalized or spread == 0 or SMALL_SPREAD <= spread <= LARGE_SPREAD:
        return None
    size = "large" if spread > 1 else "small"
    return (
        f"Rewards are {size}: discounted returns spread by {spread:.3g}, and a critic learns best where that is near "
        f"1. Set normalize.rewards=true, or scale rewards in the environment."
    )


def constant_entries(path: Path, low: NDArray[Any], high: NDArray[Any]) -> list[str]:
    """The numbers of an observation's entry that were the same at each step, by the least and the greatest that were
    seen of each; the entry itself where that is so for all of them."""
    alike = np.asarray(low == high)
    if alike.all():
        return [f"observation{shown(path)}"]
    return [f"observation{shown(path)}{list(map(int, index))}" for index in np.argwhere(alike)]


def constant_observations(names: Sequence[str], steps: int) -> str | None:
    """Of the entries that never changed in `steps` steps, as `constant_entries` names them."""
    if not names:
        return None
    return (
        f"{_listed(names)} never changed in {steps:,} steps: nothing can be learned from what is always the same. "
        f"If it should change, look at how it is computed; if not, leave it out."
    )


def idle_actions(names: Sequence[str], steps: int) -> str | None:
    """Of actions, or parts of them, that made no difference to what came after in `steps` steps."""
    if not names:
        return None
    return (
        f"{_listed(names)} made no difference in {steps:,} steps: whatever is done there, observations, rewards and "
        f"ends are the same. Look at whether step() uses its action."
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def same_length(lengths: Sequence[int], terminated: int) -> str | None:
    """Of the lengths of ended episodes, of which some `terminated`: what looks like a limit on time should be one."""
    if len(lengths) < LIKE_A_LIMIT or terminated < len(lengths) or len(set(lengths)) > 1:
        return None
    return (
        f"All {len(lengths)} episodes terminated after exactly {lengths[0]:,} steps. If that is a limit on time, let "
        f"step() return it as truncated: a policy then learns that things would have gone on."
    )


def unbounded_actions(names: Sequence[str]) -> str | None:
    """Of the continuous parts of actions that have no bounds."""
    if not names:
        return None
    return (
        f"{_listed(names)} has no bounds: the policy begins near 0 with a standard deviation of 1 "
        f"(network.initial_std), whatever is usual there. Give the action space bounds, to which actions are scaled."
    )


def duration_of(steps: int, per_second: float) -> str:
    """How long `steps` steps take, in words."""
    seconds = steps / max(per_second, 1e-9)
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} seconds"


def not_repeated(step: int | None) -> str | None:
    """Of the first step, 0 for the reset, at which the same seed and the same actions led to something else."""
    if step is None:
        return None
    if step == 0:
        return (
            "Two resets with the same seed show different things: runs cannot be repeated. Draw random numbers from "
            "self.np_random, which super().reset(seed=seed) seeds."
        )
    return (
        f"The same seed and the same actions lead somewhere else at step {step:,}: runs cannot be repeated to the bit. "
        f"It draws on something that its seed does not set."
    )
