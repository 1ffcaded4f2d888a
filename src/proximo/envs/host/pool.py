"""AsyncEnvPool: N host environments, in this process or in others."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable
from math import inf
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from proximo.config import EnvConfig
from proximo.envs.api import LaneStep, Part, Timestep, envs_of, lanes_of
from proximo.envs.groups import Group
from proximo.envs.host.shared_memory import Buffers, GroupBuffers, Layout, as_tree, private_memory
from proximo.envs.host.slot import Fault, MultiAgentLayout, Slot, SlotOptions
from proximo.envs.host.slot_group import SlotGroup, make_slot
from proximo.envs.host.workers import ProcessBackend
from proximo.envs.spec import EnvSpec
from proximo.errors import EnvError
from proximo.spaces import Path, leaves, pick
from proximo.types import PyTree


@runtime_checkable
class Backend(Protocol):
    """Who steps the environments."""

    buffers: Buffers

    def begin(self, command: int) -> None: ...

    def set_options(self, options: dict[str, Any] | None) -> list[Fault]:
        """What every `reset` is given from now on; what went wrong."""
        ...

    def finish(self, command: int) -> list[Fault]: ...

    def exchange_states(self, given: dict[int, Any]) -> tuple[dict[int, Any], list[Fault]]:
        """Give environments the states that `given` has for them, and ask for those of the others: what
        `Slot.set_state` and `Slot.get_state` answer, without those that failed, and what went wrong."""
        ...

    def close(self) -> None: ...


class AsyncEnvPool:
    """A `HostEnv` over single environments that `factory` makes.

    With `workers` processes, parts of the environments are served in turns: while one is stepped, the policy looks at
    another. Without, they are stepped together, here. Either way the numbers are the same.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        spec: EnvSpec,
        num_envs: int,
        env: EnvConfig,
        workers: int = 0,
        mask_source: str | None = None,
        agent_layout: MultiAgentLayout | None = None,
    ):
        self.spec = spec
        self.num_envs = num_envs
        self.notices: list[str] = []
        """What the user should know, in sentences; whoever shows them takes them away."""
        self._restarts = 0
        self._reset_options: dict[str, Any] | None = None
        self._env = env
        groups = split_parts(num_envs, env.groups)
        options = SlotOptions(
            spec=spec,
            mask_source=mask_source,
            limit=env.max_steps_per_episode,
            max_restarts=env.max_restarts if env.on_error == "restart" else 0,
            replay_limit=env.replay_limit,
            agent_layout=agent_layout,
        )
        workers = min(workers, num_envs)
        layout = Layout(spec, num_envs, workers)
        self._backend: Backend
        if workers:
            self.parts: tuple[Part, ...] = tuple((group,) for group in groups)
            ranges = [range(group.start, group.stop) for group in groups]
            self._backend = ProcessBackend(factory, layout, options, ranges, env.timeout, env.start_method)
        else:
            self.parts = (tuple(groups),)
            self._backend = InProcessBackend(factory, layout, options, env.timeout)
        self._buffers = self._backend.buffers
        self._actions = [action_places(self._buffers, spec, envs_of(part)) for part in self.parts]
        self._all = timestep(self._buffers, spec, slice(0, num_envs))
        self._views = [timestep(self._buffers, spec, envs_of(part)) for part in self.parts]

    @property
    def info_names(self) -> list[str]:
        return bytes(self._buffers.info_names).rstrip(b"\0").decode(errors="ignore").splitlines()

    def reset(self, seed: int, options: dict[str, Any] | None = None) -> Timestep:
        buffers = self._buffers
        buffers.seed[0] = seed
        if options != self._reset_options:
            self._reset_options = options
            self._judge(self._backend.set_options(options))
        self._backend.begin(len(self.parts))
        self._judge(self._backend.finish(len(self.parts)))
        # Also where an environment had to be started anew: nothing was lost.
        buffers.reset[...] = False
        for own in buffers.groups.values():
            own.terminated[...] = own.truncated[...] = False
            own.valid[...] = True
            if own.present is not None:
                own.present[...] = own.alive
        return self._all

    def send(self, part: int, action: dict[str, PyTree]) -> None:
        for name, path, array in self._actions[part]:
            array[...] = pick(action[name], path)
        self._backend.begin(part)

    def recv(self, part: int) -> Timestep:
        faults = self._backend.finish(part)
        if faults:
            self._judge(faults)
        return self._views[part]

    def get_states(self) -> list[bytes | None]:
        answers, faults = self._backend.exchange_states({})
        self._judge(faults)
        return [answers.get(index) for index in range(self.num_envs)]

    def set_states(self, states: list[bytes]) -> bool:
        why_not = "there is not a snapshot for each of them"
        if len(states) == self.num_envs and all(type(state) is bytes for state in states):
            answers, faults = self._backend.exchange_states(dict(enumerate(states)))
            self._judge(faults)
            unlike = [answers.get(index) for index in range(self.num_envs) if answers.get(index) is not True]
            if not unlike:
                return True
            why_not = unlike[0] or "it failed"
            self._judge(self._backend.exchange_states(dict.fromkeys(range(self.num_envs)))[1])
            self.reset(int(self._buffers.seed[0]), self._reset_options)
        self.notices.append(f"The environment {self.spec.id} cannot be restored: {why_not}.")
        return False

    def close(self) -> None:
        self._backend.close()

    def __enter__(self) -> AsyncEnvPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _judge(self, faults: list[Fault]) -> None:
        """Go on after faults as long as the settings allow; otherwise end, in words."""
        for fault in faults:
            sentence = describe(fault, self.spec)
            self._restarts += 1
            if self._env.on_error == "stop" or fault.env < 0:  # without environments there is nothing to start anew
                self.close()
                raise EnvError(sentence, fault.trace)
            if self._restarts > self._env.max_restarts:
                self.close()
                limit = f"It was restart {self._restarts:,}, and env.max_restarts allows {self._env.max_restarts:,}."
                raise EnvError(f"{sentence} {limit}", fault.trace)
            self.notices.append(f"{sentence} It was started anew; that episode is left out.")


class InProcessBackend:
    """Steps all environments in this process, when asked."""

    def __init__(self, factory: Callable[[], Any], layout: Layout, options: SlotOptions, timeout: float):
        self.buffers = Buffers(layout, private_memory(layout))
        slots = [make_slot(index, factory, self.buffers, options) for index in range(layout.num_envs)]
        self._faults: list[Fault] = []
        self._slot_group = SlotGroup(slots, self.buffers, self._faults.append)
        self._alarm = Alarm(timeout)

    def begin(self, command: int) -> None:
        with self._alarm:
            if command == 0:
                self._slot_group.do(self._step)
            else:
                self._slot_group.do(self._reset)

    def set_options(self, options: dict[str, Any] | None) -> list[Fault]:
        for slot in self._slot_group.slots:
            slot.reset_options = options
        return []

    def finish(self, command: int) -> list[Fault]:
        if not self._faults:
            return []
        faults = list(self._faults)
        self._faults.clear()
        return faults

    def _step(self, slot: Slot) -> None:
        self._alarm.since = Alarm.ticks  # each has the time to itself
        slot.step()

    def exchange_states(self, given: dict[int, Any]) -> tuple[dict[int, Any], list[Fault]]:
        answers: dict[int, Any] = {}

        def alive() -> None:
            self._alarm.since = Alarm.ticks

        def act(slot: Slot) -> None:
            alive()
            asked = slot.index in given
            answers[slot.index] = slot.set_state(given[slot.index], alive) if asked else slot.get_state()

        with self._alarm:
            self._slot_group.ask(act)
        return answers, self.finish(0)

    def _reset(self, slot: Slot) -> None:
        self._alarm.since = Alarm.ticks
        slot.reset(int(self.buffers.seed[0]))

    def close(self) -> None:
        for slot in self._slot_group.slots:
            with self._alarm:
                slot.close()
        self._alarm.close()


class Alarm:
    """Interrupts what takes too long. Only possible in the main thread, and where nobody else uses SIGALRM; code that
    never comes back to Python cannot be interrupted here: in worker processes it can.

    The timer ticks all the time, and looks for how many ticks something has been going on: setting it for each step
    would cost more than the rest of this. While this process is stopped, or the computer asleep, there are no ticks.
    """

    ticks: ClassVar[int] = 0
    _tick_seconds: ClassVar[float] = 0.0
    _going: ClassVar[list[Alarm]] = []

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.since: float = inf
        main = threading.current_thread() is threading.main_thread()
        self._ours = main and (bool(Alarm._going) or signal.getsignal(signal.SIGALRM) is signal.SIG_DFL)
        if self._ours:
            Alarm._going.append(self)
            signal.signal(signal.SIGALRM, _ring)
            Alarm._tick_seconds = tick = min(alarm.seconds for alarm in Alarm._going) / 4
            signal.setitimer(signal.ITIMER_REAL, tick, tick)

    def __enter__(self) -> None:
        self.since = Alarm.ticks

    def __exit__(self, *_: object) -> None:
        self.since = inf

    def close(self) -> None:
        if self._ours:
            self._ours = False
            Alarm._going.remove(self)
            if not Alarm._going:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _ring(*_: object) -> None:
    Alarm.ticks += 1
    for alarm in Alarm._going:
        if Alarm.ticks - alarm.since > alarm.seconds / Alarm._tick_seconds:  # of the first tick it had only a part
            alarm.since = Alarm.ticks  # what is tried next has its own time
            raise TimeoutError(f"it did not answer within {alarm.seconds:g} s (env.timeout)")


def timestep(buffers: Buffers, spec: EnvSpec, envs: slice) -> Timestep:
    """Views of what the environments `envs` report."""
    state = spec.groups.critic_state_space

    def judged(arrays: list[NDArray[Any]]) -> PyTree:
        return None if state is None else as_tree(state, [array[envs] for array in arrays])

    return Timestep(
        groups={name: lane_step(buffers.groups[name], group, envs) for name, group in spec.groups.items()},
        reset=buffers.reset[envs],
        success=buffers.success[envs],
        critic_state=judged(buffers.critic_state),
        final_critic_state=judged(buffers.final_critic_state),
        info=buffers.info[envs] if spec.info else None,
    )


def lane_step(own: GroupBuffers, group: Group, envs: slice) -> LaneStep:
    """Views of what the lanes of a group report."""
    lanes, space = lanes_of(envs, group.size), group.observation_space

    def part(array: NDArray[Any] | None) -> NDArray[Any] | None:
        return None if array is None else array[lanes]

    return LaneStep(
        obs=as_tree(space, [array[lanes] for array in own.obs]),
        action_mask=part(own.action_mask),
        reward=own.reward[lanes],
        terminated=own.terminated[lanes],
        truncated=own.truncated[lanes],
        final_obs=as_tree(space, [array[lanes] for array in own.final_obs]),
        valid=own.valid[lanes],
        present=part(own.present),
        alive=part(own.alive),
        acts=part(own.acts),
    )


def action_places(buffers: Buffers, spec: EnvSpec, envs: slice) -> list[tuple[str, Path, NDArray[Any]]]:
    """Where the actions of these environments are written: of each group, leaf by leaf."""
    return [
        (name, path, array[lanes_of(envs, group.size)])
        for name, group in spec.groups.items()
        for (path, _), array in zip(leaves(group.action_space), buffers.groups[name].action, strict=True)
    ]


def split_parts(num_envs: int, num_groups: int) -> list[slice]:
    """Environments 0 .. num_envs - 1 in `num_groups` parts that lie side by side, as equal as they can be."""
    bounds = np.linspace(0, num_envs, min(num_groups, num_envs) + 1).round().astype(int).tolist()
    return [slice(start, stop) for start, stop in itertools.pairwise(bounds)]


def describe(fault: Fault, spec: EnvSpec) -> str:
    """A fault in one sentence that names the environment, its number and the step."""
    where = f", {fault.where}" if fault.where else ""
    which = f" (number {fault.env}{where})" if fault.env >= 0 else f" ({fault.where})"
    return f"The environment {spec.id}{which} failed: {fault.what.rstrip('.')}."
