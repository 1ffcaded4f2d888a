"""A process that trains runs of a fleet, one after the other.

    python -m proximo.fleet.worker CORES

Jobs come as lines of JSON on the standard input; lines of JSON on the standard output hold notes, and how a run ended.
Signals are the fleet's: what they ask for, it passes on as lines too. When the input ends before it was said to,
whoever gave the jobs is gone: the run at hand is saved, and the process ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proximo import settings
from proximo.config import Config
from proximo.processes import end_without_threads, leave_signals, signals_blocked
from proximo.train.interrupt import Interrupt

Message = dict[str, Any]
END, STOP, SAVE = b"end\n", b"stop\n", b"save\n"
"""No more jobs; stop the run at hand; write a checkpoint of it."""
LET_GO_SECONDS = 20.0
"""How long a process whose fleet was killed may take to save its run."""


def describe(config: Config, folder: Path, packed: str, trust: bool) -> Message:
    """A job as a worker takes it; `packed` is what `packing.pack` made of what was handed in."""
    return {"settings": settings.to_mapping(config), "path": str(folder), "packed": packed, "trust": trust}


def places() -> list[str]:
    """Where modules are found here, the user's own too."""
    return [place or os.getcwd() for place in sys.path]


class Worker:
    """The other side: a worker process that is given jobs, one at a time."""

    def __init__(self, cores: list[int], log: Path):
        command = [sys.executable, "-P", "-m", "proximo.fleet.worker", ",".join(map(str, cores))]
        path = os.pathsep.join(places())
        with log.open("ab") as file, signals_blocked():  # they are for the fleet
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,  # so is Ctrl-Z
                env=os.environ | {"PYTHONPATH": path},
            )

    def run(self, job: Message, note: Callable[[str], None], interrupt: Interrupt) -> Message:
        """Train one run; its last message, which says how it ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        ending = threading.Thread(target=self._pass_on, args=[interrupt], daemon=True)
        self._over = threading.Event()
        ending.start()
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                message = json.loads(line)
                if "end" in message:
                    return dict(message)
                note(message["note"])
        except OSError:
            pass  # it is gone, as the next line finds out
        finally:
            self._over.set()
            ending.join()
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return {"end": "failed", "sentence": f"The process that trained it ended with {how}."}

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Let it end, or end it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # it is gone already
            self._process.stdin.write(END)
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _pass_on(self, interrupt: Interrupt) -> None:
        """Tell the process that the user wants an end, or a checkpoint."""
        assert self._process.stdin is not None
        saves = interrupt.saves
        while not self._over.wait(0.1):
            stopped = interrupt.signal is not None
            if not stopped and interrupt.saves == saves:
                continue
            saves = interrupt.saves
            with contextlib.suppress(OSError):  # it is gone already
                self._process.stdin.write(STOP if stopped else SAVE)
                self._process.stdin.flush()
            if stopped:
                return


def main() -> None:
    cores = [int(core) for core in sys.argv[1].split(",") if core]
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)  # before JAX counts them
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what environments print is not for the fleet
    leave_signals()
    end_without_threads(0)
    jobs: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    with Interrupt(deaf=True) as interrupt:
        threading.Thread(target=_listen, args=[jobs, interrupt], daemon=True).start()

        def say(message: Message) -> None:
            try:
                answers.write(json.dumps(message) + "\n")
            except OSError:
                interrupt.end(signal.SIGTERM)

        while (job := jobs.get()) is not None:
            say(_train(job, say) if interrupt.signal is None else {"end": "interrupted"})


def _listen(jobs: queue.SimpleQueue[Message | None], interrupt: Interrupt) -> None:
    """Runs in a thread."""
    for line in sys.stdin.buffer:
        if line == END:
            break
        if line == STOP:
            interrupt.end(signal.SIGTERM)
        elif line == SAVE:
            interrupt.save()
        else:
            jobs.put(json.loads(line))
    else:
        interrupt.end(signal.SIGTERM)
        last = threading.Timer(LET_GO_SECONDS, os._exit, [1])  # whatever the environment is at
        last.daemon = True
        last.start()
    jobs.put(None)


def _train(job: Message, say: Callable[[Message], None]) -> Message:
    from proximo.fleet.packing import unpack
    from proximo.fleet.single import attempt

    try:
        given = unpack(job["packed"], job["trust"])
    except Exception as error:  # whatever the user's own code does
        words = f"What was handed in cannot be made in another process: {type(error).__name__}: {error}."
        return {"end": "failed", "sentence": words}
    config = settings.build(settings.from_mapping(job["settings"], "the job"))
    return attempt(config, Path(job["path"]), given, lambda sentence: say({"note": sentence}))


if __name__ == "__main__":
    main()
