"""Worker processes: started, told, waited for, missed and ended. Nothing here ever waits longer than it may."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import select
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from proximo.envs.host.messages import send_request
from proximo.envs.host.shared_memory import ALIGNMENT, NOBODY, Buffers, Layout, fence
from proximo.envs.host.slot import STATE_ASKED, Fault, SlotOptions
from proximo.envs.host.worker_main import OPTIONS, PROCESS_NAME, SPIN_SECONDS, serve
from proximo.errors import UserError
from proximo.processes import block_signals, signals_blocked

CLOSING_SECONDS = 3.0
FORKSERVER = "proximo.envs.host.forkserver"


class ProcessBackend:
    """`layout.num_workers` processes that step the environments; number i belongs to worker i modulo their number.

    Commands are the parts' numbers, the number of parts for a reset, and the next one for states, as
    `worker_main.serve` has it.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        layout: Layout,
        options: SlotOptions,
        parts: list[range],
        timeout: float,
        start_method: str,
    ):
        self._context: Any = multiprocessing.get_context(start_method)
        self._layout, self._options, self._timeout = layout, options, timeout
        self._factory = _packed(factory, layout.spec.id)
        # Anonymous: the block has no name that could be left behind, and goes with the last process that has it.
        self._memory = self._context.RawArray("B", layout.size + ALIGNMENT)
        self.buffers = Buffers(layout, self._memory)
        workers = range(layout.num_workers)
        self._spin = len(workers) < num_cores()
        self._command_count, self._done_count, self._asleep = (
            part.data for part in (self.buffers.command_count, self.buffers.done_count, self.buffers.asleep)
        )
        self._given, self._well, self._awaited = (
            self.buffers.commands.data,
            self.buffers.well.data,
            self.buffers.awaited.data,
        )
        self._awaited[0] = NOBODY
        self._shares = [[[env for env in part if env % len(workers) == w] for part in parts] for w in workers]
        self._part = {env: p for p, part in enumerate(parts) for env in part}
        self._called = [[w for w in workers if self._shares[w][p]] for p in range(len(parts))]
        self._reset, self._states = len(parts), len(parts) + 1
        self._reset_options: dict[str, Any] | None = None
        self._called += [list(workers), list(workers)]
        self._lifeline, self._lifeline_end = _pipe(self._context)
        self._signals, self._signals_end = _pipe(self._context)
        self._commands: dict[int, Connection] = {}  # for what does not fit into the block, both ways
        self._wakes: dict[int, Connection] = {}
        self._processes: dict[int, Any] = {}
        self._failures = [0] * len(workers)  # of its environments and of itself: what starts anew draws new numbers
        self._begun = [0] * len(self._called)  # how often each command was given since the last reset
        self._wanted: list[dict[int, int]] = [{} for _ in self._called]  # worker: its number of commands with this
        self._polls = [select.poll() for _ in self._called]
        for poll in self._polls:
            poll.register(self._signals, select.POLLIN)
        self._requests: dict[int, dict[int, Any]] = {}  # for each worker, what goes with a command about states
        self._answers: dict[int, Any] = {}  # and what came back, for each environment
        self._pending: list[set[int]] = [set() for _ in self._called]  # workers that have not answered
        self._waited: dict[int, tuple[float, float]] = {}  # worker: its last sign of life, seconds spent waiting since
        _open_workers.add(self)
        with _quiet_start(start_method):
            for worker in workers:
                self._start(worker)

    def begin(self, command: int) -> None:
        """Tell the workers; their answers are waited for by `finish`."""
        if command == self._reset:
            self._begun = [0] * len(self._begun)
        self._begun[command] += 1
        for worker in self._called[command]:
            self._pending[command].add(worker)
            self._waited.pop(worker, None)
            self._tell(worker, command)

    def exchange_states(self, given: dict[int, Any]) -> tuple[dict[int, Any], list[Fault]]:
        """Give environments the states that `given` has for them, and ask for those of the others: what
        `Slot.set_state` and `Slot.get_state` answer, without those that failed, and what went wrong."""
        shares = [{env for share in shares for env in share} for shares in self._shares]
        faults = self._request({w: {env: given[env] for env in shares[w] & given.keys()} for w in self._processes})
        for worker in self._processes:
            faults += self._reports(worker)
        return self._answers, faults

    def set_options(self, options: dict[str, Any] | None) -> list[Fault]:
        self._reset_options = options
        return self._request({worker: {OPTIONS: options} for worker in self._processes})

    def _request(self, requests: dict[int, dict[int, Any]]) -> list[Fault]:
        """Tell each worker something that does not fit into the block, and wait for the answers."""
        self._requests, self._answers = requests, {}
        self.begin(self._states)
        for worker in self._processes:
            self._send_request(worker)
        return self.finish(self._states)

    def finish(self, command: int) -> list[Fault]:
        """Wait until the command is done; what went wrong. A process that died or hangs is replaced."""
        pending, wanted, done = self._pending[command], self._wanted[command], self._done_count
        faults: list[Fault] = []
        until = time.monotonic() + SPIN_SECONDS if self._spin else 0.0
        while True:
            for worker in [worker for worker in pending if done[worker] >= wanted[worker]]:
                pending.discard(worker)
                fence()
                if not self._well[worker, (wanted[worker] - 1) % self._layout.most_commands]:
                    faults += self._reports(worker)
            if not pending:
                return faults
            # Where each worker has a core, to look again is quicker than to fall asleep.
            if time.monotonic() < until:
                continue
            self._awaited[0] = last = max(pending)  # likely to be done last: then nobody else wakes us
            fence()
            if done[last] < wanted[last] and not self._sleep(command, faults):
                return faults
            self._awaited[0] = NOBODY

    def _sleep(self, command: int, faults: list[Fault]) -> bool:
        """Wait for a signal, and look after who sends none; False if a worker is lost for good."""
        pending = self._pending[command]
        slice_seconds, began = self._timeout / 4, time.monotonic()
        ready = [fd for fd, _ in self._polls[command].poll(slice_seconds * 1000)]
        # No more than was asked for counts: if it took longer, this process was stopped, or the computer asleep.
        waited = min(time.monotonic() - began, slice_seconds)
        late = {worker for worker in pending if self._waiting(worker, waited) >= self._timeout}
        if self._signals.fileno() in ready:
            os.read(self._signals.fileno(), 4096)
            return True
        for worker, connection in self._commands.items():
            if connection.fileno() in ready:  # what is too large for the pipe is sent only while it is read
                faults += self._reports(worker)
        for worker in sorted(pending):
            died = self._processes[worker].sentinel in ready
            if died or worker in late:
                faults.append(self._lost(worker, died))
                if self._failures[worker] > self._options.max_restarts:
                    return False
                self._replace(worker)
        return True

    def _waiting(self, worker: int, seconds: float) -> float:
        """How long a worker has been waited for since its last sign of life, with these `seconds`."""
        beat = float(self.buffers.heartbeat[worker])
        last, before = self._waited.get(worker, (None, 0.0))
        self._waited[worker] = beat, before + seconds if beat == last else 0.0
        return self._waited[worker][1]

    def close(self) -> None:
        """End the processes: asked to, they close their environments; those that do not are killed."""
        _open_workers.discard(self)
        for connection in (*self._ours(), self._lifeline, self._signals_end):
            connection.close()
        until = time.monotonic() + CLOSING_SECONDS
        for process in self._processes.values():
            process.join(max(until - time.monotonic(), 0))
            if process.exitcode is None:
                process.kill()
                process.join()
        self._commands, self._wakes, self._processes = {}, {}, {}

    def _ours(self) -> list[Connection]:
        """The ends of pipes that only this process may hold: the workers learn from their closing."""
        return [*self._commands.values(), *self._wakes.values(), self._lifeline_end, self._signals]

    def _start(self, worker: int) -> None:
        ours, theirs = self._context.Pipe()
        woken, wake = _pipe(self._context)
        rest = (self._options, self._shares[worker], self._factory, self._failures[worker], self._reset_options)
        job = cloudpickle.dumps((self._layout, self._spin, *rest))
        forked = self._context.get_start_method() == "fork"
        # Those of other pools too, which a forked process gets as well.
        not_ours = [ours, wake, *(end for pool in _open_workers for end in pool._ours())] if forked else []
        process = self._context.Process(
            target=serve,
            args=(worker, theirs, woken, self._signals_end, self._lifeline, not_ours, self._memory, job),
            name=f"{PROCESS_NAME}-{worker}",
        )
        process.start()
        theirs.close()
        woken.close()
        self._commands[worker], self._wakes[worker], self._processes[worker] = ours, wake, process
        for command, called in enumerate(self._called):
            if worker in called:
                self._polls[command].register(process.sentinel, select.POLLIN)
                self._polls[command].register(ours, select.POLLIN)

    def _tell(self, worker: int, command: int) -> None:
        number = self._command_count[worker]
        self._given[worker, number % self._layout.most_commands] = command
        fence()
        self._command_count[worker] = self._wanted[command][worker] = number + 1
        fence()
        if self._asleep[worker]:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # gone, which `finish` will notice
                os.write(self._wakes[worker].fileno(), b".")

    def _send_request(self, worker: int) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send_request(self._commands[worker].fileno(), self._requests[worker], self._timeout)

    def _reports(self, worker: int) -> list[Fault]:
        """Take in what a worker sent: faults, and answers about states."""
        found = []
        with contextlib.suppress(EOFError, OSError):
            while self._commands[worker].poll():
                message = self._commands[worker].recv()
                if isinstance(message, Fault):
                    found.append(message)
                else:
                    self._answers[message[0]] = message[1]
        self._failures[worker] += len(found)
        return found

    def _lost(self, worker: int, died: bool) -> Fault:
        """What became of a worker that does not answer; it is gone after this."""
        process = self._processes[worker]
        for command, called in enumerate(self._called):
            if worker in called:
                self._polls[command].unregister(process.sentinel)
                self._polls[command].unregister(self._commands[worker])
        if not died:
            process.kill()
        process.join(CLOSING_SECONDS)
        self._failures[worker] += 1
        first = next(env for share in self._shares[worker] for env in share)
        env = int(self.buffers.current_env[worker]) if self.buffers.heartbeat[worker] else first
        step = f"at step {self._begun[self._part[env]]:,}"
        if worker in self._pending[self._reset]:
            where = "when it was made or reset"
        else:
            where = STATE_ASKED if worker in self._pending[self._states] else step
        if not died:
            return Fault(env, where, f"it did not answer within {self._timeout:g} s (env.timeout)")
        code = process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return Fault(env, where, f"its worker process {worker} (pid {process.pid}) {how}")

    def _replace(self, worker: int) -> None:
        """A new process for the worker, told again whatever the old one had not done."""
        self._commands[worker].close()
        self._wakes[worker].close()
        self.buffers.heartbeat[worker] = 0
        self._done_count[worker] = self._command_count[worker]
        with _quiet_start(self._context.get_start_method()):
            self._start(worker)
        self._waited.pop(worker, None)
        for command, pending in enumerate(self._pending):
            if worker in pending:
                self._tell(worker, command)
        if worker in self._pending[self._states]:
            self._requests[worker] = {}  # its environments are lost: there is nothing to give states to
            self._send_request(worker)


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _packed(factory: Callable[[], Any], name: str) -> bytes:
    """The factory by itself, so that a worker that cannot unpack it can say so."""
    try:
        packed: bytes = cloudpickle.dumps(factory)
        return packed
    except Exception as error:
        raise UserError(
            f"{name} cannot be sent to another process ({type(error).__name__}: {error}); hand in a factory that "
            f"makes what it needs itself, or keep the environments in this process with env.workers=0."
        ) from None


def _pipe(context: Any) -> tuple[Connection, Connection]:
    reader, writer = context.Pipe(duplex=False)
    return reader, writer


@contextlib.contextmanager
def _quiet_start(start_method: str) -> Iterator[None]:
    """Start processes without running the user's script in them a second time: multiprocessing would import
    `__main__` there, which trains again where it lacks a guard. What it defines travels by value instead. Signals are
    left to this process from the first moment on."""
    if start_method == "forkserver":
        multiprocessing.get_context("forkserver").set_forkserver_preload([FORKSERVER])
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {
        name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__
    }
    main.__dict__["__spec__"] = None
    try:
        with signals_blocked():
            if start_method != "fork":
                resource_tracker.ensure_running()
                block_signals()  # again: Python 3.11 unblocks some when it starts that process
            yield
    finally:
        del main.__dict__["__spec__"]
        main.__dict__.update(hidden)


_open_workers: weakref.WeakSet[ProcessBackend] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # Registered after multiprocessing's own, so it runs before that waits for the processes.
    for workers in list(_open_workers):
        workers.close()
