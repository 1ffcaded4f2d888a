"""Environments for `test_snapshot.py`: some that can be restored, and some that cannot. They load no JAX."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Base(gymnasium.Env[Any, Any]):
    """A sum of random numbers and actions, over all episodes since a seed was given."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = spaces.Discrete(3)
        self.total = 0.0
        self.clock = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.total = 0.0
        self.clock = 0
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.clock += 1
        self.total += self.draw() + action
        ended = self.clock >= 5 and self.np_random.random() < 0.2
        return self.look(), float(self.total % 1), bool(ended), False, {}

    def draw(self) -> float:
        return self.np_random.normal()

    def look(self) -> np.ndarray:
        return np.array([self.total, self.clock, self.draw()])


class Hooked(Base):
    """Speaks for itself, but forgets its random numbers."""

    def get_state(self) -> dict[str, Any]:
        return {"total": self.total, "clock": self.clock}

    def set_state(self, state: Any) -> None:
        self.total, self.clock = state["total"], state["clock"]


class Deaf(Hooked):
    """Does not listen to `set_state`."""

    def set_state(self, state: Any) -> None:
        pass


class Mute(Hooked):
    """Says something that is no plain data."""

    def get_state(self) -> dict[str, Any]:
        return {"total": self.total, "clock": {self.clock}}


class Chance(Base):
    """Draws from NumPy's global random numbers, which no seed of its own sets."""

    def draw(self) -> float:
        return float(np.random.normal())


class Worn(Base):
    """Counts all its resets, and pays accordingly; nothing of that is seen."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, *rest = super().step(action)
        return obs, reward + self.resets, *rest


class Sampling(Base):
    """Draws from its action space, too, which is seeded apart."""

    def draw(self) -> float:
        return float(self.action_space.sample()) + self.np_random.random()


class Trapped(Hooked):
    """Once the file `armed` is there, `trap` happens in environment 1 when its state is asked for."""

    def __init__(self, armed: str, trap: Callable[[], Any]) -> None:
        super().__init__()
        self.armed, self.trap = armed, trap

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.number = seed - 10_000
        return super().reset(seed=seed, options=options)

    def get_state(self) -> Any:
        if self.number == 1 and Path(self.armed).exists():
            self.trap()
        return super().get_state()


class Snare(Base):
    """Once the file `armed` is there, `trap` happens in each step."""

    def __init__(self, armed: str, trap: Callable[[], Any]) -> None:
        super().__init__()
        self.armed, self.trap = armed, trap

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if Path(self.armed).exists():
            self.trap()
        return super().step(action)


def hang() -> None:
    while True:
        time.sleep(0.01)


def nap() -> None:
    time.sleep(0.15)


def die() -> None:
    os._exit(3)


def fail() -> None:
    raise RuntimeError("no state today")
