"""Environments that one object steps together: a `HostEnv` over EnvPool's pools, and over vector environments."""

from __future__ import annotations

import abc
import contextlib
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from proximo.config import EnvConfig
from proximo.envs.api import Part, Timestep
from proximo.envs.groups import ONE
from proximo.envs.host.pool import Alarm, action_places, describe, timestep
from proximo.envs.host.shared_memory import UNSAID, Buffers, Layout, as_tree, private_memory
from proximo.envs.host.slot import CRITIC_STATE, LARGEST_NUMBER, Fault, in_words, same_bits, tracked_number
from proximo.envs.host.snapshot import NO_STATE, OFF, REASONS, TOO_LONG, Snapshot, pack, unpack
from proximo.envs.host.transfer import EnvContractError, Row, choices, fitting_mask
from proximo.envs.spec import EnvSpec
from proximo.errors import EnvError, ProximoError
from proximo.host_seeds import RESET_OFFSET, restart_seed
from proximo.spaces import Path, cast, leaves, pick
from proximo.types import PyTree


class Report(NamedTuple):
    """What N environments tell after a step or a reset, in their order: arrays [N, ...], or one value for all. Where an
    episode ended, `obs` may be the next one's, if `final_obs` is the true last one."""

    obs: Any
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False
    valid: Any = True
    """False: the action did not count, and there is nothing else to tell."""
    success: Any = UNSAID
    action_mask: Any = None
    """A sequence of N masks, each as `fitting_mask` takes them."""
    critic_state: Any = None
    final_obs: Any = None
    """None: as `obs`; and so is the next one."""
    final_critic_state: Any = None
    info: Any = None
    """[N, I] of the entries of infos that are tracked (`spec.info`), NaN where one is not there; None: of none."""


class Batch(abc.ABC):
    """Some environments that one object steps together."""

    saves = False
    """Whether `get_state` and `set_state` can be called."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.info_names: list[str] = []
        """What infos had, where some of it is tracked."""

    @abc.abstractmethod
    def reset(self, seed: int, options: dict[str, Any] | None) -> Report:
        """All of them at the start of an episode, the first one seeded `seed`, the next one `seed + 1`, and so on."""

    @abc.abstractmethod
    def send(self, action: Any) -> None: ...

    @abc.abstractmethod
    def recv(self) -> Report: ...

    @abc.abstractmethod
    def close(self) -> None: ...

    def taken_away(self) -> bool:
        """Whether somebody else has reset them since they were last reset from here."""
        return False

    def get_state(self) -> bytes:
        """Called only if it `saves`, and so is `set_state`."""
        raise TypeError(f"{type(self).__name__} saves nothing")

    def set_state(self, state: bytes) -> None:
        raise TypeError(f"{type(self).__name__} saves nothing")


class OneFailed(Exception):
    """One of the environments, of this number, did something wrong."""

    def __init__(self, env: int, what: str):
        super().__init__(what)
        self.env = env


class BatchedEnvs:
    """A `HostEnv` over one `Batch` for each of the `parts`, so that one is stepped while the policy looks at another.
    `open_batch` makes them, when they are first needed.

    Where they stand is known by replaying all of them together, from their last reset on: an object that resets its
    environments itself does not say with what.
    """

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        env: EnvConfig,
        parts: Sequence[slice],
        open_batch: Callable[[slice], Batch],
    ):
        self.spec = spec
        self.num_envs = num_envs
        self.notices: list[str] = []
        self.parts: tuple[Part, ...] = tuple((envs,) for envs in parts)
        self._envs = list(parts)
        self._open = open_batch
        self._replay_limit = env.replay_limit
        self._alarm = Alarm(env.timeout)
        self._batches: list[Batch] = []
        layout = Layout(spec, num_envs, 0)
        self._buffers = buffers = Buffers(layout, private_memory(layout))
        self._own = own = buffers.groups[ONE]
        self._choices = np.cumsum([0, *choices(spec.action_space)])[:-1]  # where each one's flags start
        seen = [path for path, _ in leaves(spec.observation_space)]
        judged = [] if spec.critic_state_space is None else [path for path, _ in leaves(spec.critic_state_space)]
        self._rows = self._each_row(seen, own.obs) + self._each_row(judged, buffers.critic_state, CRITIC_STATE)
        self._final_rows = self._each_row(seen, own.final_obs)
        self._final_rows += self._each_row(judged, buffers.final_critic_state, CRITIC_STATE)
        self._all = timestep(buffers, spec, slice(0, num_envs))
        self._views = [timestep(buffers, spec, envs) for envs in self._envs]
        self._actions = [action_places(buffers, spec, envs) for envs in self._envs]
        self._action_bytes = [
            array.reshape(num_envs, math.prod(array.shape[1:])).view(np.uint8) for array in own.action
        ]
        self._seed = self._restarts = 0
        self._options: dict[str, Any] | None = None
        # Since the last reset of all: steps, actions [N, bytes] of each part and step, sums of rewards.
        self._steps = [0] * len(self._envs)
        self._recorded: list[list[NDArray[Any]]] = [[] for _ in self._envs]
        self._first_episode = np.zeros(num_envs, np.int64)
        self._rewards = np.zeros(num_envs)
        self._length = np.zeros(num_envs, np.int64)

    @property
    def info_names(self) -> list[str]:
        return self._batches[0].info_names if self._batches else []

    def reset(self, seed: int, options: dict[str, Any] | None = None) -> Timestep:
        self._seed, self._options, self._restarts = seed, options, 0
        self._buffers.episode[...] = 0
        self._begin()
        return self._all

    def send(self, part: int, action: dict[str, PyTree]) -> None:
        given = {ONE: cast(self.spec.action_space, action[ONE])}
        for name, path, array in self._actions[part]:
            array[...] = pick(given[name], path)
        self._send(part)

    def recv(self, part: int) -> Timestep:
        batch, envs = self._batches[part], self._envs[part]
        if batch.taken_away():
            self._start_over()
            return self._views[part]
        self._steps[part] += 1
        with self._watched(f"step {self._steps[part]:,}"):
            self._take(part, batch.recv())
        own, ended = self._own, self._buffers.reset[envs]
        self._length[envs] = (self._length[envs] + own.valid[envs]) * ~ended
        self._buffers.episode[envs] += ended
        self._rewards[envs] += own.reward[envs]
        self.notices += batch.notices
        batch.notices.clear()
        return self._views[part]

    def get_states(self) -> list[bytes | None]:
        if any(batch.taken_away() for batch in self._batches):
            return [None] * self.num_envs
        hooks, reason = self._hooks()
        found: list[bytes | None] = []
        for part, envs in enumerate(self._envs):
            recorded = np.stack(self._recorded[part], axis=1) if self._recorded[part] else None  # [N, T, bytes]
            for env in range(envs.start, envs.stop):
                hook = replay = None
                if hooks and reason is None:
                    hook = hooks[part] if env == envs.start else b""
                elif reason is None:
                    seed, episode = restart_seed(self._seed, self._restarts) + env, int(self._first_episode[env])
                    actions = b"" if recorded is None else recorded[env - envs.start].tobytes()
                    replay = [seed, seed + RESET_OFFSET, episode, actions, float(self._rewards[env])]
                shown = [array.copy() for array in self._shown(env)]
                counts = (int(self._buffers.episode[env]), int(self._length[env]), self._steps[part], self._restarts)
                found.append(pack(Snapshot(self._seed + env, *counts, shown, replay, hook, reason)))
        return found

    def set_states(self, states: list[bytes]) -> bool:
        why: str | None = "there is not a snapshot for each of them"
        seed = self._seed
        if len(states) == self.num_envs and all(type(state) is bytes for state in states):
            try:
                why = self._restore([unpack(state) for state in states])
            except ValueError as error:
                why = str(error)
        if why is None:
            return True
        self.reset(seed, self._options)
        self.notices.append(f"The environment {self.spec.id} cannot be restored: {why}.")
        return False

    def close(self) -> None:
        for batch in self._batches:
            batch.close()
        self._batches = []
        self._alarm.close()

    def _each_row(self, paths: list[Path], arrays: list[NDArray[Any]], what: str = "observation") -> list[list[Row]]:
        """Of each entry the rows of each part."""
        return [
            [Row(path, array, envs, what) for envs in self._envs] for path, array in zip(paths, arrays, strict=True)
        ]

    def _begin(self) -> None:
        """Reset all environments, from the seeds of the restart that this is."""
        self._steps = [0] * len(self._envs)
        self._recorded = [[] for _ in self._envs]
        self._first_episode[...] = self._buffers.episode
        self._rewards[...] = self._length[...] = 0
        for part, envs in enumerate(self._envs):
            with self._watched("at a reset"):
                if len(self._batches) <= part:
                    self._batches.append(self._open(envs))
                seed = restart_seed(self._seed, self._restarts) + RESET_OFFSET + envs.start
                self._take(part, self._batches[part].reset(seed, self._options))

    def _start_over(self) -> None:
        """Begin new episodes after somebody else had the object; the step ends some that count for nothing."""
        self._restarts += 1
        self._buffers.episode[...] += 1
        self._begin()
        for rows, finals in zip(self._rows, self._final_rows, strict=True):
            for row, final in zip(rows, finals, strict=True):
                final.array[...] = row.array
        self._own.valid[...] = False
        self._own.truncated[...] = self._buffers.reset[...] = True

    def _send(self, part: int) -> None:
        """Hand over the actions in the buffers."""
        batch, envs = self._batches[part], self._envs[part]
        if batch.taken_away():
            return
        if self._steps[part] >= self._replay_limit or batch.saves:
            self._recorded[part].clear()
        else:
            self._recorded[part].append(np.concatenate([array[envs] for array in self._action_bytes], axis=1))
        with self._watched(f"step {self._steps[part] + 1:,}"):
            # Copies, because an environment may keep them.
            batch.send(as_tree(self.spec.action_space, [array[envs].copy() for array in self._own.action]))

    def _take(self, part: int, report: Report) -> None:
        """Write down what a part reports, if it is as it should be."""
        envs, own, buffers = self._envs[part], self._own, self._buffers
        num = envs.stop - envs.start
        valid = each(num, report.valid, "valid", "b")
        terminated = each(num, report.terminated, "terminated", "b") & valid
        truncated = each(num, report.truncated, "truncated", "b") & valid & ~terminated
        reward = np.where(valid, each(num, report.reward, "the reward", "biuf"), 0.0)
        self._check(envs, np.abs(reward) <= LARGEST_NUMBER, reward, "the reward")
        own.valid[envs], own.terminated[envs], own.truncated[envs] = valid, terminated, truncated
        own.reward[envs] = reward
        buffers.reset[envs] = ended = terminated | truncated
        buffers.success[envs] = np.where(ended, each(num, report.success, "is_success", "bi"), UNSAID)
        if self.spec.info:
            buffers.info[envs] = np.nan if report.info is None else np.where(valid[:, None], report.info, np.nan)
        over = bool(ended.any())
        last_obs = report.obs if report.final_obs is None else report.final_obs
        last_state = report.critic_state if report.final_critic_state is None else report.final_critic_state
        for rows, finals in zip(self._rows, self._final_rows, strict=True):
            judged = rows[part].what == CRITIC_STATE
            self._write(rows[part], report.critic_state if judged else report.obs, envs)
            if over:
                self._write(finals[part], last_state if judged else last_obs, envs)
        if own.action_mask is not None:
            for i in range(num):
                try:
                    given = None if report.action_mask is None else report.action_mask[i]
                    own.action_mask[envs.start + i] = fitting_mask(self.spec.action_space, given, self._choices)
                except EnvContractError as error:
                    raise OneFailed(envs.start + i, str(error)) from None

    def _write(self, row: Row, tree: Any, envs: slice) -> None:
        row.write(tree)
        if row.array.dtype.kind == "f":
            self._check(envs, np.isfinite(row.array), row.array, row.title)

    def _check(self, envs: slice, well: NDArray[Any], values: NDArray[Any], what: str) -> None:
        """Refuse values [N, ...] of which one is not as it should be."""
        if not well.all():
            first, *index = (int(number) for number in np.argwhere(~well)[0])
            where = f" at the index {index}" if index else ""
            raise OneFailed(envs.start + first, f"{what} is {values[(first, *index)]}{where}")

    @contextlib.contextmanager
    def _watched(self, where: str) -> Iterator[None]:
        """Whatever goes wrong here is told in words, and ends all."""
        try:
            with self._alarm:
                yield
        except ProximoError:
            self.close()
            raise
        except (Exception, SystemExit) as error:
            self.close()
            ours = isinstance(error, EnvContractError | OneFailed)
            number = error.env if isinstance(error, OneFailed) else -1
            fault = Fault(number, where, str(error) if ours else in_words(error))
            raise EnvError(describe(fault, self.spec), "" if ours else traceback.format_exc()) from None

    def _hooks(self) -> tuple[list[bytes], str | None]:
        """What the objects say of their states, if they do; and why there is nothing to restore from, if so."""
        if self._batches and all(batch.saves for batch in self._batches):
            try:
                return [batch.get_state() for batch in self._batches], None
            except TimeoutError:
                raise
            except Exception:
                return [], NO_STATE
        if max(self._steps) > self._replay_limit or not self._replay_limit:
            return [], TOO_LONG if self._replay_limit else OFF
        return [], None

    def _restore(self, snapshots: list[Snapshot]) -> str | None:
        """Put all environments where `snapshots` say, after a reset; why that cannot be done, or None."""
        first = snapshots[0]
        if first.reason is not None:
            return REASONS[first.reason].format(limit=self._replay_limit)
        for env, one in enumerate(snapshots):
            kinds = [(each.seed, each.total, each.restarts, each.replay is None) for each in (one, first)]
            alike = kinds[0] == (first.seed + env, *kinds[1][1:])
            forms = [(array.shape, array.dtype) for array in self._shown(env)]
            if not alike or [(array.shape, array.dtype) for array in one.shown] != forms:
                raise ValueError("its snapshots are of another environment")
        if (first.hook is not None) != all(batch.saves for batch in self._batches):
            raise ValueError("its snapshot was taken with other methods get_state() and set_state()")
        self._seed, self._restarts = first.seed, first.restarts
        if first.hook is not None:
            return self._take_back(snapshots)
        replays = [one.replay for one in snapshots if one.replay is not None]
        size = sum(array.shape[1] for array in self._action_bytes)
        if any(len(actions) != first.total * size for _, _, _, actions, _ in replays):
            raise ValueError("its snapshot has actions that it does not take")
        self._buffers.episode[...] = [episode for _, _, episode, _, _ in replays]
        self._begin()
        taken = np.stack([np.frombuffer(one[3], np.uint8).reshape(first.total, size) for one in replays])
        for t in range(first.total):
            start = 0
            for array in self._action_bytes:
                array[...] = taken[:, t, start : (start := start + array.shape[1])]
            for part in range(len(self._envs)):
                self._send(part)
            for part in range(len(self._envs)):
                self.recv(part)
        for env, one in enumerate(snapshots):
            same = (self._buffers.episode[env], self._length[env]) == (one.episode, one.length)
            if not same or self._rewards[env] != replays[env][4] or not same_bits(one.shown, self._shown(env)):
                return (
                    f"the same seed and the same {first.total:,} actions lead number {env} somewhere else, so it draws "
                    f"on something that its seed does not set, or that outlives a reset"
                )
        return None

    def _take_back(self, snapshots: list[Snapshot]) -> str | None:
        """Give the objects their own states back."""
        try:
            for batch, envs in zip(self._batches, self._envs, strict=True):
                batch.set_state(snapshots[envs.start].hook or b"")
        except TimeoutError:
            raise
        except Exception as error:
            return f"set_state() failed: {in_words(error)}"
        for env, one in enumerate(snapshots):
            for place, array in zip(self._shown(env), one.shown, strict=True):
                place[...] = array
            self._buffers.episode[env], self._length[env] = one.episode, one.length
        self._steps = [snapshots[0].total] * len(self._envs)
        return None

    def _shown(self, env: int) -> list[NDArray[Any]]:
        """What an environment shows, in the buffers."""
        mask = [] if self._own.action_mask is None else [self._own.action_mask]
        return [array[env, ...] for array in (*self._own.obs, *self._buffers.critic_state, *mask)]


def each(num: int, given: Any, what: str, kinds: str) -> NDArray[Any]:
    """One value for each of `num` environments, of one of the `kinds` of types."""
    array = np.asarray(given)
    if array.ndim == 0:
        array = np.full(num, array)
    if array.shape != (num,) or array.dtype.kind not in kinds:
        several = "; a wrapper can weigh and add several" if array.ndim == 2 and kinds != "b" else ""
        raise EnvContractError(
            f"{what} must be one for each of {num} environments, not {array.dtype} of the shape {array.shape}{several}"
        )
    return array


def info_table(names: Sequence[str], info: Mapping[str, Any], num: int) -> NDArray[Any]:
    """[N, I] of what is tracked of an info with arrays by name, as Gymnasium's vector environments have it, where a
    second array `_NAME` says who has the first; NaN where one is not there, or is no finite number."""
    table = np.full((num, len(names)), np.nan)
    for place, name in enumerate(names):
        if name not in info:
            continue
        values = np.asarray(info[name])
        if values.dtype == object:
            values = np.array([np.nan if one is None else tracked_number(name, one) for one in values.reshape(-1)])
        values = each(
            num, values.reshape(num) if values.size == num else values, f"info[{name!r}] (track.info)", "biuf"
        )
        there = np.asarray(info.get(f"_{name}", True)) & (np.abs(values.astype(np.float64)) <= LARGEST_NUMBER)
        table[:, place] = np.where(there, values, np.nan)
    return table
