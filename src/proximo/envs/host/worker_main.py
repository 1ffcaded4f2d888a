"""What a worker process does. It imports no JAX, and ends when the trainer's process does, however that ended."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from proximo.envs.host.messages import read_request
from proximo.envs.host.shared_memory import Buffers, fence
from proximo.envs.host.slot import Fault, Slot
from proximo.envs.host.slot_group import SlotGroup, make_slot
from proximo.processes import leave_signals

PROCESS_NAME = "proximo-worker"
OPTIONS = -1
"""In a request, in the place of an environment's number: what every reset is given from now on."""
SPIN_SECONDS = 500e-6
"""How long to look for what comes next before going to sleep: waking up takes longer than a step of CartPole."""


def serve(
    number: int,
    commands: Connection,
    wake: Connection,
    signals: Connection,
    lifeline: Connection,
    not_ours: list[Connection],
    memory: Any,
    job: bytes,
) -> None:
    """Obey until the other end of `wake` is closed.

    A command is a number in `memory`: the part to step, or, beyond the last part, a reset, and beyond that, a request
    about states or options that follows in `commands`. When it is done, that too is said in `memory`; what went wrong,
    and states, were sent back through `commands` before. Bytes in `wake` and `signals` mean nothing by themselves.
    """
    leave_signals()  # the trainer decides when it is over
    for connection in not_ours:  # inherited by fork: held open here, they would hide the trainer's end
        connection.close()
    threading.Thread(target=_exit_with, args=(lifeline,), daemon=True).start()
    layout, spin, *rest = cloudpickle.loads(job)
    if not spin and hasattr(os, "SCHED_BATCH"):
        # More workers than cores: one that wakes up does not interrupt the trainer, for whom the others wait.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    buffers = Buffers(layout, memory)
    worker = Worker(number, buffers, rest, commands)
    inbox, well, done = buffers.commands[number].data, buffers.well[number].data, buffers.done_count.data
    awaited = buffers.awaited.data
    with contextlib.suppress(OSError):  # the trainer is gone
        while _told(number, buffers, wake.fileno(), spin):
            place = done[number] % layout.most_commands
            well[place] = worker.obey(inbox[place])
            fence()
            done[number] += 1
            fence()
            if awaited[0] == number:
                os.write(signals.fileno(), b".")
    worker.close()


def _told(number: int, buffers: Buffers, wake: int, spin: bool) -> bool:
    """Wait for the next command; False if there will be none."""
    command_count, done_count = buffers.command_count.data, buffers.done_count.data
    until = time.monotonic() + SPIN_SECONDS if spin else 0.0
    while command_count[number] == done_count[number]:
        if time.monotonic() < until:
            continue
        buffers.asleep[number] = True
        fence()
        if command_count[number] == done_count[number] and not os.read(wake, 64):
            return False
        buffers.asleep[number] = False
    fence()
    return True


def _exit_with(lifeline: Connection) -> None:
    """The trainer holds the other end. A step that never returns must not keep this process."""
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        # Time for the main thread to close the environments, if it can.
        time.sleep(2)
        os._exit(1)


class Worker:
    """The environments of one process."""

    def __init__(self, number: int, buffers: Buffers, job: list[Any], reports: Connection):
        self.number = number
        self._buffers = buffers
        self._current_env: Any = buffers.current_env.data
        self._heartbeat: Any = buffers.heartbeat.data
        self._job = job
        self._num_parts = len(job[1])
        self._reports = reports
        self._well = True
        self._slot_groups: list[SlotGroup] = []  # by part

    def obey(self, command: int) -> bool:
        """Do as told; whether all went well."""
        self._well = True
        request = read_request(self._reports.fileno()) if command > self._num_parts else None
        try:
            if not self._slot_groups:
                self._open()
        except Exception as error:
            # What describes the environments could not be read here, so there is no slot yet to say it.
            self._report(Fault(-1, "when its process started", f"{type(error).__name__}: {error}"))
            return False
        if request is not None and OPTIONS in request:
            for slot_group in self._slot_groups:
                for slot in slot_group.slots:
                    slot.reset_options = request[OPTIONS]
            return self._well
        if request is not None:
            self._exchange_states(request)
            return self._well
        if command < self._num_parts:
            self._slot_groups[command].do(self._step)
        else:
            for slot_group in self._slot_groups:
                slot_group.do(self._reset)
        return self._well

    def close(self) -> None:
        for slot_group in self._slot_groups:
            for slot in slot_group.slots:
                slot.close()

    def _open(self) -> None:
        options, parts, factory, failures, reset_options = self._job
        factory = cloudpickle.loads(factory)
        slots = [[make_slot(index, factory, self._buffers, options) for index in part] for part in parts]
        for slot in (slot for part in slots for slot in part):
            # Where this process replaces one that failed, the first step of its environments starts them anew.
            slot.seed = int(self._buffers.seed[0]) + slot.index
            slot.episode = int(self._buffers.episode[slot.index])
            slot.restarts = max(failures - 1, 0)
            slot.reset_options = reset_options
        self._slot_groups = [SlotGroup(part, self._buffers, self._report) for part in slots]

    def _exchange_states(self, request: dict[int, Any]) -> None:
        """Give back the states that it has for environments; send that of the others."""

        def act(slot: Slot) -> None:
            self._turn_to(slot)
            alive = partial(self._turn_to, slot)
            answer = slot.set_state(request[slot.index], alive) if slot.index in request else slot.get_state()
            self._reports.send((slot.index, answer))

        for slot_group in self._slot_groups:
            slot_group.ask(act)

    def _step(self, slot: Slot) -> None:
        self._turn_to(slot)
        slot.step()

    def _reset(self, slot: Slot) -> None:
        self._turn_to(slot)
        slot.reset(int(self._buffers.seed[0]))

    def _turn_to(self, slot: Slot) -> None:
        self._current_env[self.number] = slot.index
        self._heartbeat[self.number] = time.monotonic()

    def _report(self, fault: Fault) -> None:
        self._well = False
        self._reports.send(fault)
