"""What a study consists of, and what its result is worth.

Every trial is trained with one seed of its own. The best few are trained again with fresh seeds, which correct for the
luck of having been chosen; the best of these, the winner, is compared with trial 0, the settings that the search began
with, on seeds by which nothing was chosen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from proximo import settings
from proximo.config import MAX_SEED, Config
from proximo.errors import UserError, quoted
from proximo.experiment import statistics as st
from proximo.experiment.outcomes import Outcome
from proximo.experiment.plan import SPACING, PlannedRun
from proximo.experiment.summarize import Comparison
from proximo.run_dir.files import LARGEST_PLAN, read_json, to_json, write_atomically
from proximo.settings import SETTINGS, Values
from proximo.train.trust import vouch_for
from proximo.tuning.space import GroupsOf, Space, configure, from_mapping, read, to_mapping
from proximo.tuning.study import Asked, Pruner, Sampler
from proximo.yaml_file import dump

STUDY, BEST = "study.json", "best.yaml"
TUNING, AGAIN, TEST = 10_000, 20_000, 0
"""Where the seeds of trials, of finalists and of the test begin, from the study's own seed; each are 100,000 apart."""
FINALISTS, SEEDS = 3, 5
MOST_TRIALS = 10_000
BETTER, NO_DIFFERENCE, WORSE = "better", st.NO_DIFFERENCE, "worse"
LEFT_OUT = ("env.id", "seed", "train.start_", "train.schedule_start", "track.", "checkpoint.", "ppo.own")
ABOUT_THE_MACHINE = ("env.workers", "env.groups", "env.timeout", "env.replay_limit", "env.start_method")
"""Settings that are no result of a search."""


@dataclass(frozen=True)
class Protocol:
    """A study as it was asked for."""

    name: str
    base: Config
    """The settings of trial 0; its seed is the study's own."""
    origin: str
    """Where they come from: preset, defaults, or settings."""
    space: Space
    trials: int = 40
    sampler: Sampler = "tpe"
    pruner: Pruner = "none"
    by_id: bool = True
    """Whether the environment can be made from its id; otherwise it was handed in."""
    storage: str | None = None
    """The address of a database, without who may use it; None: a journal in the folder."""

    @property
    def num_runs(self) -> int:
        """How many runs there are, if no trial is pruned and the winner is not trial 0."""
        return self.trials + SEEDS * min(FINALISTS, self.trials) + 2 * SEEDS

    def save(self, out: Path) -> None:
        """Write it to the study's folder, which must be new or empty."""
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out} is not an empty folder; give --out a new or an empty one, or use --resume {out}.")
        vouch_for(out, [self.base.env])
        saved = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        saved |= {"base": settings.to_mapping(self.base), "space": to_mapping(self.space)}
        write_atomically(out / STUDY, to_json(saved, indent=1) + "\n")

    @classmethod
    def load(cls, out: Path) -> Protocol:
        """The study in `out`."""
        try:
            saved = dict(read_json(out / STUDY, LARGEST_PLAN))
            source = str(out / STUDY)
            saved["base"] = settings.build(settings.from_mapping(saved["base"], source))
            saved["space"] = from_mapping(saved["space"], source)
            found = cls(**saved)
            kinds = {"name": str, "origin": str, "trials": int, "by_id": bool, "storage": str | None}
            if not all(isinstance(getattr(found, name), kind) for name, kind in kinds.items()):
                raise ValueError("a value has another type")
            check_trials(found.trials, found.base.seed)
            check_choice("sampler", found.sampler, Sampler)
            check_choice("pruner", found.pruner, Pruner)
            return found
        except FileNotFoundError:
            raise UserError(f"{out} is not the folder of a study: it has no {STUDY}.") from None
        except OSError as error:
            raise UserError(f"Cannot read {out / STUDY}: {error.strerror}.") from None
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{out / STUDY} is damaged ({type(error).__name__}: {error}).") from None


def check_choice(name: str, given: str, kinds: Any) -> str:
    """The sampler or the pruner that was asked for, if there is one of that name."""
    if given not in get_args(kinds):
        raise UserError(f"--{name} must be one of {', '.join(get_args(kinds))}, not {quoted(given)}.")
    return given


def check_trials(trials: int, seed: int) -> None:
    """Refuse more trials than are possible, or than there are seeds for."""
    if not 1 <= trials <= MOST_TRIALS:
        raise UserError(f"--trials must be 1 to {MOST_TRIALS:,}, not {trials:,}.")
    if seed + AGAIN + SPACING * max(trials, SEEDS) > MAX_SEED:
        raise UserError(f"There are not enough seeds after {seed:,} for {trials:,} trials; use a smaller seed.")


def settings_of(protocol: Protocol, asked: Asked, groups_of: GroupsOf) -> Config:
    """The settings of a trial, without its seeds; of trial 0, those that the study began with."""
    if asked.number == 0:
        return protocol.base
    return configure(protocol.base, protocol.space, asked.params, groups_of)


def trial_run(protocol: Protocol, number: int, config: Config) -> PlannedRun:
    """The run that decides how good a trial is."""
    seed = protocol.base.seed + TUNING + SPACING * number
    return _run(protocol, f"trial {number}", config, seed, f"trial{number:03d}")


def again_runs(protocol: Protocol, number: int, config: Config) -> list[PlannedRun]:
    """The runs that decide which of the finalists is the winner."""
    seeds = [protocol.base.seed + AGAIN + SPACING * i for i in range(SEEDS)]
    return [_run(protocol, f"trial {number} again", config, s, f"trial{number:03d}-again-seed{s}") for s in seeds]


def runs_of_test(protocol: Protocol, number: int, config: Config) -> list[PlannedRun]:
    """The runs that compare the winner with trial 0."""
    seeds = [protocol.base.seed + TEST + SPACING * i for i in range(SEEDS)]
    name = name_in_test(protocol, number)
    return [_run(protocol, name, config, seed, f"trial{number:03d}-test-seed{seed}") for seed in seeds]


def name_in_test(protocol: Protocol, number: int) -> str:
    """What a trial is called where it is compared."""
    return f"{'tuned' if number else protocol.origin} (trial {number})"


def _run(protocol: Protocol, trial: str, config: Config, seed: int, folder: str) -> PlannedRun:
    return PlannedRun(trial, changes(protocol.base, config), dataclasses.replace(config, seed=seed), f"runs/{folder}")


def changes(base: Config, config: Config) -> Values:
    """The settings in which `config` differs from the `base`, but for the seed."""
    return {path: value for path in SETTINGS if path != "seed" and (value := read(config, path)) != read(base, path)}


def finalists(trials: Sequence[Asked]) -> list[int]:
    """The numbers of the best few, the best first; of equal ones, the earlier."""
    known = [(-trial.value, trial.number) for trial in trials if trial.state == "complete" and trial.value is not None]
    return [number for _, number in sorted(known)[:FINALISTS]]


def winner(scores: Mapping[int, Sequence[float]]) -> int | None:
    """The finalist with the best interquartile mean; of equal ones, the one that was better in the search. None if none
    has a score."""
    known = {number: st.strata_iqm({"": part}) for number, part in scores.items() if part}
    return max(known, key=lambda number: known[number], default=None)


def verdict(tests: Sequence[Outcome], protocol: Protocol, number: int) -> str | None:
    """What the test says of the winner, in the words of comparisons; None where it has nothing to compare."""
    if number == 0:
        return NO_DIFFERENCE
    env = protocol.base.env.id
    found = Comparison("", tuple(tests))
    first, second = (found.scores(name_in_test(protocol, one)) for one in (number, 0))
    if env not in first or env not in second:
        return None
    return {1: BETTER, 0: NO_DIFFERENCE, -1: WORSE}[st.improvement(first, second).shown]


def best_values(config: Config, tuned: Values, space: Space) -> Values:
    """What a file must say so that `config` comes out, whether or not the environment's preset, which says `tuned`, is
    read before it."""
    named = {*tuned, *(dimension.path for dimension in space)}
    default = Config()
    return {
        path: value
        for path in SETTINGS
        if not path.startswith(LEFT_OUT + ABOUT_THE_MACHINE)
        and ((value := read(config, path)) != read(default, path) or path in named)
    }


def to_yaml(values: Values, about: str) -> str:
    """Values in their sections, below comments that say what they are."""
    nested: dict[str, Any] = {}
    for path, value in values.items():
        section, dot, name = path.partition(".")
        plain = list(value) if isinstance(value, tuple) else value
        if dot:
            nested.setdefault(section, {})[name] = plain
        else:
            nested[section] = plain
    return "".join(f"# {line}\n" for line in about.splitlines()) + dump(nested)
