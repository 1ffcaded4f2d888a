"""Runs of an experiment, side by side: `run_multiple_experiments` and `run_single_experiment`.

There are as many slots as processor cores. A slot is a thread. Environments written in JAX leave the interpreter alone,
so their runs are trained in these threads, and those that differ in numbers and seeds alone share one compiled program.
Other environments hold the interpreter: each slot has a process for them, with its share of the cores.
"""

from __future__ import annotations

import base64
import fcntl
import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from proximo import envs, settings
from proximo.config import Config
from proximo.display.console import Console
from proximo.envs.keys import same_for_all
from proximo.errors import EnvError, ProximoError, UserError
from proximo.experiment.compare import write_comparison
from proximo.experiment.outcomes import ERROR, Outcome, read_outcome
from proximo.experiment.plan import (
    PLAN,
    Plan,
    PlannedRun,
    default_folder,
    env_list,
    make_plan,
    make_trials,
    overlap,
)
from proximo.experiment.progress import Progress
from proximo.experiment.track import make_tracker
from proximo.experiment.worker import Worker
from proximo.ppo.static_config import split_static
from proximo.run_dir.files import check_inside, open_inside, shown, write_atomically
from proximo.run_dir.read import COMPLETE, is_running
from proximo.train.checkpoint import steps
from proximo.train.interrupt import Interrupt
from proximo.train.setup import named_own
from proximo.train.trainer import PPOTrainer

Message = dict[str, Any]
REPORT_SECONDS = 0.25
NOTHING: Mapping[str, Any] = MappingProxyType({})
LET_GO_SECONDS = 20.0
"""How long a process whose experiment was killed may take to save its run."""


def run_single_experiment(
    config: Config | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    env: Any = None,
    console: Console | None = None,
    tracked: bool = True,
    loss: Any = None,
    optimizer: Any = None,
) -> dict[str, Any]:
    """Train one run in `out`, or go on with the one that is there; returns what `result.json` holds.

    `config` is a `Config`, or, over the environment's preset, a mapping or a YAML file. Without `out`, a new folder
    under runs/ is made. `env` is an environment object or a factory, where `env.id` alone does not make it; `loss` and
    `optimizer` are as for `PPOTrainer`. `tracked` feeds MLflow, as far as the settings want that.
    """
    own = {"loss": loss, "optimizer": optimizer}
    if out is None:
        trainer = PPOTrainer(env, config=config, console=console, **own)
    elif _let_go(Path(out)):
        trainer = PPOTrainer.resume(out, env, console=console, **own)
    else:
        trainer = PPOTrainer(env, config=config, out=out, console=console, **own)
    trainer.tracked = tracked
    return trainer.train()


def _let_go(out: Path) -> bool:
    """Wait for a process that is still saving the run in `out`; whether there is one to go on with."""
    rows, until = out / "metrics.jsonl", time.monotonic() + LET_GO_SECONDS
    while rows.exists() and is_running(rows) and time.monotonic() < until:
        time.sleep(0.1)
    (out / ERROR).unlink(missing_ok=True)  # of an attempt before this one
    return bool(steps(out))


def run_multiple_experiments(
    env: Any = None,
    trials: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | Sequence[int] = 5,
    config: Mapping[str, Any] | str | Path | None = None,
    out: str | Path | None = None,
    preset: bool | str = True,
    jobs: int | None = None,
    progress: Progress | None = None,
    loss: Any = None,
    optimizer: Any = None,
    **keywords: Any,
) -> dict[str, Any]:
    """Train every trial on every environment with every seed, and compare; returns what `summary.json` holds.

        run_multiple_experiments("CartPole-v1", {"careful": {"ppo.clip_epsilon": 0.1}, "bold": {...}})
        run_multiple_experiments(["CartPole-v1", "Acrobot-v1"], grid={"ppo.gamma": [0.98, 0.99]}, seeds=10)

    `env` is an id or a list of ids, an environment, or a factory. `seeds` is their number (0, 100,000, ...), or a list.
    Settings for all runs come from `config` and, as for `PPOTrainer`, from keywords. `jobs` runs are trained side by
    side; as many as there are processor cores by default. `loss` and `optimizer` are as for `PPOTrainer`, for all runs.
    """
    own = {"loss": loss, "optimizer": optimizer}
    if isinstance(config, str | Path):
        given = settings.from_file(Path(config))
    else:
        given = settings.from_mapping(config or {}, "config")
    flags = settings.from_keywords(keywords) | {"ppo.own": named_own(own)}
    named = isinstance(env, str | list | tuple) or env is None
    ids = env_list(env if env is not None else given.get("env.id"), "env") if named else [envs.make(env).spec.id]
    first = flags.pop("seed", given.pop("seed", 0))
    given.pop("env.id", None)
    chosen = make_trials(trials, grid, list(seeds) if not isinstance(seeds, int) else seeds, first, "the call")
    plan = replace(make_plan(ids, chosen, given, flags, preset), by_id=named)
    path = Path(out) if out is not None else default_folder(plan.name)
    plan.save(path)
    return carry_out(plan, path, jobs, progress, None if named else env, own)


def carry_out(
    plan: Plan,
    out: Path,
    jobs: int | None = None,
    progress: Progress | None = None,
    env: Any = None,
    own: Mapping[str, Any] = NOTHING,
) -> dict[str, Any]:
    """Train what is missing of the experiment in `out`, and write its results. `env` is the environment, where it was
    handed in as an object; `own` are the loss and the optimizer, where they were."""
    if env is None and not plan.by_id:
        raise UserError(
            f"The experiment in {out} is on an environment that was handed in as a Python object; hand it in again, "
            f"with proximo.experiment.runner.carry_out(Plan.load(out), out, env=env)."
        )
    for name in sorted({name for run in plan.runs for name in run.config.ppo.own} - set(named_own(own))):
        raise UserError(
            f"The experiment in {out} has a {name} that was handed in; hand it in again, with "
            f"proximo.experiment.runner.carry_out(Plan.load(out), out, own={{'{name}': ...}})."
        )
    out = out.absolute()  # an environment may change the working directory
    progress, cores = progress or Progress(), available_cores()
    try:
        check_inside(out)
    except OSError as error:
        raise UserError(f"Cannot carry out the experiment in {shown(out)}: {error.strerror}.") from None
    with open_inside(out / PLAN) as file:
        if not take_lock(file):
            raise UserError(f"The experiment in {out} is being carried out by another process.")
        return _carry_out(plan, out, jobs, progress, env, own, cores)


def _carry_out(
    plan: Plan,
    out: Path,
    jobs: int | None,
    progress: Progress,
    env: Any,
    own: Mapping[str, Any],
    cores: list[int],
) -> dict[str, Any]:
    missing = [run for run in plan.runs if not is_complete(out / run.folder)]
    compiled = find_compiled(missing, env)
    count = max(1, min(jobs or len(cores), len(missing)))
    progress.start(plan, out, missing, count)
    if told := overlap(missing, compiled):
        progress.note(told)
    tracker = make_tracker(plan, out, progress.warn)
    with Interrupt() as interrupt, progress:
        tracker.start()
        try:
            slots = Slots(missing, out, count, cores, compiled, env, progress, interrupt, own)
            with same_for_all(env):
                slots.run()
            summary = summarize(plan, out)
        finally:
            tracker.close()
        progress.signal = interrupt.signal
    progress.finish(summary, out)
    return summary


def take_lock(file: IO[bytes]) -> bool:
    """Whether this process now has the file to itself; it lets go when it closes it, or ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def summarize(plan: Plan, out: Path) -> dict[str, Any]:
    """Write the results of an experiment, as far as it came."""
    return write_comparison(outcomes(plan, out), out, plan.name)


def outcomes(plan: Plan, out: Path) -> list[Outcome]:
    return [
        read_outcome(out / run.folder, run.trial, run.overrides, run.config.env.id, run.config.seed)
        for run in plan.runs
    ]


def is_complete(path: Path) -> bool:
    """Whether the run in `path` has come to its end."""
    return read_outcome(path, "", {}, "", 0).state == "complete"


def available_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def find_compiled(runs: Sequence[PlannedRun], env: Any) -> set[str]:
    """The environments that are written in JAX. What cannot be made is refused here, before anything is trained."""
    made = {env_id: envs.make(env_id if env is None else env) for env_id in {run.config.env.id for run in runs}}
    return {env_id for env_id, source in made.items() if not isinstance(source, envs.HostSource)}


class Slots:
    """Trains runs in `count` threads; each takes the next that suits it."""

    def __init__(
        self,
        runs: Sequence[PlannedRun],
        out: Path,
        count: int,
        cores: list[int],
        compiled: set[str],
        env: Any,
        progress: Progress,
        interrupt: Interrupt,
        own: Mapping[str, Any] = NOTHING,
    ):
        self._waiting = [(shape_of(run.config), run) for run in runs]
        self._at_work: Counter[Hashable] = Counter()
        self._out, self._count, self._cores, self._env, self._own = out, count, cores, env, own
        self._progress, self._interrupt = progress, interrupt
        self._lock = threading.Lock()
        self._compiled = compiled
        self._packed = _packed(env, {run.config.env.id for run in runs} - compiled, own)

    def run(self) -> None:
        """Returns when all runs have ended, or were stopped."""
        threads = [threading.Thread(target=self._work, args=[slot], daemon=True) for slot in range(self._count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # in pieces, so that signals are heard

    def _work(self, slot: int) -> None:
        worker: Worker | None = None
        shape: Hashable = None
        try:
            while not self._stopped() and (taken := self._take(shape)) is not None:
                shape, run = taken
                self._progress.began(run)
                if run.config.env.id not in self._compiled and (worker is None or not worker.alive):
                    if worker is not None:
                        worker.close()
                    worker = Worker(self._share(slot), self._out / "workers.log")
                self._progress.ended(run, self._train(run, worker))
                with self._lock:
                    self._at_work[shape] -= 1
        finally:
            if worker is not None:
                worker.close()

    def _stopped(self) -> bool:
        return self._interrupt.signal is not None

    def _train(self, run: PlannedRun, worker: Worker | None) -> Message:
        """Train one run, here or in the worker; how it ended."""
        path, tell = self._out / run.folder, partial(self._progress.tell, run)
        if run.config.env.id in self._compiled:
            return attempt(run.config, path, self._env, tell, self._own)
        assert worker is not None
        job = {"settings": settings.to_mapping(run.config), "path": str(path), "packed": self._packed}
        end = worker.run(job, tell, self._interrupt)
        return {"end": "interrupted"} if end["end"] == "failed" and self._stopped() else end

    def _take(self, last: Hashable) -> tuple[Hashable, PlannedRun] | None:
        """The next run: one whose program is there already, else of the kind with most runs left for each slot."""
        with self._lock:
            left = Counter(shape for shape, _ in self._waiting)
            if not left:
                return None
            best = last if left[last] else max(left, key=lambda shape: left[shape] / (1 + self._at_work[shape]))
            number = next(i for i, (shape, _) in enumerate(self._waiting) if shape == best)
            self._at_work[best] += 1
            return self._waiting.pop(number)

    def _share(self, slot: int) -> list[int]:
        """The cores of a slot's process."""
        count, cores = self._count, self._cores
        if count >= len(cores):
            return [cores[slot % len(cores)]]
        return cores[slot * len(cores) // count : (slot + 1) * len(cores) // count]


def _packed(env: Any, ids: set[str], own: Mapping[str, Any]) -> str:
    """What other processes need to make the environments: the one that was handed in, or what is registered here under
    their ids, maybe by the user's script, which those processes do not run. And what else was handed in."""
    import cloudpickle
    import gymnasium

    registered = [gymnasium.registry[name] for name in sorted(ids) if name in gymnasium.registry]
    try:
        packed = cloudpickle.dumps((env, registered, dict(own)) if ids else (None, [], {}))
    except Exception as error:  # whatever the user's own code does
        raise UserError(
            f"What was handed in cannot be sent to the processes that train on {', '.join(sorted(ids))} "
            f"({type(error).__name__}: {error})."
        ) from None
    return base64.b64encode(packed).decode()


def shape_of(config: Config) -> Hashable:
    """What runs must have in common to share a program."""
    return config.env.id, split_static(config)[0]


def attempt(
    config: Config, path: Path, env: Any, tell: Callable[[Message], None], own: Mapping[str, Any] = NOTHING
) -> Message:
    """Train one run, whatever happens; a message that says how it ended."""
    reporter = Reporter(tell)
    try:
        result = run_single_experiment(config, path, env, reporter, tracked=False, **own)
        ended = "complete" if result["stop_reason"] in COMPLETE else result["stop_reason"]
        return {"end": ended, "seconds": result["wall_seconds"]}
    except ProximoError as error:
        sentence, trace = (error.sentence, error.trace) if isinstance(error, EnvError) else (str(error), "")
        _write_down(path, f"{sentence}\n\n{trace}")
        return {"end": "failed", "sentence": sentence}
    except Exception as error:
        _write_down(path, traceback.format_exc())
        return {"end": "failed", "sentence": f"{type(error).__name__}: {error} (see {path / ERROR})."}


def _write_down(path: Path, text: str) -> None:
    """Keep what went wrong with the run; where not even that can be written, its end is reported all the same."""
    try:
        write_atomically(path / ERROR, text.rstrip() + "\n")
    except OSError:
        return


class Reporter(Console):
    """The console of a run in an experiment: how far it is, a few times in a second."""

    def __init__(self, tell: Callable[[Message], None]):
        self._tell, self._told = tell, 0.0

    def show(self, records: list[dict[str, Any]]) -> None:
        if records and time.monotonic() - self._told >= REPORT_SECONDS:
            self._told = time.monotonic()
            last = records[-1]
            self._tell({"step": last["step"], "returned": last["recent/return_mean"]})

    def note(self, sentence: str) -> None:
        self._tell({"note": sentence})
