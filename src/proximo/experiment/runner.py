"""Runs of an experiment, side by side: `run_multiple_experiments`.

There are as many slots as processor cores. A slot is a thread. Environments written in JAX leave the interpreter alone,
so their runs are trained in these threads, and those that differ in numbers and seeds alone share one compiled program.
Other environments hold the interpreter: each slot has a process for them, with its share of the cores.
"""

from __future__ import annotations

import base64
import os
import threading
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from proximo import envs, settings
from proximo.compile import prepare_backend
from proximo.config import Config
from proximo.envs.arguments import env_key
from proximo.envs.grouping import with_groups
from proximo.envs.keys import same_for_all
from proximo.errors import UserError
from proximo.experiment.compare import write_comparison
from proximo.experiment.outcomes import Outcome, read_outcome
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
from proximo.experiment.single import NOTHING, Message, attempt
from proximo.experiment.track import make_tracker
from proximo.experiment.worker import Worker
from proximo.ppo.static_config import split_static
from proximo.run_dir.files import open_inside
from proximo.run_dir.lock import take_lock
from proximo.run_dir.read import check_folder, is_complete
from proximo.shards import need_devices
from proximo.train.interrupt import Interrupt
from proximo.train.program import settled
from proximo.train.setup import named_own
from proximo.train.trust import check_trust


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
    prepare_backend()
    own = {"loss": loss, "optimizer": optimizer}
    if isinstance(config, str | Path):
        given = settings.from_file(Path(config))
    else:
        given = settings.from_mapping(config or {}, "config")
    flags = settings.from_keywords(keywords) | {"ppo.own": named_own(own)}
    named = isinstance(env, str | list | tuple) or env is None
    ids = env_list(env if env is not None else given.get("env.id"), "env") if named else [_name_of(env, given | flags)]
    first = flags.pop("seed", given.pop("seed", 0))
    given.pop("env.id", None)
    chosen = make_trials(trials, grid, list(seeds) if not isinstance(seeds, int) else seeds, first, "the call")
    plan = replace(make_plan(ids, chosen, given, flags, preset), by_id=named)
    path = Path(out) if out is not None else default_folder(plan.name)
    plan.save(path)
    return carry_out(plan, path, jobs, progress, None if named else env, own, trust=True)


def carry_out(
    plan: Plan,
    out: Path,
    jobs: int | None = None,
    progress: Progress | None = None,
    env: Any = None,
    own: Mapping[str, Any] = NOTHING,
    trust: bool = False,
) -> dict[str, Any]:
    """Train what is missing of the experiment in `out`, and write its results. `env` is the environment, where it was
    handed in as an object; `own` are the loss and the optimizer, where they were. `trust` imports Python modules that
    the settings of an experiment name which was not made here."""
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
    check_folder(out)
    check_trust(out, [run.config.env for run in plan.runs], trust, handed_in=env is not None)
    with open_inside(out / PLAN) as file:
        if not take_lock(file):
            raise UserError(f"The experiment in {out} is already running in another process.")
        return _carry_out(plan, out, jobs, progress, env, own, cores, trust)


def _carry_out(
    plan: Plan,
    out: Path,
    jobs: int | None,
    progress: Progress,
    env: Any,
    own: Mapping[str, Any],
    cores: list[int],
    trust: bool,
) -> dict[str, Any]:
    missing = [run for run in plan.runs if not is_complete(out / run.folder)]
    shards = max((run.config.train.shards for run in missing), default=1)
    need_devices(shards)
    compiled = find_compiled(missing, env)
    count = max(1, min(jobs or len(cores), len(missing))) if shards == 1 else 1
    progress.start(plan, out, missing, count)
    if shards > 1:
        progress.note(f"Runs with several shards (train.shards) are trained one after the other: {shards} share a run.")
    for sentence in plan.remarks:
        progress.note(sentence)
    if told := overlap(missing, compiled):
        progress.note(told)
    tracker = make_tracker(plan, out, progress.warn)
    with Interrupt() as interrupt, progress:
        tracker.start()
        try:
            slots = Slots(missing, out, count, cores, compiled, env, progress, interrupt, own, trust)
            with same_for_all(env):
                slots.run()
            summary = summarize(plan, out)
        finally:
            tracker.close()
        progress.signal = interrupt.signal
    progress.finish(summary, out)
    return summary


def summarize(plan: Plan, out: Path) -> dict[str, Any]:
    """Write the results of an experiment, as far as it came."""
    return write_comparison(outcomes(plan, out), out, plan.name)


def outcomes(plan: Plan, out: Path) -> list[Outcome]:
    return [
        read_outcome(out / run.folder, run.trial, run.overrides, run.config.env.id, run.config.seed)
        for run in plan.runs
    ]


def available_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def find_compiled(runs: Sequence[PlannedRun], env: Any) -> set[str]:
    """The environments that are written in JAX. What cannot be made, and settings that do not fit, are refused here,
    before anything is trained."""
    prepare_backend()
    made: dict[str, envs.JaxEnv | envs.HostSource] = {}
    for run in runs:
        key = env_key(run.config.env)
        if key not in made:
            made[key] = envs.make_configured(run.config.env, env)
        settled(run.config, with_groups(made[key], run.config.agents).spec.groups)
    return {run.config.env.id for run in runs if not isinstance(made[env_key(run.config.env)], envs.HostSource)}


def _name_of(env: Any, given: settings.Values) -> str:
    """The id of an environment that was handed in."""
    return envs.make(env, given.get("env.kwargs"), given.get("env.wrappers", ())).spec.id


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
        trust: bool = False,
    ):
        self._trust = trust
        self._waiting = [(shape_of(run.config), run) for run in runs]
        self._at_work: Counter[Hashable] = Counter()
        self._out, self._count, self._cores, self._env, self._own = out, count, cores, env, own
        self._progress, self._interrupt = progress, interrupt
        self._lock = threading.Lock()
        self._compiled = compiled
        self._shards = max((run.config.train.shards for run in runs), default=1)
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
            return attempt(run.config, path, self._env, tell, self._own, self._trust)
        assert worker is not None
        told = settings.to_mapping(run.config)
        job = {"settings": told, "path": str(path), "packed": self._packed, "trust": self._trust}
        job["shards"] = self._shards
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
    return env_key(config.env), split_static(config)[0]
