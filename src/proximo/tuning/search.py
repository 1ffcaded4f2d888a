"""The search itself: `tune`. Optuna chooses, a fleet trains, and the protocol says what the result is worth."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proximo import envs, settings
from proximo.compile import prepare_backend, settings_key
from proximo.config import Config
from proximo.credentials import redacted
from proximo.envs.grouping import with_groups
from proximo.envs.groups import Groups
from proximo.errors import UserError
from proximo.experiment.compare import write_comparison
from proximo.experiment.outcomes import Outcome, read_outcome
from proximo.experiment.plan import PLAN, Plan, PlannedRun, file_name
from proximo.experiment.progress import Progress
from proximo.experiment.runner import show, train
from proximo.experiment.track import make_tracker
from proximo.fleet.choose import open_fleet
from proximo.fleet.cluster import Cluster
from proximo.fleet.jobs import Advanced, Ended, Fleet, HandedIn, Job, RowReader
from proximo.fleet.local import find_compiled
from proximo.presets import choose_preset, find_preset, own_preset
from proximo.run_dir.directory import RUNS, unused
from proximo.run_dir.files import open_inside, shown, write_atomically
from proximo.run_dir.lock import take_lock
from proximo.run_dir.read import Row, check_folder, is_complete
from proximo.settings import Values
from proximo.train.interrupt import Interrupt
from proximo.train.setup import named_own, resolve, with_own
from proximo.train.trust import check_trust
from proximo.tuning.protocol import (
    BEST,
    STUDY,
    WORSE,
    Protocol,
    again_runs,
    best_values,
    check_choice,
    check_trials,
    finalists,
    name_in_test,
    runs_of_test,
    settings_of,
    to_yaml,
    trial_run,
    verdict,
    winner,
)
from proximo.tuning.report import addition, search_record, sentence
from proximo.tuning.space import SEARCHED, GroupsOf, check_space, default_space, from_mapping, params_of
from proximo.tuning.study import MILESTONES, Asked, Pruner, Sampler, Study, find_study, make_sampler, open_storage
from proximo.yaml_file import read_yaml

AHEAD = 4
"""Trials that are proposed for each that is trained, where proposals do not depend on results: a slot then finds one
whose program it has."""


def tune(
    env: Any = None,
    *,
    trials: int = 40,
    steps: int | None = None,
    space: Mapping[str, Any] | str | Path | None = None,
    sampler: str = "tpe",
    pruner: str = "none",
    jobs: int | None = None,
    cluster: str | Cluster | None = None,
    storage: str | None = None,
    out: str | Path | None = None,
    config: Mapping[str, Any] | str | Path | None = None,
    preset: bool | str = True,
    save_preset: bool = False,
    progress: Progress | None = None,
    loss: Any = None,
    optimizer: Any = None,
    **keywords: Any,
) -> dict[str, Any]:
    """Search for settings, and compare what is found with what there was; returns what `summary.json` holds.

        summary = proximo.tune("CartPole-v1", trials=40, total_timesteps=200_000)
        summary["search"]["verdict"]        # better, no difference shown, or worse

    `env` is an id, an environment, or a factory. The search begins with the settings that `PPOTrainer` would train
    with, given `config`, `preset` and keywords: they are trial 0. `steps` are those of each run. `space` is what is
    searched, a mapping or a YAML file; by default it is chosen by the kind of environment. `storage` is the address of
    a database, instead of a journal in the folder `out`. `save_preset` keeps what is found among the user's own
    presets. `jobs` runs are trained side by side, on the Ray `cluster` at an address if one is given; `loss` and
    `optimizer` are as for `PPOTrainer`, for all runs.
    """
    own = {"loss": loss, "optimizer": optimizer}
    if steps is not None:
        keywords = keywords | {"total_timesteps": steps}
    asked = make_protocol(env, config, keywords, preset, space, trials, sampler, pruner, storage, own)
    path = Path(out) if out is not None else default_folder(asked.protocol.base.env.id)
    protocol = begin(asked.protocol, path, storage, save_preset)
    handed_in = None if protocol.by_id else env
    place = Cluster(cluster) if isinstance(cluster, str) else cluster
    how: dict[str, Any] = {"storage": storage, "cluster": place, "save_preset": save_preset, "remarks": asked.remarks}
    return carry_out(protocol, path, jobs, progress, handed_in, own, trust=True, **how)


@dataclass(frozen=True)
class Question:
    """A study that nothing is written of yet."""

    protocol: Protocol
    groups_of: GroupsOf
    remarks: Sequence[str] = ()


def make_protocol(
    env: Any,
    config: Any,
    keywords: Mapping[str, Any],
    preset: bool | str,
    space: Mapping[str, Any] | str | Path | None,
    trials: int,
    sampler: str,
    pruner: str,
    storage: str | None,
    own: Mapping[str, Any],
    leave_out: str = "preset=False",
) -> Question:
    """The study that is asked for. What cannot be trained is refused here."""
    chosen: dict[str, Any] = {"sampler": check_choice("sampler", sampler, Sampler)}
    chosen["pruner"] = check_choice("pruner", pruner, Pruner)
    make_sampler(chosen["sampler"], 0)  # whether it can be
    prepare_backend()
    given = resolve(env, config, preset, keywords, leave_out=leave_out)
    base = with_own(given.config, {"loss": None, "optimizer": None, **own})
    check_trials(trials, base.seed)
    if base.train.start_from is not None:
        raise UserError("train.start_from cannot be used in a search: its trials have networks of different shapes.")
    groups_of = make_groups_of(base, env if given.source is not None else None)
    if space is None:
        source, found = "the default space", default_space(base, groups_of(base))
    elif isinstance(space, str | Path):
        source, found = str(space), from_mapping(read_yaml(Path(space)), str(space))
    else:
        source, found = "space", from_mapping(space, "space")
    check_space(found, base, groups_of, source)
    origin = "preset" if given.unfit is None and choose_preset(preset, base.env.id) else "defaults"
    if any(path.startswith(SEARCHED) for path in _named(config, keywords)):
        origin = "given settings"
    address = None if storage is None else redacted(storage)
    protocol = Protocol("", base, origin, found, trials, by_id=given.source is None, storage=address, **chosen)
    return Question(protocol, groups_of, [*given.remarks, *([] if given.unfit is None else [given.unfit])])


def _named(config: Any, keywords: Mapping[str, Any]) -> Values:
    """The settings that a user gave, and so not a preset."""
    if isinstance(config, str | Path):
        given = settings.from_file(Path(config))
    else:
        given = settings.from_mapping(config or {}, "config")
    return given | settings.from_keywords(keywords)


def make_groups_of(base: Config, env: Any) -> GroupsOf:
    """Who the agents of the environment are, by the settings; it is made once."""
    source = envs.make_configured(base.env, env)
    known: dict[str, Groups] = {}

    def groups_of(config: Config) -> Groups:
        key = settings_key(config.agents)
        if key not in known:
            known[key] = with_groups(source, config.agents).spec.groups
        return known[key]

    return groups_of


def default_folder(env_id: str) -> Path:
    """A new name under `runs/`."""
    return unused(RUNS / f"{file_name(env_id)}-tune-{time.strftime('%Y%m%d-%H%M%S')}")


def begin(protocol: Protocol, out: Path, storage: str | None, save_preset: bool) -> Protocol:
    """Write down a new study, under the name of its folder; what would fail at its end is refused here."""
    protocol = dataclasses.replace(protocol, name=out.absolute().name)
    if save_preset:
        preset_file(protocol.base)
    if storage is not None and find_study(open_storage(out, storage), protocol.name) is not None:
        raise UserError(
            f"{protocol.storage} has a study {protocol.name} already; give --out a folder of another name, or continue "
            f"that study with --resume."
        )
    protocol.save(out)
    return protocol


def preset_file(base: Config) -> Path:
    """Where the user's own preset for the environment goes."""
    file = own_preset(base.env.id)
    if file is None or base.env.kwargs or base.env.wrappers:
        raise UserError(
            f"--save-preset keeps settings under the id of an environment, and {base.env.id} is not made from its id "
            f"alone; use {BEST}, with `proximo train --config`."
        )
    return file


def carry_out(
    protocol: Protocol,
    out: Path,
    jobs: int | None = None,
    progress: Progress | None = None,
    env: Any = None,
    own: Mapping[str, Any] | None = None,
    trust: bool = False,
    storage: str | None = None,
    cluster: Cluster | None = None,
    save_preset: bool = False,
    remarks: Sequence[str] = (),
) -> dict[str, Any]:
    """Do what is missing of the study in `out`, and write its results. `env`, `own` and `storage` are handed in again,
    where they were; `trust` imports Python modules that the settings of a study name which was not made here."""
    if env is None and not protocol.by_id:
        raise UserError(
            f"The study in {out} is on an environment that was handed in as a Python object; hand it in again, with "
            f"proximo.tuning.search.carry_out(Protocol.load(out), out, env=env)."
        )
    for name in sorted({*protocol.base.ppo.own} - {*named_own(own or {})}):
        raise UserError(
            f"The study in {out} has a {name} that was handed in; hand it in again, with "
            f"proximo.tuning.search.carry_out(Protocol.load(out), out, own={{'{name}': ...}})."
        )
    if (protocol.storage is None) != (storage is None):
        where = "a journal in its folder" if protocol.storage is None else protocol.storage
        raise UserError(f"The study in {out} is kept in {where}; --storage must be given accordingly.")
    out = out.absolute()  # an environment may change the working directory
    check_folder(out)
    check_trust(out, [protocol.base.env], trust, handed_in=env is not None)
    with open_inside(out / STUDY) as file:
        if not take_lock(file):
            raise UserError(f"The study in {out} is already running in another process.")
        record = open_storage(out, storage)
        if storage is not None and (out / PLAN).exists() and find_study(record, protocol.name) is None:
            raise UserError(f"{redacted(storage)} has no study {protocol.name}; is it the storage that the study has?")
        base = protocol.base
        study = Study(protocol.space, base, record, protocol.name, protocol.sampler, protocol.pruner, base.seed)
        prepare_backend()
        driver = Driver(protocol, out, study, HandedIn(env, own or {}, trust), progress or Progress())
        return driver.run(jobs, cluster, save_preset, remarks)


class Milestones:
    """The returns of a run at shares of its budget, as its rows come."""

    def __init__(self, total: int, known: Sequence[tuple[int, float]] = ()):
        self._total, self._left = total, [one for one in MILESTONES if one not in dict(known)]

    def passed(self, rows: Sequence[Row]) -> Iterator[tuple[int, float]]:
        """Those that rows reach for the first time; without those at which no episode had ended."""
        for row in rows:
            while self._left and 100 * row["step"] >= self._left[0] * self._total:
                milestone, value = self._left.pop(0), row.get("recent/return_mean")
                if isinstance(value, int | float) and math.isfinite(value):
                    yield milestone, float(value)


@dataclass
class Active:
    """A trial that is trained."""

    asked: Asked
    run: PlannedRun
    milestones: Milestones
    pruned: bool = False


@dataclass
class Driver:
    """Carries out a study."""

    protocol: Protocol
    out: Path
    study: Study
    given: HandedIn
    progress: Progress
    runs: dict[str, PlannedRun] = field(default_factory=dict)
    """By their folders, in order: what the plan in the folder says."""
    active: dict[Job, Active] = field(default_factory=dict)

    def run(
        self, jobs: int | None, cluster: Cluster | None, save_preset: bool, remarks: Sequence[str]
    ) -> dict[str, Any]:
        """Search, train the best again, test the winner, and write the results, as far as it comes."""
        protocol, progress = self.protocol, self.progress
        self.groups_of = make_groups_of(protocol.base, self.given.env)
        self.compiled = find_compiled([protocol.base], self.given)
        if not self.study.trials:
            params, outside = params_of(protocol.base, protocol.space, self.groups_of)
            self.study.begin(params, bool(outside))
        self._plan([trial_run(protocol, trial.number, config) for trial, config in self._known()])
        tracker = make_tracker(self._as_plan(), self.out, progress.warn)
        with Interrupt() as interrupt, contextlib.ExitStack() as shown:
            with open_fleet(cluster, jobs, self.out, interrupt, self.given, protocol.num_runs) as fleet:
                self._start(fleet.count, remarks)
                shown.enter_context(progress)
                tracker.start()
                shown.callback(tracker.close)
                again, best = self._phases(fleet, interrupt)
            summary = self._write(again, best, interrupt.signal is None, save_preset)
            shown.close()
            progress.signal = interrupt.signal
        progress.finish(summary, self.out)
        return summary

    def _start(self, count: int, remarks: Sequence[str]) -> None:
        protocol = self.protocol
        whole = [trial_run(protocol, number, protocol.base) for number in range(protocol.num_runs)]
        done = sum(is_complete(self.out / run.folder) for run in self.runs.values())
        plan = Plan(protocol.name, tuple(whole), protocol.by_id)
        self.progress.start(plan, self.out, whole[done:], min(count, len(whole)))
        for remark in remarks:
            self.progress.note(remark)

    def _phases(self, fleet: Fleet, interrupt: Interrupt) -> tuple[dict[int, list[float]], int | None]:
        """The scores of the finalists, and the winner, as far as these are known before a signal comes."""
        self._search(fleet, interrupt)
        if interrupt.signal is not None:
            return {}, None
        configs = {trial.number: config for trial, config in self._known()}
        again = {number: again_runs(self.protocol, number, configs[number]) for number in finalists(self.study.trials)}
        self._train([run for runs in again.values() for run in runs], fleet)
        scores = {number: self._scores(runs) for number, runs in again.items()}
        best = None if interrupt.signal is not None else winner(scores)
        if best:
            tests = [run for number in (best, 0) for run in runs_of_test(self.protocol, number, configs[number])]
            self._train(tests, fleet)
        return scores, best

    def _search(self, fleet: Fleet, interrupt: Interrupt) -> None:
        """Train trials until there are as many as were asked for."""
        free = self.protocol.sampler == "random" and self.protocol.pruner == "none"
        most = AHEAD * fleet.count if free else fleet.count

        def fill() -> None:
            while (
                len(self.active) < most and interrupt.signal is None and len(self.study.trials) < self.protocol.trials
            ):
                self._enter(self.study.ask(), fleet)

        self._headline()
        for trial in self.study.trials:
            if trial.state == "running":
                self._enter(trial, fleet)
        fill()
        for event in fleet.events():
            active = self.active[event.job]
            show(self.progress, active.run, event)
            if isinstance(event, Advanced):
                self._judge(active, event.rows)
                if active.pruned:
                    fleet.cancel(event.job)
            elif isinstance(event, Ended):
                del self.active[event.job]
                self._end(active, event.end, event.sentence)
                fill()

    def _enter(self, trial: Asked, fleet: Fleet) -> None:
        """Have a trial trained, unless it is at its end already, or cannot be."""
        try:
            config = settings_of(self.protocol, trial, self.groups_of)
        except UserError as error:
            self.study.tell(trial.number, "failed", why=str(error))
            return
        run = trial_run(self.protocol, trial.number, config)
        self._plan([run])
        if self.study.is_hopeless(trial.number):  # which was not written down
            self.study.tell(trial.number, "pruned", trial.reported[-1][1])
            return
        active = Active(trial, run, Milestones(config.train.total_timesteps, trial.reported))
        if is_complete(self.out / run.folder):  # its end was not written down
            reader = RowReader(self.out / run.folder)
            while rows := reader.read():
                self._judge(active, rows)
            self._end(active, "complete", "")
            return
        job = self._job(run)
        self.active[job] = active
        fleet.submit(job)

    def _judge(self, active: Active, rows: Sequence[Row]) -> None:
        if self.protocol.pruner == "none" or active.pruned:
            return
        for milestone, value in active.milestones.passed(rows):
            if self.study.report(active.asked.number, milestone, value):
                active.pruned = True
                self.study.tell(active.asked.number, "pruned", value)
                return

    def _end(self, active: Active, how: str, why: str) -> None:
        """Tell the sampler how a trial ended; one that was interrupted goes on another time."""
        if active.pruned or how == "interrupted":
            return
        number, score = active.asked.number, self._outcome(active.run).score
        if how == "complete" and score is not None:
            self.study.tell(number, "complete", score)
        else:
            self.study.tell(number, "failed", why=why or "No episode came to its end.")
        self._headline()

    def _headline(self) -> None:
        trials = self.study.trials
        ended = sum(trial.state != "running" for trial in trials)
        best = finalists(trials)[:1]
        so_far = "".join(f", best so far {trials[number].value:,.4g} (trial {number})" for number in best)
        self.progress.headline(f"{ended} of {self.protocol.trials} trials{so_far}")

    def _known(self) -> list[tuple[Asked, Config]]:
        """The trials of the record whose settings can be trained."""
        found = []
        for trial in self.study.trials:
            try:
                found.append((trial, settings_of(self.protocol, trial, self.groups_of)))
            except UserError:
                continue  # it was told as failed
        return found

    def _train(self, runs: Sequence[PlannedRun], fleet: Fleet) -> None:
        self._plan(runs)
        missing = [run for run in runs if not is_complete(self.out / run.folder)]
        train(missing, self.out, self.compiled, fleet, self.progress)

    def _job(self, run: PlannedRun) -> Job:
        return Job(run.config, self.out / run.folder, run.config.env.id in self.compiled)

    def _plan(self, runs: Sequence[PlannedRun]) -> None:
        """Add runs to the plan in the folder, which MLflow and comparisons go by."""
        if any(run.folder not in self.runs for run in runs):
            self.runs |= {run.folder: run for run in runs}
            self._as_plan().write(self.out)

    def _as_plan(self) -> Plan:
        return Plan(self.protocol.name, tuple(self.runs.values()), self.protocol.by_id)

    def _outcome(self, run: PlannedRun) -> Outcome:
        return read_outcome(self.out / run.folder, run.trial, run.overrides, run.config.env.id, run.config.seed)

    def _scores(self, runs: Sequence[PlannedRun]) -> list[float]:
        outcomes = [self._outcome(run) for run in runs]
        return [outcome.score for outcome in outcomes if outcome.counts and outcome.score is not None]

    def _write(
        self, again: Mapping[int, Sequence[float]], best: int | None, finished: bool, save_preset: bool
    ) -> dict[str, Any]:
        """The report, `summary.json`, and what was found, once the study is `finished`."""
        protocol, trials = self.protocol, self.study.trials
        search = search_record(protocol, trials, again, best, self.study.importances())
        configs = {trial.number: config for trial, config in self._known()}
        tests: list[Outcome] = []
        if best:
            runs = [run for number in (best, 0) for run in runs_of_test(protocol, number, configs[number])]
            tests = [self._outcome(run) for run in runs if run.folder in self.runs]
        if best is not None and finished:
            search["verdict"] = verdict(tests, protocol, best)
        search["sentence"] = sentence(protocol, search)
        search["notes"] = self._keep(configs, search, save_preset) if best is not None and finished else []
        baseline = name_in_test(protocol, 0) if tests else None
        title = f"Tuning of {protocol.base.env.id}"
        return write_comparison(tests, self.out, title, baseline, addition(protocol, trials, search))

    def _keep(self, configs: Mapping[int, Config], search: Mapping[str, Any], save_preset: bool) -> list[str]:
        """Write `best.yaml`, and the preset if that is wanted; sentences about them."""
        chosen = 0 if search["verdict"] == WORSE else search["winner"]
        config = configs[chosen]
        values = best_values(config, find_preset(config.env.id), self.protocol.space)
        about = f"Found by `proximo tune`: trial {chosen}. {search['sentence']}"
        file = self.out / BEST
        write_atomically(file, to_yaml({"env.id": config.env.id} | values, about))
        said = [f"{shown(file)} holds the settings of trial {chosen}: `proximo train --config {shown(file)}`."]
        if save_preset and chosen == 0:
            said.append("No preset was saved, since no better settings were found.")
        elif save_preset:
            place = preset_file(config)
            write_atomically(place, to_yaml(values, about))
            said.append(f"They are now your own preset for {config.env.id}: {place}.")
        return said
