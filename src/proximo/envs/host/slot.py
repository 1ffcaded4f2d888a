"""One host environment in its slot: stepped, reset in the same step, and watched.

What an environment does wrong is found here, in the process that runs it, and told as a `Fault`.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from proximo.envs.host.buffers import UNSAID, Buffers
from proximo.envs.host.rows import Misbehaved, Row, action_reader, choices, fitting_mask, read_mask
from proximo.envs.host.state import captured, decode, encode, restore
from proximo.envs.spec import EnvSpec
from proximo.spaces import Path, leaves

LARGEST_REWARD = float(np.finfo(np.float32).max)
CRITIC_STATE = "critic_state"
"""What critics see besides is called so, in the info of an environment."""
STATE_ASKED = "when its state was asked for or given back"


@dataclass(frozen=True)
class Outlook:
    """Where an agent's part is in what its environment reports."""

    key: Any
    """What the environment calls the agent."""
    inside: Path = ()
    """Where the observation is in what it is shown."""
    mask: str | None = None
    """Where its action masks come from: "info", "obs", or None."""


@dataclass(frozen=True)
class Reading:
    """How to read what an environment of many agents reports."""

    agents: Mapping[str, Outlook]
    turns: bool
    """Whether only the agent on turn acts."""


@dataclass(frozen=True)
class SlotOptions:
    """What the slots of a pool have in common."""

    spec: EnvSpec
    mask_source: str | None
    """Where action masks come from: "info", "obs", "method", or None."""
    limit: int | None
    """Steps after which an episode is cut."""
    max_restarts: int
    """How often a failed environment may be started anew."""
    reset_offset: int
    restart_stride: int
    reading: Reading | None = None
    """With many agents."""


@dataclass(frozen=True)
class Fault:
    """Something that an environment did wrong, in words."""

    env: int
    """Its number; negative where it is not known."""
    where: str
    what: str
    trace: str = ""


class Slot:
    """An environment of one agent, and its rows in the buffers."""

    def __init__(self, index: int, factory: Callable[[], Any], buffers: Buffers, options: SlotOptions):
        self.index = index
        self.factory = factory
        self.options = options
        self.env: Any = None
        self.length = 0  # steps of the running episode
        self.total = 0  # steps since the start
        self.restarts = 0
        self.seed = 0
        self.where = "start"
        self.reset_options: dict[str, Any] | None = None
        self._limit: int | None = None
        self._flagged = True
        self._buffers = buffers
        self._rows: list[Row] = []
        self._final_rows: list[Row] = []
        self._lay_out()

    def _lay_out(self) -> None:
        """Find this environment's places in the buffers."""
        index, options, buffers = self.index, self.options, self._buffers
        (group,), (own,) = options.spec.groups.values(), buffers.groups.values()
        self._own, self._reward, self._action_space = own, own.reward, group.action_space
        self._action = action_reader(group.action_space, own.action, index)
        self._choices = np.cumsum([0, *choices(group.action_space)])[:-1]  # where each one's flags start
        entries = [path for path, _ in leaves(group.observation_space)]
        self._rows = [Row(path, array, index) for path, array in zip(entries, own.obs, strict=True)]
        self._final_rows = [Row(path, array, index) for path, array in zip(entries, own.final_obs, strict=True)]
        space = options.spec.groups.critic_state_space
        judged = [] if space is None else [path for path, _ in leaves(space)]
        self._state_rows, self._final_state_rows = (
            [Row(path, array, index, CRITIC_STATE) for path, array in zip(judged, arrays, strict=True)]
            for arrays in (buffers.critic_state, buffers.final_critic_state)
        )
        self._says_more = bool(judged) or options.mask_source is not None

    def reset(self, seed: int) -> None:
        """Begin anew, with the random stream of `seed + index`."""
        self.seed = seed + self.index
        self.total = 0
        self._start(self.seed)

    def step(self) -> None:
        """Take the action in the buffers, and report; an episode that ends is followed by the next at once."""
        env = self.env
        if env is None:
            self.recover()
            return
        if self._flagged:
            self._lower_flags()
        self.where = "step"
        self.total += 1
        self.length = length = self.length + 1
        result = env.step(self._action())
        try:
            obs, reward, terminated, truncated, info = result
        except (TypeError, ValueError):
            raise Misbehaved(
                f"step must return five values (obs, reward, terminated, truncated, info), not {kind_of(result)}"
            ) from None
        self._reward[self.index] = reward_of(reward)
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated, truncated = flag_of(terminated, "terminated"), flag_of(truncated, "truncated")
        if length == self._limit and not terminated:
            truncated = True
        if terminated or truncated:
            obs, info = self._end(obs, terminated, truncated, info)
        for row in self._rows:
            row.write(obs)
        if self._says_more:
            self._show_more(obs, info)

    def _end(self, obs: Any, terminated: bool, truncated: bool, info: Any) -> tuple[Any, Any]:
        """Report the end of an episode, and begin the next."""
        index, own = self.index, self._own
        for row in self._final_rows:
            row.write(obs)
            row.check()
        self._flagged = True
        own.terminated[index] = terminated
        own.truncated[index] = truncated and not terminated
        self._buffers.reset[index] = True
        if not isinstance(info, dict):
            raise Misbehaved(f"step must return a dictionary as info, not {kind_of(info)}")
        for row in self._final_state_rows:
            row.write(critic_state(info))
            row.check()
        said = info.get("is_success")
        self._buffers.success[index] = UNSAID if said is None else bool(said)
        return self._begin(None)

    def _lower_flags(self) -> None:
        """What was reported of the last step holds no more. Most steps have nothing to report."""
        self._flagged = False
        own, index = self._own, self.index
        own.terminated[index] = False
        own.truncated[index] = False
        own.valid[index] = True
        self._buffers.reset[index] = False

    def check(self) -> None:
        """Look whether what was observed is made of finite numbers."""
        for row in (*self._rows, *self._state_rows):
            row.check()

    def recover(self) -> None:
        """Start the environment anew. The step counts for nothing, and ends an episode that counts for nothing."""
        self.close()
        self.restarts += 1
        self._start(self.seed + self.options.restart_stride * self.restarts)
        for row, final in zip(self._rows, self._final_rows, strict=True):
            final.array[...] = row.array
        for row, final in zip(self._state_rows, self._final_state_rows, strict=True):
            final.array[...] = row.array
        self._count_for_nothing()
        self._buffers.reset[self.index] = True
        self._flagged = True

    def _count_for_nothing(self) -> None:
        own, index = self._own, self.index
        own.reward[index] = 0
        own.terminated[index] = False
        own.truncated[index] = True
        own.valid[index] = False

    def get_state(self) -> bytes | None:
        """Where the environment and its counts are; None if the environment cannot be restored."""
        self.where = "state"
        try:
            state = None if self.env is None else self.captured()
        except TimeoutError:  # of the watch over it
            raise
        except Exception:
            state = None
        return None if state is None else encode([state, self.length, self.total, self.restarts, self.seed])

    def set_state(self, state: bytes | None) -> bool:
        """Go back to a state after a reset; whether that worked. None: give up the environment for a new one."""
        self.where = "state"
        try:
            if state is not None and self.env is not None:
                inner, *counts = decode(state)
                if type(inner) is not bytes or [type(count) for count in counts] != [int] * 4:
                    raise ValueError("this is no state of an environment")
                self.restore(inner)
                self.length, self.total, self.restarts, self.seed = counts
                self._flagged = True  # what the flags say is of the reset
                return True
        except (ValueError, TypeError):
            pass
        self.close()
        return False

    def captured(self) -> bytes:
        """Where the environment is; raises `Unsupported`, or what it raises itself, where that cannot be read."""
        return captured(self.env)

    def restore(self, state: bytes) -> None:
        """Put the environment there; raises ValueError where that fails."""
        restore(self.env, state)

    def close(self) -> None:
        """Close the environment; what goes wrong in that concerns nobody any more."""
        env, self.env = self.env, None
        with contextlib.suppress(Exception, SystemExit):
            if env is not None:
                env.close()

    def fault(self, error: BaseException) -> Fault:
        """What went wrong, where."""
        where = {
            "start": "when it was made",
            "reset": f"at a reset after {self.total:,} steps",
            "step": f"at step {self.total:,} (step {self.length:,} of its episode)",
            "state": STATE_ASKED,
        }[self.where]
        if isinstance(error, Misbehaved):
            return Fault(self.index, where, str(error))
        trace = "".join(traceback.format_exception(type(error), error, _without_ours(error.__traceback__)))
        return Fault(self.index, where, f"{type(error).__name__}: {error}".removesuffix(": "), trace)

    def _start(self, seed: int) -> None:
        self.where = "start"
        if self.env is None:
            self.env, limit = without_limit(self.factory())
            self._limit = min((n for n in (limit, self.options.limit) if n is not None), default=None)
        self._seed_actions(seed)
        self._show(*self._begin(seed + self.options.reset_offset))

    def _seed_actions(self, seed: int) -> None:
        self.env.action_space.seed(seed)

    def _show(self, obs: Any, info: Any) -> None:
        """Write what a reset or a step led to."""
        for row in self._rows:
            row.write(obs)
        self._show_more(obs, info)

    def _show_more(self, obs: Any, info: Any) -> None:
        """Write what there is besides observations."""
        for row in self._state_rows:
            row.write(critic_state(info))
        if self.options.mask_source is not None:
            self._write_mask(obs, info)

    def _begin(self, seed: int | None) -> tuple[Any, Any]:
        self.where = "reset"
        given: dict[str, Any] = {} if seed is None else {"seed": seed}
        if self.reset_options is not None:
            given["options"] = self.reset_options
        result = self.env.reset(**given)
        self.length = 0
        try:
            obs, info = result
        except (TypeError, ValueError):
            raise Misbehaved(f"reset must return two values (obs, info), not {kind_of(result)}") from None
        if not isinstance(info, dict):
            raise Misbehaved(f"reset must return (obs, info) with a dictionary as info, not {kind_of(info)}")
        return obs, info

    def _write_mask(self, obs: Any, info: Any) -> None:
        if self._own.action_mask is None:  # nothing is chosen among
            return
        given = read_mask(self.env, obs, info, self.options.mask_source)
        self._own.action_mask[self.index] = fitting_mask(self._action_space, given, self._choices)


def critic_state(info: Any) -> Any:
    """What only critics see, of what an environment says besides."""
    if not isinstance(info, dict) or CRITIC_STATE not in info:
        raise Misbehaved(f"info has no entry {CRITIC_STATE!r}, and the environment has a critic_state_space")
    return info[CRITIC_STATE]


def without_limit(env: Any) -> tuple[Any, int | None]:
    """An environment without the outer wrappers of `gymnasium.make`, and their time limit: the slot counts steps and
    keeps the order of calls itself, and wrappers cost time at every step."""
    limit = None
    if type(env) is TimeLimit:
        env, limit = env.env, env._max_episode_steps
    return (env.env if type(env) is OrderEnforcing else env), limit


def reward_of(reward: Any, whose: str = "") -> float:
    """A reward as it was given, if it is a number that can be learned from."""
    try:
        if type(reward) is not float and _is_text(reward):
            raise TypeError("even if it can be read as a number")
        number = float(reward)
    except (TypeError, ValueError):
        raise Misbehaved(f"the reward{whose} must be a number, not {kind_of(reward)}") from None
    if not -LARGEST_REWARD <= number <= LARGEST_REWARD:
        raise Misbehaved(f"the reward{whose} is {number}")
    return number


def _is_text(value: Any) -> bool:
    return isinstance(value, str | bytes | bytearray) or getattr(getattr(value, "dtype", None), "kind", None) in (
        "U",
        "S",
        "O",
    )


def flag_of(value: Any, name: str) -> bool:
    """What an environment says of an end, if it is a truth value, or 0 or 1 as a number."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (0, 1):
        raise Misbehaved(f"{name} must be True or False, not {kind_of(value)}")
    return bool(array.item())


def kind_of(value: Any) -> str:
    """A value in an error: its type, and its length where it has one."""
    name = type(value).__name__
    return f"a {name} of {len(value)}" if isinstance(value, tuple | list) else f"{name} {str(value)[:60]}"


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the environment's own code on, if it got there."""
    while trace and trace.tb_next and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    return trace
