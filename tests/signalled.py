"""Loaded by every Python process that `test_signals.py` starts, see `started/sitecustomize.py`: sends one signal to a
run, at a given moment of it.

    SIGNALLED        phase, signal and target, such as "rollout TERM group"
    SIGNALLED_MARK   a file that whoever sends the signal makes: it is sent once
    SIGNALLED_MAIN   the process that the target is counted from, set here by the first one
    SIGNALLED_GRACE  how many seconds threads may keep a process that is done, if not as many as users have
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

PHASE, NAME, TARGET = os.environ["SIGNALLED"].split()
NUMBER = signal.Signals[f"SIG{NAME}"]
MAIN = int(os.environ.setdefault("SIGNALLED_MAIN", str(os.getpid())))


def family() -> Iterator[int]:
    """All processes of this run."""
    mark = f"SIGNALLED_MARK={os.environ['SIGNALLED_MARK']}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
        except OSError:
            continue


def fire() -> None:
    """Send the signal, unless that was done; and wait until this process knows of it, if it ever will."""
    try:
        os.close(os.open(os.environ["SIGNALLED_MARK"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if TARGET == "process":
        os.kill(MAIN, NUMBER)
    elif TARGET == "group":
        os.killpg(MAIN, NUMBER)
    else:  # one after the other, as systemd and Slurm do; the trainer last
        for pid in sorted(family(), key=MAIN.__eq__):
            os.kill(pid, NUMBER)
    from proximo.train.interrupt import Interrupt

    noted, until = Interrupt._active, time.monotonic() + 60
    if signal.getsignal(NUMBER) is signal.SIG_IGN:  # as by `nohup`
        return
    while noted and noted.signal is None and not noted.saves and time.monotonic() < until:
        time.sleep(0.01)


def first(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, after the signal."""

    @wraps(call)
    def fired(*args: Any, **keywords: Any) -> Any:
        fire()
        return call(*args, **keywords)

    return fired


def at(number: int, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, with the signal before its call `number`."""
    calls = []

    @wraps(call)
    def counted(*args: Any, **keywords: Any) -> Any:
        calls.append(1)
        if len(calls) == number:
            fire()
        return call(*args, **keywords)

    return counted


def within(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """An evaluation in which the signal comes when it first looks whether it is to stop."""

    @wraps(evaluate)
    def stopped_within(self: Any, *args: Any) -> Any:
        *rest, stop = args
        return evaluate(self, *rest, first(stop))

    return stopped_within


def patch_processes(module: Any) -> None:
    module.GRACE_SECONDS = float(os.environ.get("SIGNALLED_GRACE", module.GRACE_SECONDS))


def patch_trainer(module: Any) -> None:
    if PHASE == "start":
        module.PPOTrainer.__init__ = first(module.PPOTrainer.__init__)


def patch_evaluations(module: Any) -> None:
    if PHASE == "evaluation":
        module.Evaluations.play = within(module.Evaluations.play)


def patch_finish(module: Any) -> None:
    if PHASE == "final":
        evaluate = module.final_evaluation

        def stopped_within(run: Any) -> Any:
            run.stopping = first(run.stopping)
            return evaluate(run)

        module.final_evaluation = stopped_within
    if PHASE == "pictures":
        module.draw_pictures = first(module.draw_pictures)
    else:  # they take longer than training does
        module.write_plots = lambda *_: []


def patch_program(kind: str, learn: str) -> Callable[[Any], None]:
    """`learn`: what holds the compiled update."""

    def patch(module: Any) -> None:
        program = getattr(module, kind)
        compile = program.compile
        if PHASE == "compile":
            program.compile = first(compile)
        if PHASE == "rollout" and kind == "CompiledProgram":
            program.run = at(2, program.run)
        if PHASE == "update":

            def compile_and_patch(self: Any, state: Any) -> None:
                compile(self, state)
                call = getattr(self, learn)
                if not hasattr(call, "__wrapped__"):
                    setattr(self, learn, at(2, call))

            program.compile = compile_and_patch

    return patch


def patch_pool(module: Any) -> None:
    if PHASE == "rollout":
        module.AsyncEnvPool.send = at(40, module.AsyncEnvPool.send)  # in the second rollout


def patch_workers(module: Any) -> None:
    if PHASE == "environments":
        module.ProcessBackend._start = at(2, module.ProcessBackend._start)


def patch_files(module: Any) -> None:
    replace = os.replace

    def replaced(source: Any, target: Any, **keywords: Any) -> None:
        if Path(target).parent.name == "checkpoints" and "000000000000" not in str(target):
            fire()
        replace(source, target, **keywords)

    if PHASE == "checkpoint":
        os.replace = replaced  # type: ignore[assignment]


PATCHES = {
    "proximo.processes": patch_processes,
    "proximo.train.trainer": patch_trainer,
    "proximo.train.evaluations": patch_evaluations,
    "proximo.train.program": patch_program("CompiledProgram", "_run"),
    "proximo.train.host_program": patch_program("HostProgram", "_learn"),
    "proximo.envs.host.pool": patch_pool,
    "proximo.envs.host.workers": patch_workers,
    "proximo.run_dir.files": patch_files,
    "proximo.train.finish": patch_finish,
}


class Patching:
    """Patches modules as they are imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in PATCHES:
            return None
        sys.meta_path.remove(self)
        try:
            spec: Any = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (execute(module), PATCHES[name](module))
        return spec


sys.meta_path.insert(0, Patching())
