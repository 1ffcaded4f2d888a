"""Environments that misbehave where they are told to, for `test_faults.py`.

A fault is a function from what a step or a reset should return to what it does return, if it returns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

RESET_OFFSET, RESTART_STRIDE = 10_000, 1_000_003  # as in `proximo.seeding`, which would load JAX in every worker
SPACES = {
    "float": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "bounded": spaces.Box(-10.0, 10.0, (3,), np.float32),
    "bytes": spaces.Box(0, 200, (3,), np.uint8),
    "choice": spaces.Discrete(201),
}


class Faulty(gymnasium.Env[Any, Any]):
    """Shows its number in the pool, its step and a random number; every episode has `length` steps, each with reward 1.

    In environment `number`, `in_step` spoils step `at` (from 1, since the start), and `in_reset` the reset after `at`
    steps; only in these `generations`: 0 before it was first started anew. `seed` is the run's: by its seed one is
    known.
    While the file `armed` is there, no environment can be made: `in_making` happens instead.
    """

    def __init__(
        self,
        in_step: Callable[[Any], Any] | None = None,
        in_reset: Callable[[Any], Any] | None = None,
        number: int = 1,
        at: int = 3,
        length: int = 5,
        seed: int = 0,
        shown: str = "float",
        masked: bool = False,
        generations: Collection[int] = (0,),
        armed: Path | None = None,
        in_making: Callable[[Any], Any] | None = None,
        in_closing: Callable[[Any], Any] | None = None,
    ) -> None:
        if armed is not None and Path(armed).exists():
            assert in_making is not None
            in_making(armed)
        self.in_step, self.in_reset, self.in_closing = in_step, in_reset, in_closing
        self.faulty_number, self.at, self.length, self.base, self.generations = number, at, length, seed, generations
        self.shown, self.masked = shown, masked
        self.observation_space = SPACES[shown]
        self.action_space = spaces.Discrete(2)
        self.number = self.generation = self.total = self.count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.generation, self.number = divmod(seed - self.base - RESET_OFFSET, RESTART_STRIDE)
            self.total = 0
        self.count = 0
        result = (self.look(), self.info())
        return self.in_reset(result) if self.in_reset and self.now() else result

    def step(self, action: Any) -> Any:
        self.total += 1
        self.count += 1
        result = (self.look(action), 1.0, False, self.count == self.length, self.info())
        return self.in_step(result) if self.in_step and self.now() else result

    def now(self) -> bool:
        return self.number == self.faulty_number and self.total == self.at and self.generation in self.generations

    def close(self) -> None:
        if self.in_closing and self.number == self.faulty_number:
            self.in_closing(None)

    def look(self, action: Any = 0) -> Any:
        if self.shown == "choice":
            return int(self.np_random.integers(200))
        if self.shown == "bytes":
            return self.np_random.integers(200, size=3, dtype=np.uint8)
        return np.array([self.number / 10, self.total % 7, self.np_random.random() + np.sum(action)], np.float32)

    def info(self) -> dict[str, Any]:
        return {"action_mask": np.array([True, False])} if self.masked else {}


@dataclass(frozen=True)
class Replaced:
    """A fault: `value` in the place of one of the things that are returned."""

    place: int
    value: Any

    def __call__(self, result: Any) -> Any:
        return (*result[: self.place], self.value, *result[self.place + 1 :])


def raises(result: Any) -> None:
    raise ValueError("the wheel came off")


def raises_without_a_word(result: Any) -> None:
    raise NotImplementedError


def raises_at_length(result: Any) -> None:
    raise ValueError("long " * 200_000)


def exits(result: Any) -> None:
    sys.exit()


def hangs(result: Any) -> None:
    while True:
        time.sleep(0.01)


def dies(result: Any) -> None:
    os._exit(3)


def raises_once(armed: Path) -> None:
    try:
        Path(armed).unlink()
    except FileNotFoundError:  # another process was quicker
        return
    raise ValueError("the wheel came off")


def returns_four(result: Any) -> Any:
    obs, reward, terminated, truncated, info = result
    return obs, reward, terminated or truncated, info


def returns_obs(result: Any) -> Any:
    return result[0]


class Sleepy(Faulty):
    """Takes a while to be made, to be reset and to step; all within what is allowed."""

    SECONDS = 0.15

    def __init__(self, **keywords: Any) -> None:
        time.sleep(self.SECONDS)
        super().__init__(**keywords)

    def step(self, action: Any) -> Any:
        time.sleep(self.SECONDS)
        return super().step(action)


class TwoChoices(Faulty):
    """Masks a choice of two and a choice of three."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.action_space = spaces.MultiDiscrete([2, 3])

    def info(self) -> dict[str, Any]:
        return {"action_mask": np.array([True, True, False, True, False])}


@dataclass(frozen=True)
class Unpackable:
    """A factory that no other process gets to see: unpacking it calls `instead(*args)`."""

    instead: Any
    args: tuple[Any, ...]

    def __call__(self) -> Faulty:
        return Faulty()

    def __reduce__(self) -> tuple[Any, Any]:
        return self.instead, self.args


class Slow(Faulty):
    """Spends all its time in steps."""

    def step(self, action: Any) -> Any:
        time.sleep(0.02)
        return super().step(action)


class Threaded(Faulty):
    """Has a thread that nothing ends."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        threading.Thread(target=time.sleep, args=[1000], name="endless").start()


class Helped(Faulty):
    """Has a program of its own, which it terminates when it is closed."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.helper = subprocess.Popen(["sleep", "1000"])

    def close(self) -> None:
        self.helper.terminate()
        self.helper.wait()


gymnasium.register("Fine-v0", "faulty:Faulty")
gymnasium.register("Slow-v0", "faulty:Slow")
gymnasium.register("Threaded-v0", Threaded)
gymnasium.register("Crash-v0", "faulty:Faulty", kwargs={"in_step": raises, "at": 80, "number": 2})
gymnasium.register("Hang-v0", "faulty:Faulty", kwargs={"in_step": hangs, "at": 80, "number": 2})
