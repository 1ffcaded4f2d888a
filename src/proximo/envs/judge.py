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
