"""Runs of an experiment, trained by a fleet: `run_multiple_experiments`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from proximo import envs, settings
from proximo.compile import prepare_backend
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
from proximo.experiment.progress import Progress, make_progress
from proximo.experiment.track import make_tracker
from proximo.fleet.choose import open_fleet
from proximo.fleet.cluster import Cluster
from proximo.fleet.jobs import Advanced, Began, Event, Fleet, HandedIn, Job, Noted
from proximo.fleet.local import find_compiled
from proximo.run_dir.files import open_inside
from proximo.run_dir.lock import take_lock
from proximo.run_dir.read import check_folder, is_complete
from proximo.shards import need_devices
from proximo.train.interrupt import Interrupt
from proximo.train.setup import named_own, of_its_size
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
    cluster: str | Cluster | None = None,
    **keywords: Any,
) -> dict[str, Any]:
    """Train every trial on every environment with every seed, and compare; returns what `summary.json` holds.

        run_multiple_experiments("CartPole-v1", {"careful": {"ppo.clip_epsilon": 0.1}, "bold": {...}})
        run_multiple_experiments(["CartPole-v1", "Acrobot-v1"], grid={"ppo.gamma": [0.98, 0.99]}, seeds=10)

    `env` is an id or a list of ids, an environment, or a factory. `seeds` is their number (0, 100,000, ...), or a list.
    Settings for all runs come from `config` and, as for `PPOTrainer`, from keywords. `jobs` runs are trained side by
    side; as many as there are processor cores by default. `loss` and `optimizer` are as for `PPOTrainer`, for all runs.
    `cluster` is the address of a Ray cluster that trains them, or a `Cluster` that says more (docs/cluster.md).
    """
    prepare_backend()
    own = {"loss": loss, "optimizer": optimizer}
    if isinstance(config, str | Path):
        given = settings.from_file(Path(config))
    else:
        given = settings.from_mapping(config or {}, "config")
    flags = settings.from_keywords(keywords) | {"ppo.own": named_own(own)}
    named = isinstance(env, str | list | tuple) or env is None
    if named:
        ids = env_list(env if env is not None else given.get("env.id"), "env")
    else:
        asked = given | flags
        source = envs.make(env, asked.get("env.kwargs"), asked.get("env.wrappers", ()))
        ids, flags = [source.spec.id], flags | of_its_size(source, asked)
    first = flags.pop("seed", given.pop("seed", 0))
    given.pop("env.id", None)
    chosen = make_trials(trials, grid, list(seeds) if not isinstance(seeds, int) else seeds, first, "the call")
    plan = replace(make_plan(ids, chosen, given, flags, preset), by_id=named)
    path = Path(out) if out is not None else default_folder(plan.name)
    plan.save(path)
    place = Cluster(cluster) if isinstance(cluster, str) else cluster
    return carry_out(plan, path, jobs, progress, None if named else env, own, trust=True, cluster=place)


def carry_out(
    plan: Plan,
    out: Path,
    jobs: int | None = None,
    progress: Progress | None = None,
    env: Any = None,
    own: Mapping[str, Any] | None = None,
    trust: bool = False,
    cluster: Cluster | None = None,
) -> dict[str, Any]:
    """Train what is missing of the experiment in `out`, and write its results. `env` is the environment, where it was
    handed in as an object; `own` are the loss and the optimizer, where they were. `trust` imports Python modules that
    the settings of an experiment name which was not made here. `cluster` is where it is trained, if not here."""
    if env is None and not plan.by_id:
        raise UserError(
            f"The experiment in {out} is on an environment that was handed in as a Python object; hand it in again, "
            f"with proximo.experiment.runner.carry_out(Plan.load(out), out, env=env)."
        )
    for name in sorted({name for run in plan.runs for name in run.config.ppo.own} - set(named_own(own or {}))):
        raise UserError(
            f"The experiment in {out} has a {name} that was handed in; hand it in again, with "
            f"proximo.experiment.runner.carry_out(Plan.load(out), out, own={{'{name}': ...}})."
        )
    out = out.absolute()  # an environment may change the working directory
    check_folder(out)
    check_trust(out, [run.config.env for run in plan.runs], trust, handed_in=env is not None)
    with open_inside(out / PLAN) as file:
        if not take_lock(file):
            raise UserError(f"The experiment in {out} is already running in another process.")
        return _carry_out(plan, out, jobs, progress or make_progress(), HandedIn(env, own or {}, trust), cluster)


def _carry_out(
    plan: Plan, out: Path, jobs: int | None, progress: Progress, given: HandedIn, cluster: Cluster | None
) -> dict[str, Any]:
    missing = [run for run in plan.runs if not is_complete(out / run.folder)]
    shards = max((run.config.train.shards for run in missing), default=1)
    if shards > 1:
        if cluster is not None:
            raise UserError(f"train.shards={shards} does not go with --cluster; each run has one shard there.")
        jobs = 1  # the devices of this process belong to one run at a time
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(shards))  # of processes that train
        need_devices(shards)
    compiled = find_compiled([run.config for run in missing], given)
    tracker = make_tracker(plan, out, progress.warn)
    with Interrupt() as interrupt, contextlib.ExitStack() as shown:
        with open_fleet(cluster, jobs, out, interrupt, given, len(missing)) as fleet:
            progress.start(plan, out, missing, min(fleet.count, max(1, len(missing))))
            for sentence in plan.remarks:
                progress.note(sentence)
            if told := overlap(missing, compiled):
                progress.note(told)
            shown.enter_context(progress)
            tracker.start()
            shown.callback(tracker.close)
            train(missing, out, compiled, fleet, progress)
        summary = summarize(plan, out)
        shown.close()
        progress.signal = interrupt.signal
    progress.finish(summary, out)
    return summary


def train(runs: Sequence[PlannedRun], out: Path, compiled: Set[str], fleet: Fleet, progress: Progress) -> None:
    """Train all of these; returns when they have ended, or were stopped."""
    jobs = {Job(run.config, out / run.folder, run.config.env.id in compiled): run for run in runs}
    for job in jobs:
        fleet.submit(job)
    for event in fleet.events():
        show(progress, jobs[event.job], event)


def show(progress: Progress, run: PlannedRun, event: Event) -> None:
    """Say what happens to a run."""
    if isinstance(event, Began):
        progress.began(run)
    elif isinstance(event, Advanced):
        progress.advanced(run, event.rows[-1])
    elif isinstance(event, Noted):
        progress.noted(run, event.sentence)
    else:
        progress.ended(run, event)


def summarize(plan: Plan, out: Path) -> dict[str, Any]:
    """Write the results of an experiment, as far as it came."""
    return write_comparison(outcomes(plan, out), out, plan.name)


def outcomes(plan: Plan, out: Path) -> list[Outcome]:
    return [
        read_outcome(out / run.folder, run.trial, run.overrides, run.config.env.id, run.config.seed)
        for run in plan.runs
    ]
