"""One host environment in its slot: stepped, reset in the same step, and watched.

What an environment does wrong is found here, in the process that runs it, and told as a `Fault`.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan
from types import TracebackType
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from proximo.envs.host.bounds import outside
from proximo.envs.host.shared_memory import UNSAID, Buffers
from proximo.envs.host.snapshot import (
    NO_STATE,
    OFF,
    REASONS,
    TOO_LONG,
    Recording,
    Snapshot,
    find_hook,
    hook_state,
    pack,
    set_hook_state,
    unpack,
)
from proximo.envs.host.transfer import EnvContractError, Row, action_reader, choices, fitting_mask, read_mask
from proximo.envs.spec import EnvSpec
from proximo.host_seeds import RESET_OFFSET, SEED_INTERVAL, episode_seed, restart_seed
from proximo.spaces import Path, leaves

LARGEST_NUMBER = float(np.finfo(np.float32).max)
CRITIC_STATE = "critic_state"
"""What critics see besides is called so, in the info of an environment."""
STATE_ASKED = "when its state was asked for or given back"
LONGEST = 200
"""Letters of an environment's error in a sentence."""


@dataclass(frozen=True)
class AgentFields:
    """Where an agent's part is in what its environment reports."""

    key: Any
    """What the environment calls the agent."""
    inside: Path = ()
    """Where the observation is in what it is shown."""
    mask: str | None = None
    """Where its action masks come from: "info", "obs", or None."""


@dataclass(frozen=True)
class MultiAgentLayout:
    """How to read what an environment of many agents reports."""

    agents: Mapping[str, AgentFields]
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
    max_restarts: int = 0
    """How often a failed environment may be started anew."""
    replay_limit: int = 0
    """Steps that are replayed, at most, to restore an environment."""
    agent_layout: MultiAgentLayout | None = None
    """With many agents."""


@dataclass(frozen=True)
class Fault:
    """Something that an environment did wrong, in words."""

    env: int
    """Its number; negative where it is not known."""
    where: str
    what: str
    trace: str = ""


class InfoRow:
    """Where the entries of an environment's info that are tracked are written: NaN where one is not there, or is no
    finite number."""

    def __init__(self, names: tuple[str, ...], row: np.ndarray, seen: np.ndarray | None):
        """`seen` is where all names are written that infos have, if this environment is the one to tell."""
        self._names, self._row = names, row
        self._seen, self._known = seen, set[str]()

    def write(self, info: Any) -> None:
        if not isinstance(info, dict):
            raise not_a_dictionary(info)
        for place, name in enumerate(self._names):
            value = info.get(name)
            self._row[place] = np.nan if value is None else tracked_number(name, value)

    def write_means(self, infos: Mapping[Any, Any]) -> None:
        """Of many agents: of each entry, the mean over those who have it."""
        told = [info for info in infos.values() if isinstance(info, Mapping)]
        for place, name in enumerate(self._names):
            each = [tracked_number(name, info[name]) for info in told if info.get(name) is not None]
            known = [number for number in each if not isnan(number)]
            self._row[place] = sum(known) / len(known) if known else np.nan

    def note_names(self, info: Mapping[Any, Any]) -> None:
        """Write down what an info has, for a user who has named something else."""
        if self._seen is None or self._known >= (names := set(map(str, info))):
            return
        self._known |= names
        text = "\n".join(sorted(self._known)).encode()[: len(self._seen)]
        self._seen[: len(text)] = np.frombuffer(text, np.uint8)


class Slot:
    """An environment of one agent, and its rows in the buffers."""

    def __init__(self, index: int, factory: Callable[[], Any], buffers: Buffers, options: SlotOptions):
        self.index = index
        self.factory = factory
        self.options = options
        self.env: Any = None
        self.episode = -1  # the number of the running episode
        self.length = 0  # its steps
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
        self._hook: Any = None  # what can save and restore the environment, if there is something
        self._recording = Recording()
        names = options.spec.info
        seen = buffers.info_names if index == 0 else None
        self._info = InfoRow(names, buffers.info[index], seen) if names else None
        self._lay_out()
        self._action_bytes = [own_bytes(array) for array in self._own_actions()]

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

    def _own_actions(self) -> list[np.ndarray]:
        """The actions of this environment in the buffers, leaf by leaf."""
        return [array[self.index : self.index + 1] for array in self._own.action]

    def reset(self, seed: int) -> None:
        """Begin anew, with the random stream of `seed + index`."""
        self.seed = seed + self.index
        self.total = 0
        self.episode = -1
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
        self.total = total = self.total + 1
        self.length = length = self.length + 1
        recording = self._recording
        if total <= recording.until:
            actions = recording.actions
            for part in self._action_bytes:
                actions += part
        result = env.step(self._action())
        try:
            obs, reward, terminated, truncated, info = result
        except (TypeError, ValueError):
            raise EnvContractError(
                f"step must return five values (obs, reward, terminated, truncated, info), not {kind_of(result)}"
            ) from None
        self._reward[self.index] = number = reward_of(reward)
        recording.rewards += number
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated, truncated = flag_of(terminated, "terminated"), flag_of(truncated, "truncated")
        if self._info is not None:
            self._info.write(info)
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
            raise not_a_dictionary(info)
        for row in self._final_state_rows:
            row.write(critic_state(info))
            row.check()
        if self._info is not None:
            self._info.note_names(info)
        said = info.get("is_success")
        self._buffers.success[index] = UNSAID if said is None else bool(said)
        return self._begin_next()

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
        self._start(restart_seed(self.seed, self.restarts))
        for row, final in zip(self._rows, self._final_rows, strict=True):
            final.array[...] = row.array
        for row, final in zip(self._state_rows, self._final_state_rows, strict=True):
            final.array[...] = row.array
        self._count_for_nothing()
        self._buffers.info[self.index] = np.nan
        self._buffers.reset[self.index] = True
        self._flagged = True

    def _count_for_nothing(self) -> None:
        own, index = self._own, self.index
        own.reward[index] = 0
        own.terminated[index] = False
        own.truncated[index] = True
        own.valid[index] = False

    def get_state(self) -> bytes | None:
        """A snapshot of where the environment stands; None if it is lost."""
        self.where = "state"
        if self.env is None:
            return None
        replay, hook, reason = None, None, None
        if self._hook is not None:
            try:
                hook = hook_state(self.env, self._hook)
            except TimeoutError:  # of the watch over it
                raise
            except Exception:
                reason = NO_STATE
        elif self.total <= self._recording.until:
            replay = self._recording.plain()
        else:
            reason = TOO_LONG if self.options.replay_limit else OFF
        shown = [array.copy() for array in self._shown()]
        counts = (self.seed, self.episode, self.length, self.total, self.restarts)
        return pack(Snapshot(*counts, shown, replay, hook, reason))

    def set_state(self, state: bytes | None, alive: Callable[[], None]) -> bool | str:
        """Go where a snapshot says, after a reset; True, or why that cannot be done. `alive` is called before each
        step. Without a state, or where it fails, the environment is given up for a new one."""
        self.where = "state"
        why: str | None = "it was lost"
        if state is not None and self.env is not None:
            try:
                why = self._restore(unpack(state), alive)
            except ValueError as error:
                why = str(error)
        if why is None:
            return True
        self.close()
        return why

    def _restore(self, snapshot: Snapshot, alive: Callable[[], None]) -> str | None:
        """Put the environment where `snapshot` says; why that cannot be done, or None. Raises ValueError where the
        snapshot cannot be one of this environment."""
        if snapshot.reason is not None:
            return REASONS[snapshot.reason].format(limit=self.options.replay_limit)
        places = self._shown()
        if [(a.shape, a.dtype) for a in snapshot.shown] != [(a.shape, a.dtype) for a in places]:
            raise ValueError("its snapshot is one of another environment")
        if (snapshot.hook is None) != (self._hook is None):
            raise ValueError("its snapshot was taken with other methods get_state() and set_state()")
        actions = None if snapshot.replay is None else self._as_actions(snapshot.replay[3])
        try:
            if actions is None:
                self._take_back(snapshot)
            else:
                self._replay(snapshot, actions, alive)
        except TimeoutError:
            raise
        except (Exception, SystemExit) as error:
            return f"{'set_state() failed' if actions is None else 'replaying failed'}: {in_words(error)}"
        finally:
            self.where = "state"
        recording = self._recording
        same = self.episode == snapshot.episode and self.length == snapshot.length
        same = same and same_bits(snapshot.shown, self._shown())
        if not same or (actions is not None and recording.plain() != snapshot.replay):
            return (
                f"the same seed and the same {self.total:,} actions lead number {self.index} somewhere else, so it "
                f"draws on something that its seed does not set, or that outlives a reset"
            )
        self.seed, self.restarts = snapshot.seed, snapshot.restarts
        earlier = snapshot.total - self.total
        self.total, recording.begun, recording.until = (
            number + earlier for number in (self.total, recording.begun, recording.until)
        )
        self._flagged = True  # what the flags say is of the replay
        return None

    def _take_back(self, snapshot: Snapshot) -> None:
        """Give the environment its own state back."""
        assert snapshot.hook is not None
        set_hook_state(self.env, self._hook, snapshot.hook)
        self._show_again(snapshot.shown)
        self._buffers.episode[self.index] = self.episode = snapshot.episode
        self.length = snapshot.length

    def _replay(self, snapshot: Snapshot, actions: np.ndarray, alive: Callable[[], None]) -> None:
        """Reset with the seeds of a snapshot, and take its actions [T, bytes] again."""
        assert snapshot.replay is not None
        action_seed, reset_seed, episode = snapshot.replay[:3]
        self.total = 0
        self.episode = episode - 1
        alive()
        self._show(*self._begin_seeded(action_seed, reset_seed))
        for action in actions:
            start = 0
            for part in self._action_bytes:
                part[:] = action[start : start + len(part)].data
                start += len(part)
            alive()
            self.step()

    def _as_actions(self, given: bytes) -> np.ndarray:
        """The bytes of actions [T, bytes]; raises ValueError where this environment does not take such actions. Of
        continuous ones it is only asked that they are finite."""
        size = sum(len(part) for part in self._action_bytes)
        steps, rest = divmod(len(given), size)
        actions, start = np.frombuffer(given[: steps * size], np.uint8).reshape(steps, size), 0
        fits = not rest and steps <= self.options.replay_limit
        for space, array in zip(self._action_leaves(), self._own_actions(), strict=True):
            values = actions[:, start : start + array.nbytes].copy().view(array.dtype).reshape(steps, *array.shape)
            start += array.nbytes
            fits &= bool(np.isfinite(values).all()) if array.dtype.kind == "f" else outside(space, values) is None
        if not fits:
            raise ValueError("its snapshot has actions that it does not take")
        return actions

    def _action_leaves(self) -> list[spaces.Space[Any]]:
        """The spaces of `_own_actions`."""
        return [leaf for _, leaf in leaves(self._action_space)]

    def _shown(self) -> list[np.ndarray]:
        """What the environment shows, in the buffers."""
        mask = self._own.action_mask
        return [row.array for row in (*self._rows, *self._state_rows)] + ([] if mask is None else [mask[self.index]])

    def _show_again(self, shown: list[np.ndarray]) -> None:
        for place, array in zip(self._shown(), shown, strict=True):
            place[...] = array

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
        if isinstance(error, EnvContractError):
            return Fault(self.index, where, str(error))
        trace = "".join(traceback.format_exception(type(error), error, _without_ours(error.__traceback__)))
        return Fault(self.index, where, f"{type(error).__name__}: {error}".removesuffix(": "), trace)

    def _start(self, seed: int) -> None:
        self.where = "start"
        if self.env is None:
            self.env, limit = without_limit(self.factory())
            self._limit = min((n for n in (limit, self.options.limit) if n is not None), default=None)
            self._hook = find_hook(self.env)
        self._show(*self._begin_seeded(seed, seed + RESET_OFFSET))

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

    def _begin_next(self) -> tuple[Any, Any]:
        """Begin the episode after another. If the last seed was given long ago, it gets one of its own, from where it
        can be replayed."""
        if self._hook is not None or self.total - self._recording.begun < SEED_INTERVAL:
            return self._begin(None)
        number = self.episode + 1
        return self._begin_seeded(episode_seed(self.seed, number), episode_seed(self.seed + RESET_OFFSET, number))

    def _begin_seeded(self, action_seed: int, reset_seed: int) -> tuple[Any, Any]:
        """Begin an episode from which a replay can start."""
        limit = 0 if self._hook is not None else self.options.replay_limit
        until = self.total + limit if limit else -1
        self._recording = Recording((action_seed, reset_seed), self.episode + 1, self.total, until)
        self._seed_actions(action_seed)
        return self._begin(reset_seed)

    def _begin(self, seed: int | None) -> tuple[Any, Any]:
        self.where = "reset"
        self.episode = number = self.episode + 1
        self._buffers.episode[self.index] = number  # for the process that may have to replace this one
        given: dict[str, Any] = {} if seed is None else {"seed": seed}
        if self.reset_options is not None:
            given["options"] = self.reset_options
        result = self.env.reset(**given)
        self.length = 0
        try:
            obs, info = result
        except (TypeError, ValueError):
            raise EnvContractError(f"reset must return two values (obs, info), not {kind_of(result)}") from None
        if not isinstance(info, dict):
            raise EnvContractError(f"reset must return (obs, info) with a dictionary as info, not {kind_of(info)}")
        return obs, info

    def _write_mask(self, obs: Any, info: Any) -> None:
        if self._own.action_mask is None:  # nothing is chosen among
            return
        given = read_mask(self.env, obs, info, self.options.mask_source)
        self._own.action_mask[self.index] = fitting_mask(self._action_space, given, self._choices)


def critic_state(info: Any) -> Any:
    """What only critics see, of what an environment says besides."""
    if not isinstance(info, dict) or CRITIC_STATE not in info:
        raise EnvContractError(f"info has no entry {CRITIC_STATE!r}, and the environment has a critic_state_space")
    return info[CRITIC_STATE]


def without_limit(env: Any) -> tuple[Any, int | None]:
    """An environment without the outer wrappers of `gymnasium.make`, and their time limit: the slot counts steps and
    keeps the order of calls itself, and wrappers cost time at every step."""
    limit = None
    if type(env) is TimeLimit:
        env, limit = env.env, env._max_episode_steps
    return (env.env if type(env) is OrderEnforcing else env), limit


def own_bytes(array: np.ndarray) -> memoryview:
    """An array's memory, to be read and written byte by byte."""
    return array.reshape(-1).view(np.uint8).data


def same_bits(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


def in_words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".removesuffix(": ").split())[:LONGEST]


def tracked_number(name: str, value: Any) -> float:
    """An entry of an info that is tracked; NaN if it is no finite number."""
    try:
        if type(value) is not float and _is_text(value):
            raise TypeError("even if it can be read as a number")
        number = float(value.item() if type(value) is np.ndarray and value.size == 1 else value)
    except OverflowError:
        return np.nan
    except (TypeError, ValueError):
        raise EnvContractError(
            f"info[{name!r}] must be a number to be tracked (track.info), not {kind_of(value)}"
        ) from None
    return number if -LARGEST_NUMBER <= number <= LARGEST_NUMBER else np.nan


def not_a_dictionary(info: Any) -> EnvContractError:
    return EnvContractError(f"step must return a dictionary as info, not {kind_of(info)}")


def reward_of(reward: Any, whose: str = "") -> float:
    """A reward as it was given, if it is a number that can be learned from."""
    try:
        if type(reward) is not float and _is_text(reward):
            raise TypeError("even if it can be read as a number")
        number = float(reward)
    except (TypeError, ValueError):
        several = not _is_text(reward) and np.ndim(reward) > 0 and np.size(reward) > 1
        hint = "; a wrapper can weigh and add several" if several else ""
        raise EnvContractError(f"the reward{whose} must be a number, not {kind_of(reward)}{hint}") from None
    if not -LARGEST_NUMBER <= number <= LARGEST_NUMBER:
        raise EnvContractError(f"the reward{whose} is {number}")
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
        raise EnvContractError(f"{name} must be True or False, not {kind_of(value)}")
    return bool(array.item())


def kind_of(value: Any) -> str:
    """A value in an error: its type, and its length where it has one."""
    name = type(value).__name__
    return f"a {name} of {len(value)}" if isinstance(value, tuple | list) else f"{name} {str(value)[:60]}"


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the environment's own code on, if it got there: what comes after our last line."""
    theirs = trace
    while trace:
        if trace.tb_frame.f_globals.get("__package__") == __package__:
            theirs = trace.tb_next or trace
        trace = trace.tb_next
    return theirs
