"""Environments for `test_host_state.py`: with much state, with a hook, with state that hides. They load no JAX."""

import enum
import itertools
import os
import random
import threading
import time
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
from gymnasium import spaces


class Phase(enum.Enum):
    EARLY = 1
    LATE = 2


Spot = namedtuple("Spot", "x y")


class Enemy:
    """Made during an episode; knows its world, which knows it."""

    def __init__(self, world, strength):
        self.world, self.strength = world, strength


class Slotted:
    __slots__ = ("__dict__", "count")

    def __init__(self):
        self.count = 0


class Base(gymnasium.Env):
    def __init__(self):
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = spaces.Discrete(3)
        self.total = 0.0
        self.clock = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.clock = 0
        return self.look(), {}

    def step(self, action):
        self.clock += 1
        self.total += self.draw() + action
        ended = self.clock >= 5 and self.np_random.random() < 0.2
        return self.look(), float(self.total % 1), bool(ended), False, {}

    def draw(self):
        return self.np_random.normal()

    def look(self):
        return np.array([self.total, self.clock, self.draw()])


class Wanderer(Base):
    """State of every kind that can be read, some of it held twice, some of it in circles."""

    def __init__(self):
        super().__init__()
        self.stream, self.old_stream = random.Random(3), np.random.RandomState(4)
        self.phase, self.spot, self.handler = Phase.EARLY, Spot(0, np.zeros(2)), self.gentle
        self.enemies, self.chosen = [], None
        self.recent, self.visited, self.counts = deque(maxlen=4), {0, (1, 2)}, Counter()
        self.sums, self.ordered = defaultdict(float), OrderedDict(a=[1])
        self.also_ordered = self.ordered["a"]
        self.slotted, self.box = Slotted(), SimpleNamespace(inner={"deep": [np.zeros((2, 2), np.float32)]})
        self.children = self.generator = None
        self.grid = np.zeros((3, 3), np.int16)
        self.lambda_ = lambda value: value + 1

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.generator = np.random.Generator(np.random.Philox(seed))
            self.stream.seed(seed)
        self.enemies, self.chosen, self.phase = [], None, Phase.EARLY
        return super().reset(seed=seed, options=options)

    def gentle(self, value):
        return value

    def draw(self):
        number = int(self.np_random.integers(10))
        self.enemies.append(Enemy(self, number + self.generator.random()))
        if self.chosen is None or number > 7:
            self.chosen = self.enemies[-1]
        self.chosen.strength += 0.25
        self.phase = Phase.LATE if number > 5 else Phase.EARLY
        self.spot = Spot(number, self.spot.y + number)
        self.recent.append(number)
        self.visited.add(number)
        self.counts[number] += 1
        self.sums[number] += self.old_stream.rand()
        self.also_ordered.append(number)
        del self.also_ordered[:-3]
        self.slotted.count += number
        self.box.inner["deep"][0][0] += number
        self.grid[number % 3] += 1
        found = [enemy.strength for enemy in self.enemies] + list(self.sums.values()) + sorted(self.visited - {(1, 2)})
        found += [*map(sum, self.ordered.values()), *self.recent, self.spot.x, *self.spot.y, self.slotted.count]
        found += [self.phase is Phase.LATE, float(self.box.inner["deep"][0].sum()), self.grid.sum()]
        found += [self.chosen.strength, self.lambda_(self.stream.gauss(0, 1)), self.action_space.sample()]
        return float(np.sum(found)) % 7 + self.np_random.spawn(1)[0].random()


class Hooked(Base):
    """What it is made of cannot be read, so it speaks for itself; but forgets its random numbers."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def get_state(self):
        return {"total": self.total, "clock": self.clock}

    def set_state(self, state):
        self.total, self.clock = state["total"], state["clock"]


class Locked(Base):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Forgetful(Hooked):
    def get_state(self):
        return {"total": 0.0, "clock": self.clock}


LEVEL = {"now": 0.0}


class Global(Base):
    """Keeps what a reset draws outside of itself."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        LEVEL["now"] = self.np_random.random()
        return self.look(), {}

    def look(self):
        return np.array([self.total, self.clock, LEVEL["now"]])


class Closure(Base):
    def __init__(self):
        super().__init__()
        numbers = itertools.count()
        self.next = lambda: next(numbers)

    def draw(self):
        return self.next()


class Unseeded(Base):
    def draw(self):
        return np.random.random()


class Shared(Base):
    def __init__(self):
        super().__init__()
        self.table = np.zeros(4)
        self.part = self.table[1:]


class Twins(Base):
    """Two generators over one stream of numbers."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.twin = np.random.Generator(self.np_random.bit_generator)
        return self.look(), {}


class Heavy(Base):
    """Five megabytes of state."""

    def __init__(self):
        super().__init__()
        self.memory = np.zeros(5 * 2**20 // 8)

    def draw(self):
        self.memory[int(self.np_random.integers(len(self.memory)))] += 1
        return float(self.memory[:: 2**10].sum()) + self.np_random.random()


class Trapped(Hooked):
    """Once the file `armed` is there, `trap` happens in environment 1 when its state is asked for."""

    def __init__(self, armed, trap):
        super().__init__()
        self.armed, self.trap = armed, trap

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.number = seed - 10_000
        return super().reset(seed=seed, options=options)

    def get_state(self):
        if self.number == 1 and Path(self.armed).exists():
            self.trap()
        return super().get_state()


def hang():
    while True:
        time.sleep(0.01)


def die():
    os._exit(3)


def fail():
    raise RuntimeError("no state today")
