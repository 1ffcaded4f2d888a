"""Whether environments can be restored: found out by restoring one."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from proximo.envs.host.rows import choices, read_mask
from proximo.envs.host.slot import SlotOptions, without_limit
from proximo.envs.host.state import captured, encode, restore
from proximo.envs.host.team_env import TeamEnv
from proximo.spaces import Path, build, to_mask

SECONDS = 2.0
STEPS_BEFORE, STEPS_AFTER, STEPS_OF_THE_NEXT, FEWEST = 20, 50, 8, 3


def obstacle(factory: Callable[[], Any], mask_source: str | None = None, many: SlotOptions | None = None) -> str | None:
    """Why environments that `factory` makes cannot be restored, in words; None if they can. `many`: their
    options, where they have many agents.

    One is played with, captured, and played on. Then another, reset with another seed, is given the state of the
    first, and must do the same to the bit. One after the other, so that what hides outside of them shows.
    """
    opened: list[Any] = []
    try:
        for _ in range(2):
            opened.append(without_limit(factory())[0] if many is None else TeamEnv(factory(), many))
        if many is not None and any(group.has_mask for group in many.spec.groups.values()):
            mask_source = "info"
        return _difference(opened[0], opened[1], mask_source)
    except (Exception, SystemExit) as error:
        return str(error) or type(error).__name__
    finally:
        for env in opened:
            with contextlib.suppress(Exception, SystemExit):
                env.close()


def _difference(one: Any, other: Any, mask_source: str | None) -> str | None:
    began = time.monotonic()
    first = Player(one, mask_source, seed=0)
    first.play(STEPS_BEFORE, began + 0.2 * SECONDS)
    state, mask, drawn = first.captured(), first.mask, first.random.bit_generator.state
    expected = first.play(STEPS_AFTER, began + 0.5 * SECONDS)
    following = first.restart() + first.play(STEPS_OF_THE_NEXT, began + 0.6 * SECONDS)

    second = Player(other, mask_source, seed=1)
    second.play(FEWEST, None)
    second.restore(state)
    second.mask, second.random.bit_generator.state = mask, drawn
    found = second.play(len(expected), None) + second.restart() + second.play(len(following) - 1, None)
    for number, pair in enumerate(zip(expected + following, found, strict=True)):
        if pair[0] != pair[1]:
            return f"it does something else {number + 1} steps later, so it keeps part of its state elsewhere"
    return None


class Player:
    """Steps an environment with random actions, of those that are allowed."""

    def __init__(self, env: Any, mask_source: str | None, seed: int):
        self.env = env
        self.mask: np.ndarray | None = None
        self.random = np.random.default_rng(0)
        self._mask_source = mask_source
        # A copy: the space's own generator is part of the environment's state.
        self._space = copy.deepcopy(env.action_space)
        env.action_space.seed(seed)
        self.see(*env.reset(seed=seed))

    def captured(self) -> bytes:
        return self.env.slot.captured() if isinstance(self.env, TeamEnv) else captured(self.env)

    def restore(self, state: bytes) -> None:
        if isinstance(self.env, TeamEnv):
            self.env.slot.restore(state)
        else:
            restore(self.env, state)

    def play(self, steps: int, until: float | None) -> list[bytes]:
        """What each step led to; not all of them if that takes longer than `until`."""
        seen = []
        for number in range(steps):
            if until is not None and number >= FEWEST and time.monotonic() > until:
                break
            obs, reward, terminated, truncated, info = self.env.step(self.action())
            said = [self.see(obs, info), encode([np.asarray(reward, float), bool(terminated), bool(truncated)])]
            if terminated or truncated:
                said += self.restart()
            seen.append(b"".join(said))
        return seen

    def restart(self) -> list[bytes]:
        """Begin an episode; what it looks like."""
        return [self.see(*self.env.reset())]

    def see(self, obs: Any, info: Any) -> bytes:
        """Take in what is allowed now; what there is to be seen."""
        if self._mask_source is not None:
            given = read_mask(self.env, obs, info, self._mask_source)
            self.mask = to_mask(self.env.action_space, given).reshape(-1)
        return encode([_bare(obs), self.mask])

    def action(self) -> Any:
        """The next action."""
        flags = iter(self._flags())

        def drawn(_: Path, leaf: spaces.Space) -> Any:
            picked = [int(self.random.choice(np.flatnonzero(next(flags)))) for _ in choices(leaf)]
            if isinstance(leaf, spaces.Discrete):
                return picked[0] + int(leaf.start)
            if isinstance(leaf, spaces.MultiDiscrete):
                return (np.reshape(picked, leaf.shape) + leaf.start).astype(leaf.dtype)
            if isinstance(leaf, spaces.MultiBinary):
                return np.reshape(picked, leaf.shape).astype(leaf.dtype)
            leaf._np_random = self.random
            return leaf.sample()

        return build(self._space, drawn)

    def _flags(self) -> list[np.ndarray]:
        """Which options each choice has."""
        sizes = choices(self._space)
        mask = np.ones(sum(sizes), bool) if self.mask is None else self.mask
        return np.split(mask, np.cumsum(sizes)[:-1])


def _bare(obs: Any) -> Any:
    """An observation without the classes that it came in."""
    if isinstance(obs, Mapping):
        return {str(key): _bare(value) for key, value in obs.items()}
    if isinstance(obs, tuple | list):
        return [_bare(value) for value in obs]
    return obs if obs is None or type(obs) in (bool, int, float, str) else np.asarray(obs)
