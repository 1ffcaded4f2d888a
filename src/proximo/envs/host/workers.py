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
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from proximo.envs.host.buffers import ALIGNMENT, Buffers, Layout
from proximo.envs.host.lane import Fault, LaneOptions
from proximo.envs.host.worker import serve

CLOSING_SECONDS = 3.0


class Workers:
    """`layout.num_workers` processes that step the lanes; lane i belongs to worker i modulo their number.

    Commands are the groups' numbers, and the number of groups for a reset, as `worker.serve` has it.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        layout: Layout,
        options: LaneOptions,
        groups: list[range],
        timeout: float,
        start_method: str,
    ):
        self._context: Any = multiprocessing.get_context(start_method)
        self._layout, self._options, self._factory, self._timeout = layout, options, factory, timeout
        # Anonymous: the block has no name that could be left behind, and goes with the last process that has it.
        self._memory = self._context.RawArray("B", layout.size + ALIGNMENT)
        self.buffers = Buffers(layout, self._memory)
        workers = range(layout.num_workers)
        self._shares = [[[lane for lane in group if lane % len(workers) == w] for group in groups] for w in workers]
        self._called = [[w for w in workers if self._shares[w][g]] for g in range(len(groups))] + [list(workers)]
        self._lifeline, self._lifeline_end = _pipe(self._context)
        self._signals = [_pipe(self._context) for _ in self._called]
        self._commands: list[Connection] = []
        self._processes: list[Any] = []
        self._failures = [0] * len(workers)
        self._pending: list[dict[int, float]] = [{} for _ in self._called]  # worker: since when
        _open_workers.add(self)
        with _quiet_start(start_method):
            for worker in workers:
                self._start(worker)

    def begin(self, command: int) -> None:
        """Tell the workers; their answers are waited for by `finish`."""
        now = time.monotonic()
        for worker in self._called[command]:
            self._pending[command][worker] = now
            self._tell(worker, command)

    def finish(self, command: int) -> list[Fault]:
        """Wait until the command is done; what went wrong. A process that died or hangs is replaced."""
        faults: list[Fault] = []
        pending = self._pending[command]
        reader = self._signals[command][0].fileno()
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        for worker in pending:
            poll.register(self._processes[worker].sentinel, select.POLLIN)
        while pending:
            due = min(self._due(worker, since) for worker, since in pending.items())
            ready = [fd for fd, _ in poll.poll(max(due - time.monotonic(), 0) * 1000)]
            if reader in ready:
                answers = os.read(reader, 4096)
                for worker, well in zip(answers[::2], answers[1::2], strict=True):
                    pending.pop(worker, None)
                    if not well:
                        faults += self._reports(worker)
                continue
            for worker, since in list(pending.items()):
                died = self._processes[worker].sentinel in ready
                if died or self._due(worker, since) <= time.monotonic():
                    poll.unregister(self._processes[worker].sentinel)
                    faults.append(self._lost(worker, died))
                    if self._failures[worker] > self._options.max_restarts:
                        return faults
                    self._replace(worker)
                    poll.register(self._processes[worker].sentinel, select.POLLIN)
        return faults

    def close(self) -> None:
        """End the processes: asked to, they close their environments; those that do not are killed."""
        _open_workers.discard(self)
        for connection in (*self._commands, self._lifeline_end, *(end for pair in self._signals for end in pair)):
            connection.close()
        until = time.monotonic() + CLOSING_SECONDS
        for process in self._processes:
            process.join(max(until - time.monotonic(), 0))
            if process.exitcode is None:
                process.kill()
                process.join()
        self._commands, self._processes = [], []

    def _start(self, worker: int) -> None:
        ours, theirs = self._context.Pipe()
        job = cloudpickle.dumps(
            (self._layout, self._options, self._shares[worker], self._factory, self._failures[worker])
        )
        forked = self._context.get_start_method() == "fork"
        not_ours = [ours, self._lifeline_end, *self._commands, *(pair[0] for pair in self._signals)] if forked else []
        process = self._context.Process(
            target=serve,
            args=(worker, theirs, [pair[1] for pair in self._signals], self._lifeline, not_ours, self._memory, job),
            name=f"proximo-worker-{worker}",
        )
        process.start()
        theirs.close()
        if worker < len(self._processes):
            self._commands[worker], self._processes[worker] = ours, process
        else:
            self._commands.append(ours)
            self._processes.append(process)

    def _tell(self, worker: int, command: int) -> None:
        # Where the process is gone, `finish` notices.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            os.write(self._commands[worker].fileno(), bytes([command]))

    def _due(self, worker: int, since: float) -> float:
        return max(since, float(self.buffers.beat[worker])) + self._timeout

    def _reports(self, worker: int) -> list[Fault]:
        found = []
        with contextlib.suppress(EOFError, OSError):
            while self._commands[worker].poll():
                found.append(self._commands[worker].recv())
        return found

    def _lost(self, worker: int, died: bool) -> Fault:
        """What became of a worker that does not answer; it is gone after this."""
        process = self._processes[worker]
        if not died:
            process.kill()
        process.join(CLOSING_SECONDS)
        self._failures[worker] += 1
        lane = int(self.buffers.busy[worker]) if self.buffers.beat[worker] else self._shares[worker][0][0]
        if not died:
            return Fault(lane, "", f"it did not answer within {self._timeout:g} s (env.timeout)")
        code = process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return Fault(lane, "", f"its worker process {worker} (pid {process.pid}) {how}")

    def _replace(self, worker: int) -> None:
        """A new process for the worker, told again whatever the old one had not done."""
        self._commands[worker].close()
        self.buffers.beat[worker] = 0
        with _quiet_start(self._context.get_start_method()):
            self._start(worker)
        now = time.monotonic()
        for command, pending in enumerate(self._pending):
            if worker in pending:
                pending[worker] = now
                self._tell(worker, command)


def _pipe(context: Any) -> tuple[Connection, Connection]:
    reader, writer = context.Pipe(duplex=False)
    return reader, writer


@contextlib.contextmanager
def _quiet_start(start_method: str) -> Iterator[None]:
    """Start processes without running the user's script in them a second time: multiprocessing would import
    `__main__` there, which trains again where it lacks a guard. What it defines travels by value instead."""
    if start_method == "forkserver":
        multiprocessing.get_context("forkserver").set_forkserver_preload([serve.__module__])
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {
        name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__
    }
    main.__dict__["__spec__"] = None
    try:
        yield
    finally:
        del main.__dict__["__spec__"]
        main.__dict__.update(hidden)


_open_workers: weakref.WeakSet[Workers] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # Registered after multiprocessing's own, so it runs before that waits for the processes.
    for workers in list(_open_workers):
        workers.close()
