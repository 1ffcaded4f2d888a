"""Where a host environment stands, as bytes, and what is needed to read them again.

A snapshot holds the seeds of the last seeded reset, the actions since then, and what was seen last. To restore an
environment, it is reset with these seeds, the actions are replayed, and what it shows then is compared to the bit. An
environment that has `get_state()` and `set_state(state)` is asked for its state instead, and given it back.

Snapshots are data, in MessagePack: reading one runs nothing, and whatever has another form is refused with a
ValueError. Worker processes import this: it loads no JAX.
"""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass, field, fields
from typing import Any

import gymnasium
import msgpack
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

ARRAY, SCALAR, INTEGER = 1, 2, 3
"""MessagePack's numbers for what it does not know itself."""
DTYPE = re.compile(r"[<>|][biufcSU]\d{1,9}")
LARGEST_COUNT = 2**62
TOO_LONG, OFF, NO_STATE = "too long", "off", "no state"
REASONS = {
    TOO_LONG: "an episode is longer than the {limit:,} steps that are replayed (env.replay_limit)",
    OFF: "replaying is turned off (env.replay_limit=0)",
    NO_STATE: "get_state() failed, or returned something other than plain data",
}
"""Why a snapshot has nothing to restore from."""
BOOKKEEPING = (TimeLimit, OrderEnforcing, PassiveEnvChecker)
"""Wrappers that have nothing to restore but a count of steps."""


@dataclass(frozen=True)
class Snapshot:
    """Where one environment stands."""

    seed: int
    """The environment's contract seed."""
    episode: int
    """The number of its episode, from 0."""
    length: int
    """Steps of this episode."""
    total: int
    """Steps since the start."""
    restarts: int
    shown: list[np.ndarray]
    """What was seen last: observations, masks, who is there."""
    replay: list[Any] | None = None
    """The seeds of the action space and of the last seeded reset, the number of the episode that it began, the actions
    since then, and the sum of their rewards."""
    hook: bytes | None = None
    """What `hook_state` gives, encoded."""
    reason: str | None = None
    """With neither: why, a key of `REASONS`."""


@dataclass(slots=True)
class Recording:
    """What happened since the last seeded reset: all that a replay needs."""

    seeds: tuple[int, int] = (0, 0)
    """Of the action space, and of the reset."""
    episode: int = 0
    """The number of the episode that it began."""
    begun: int = 0
    """Steps before it."""
    until: int = -1
    """Steps, with those before, up to which actions are recorded."""
    actions: bytearray = field(default_factory=bytearray)
    rewards: float = 0.0
    """Their sum."""

    def plain(self) -> list[Any]:
        """As `Snapshot.replay` has it."""
        return [*self.seeds, self.episode, bytes(self.actions), self.rewards]


def pack(snapshot: Snapshot) -> bytes:
    return encode({part.name: getattr(snapshot, part.name) for part in fields(Snapshot)})


def unpack(data: bytes) -> Snapshot:
    """What `pack` wrote. Raises ValueError for anything else."""
    held = decode(data)
    if type(held) is not dict or held.keys() != {part.name for part in fields(Snapshot)}:
        raise ValueError("what was saved is no snapshot")
    snapshot = Snapshot(**held)
    counts = [snapshot.seed, snapshot.episode, snapshot.length, snapshot.total, snapshot.restarts]
    known = snapshot.reason is None or (type(snapshot.reason) is str and snapshot.reason in REASONS)
    fitting = (
        all(is_count(count) for count in counts)
        and type(snapshot.shown) is list
        and all(type(array) is np.ndarray for array in snapshot.shown)
        and (snapshot.replay is None or is_replay(snapshot.replay))
        and (snapshot.hook is None or type(snapshot.hook) is bytes)
        and known
        and [snapshot.replay, snapshot.hook, snapshot.reason].count(None) == 2
    )
    if not fitting:
        raise ValueError("its snapshot has a part that cannot be right")
    return snapshot


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST_COUNT


def is_replay(value: Any) -> bool:
    """Whether this is two seeds, a number, actions, and a sum of rewards."""
    if type(value) is not list or len(value) != 5:
        return False
    *counts, actions, total = value
    return all(map(is_count, counts)) and type(actions) is bytes and type(total) is float


# Environments that speak for themselves.


def find_hook(env: Any) -> Any:
    """The outermost object of an environment and its wrappers that has `get_state()` and `set_state(state)`, if nothing
    but bookkeeping is around it: what else is there would not be restored. None if there is none."""
    level = env
    while not has_hook(level):
        if type(level) not in BOOKKEEPING:
            return None
        level = level.env
    return level


def has_hook(level: Any) -> bool:
    """Whether its class has the two methods, to be called with nothing and with a state. MuJoCo's `set_state` takes
    positions and velocities, and is something else."""
    for name, number in (("get_state", 0), ("set_state", 1)):
        # Nothing here looks at `level.__dict__`: that alone would slow down every step of an environment in Python.
        if not callable(getattr(type(level), name, None)):
            return False
        try:
            parameters = inspect.signature(getattr(level, name)).parameters.values()
        except (TypeError, ValueError):
            return False
        starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if sum(one.default is one.empty and one.kind not in starred for one in parameters) != number:
            return False
    return True


def hook_state(env: Any, hook: Any) -> bytes:
    """What `hook` says of its state, and what most people forget: the random generator, and time limits."""
    generator = getattr(env.unwrapped, "_np_random", None)
    held = generator.bit_generator.state if isinstance(generator, np.random.Generator) else None
    return encode([hook.get_state(), held, [limit._elapsed_steps for limit in _time_limits(env)]])


def set_hook_state(env: Any, hook: Any, data: bytes) -> None:
    """Give back what `hook_state` read; raises ValueError where that does not lead to the same state."""
    state, held, elapsed = decode(data)
    hook.set_state(state)
    if held is not None:
        env.unwrapped._np_random.bit_generator.state = held
    for limit, steps in zip(_time_limits(env), elapsed, strict=True):
        limit._elapsed_steps = steps
    if hook_state(env, hook) != data:
        raise ValueError("get_state() returns something else than what set_state() was given")


def _time_limits(env: Any) -> list[Any]:
    found = []
    while isinstance(env, gymnasium.Wrapper):
        if type(env) is TimeLimit:
            found.append(env)
        env = env.env
    return found


# Plain data as bytes.


def encode(tree: Any) -> bytes:
    """None, numbers, texts, bytes, lists, dictionaries and NumPy arrays as bytes; tuples as lists. Anything else raises
    TypeError or ValueError."""
    packed: bytes = msgpack.packb(tree, default=_extended)
    return packed


def decode(data: bytes) -> Any:
    """What `encode` wrote. Raises ValueError for anything else."""
    try:
        return msgpack.unpackb(data, ext_hook=_read, strict_map_key=False)
    except Exception:  # whatever nonsense can lead to
        raise ValueError("its snapshot is no plain data") from None


def _extended(value: Any) -> msgpack.ExtType:
    if isinstance(value, np.ndarray | np.generic) and DTYPE.fullmatch(value.dtype.str):
        kind = ARRAY if isinstance(value, np.ndarray) else SCALAR
        return msgpack.ExtType(kind, msgpack.packb([value.dtype.str, value.shape, value.tobytes()]))
    if type(value) is int:
        return msgpack.ExtType(INTEGER, hex(value).encode())
    raise TypeError(f"a {type(value).__name__} is no plain data")


def _read(kind: int, data: bytes) -> Any:
    if kind == INTEGER:
        return int(data, 16)
    if kind not in (ARRAY, SCALAR):
        raise ValueError(f"there is no kind {kind}")
    array = _array(*msgpack.unpackb(data))  # which holds nothing of a kind of its own: that could be nested for ever
    return array if kind == ARRAY else array[()]


def _array(text: str, shape: list[int], raw: bytes) -> np.ndarray:
    if not DTYPE.fullmatch(text) or not all(is_count(size) for size in shape):
        raise ValueError("this is no array")
    dtype = np.dtype(text)
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise ValueError("the array is not as long as it should be")
    if dtype.kind == "b":
        return np.asarray(np.frombuffer(raw, np.uint8) != 0).reshape(shape)
    array: np.ndarray = np.frombuffer(raw, dtype).reshape(shape).copy()
    return array
