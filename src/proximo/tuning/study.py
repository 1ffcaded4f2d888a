"""The study: what Optuna knows of the trials, and what it proposes. The only module that imports Optuna.

The record is Optuna's own: a journal in the study's folder (lines of JSON), or a database. A trial is written into it
whole, by one line, when it is proposed, and by another when it ends, so that a process may be killed at any moment.
What Optuna decides, it decides on a replica in memory, with a sampler that is made for each trial from the study's
seed and the trial's number: a decision depends on the record alone, and a study that was stopped goes on as if it had
not been.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from proximo.config import Config
from proximo.credentials import redacted
from proximo.errors import ProximoError, UserError
from proximo.run_dir.files import LARGEST_PLAN, read_inside
from proximo.tuning.space import Dimension, Params, Space, partly, same

if TYPE_CHECKING:
    import optuna

Sampler = Literal["tpe", "random", "gp"]
Pruner = Literal["none", "median", "hyperband"]
JOURNAL = "journal.log"
EARLIEST = 30
"""Per cent of the budget before which nothing is pruned."""
MILESTONES = (30, 40, 50, 60, 70, 80, 90)
"""Per cent of the budget at which a trial is judged, where trials are pruned."""
REPLICA = "proximo"
OUTSIDE, WHY = "outside", "why"
FEWEST = 4
"""Trials below which nothing is said of what matters."""
LONGEST = 300
"""Letters of an error in a sentence."""
State = Literal["running", "complete", "pruned", "failed"]


@dataclass(frozen=True)
class Asked:
    """One trial, as the record has it."""

    number: int
    params: Params
    """What the sampler chose; of trial 0, what of its settings lies in the space."""
    state: State = "running"
    value: float | None = None
    reported: tuple[tuple[int, float], ...] = ()
    """Returns at milestones."""
    why: str = ""
    """Of one that failed."""


def load_optuna() -> Any:
    """Optuna, without what it prints; a sentence where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise UserError('Tuning needs the package optuna; pip install "proximo[tune]"') from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class Study:
    """The record of a search, and its proposals."""

    def __init__(
        self,
        space: Space,
        base: Config,
        storage: optuna.storages.BaseStorage,
        name: str,
        sampler: Sampler = "tpe",
        pruner: Pruner = "none",
        seed: int = 0,
    ):
        optuna = load_optuna()
        self._space, self._base, self._kind, self._seed = space, base, sampler, seed
        self._hopeless = set[int]()
        self._memory = optuna.storages.InMemoryStorage()
        self._replica = optuna.create_study(
            storage=self._memory, direction="maximize", study_name=REPLICA, pruner=make_pruner(pruner)
        )
        self._storage = storage
        with in_words(f"The study {name}"):
            found = find_study(storage, name)
            direction = [optuna.study.StudyDirection.MAXIMIZE]
            self._id = storage.create_new_study(direction, name) if found is None else found
            for trial in storage.get_all_trials(self._id):
                self._repeat(trial)

    @property
    def trials(self) -> list[Asked]:
        """Every trial so far, in order."""
        return [self._asked(trial) for trial in self._storage.get_all_trials(self._id, deepcopy=False)]

    def begin(self, params: Params, outside: bool) -> Asked:
        """Trial 0, whose settings are given; where they lie `outside` of the space, the sampler is not told of it."""
        trial = self._write(params, {OUTSIDE: outside})
        self._repeat(trial)
        return self._asked(trial)

    def ask(self) -> Asked:
        """The next trial, at a point that the sampler chooses: one dimension after the other, since whether one is
        searched may depend on those before it."""
        self._replica.sampler = make_sampler(self._kind, seed_of(self._seed, len(self._replica.trials)))
        trial = self._replica.ask()
        params: Params = {}
        for dimension in self._space:
            if not dimension.when or dimension.active(partly(self._base, self._space, params)):
                params[dimension.name] = suggest(trial, dimension)
        return self._asked(self._write(params, {}))

    def report(self, number: int, milestone: int, value: float) -> bool:
        """Write down the return at a milestone; whether the trial is to be ended there."""
        self._storage.set_trial_intermediate_value(self._trial_id(number), milestone, value)
        self._judge(number, milestone, value)
        return self.is_hopeless(number)

    def is_hopeless(self, number: int) -> bool:
        """Whether a trial is to be ended, by what was written down of it."""
        return number in self._hopeless

    def tell(self, number: int, state: State, value: float | None = None, why: str = "") -> None:
        """Write down how a trial ended; `why`, if it failed."""
        trial_id = self._trial_id(number)
        if why:
            self._storage.set_trial_user_attr(trial_id, WHY, why)
        end(self._storage, trial_id, state, value)
        self._end(number, state, value)

    def importances(self) -> dict[str, float]:
        """How much each setting matters for being among the best tenth (PED-ANOVA), 1 in all; nothing where there are
        too few trials to say."""
        optuna = load_optuna()
        complete = self._replica.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
        if len(complete) < FEWEST or len({trial.value for trial in complete}) < 2:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what never varied
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            found = optuna.importance.get_param_importances(self._replica, evaluator=evaluator)
        return {name: float(share) for name, share in found.items()}

    def _write(self, params: Params, attrs: dict[str, Any]) -> Any:
        trial_id = self._storage.create_new_trial(self._id, self._made(params, attrs))
        return self._storage.get_trial(trial_id)

    def _made(self, params: Params, attrs: dict[str, Any]) -> Any:
        optuna = load_optuna()
        held = [dimension for dimension in self._space if dimension.name in params]
        return optuna.trial.create_trial(
            state=optuna.trial.TrialState.RUNNING,
            params={dimension.name: encoded(dimension, params[dimension.name]) for dimension in held},
            distributions={dimension.name: distribution(dimension) for dimension in held},
            user_attrs=attrs,
        )

    def _repeat(self, trial: Any) -> None:
        """Let the replica go through what the record says of a trial."""
        asked = self._asked(trial)
        self._replica.add_trial(self._made(asked.params, dict(trial.user_attrs)))
        for milestone, value in asked.reported:
            self._judge(asked.number, milestone, value)
        if asked.state != "running":
            self._end(asked.number, asked.state, asked.value)

    def _judge(self, number: int, milestone: int, value: float) -> None:
        trial_id = self._replica.trials[number]._trial_id
        self._memory.set_trial_intermediate_value(trial_id, milestone, value)
        # Trial 0 is what others are compared with.
        if number > 0 and self._replica.pruner.prune(self._replica, self._memory.get_trial(trial_id)):
            self._hopeless.add(number)

    def _end(self, number: int, state: State, value: float | None) -> None:
        trial = self._replica.trials[number]
        end(self._memory, trial._trial_id, "failed" if trial.user_attrs.get(OUTSIDE) else state, value)

    def _trial_id(self, number: int) -> int:
        return int(self._storage.get_trial_id_from_study_id_trial_number(self._id, number))

    def _asked(self, trial: Any) -> Asked:
        dimensions = {dimension.name: dimension for dimension in self._space}
        state: Any = {name.name: state for state, name in states().items()}.get(trial.state.name)
        if state is None or not set(trial.params) <= set(dimensions):
            raise ValueError(f"trial {trial.number} is not one of this space")
        return Asked(
            trial.number,
            {name: decoded(dimensions[name], value) for name, value in trial.params.items()},
            state,
            None if trial.values is None else float(trial.values[0]),
            tuple(sorted(trial.intermediate_values.items())),
            str(trial.user_attrs.get(WHY, "")),
        )


def find_study(storage: optuna.storages.BaseStorage, name: str) -> int | None:
    """The id of the study of this name; None if there is none."""
    try:
        return int(storage.get_study_id_from_name(name))
    except KeyError:
        return None


def states() -> dict[State, Any]:
    kinds = load_optuna().trial.TrialState
    return {"running": kinds.RUNNING, "complete": kinds.COMPLETE, "pruned": kinds.PRUNED, "failed": kinds.FAIL}


def end(storage: optuna.storages.BaseStorage, trial_id: int, state: State, value: float | None) -> None:
    values = [value] if value is not None and state != "failed" else None
    storage.set_trial_state_values(trial_id, states()[state], values)


def make_sampler(kind: Sampler, seed: int) -> optuna.samplers.BaseSampler:
    """A sampler at its beginning."""
    load_optuna()
    from optuna import samplers

    if kind == "random":
        return samplers.RandomSampler(seed=seed)
    if kind == "tpe":
        return samplers.TPESampler(seed=seed)
    try:
        import torch  # noqa: F401
    except ImportError:
        raise UserError("The sampler gp needs the package torch; pip install torch, or use --sampler tpe.") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is experimental
        return samplers.GPSampler(seed=seed)


def make_pruner(kind: Pruner) -> optuna.pruners.BasePruner:
    """A pruner that ends nothing before `EARLIEST` per cent of the budget."""
    load_optuna()
    from optuna import pruners

    if kind == "none":
        return pruners.NopPruner()
    if kind == "median":
        return pruners.MedianPruner(n_warmup_steps=EARLIEST)
    return pruners.HyperbandPruner(min_resource=EARLIEST, max_resource=100)


def seed_of(seed: int, number: int) -> int:
    """Of the sampler that proposes a trial."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    """The dimension as Optuna has it."""
    from optuna import distributions as kinds

    if dimension.choices:
        return kinds.CategoricalDistribution([encoded(dimension, choice) for choice in dimension.choices])
    if dimension.whole:
        return kinds.IntDistribution(int(dimension.low), int(dimension.high), log=dimension.form == "log")
    return kinds.FloatDistribution(dimension.low, dimension.high, log=dimension.form == "log")


def suggest(trial: optuna.Trial, dimension: Dimension) -> Any:
    """What the sampler of a trial chooses for a dimension."""
    if dimension.choices:
        choices = [encoded(dimension, choice) for choice in dimension.choices]
        return decoded(dimension, trial.suggest_categorical(dimension.name, choices))
    log = dimension.form == "log"
    if dimension.whole:
        return trial.suggest_int(dimension.name, int(dimension.low), int(dimension.high), log=log)
    return trial.suggest_float(dimension.name, dimension.low, dimension.high, log=log)


def encoded(dimension: Dimension, param: Any) -> Any:
    """As Optuna keeps it: lists as texts."""
    if isinstance(param, list | tuple | dict):
        return json.dumps(param)
    return int(param) if dimension.whole and not dimension.choices else param


def decoded(dimension: Dimension, param: Any) -> Any:
    """The other way round; ValueError for what is not in the dimension."""
    if dimension.choices:
        return next((c for c in dimension.choices if same(encoded(dimension, c), param)), None)
    if not dimension.holds(param):
        raise ValueError(f"{dimension.name} is {param!r}")
    return param


def open_storage(out: Path, url: str | None) -> optuna.storages.BaseStorage:
    """The journal in the folder `out`, or a database."""
    load_optuna()
    from optuna import storages
    from optuna.storages import journal

    if url is not None:
        with in_words(f"The storage {redacted(url)}"):
            return storages.RDBStorage(url)
    path = out / JOURNAL
    with in_words(str(path)):
        if path.exists():
            _cut(path)
        # Whoever killed the last writer did not let it unlock; this process holds the study's own lock.
        (out / f"{JOURNAL}.lock").unlink(missing_ok=True)
        return storages.JournalStorage(journal.JournalFileBackend(str(path), journal.JournalFileOpenLock(str(path))))


def in_memory() -> optuna.storages.BaseStorage:
    """A record that is kept nowhere."""
    from optuna.storages import InMemoryStorage

    return InMemoryStorage()


def _cut(path: Path) -> None:
    """Remove a line that was not written to its end: the next would be joined to it."""
    content = read_inside(path, LARGEST_PLAN)
    if content and not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


@contextlib.contextmanager
def in_words(what: str) -> Iterator[None]:
    """What Optuna, a database or a damaged record raises, as a sentence."""
    try:
        yield
    except ProximoError:
        raise
    except ImportError as error:
        raise UserError(f"{what} needs the package {error.name}; pip install {error.name}") from None
    except Exception as error:  # of any of a dozen libraries
        words = " ".join(redacted(str(error)).split())
        raise UserError(f"{what} cannot be used ({type(error).__name__}: {words[:LONGEST]}).") from None
