"""Loaded by every Python process that `test_signals.py` starts, because its folder comes first on their path: sends one
signal to a run, at a given moment of it.

    SIGNALLED        phase, signal and target, such as "rollout TERM group"
    SIGNALLED_MARK   a file that whoever sends the signal makes: it is sent once
    SIGNALLED_MAIN   the process that the target is counted from, set here by the first one
"""

import importlib.util
import os
import signal
import sys
import time
from functools import wraps
from pathlib import Path

PHASE, NUMBER, TARGET = os.environ["SIGNALLED"].split()
NUMBER = signal.Signals[f"SIG{NUMBER}"]
MAIN = int(os.environ.setdefault("SIGNALLED_MAIN", str(os.getpid())))


def family():
    """All processes of this run."""
    mark = f"SIGNALLED_MARK={os.environ['SIGNALLED_MARK']}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
        except OSError:
            continue


def fire():
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


def first(call):
    """`call`, after the signal."""

    @wraps(call)
    def fired(*args, **keywords):
        fire()
        return call(*args, **keywords)

    return fired


def at(number, call):
    """`call`, with the signal before its call `number`."""
    calls = []

    @wraps(call)
    def counted(*args, **keywords):
        calls.append(1)
        if len(calls) == number:
            fire()
        return call(*args, **keywords)

    return counted


def within(evaluate):
    """An evaluation in which the signal comes when it first looks whether it is to stop."""

    @wraps(evaluate)
    def stopped_within(self, *args):
        *rest, stop = args
        return evaluate(self, *rest, first(stop))

    return stopped_within


def patch_trainer(module):
    if PHASE == "start":
        module.PPOTrainer.__init__ = first(module.PPOTrainer.__init__)


def patch_evaluations(module):
    if PHASE == "evaluation":
        module.Evaluations.play = within(module.Evaluations.play)


def patch_finish(module):
    if PHASE == "final":
        evaluate = module.final_evaluation

        def stopped_within(run):
            run.stopping = first(run.stopping)
            return evaluate(run)

        module.final_evaluation = stopped_within
    if PHASE == "pictures":
        module.draw_pictures = first(module.draw_pictures)


def patch_program(kind, learn):
    """`learn`: what holds the compiled update."""

    def patch(module):
        program = getattr(module, kind)
        compile = program.compile
        if PHASE == "compile":
            program.compile = first(compile)
        if PHASE == "rollout" and kind == "CompiledProgram":
            program.run = at(2, program.run)
        if PHASE == "update":

            def compile_and_patch(self, state):
                compile(self, state)
                call = getattr(self, learn)
                if not hasattr(call, "__wrapped__"):
                    setattr(self, learn, at(2, call))

            program.compile = compile_and_patch

    return patch


def patch_pool(module):
    if PHASE == "rollout":
        module.AsyncEnvPool.send = at(40, module.AsyncEnvPool.send)  # in the second rollout


def patch_workers(module):
    if PHASE == "environments":
        module.Workers._start = at(2, module.Workers._start)


def patch_files(module):
    replace = os.replace

    def replaced(source, target):
        if Path(target).parent.name == "checkpoints" and "000000000000" not in str(target):
            fire()
        return replace(source, target)

    if PHASE == "checkpoint":
        os.replace = replaced


PATCHES = {
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

    def find_spec(self, name, path, target=None):
        if name not in PATCHES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (execute(module), PATCHES[name](module))
        return spec


sys.meta_path.insert(0, Patching())
