"""One block of memory through which environments and the trainer exchange everything but signals."""

from __future__ import annotations

import math
import os
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proximo.envs.groups import Group
from proximo.envs.spec import EnvSpec
from proximo.spaces import build, leaves

ALIGNMENT = 64
UNSAID = -1
"""In `success`: the environment does not say."""
NOBODY = -1
MOST_NAMES = 4096
"""Bytes."""
PRESENCE = ("present", "alive", "acts")
"""Flags of agents that may be absent, see `LaneStep`."""
_atomic = threading.Lock()


def _renew() -> None:
    """In a process that was forked while another thread held the lock, nobody would ever give it back."""
    global _atomic
    _atomic = threading.Lock()


os.register_at_fork(after_in_child=_renew)


def fence() -> None:
    """Let other processes see everything that was written before they see anything that is written after, and see
    nothing old after this: taking a lock is an atomic operation, which does that on every processor."""
    with _atomic:
        pass


def stored_dtype(space: spaces.Space[Any]) -> np.dtype:
    """The type in which numbers of `space` are kept: JAX has no 64-bit ones."""
    dtype = np.dtype(space.dtype)
    if dtype.itemsize < 8:
        return dtype
    if isinstance(space, spaces.Box) and dtype.kind in "iu":
        narrow = np.iinfo(np.int32)
        if space.low.min(initial=0) < narrow.min or space.high.max(initial=0) > narrow.max:
            return np.dtype(np.float32)
    return np.dtype(np.float32 if dtype.kind == "f" else np.int32)


@dataclass(frozen=True)
class Layout:
    """Where each array stands in the block. Made anew, and equal, in every process that opens the block."""

    spec: EnvSpec
    num_envs: int
    num_workers: int

    def fields(self) -> list[tuple[str, tuple[int, ...], Any]]:
        envs, workers = (self.num_envs,), (max(self.num_workers, 1),)
        grouped = [
            (f"{number}/{field}", *form)
            for number, group in enumerate(self.spec.groups.values())
            for field, *form in self._of_group(group)
        ]
        state = self.spec.groups.critic_state_space
        judged = [
            (f"{name}{number}", envs + _shape(leaf), stored_dtype(leaf))
            for name in ("critic_state", "final_critic_state")
            for number, (_, leaf) in enumerate([] if state is None else leaves(state))
        ]
        return [
            *grouped,
            *judged,
            ("reset", envs, bool),
            ("success", envs, np.int8),
            ("info", (*envs, len(self.spec.info)), np.float32),
            ("info_names", (MOST_NAMES if self.spec.info else 0,), np.uint8),  # what infos had, a line for each entry
            ("episode", envs, np.int64),  # the number of each environment's episode
            ("heartbeat", workers, np.float64),  # when each worker last began something
            ("current_env", workers, np.int32),  # the environment that each worker is at
            ("command_count", workers, np.int64),  # how many commands each worker was given
            ("done_count", workers, np.int64),  # and how many of them it has done
            ("commands", (*workers, self.most_commands), np.int32),  # the nth at n modulo `most_commands`
            ("well", (*workers, self.most_commands), np.uint8),  # and whether it went well
            ("asleep", workers, np.uint8),  # which workers must be woken
            ("awaited", (1,), np.int32),  # the worker that must wake the trainer when it is done, or `NOBODY`
            ("seed", (1,), np.int64),
        ]

    def _of_group(self, group: Group) -> list[tuple[str, tuple[int, ...], Any]]:
        lanes = (self.num_envs * group.size,)
        observed = [
            (f"{name}{number}", lanes + _shape(leaf), stored_dtype(leaf))
            for name in ("obs", "final_obs")
            for number, (_, leaf) in enumerate(leaves(group.observation_space))
        ]
        acted = [
            (f"action{number}", lanes + _shape(leaf), leaf.dtype)
            for number, (_, leaf) in enumerate(leaves(group.action_space))
        ]
        masked = group.has_mask and 0 not in group.mask_shape
        mask = [("action_mask", lanes + group.mask_shape, bool)] if masked else []
        flags = ("terminated", "truncated", "valid", *(PRESENCE if self.spec.groups.many else ()))
        return [*observed, *acted, *mask, ("reward", lanes, np.float32), *((name, lanes, bool) for name in flags)]

    @property
    def most_commands(self) -> int:
        """That a worker can have been given and not done yet: one for each part, a reset, and one about states."""
        return self.num_envs + 2

    @property
    def size(self) -> int:
        return sum(_room(shape, dtype) for _, shape, dtype in self.fields())


def _shape(leaf: spaces.Space[Any]) -> tuple[int, ...]:
    assert leaf.shape is not None  # what has none was refused before
    return leaf.shape


def _room(shape: tuple[int, ...], dtype: Any) -> int:
    size: int = math.prod(shape) * np.dtype(dtype).itemsize
    return -(-size // ALIGNMENT) * ALIGNMENT


def aligned(block: NDArray[Any]) -> NDArray[Any]:
    """A block of bytes from where arrays may begin."""
    return block[-block.ctypes.data % ALIGNMENT :]


class GroupBuffers:
    """The arrays of one group of agents; leading axis: lanes."""

    def __init__(self, arrays: dict[str, NDArray[Any]], group: Group):
        self.obs = _leaf_arrays(arrays, "obs", group.observation_space)
        self.final_obs = _leaf_arrays(arrays, "final_obs", group.observation_space)
        self.action = _leaf_arrays(arrays, "action", group.action_space)
        self.action_mask = arrays.get("action_mask")
        self.reward = arrays["reward"]
        self.terminated = arrays["terminated"]
        self.truncated = arrays["truncated"]
        self.valid = arrays["valid"]
        self.present, self.alive, self.acts = (arrays.get(name) for name in PRESENCE)


class Buffers:
    """The arrays of a `Layout` over a block of memory: of groups, of environments (leading axis), of workers."""

    def __init__(self, layout: Layout, memory: Any):
        block, start = aligned(np.frombuffer(memory, np.uint8)), 0
        arrays: dict[str, NDArray[Any]] = {}
        for name, shape, dtype in layout.fields():
            used = math.prod(shape) * np.dtype(dtype).itemsize
            arrays[name] = block[start : start + used].view(dtype).reshape(shape)
            start += _room(shape, dtype)
        groups = layout.spec.groups
        self.groups = {
            name: GroupBuffers(_below(arrays, f"{number}/"), group)
            for number, (name, group) in enumerate(groups.items())
        }
        state = groups.critic_state_space
        self.critic_state = [] if state is None else _leaf_arrays(arrays, "critic_state", state)
        self.final_critic_state = [] if state is None else _leaf_arrays(arrays, "final_critic_state", state)
        self.observed = [
            array.reshape(layout.num_envs, -1, *array.shape[1:]) for own in self.groups.values() for array in own.obs
        ] + self.critic_state
        """Everything that is observed [E, ...], to be looked at."""
        self.reset = arrays["reset"]
        self.success = arrays["success"]
        self.info = arrays["info"]
        self.info_names = arrays["info_names"]
        self.episode = arrays["episode"]
        self.heartbeat = arrays["heartbeat"]
        self.current_env = arrays["current_env"]
        self.command_count = arrays["command_count"]
        self.done_count = arrays["done_count"]
        self.commands = arrays["commands"]
        self.well = arrays["well"]
        self.asleep = arrays["asleep"]
        self.awaited = arrays["awaited"]
        self.seed = arrays["seed"]


def _below(arrays: dict[str, NDArray[Any]], start: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}


def _leaf_arrays(arrays: dict[str, NDArray[Any]], name: str, space: spaces.Space[Any]) -> list[NDArray[Any]]:
    return [arrays[f"{name}{number}"] for number, _ in enumerate(leaves(space))]


def as_tree(space: spaces.Space[Any], arrays: list[NDArray[Any]]) -> Any:
    """Arrays, one per leaf, as a tree of the shape of `space`."""
    rest = iter(arrays)
    return build(space, lambda *_: next(rest))


def private_memory(layout: Layout) -> Any:
    return bytearray(layout.size + ALIGNMENT)
