"""What an experiment consists of: environments, trials, seeds, and so its runs. Read without loading JAX."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proximo import settings
from proximo.config import MAX_SEED, Config
from proximo.errors import UserError, quoted
from proximo.run_dir.directory import RUNS, unused
from proximo.run_dir.files import LARGEST_PLAN, read_json, to_json, write_atomically
from proximo.run_dir.saved import held_layer, located
from proximo.settings import Values
from proximo.train.preset import fitting_preset
from proximo.train.trust import vouch_for
from proximo.yaml_file import read_yaml

PLAN = "experiment.json"
KEYS = ("name", "envs", "seeds", "preset", "base", "trials", "grid")
ONLY_TRIAL = "default"
MOST_RUNS = 100_000
SPACING = 100_000
"""Between the seeds of an experiment: host environment i has the seed s + i, see `seeding.py`, and runs must not share
environments."""


@dataclass(frozen=True)
class Trial:
    """A way to train: what it changes in the settings, and the seeds it is trained with."""

    name: str
    overrides: Values
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class PlannedRun:
    """One run: a trial on an environment with a seed."""

    trial: str
    overrides: Values
    config: Config
    folder: str
    """Where it goes, under the experiment's own folder."""


@dataclass(frozen=True)
class Plan:
    """All runs of an experiment."""

    name: str
    runs: tuple[PlannedRun, ...]
    by_id: bool = True
    """Whether the environments can be made from their ids; otherwise they were handed in."""
    remarks: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    """What is to be said of it, once."""

    def save(self, out: Path) -> None:
        """Write the plan to the experiment's folder, which must be new or empty."""
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out} is not an empty folder; give --out a new or an empty one, or use --resume {out}.")
        vouch_for(out, [run.config.env for run in self.runs])
        self.write(out)

    def write(self, out: Path) -> None:
        """Write the plan over the one that is there."""
        runs = [
            {
                "path": run.folder,
                "trial": run.trial,
                "env": run.config.env.id,
                "seed": run.config.seed,
                "overrides": run.overrides,
                "settings": settings.to_mapping(run.config),
            }
            for run in self.runs
        ]
        write_atomically(out / PLAN, to_json({"name": self.name, "by_id": self.by_id, "runs": runs}, indent=1) + "\n")

    @classmethod
    def load(cls, out: Path) -> Plan:
        """The plan of the experiment, or the study, in `out`."""
        try:
            saved = read_json(out / PLAN, LARGEST_PLAN)
            runs = tuple(_loaded(run, out) for run in saved["runs"])
            return cls(str(saved["name"]), runs, saved["by_id"] is True)
        except FileNotFoundError:
            raise UserError(f"{out} is not the folder of an experiment: it has no {PLAN}.") from None
        except OSError as error:
            raise UserError(f"Cannot read {out / PLAN}: {error.strerror}.") from None
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{out / PLAN} is damaged ({type(error).__name__}: {error}).") from None


def make_plan(
    envs: Sequence[str],
    trials: Sequence[Trial],
    base: Values,
    flags: Values,
    preset: bool | str = True,
    name: str | None = None,
) -> Plan:
    """Every trial on every environment with each of its seeds.

    Settings are taken, later ones over earlier ones, from the defaults, the environment's preset, `base`, the trial
    and `flags`.
    """
    for trial in trials:
        for path in ("env.id", "seed", *flags):
            if path in trial.overrides:
                what = "is what envs and seeds are for" if path in ("env.id", "seed") else "is also given as a flag"
                raise UserError(f"The trial {trial.name} sets {path}, which {what}; remove one of the two.")
    _check_count(len(envs) * sum(len(trial.seeds) for trial in trials))
    runs, taken = list[PlannedRun](), set[str]()
    remarks: dict[str, None] = {}
    for env, trial in itertools.product(envs, trials):
        given = base | trial.overrides | flags
        tuned, unfit = fitting_preset(preset, env, given)
        remarks |= {} if unfit is None else {unfit: None}
        layers = (tuned, held_layer(given), base, trial.overrides, flags, {"env.id": env})
        shared = located(settings.build(*layers))
        for seed in trial.seeds:
            config = dataclasses.replace(shared, seed=settings.convert(settings.find_setting("seed"), seed))
            parts = [trial.name] if len(trials) > 1 else []
            parts += [env] if len(envs) > 1 or not parts else []
            stem = "--".join(map(file_name, [*parts, f"seed{seed}"]))
            folder, number = stem, 1
            while folder in taken:
                number += 1
                folder = f"{stem}-{number}"
            taken.add(folder)
            runs.append(PlannedRun(trial.name, trial.overrides, config, f"runs/{folder}"))
    return Plan(name or (envs[0] if len(envs) == 1 else "experiment"), tuple(runs), remarks=tuple(remarks))


def read_plan(path: Path, flags: Values, num_seeds: int | None = None, preset: bool | str = True) -> Plan:
    """The plan that a YAML file describes. `num_seeds` replaces the file's seeds; `seed` among the flags is the first
    of those that are given as a number."""
    given = read_yaml(path)
    if not isinstance(given, Mapping) or not given:
        raise UserError(f"{path} must hold {', '.join(KEYS)}; see docs/experiments.md.")
    for key in given:
        if key not in KEYS:
            raise UserError(f"{path} has the unknown key {quoted(key)}; an experiment has {', '.join(KEYS)}.")
    flags = dict(flags)
    base = settings.from_mapping(given.get("base") or {}, f"base in {path}")
    envs = [flags.pop("env.id")] if "env.id" in flags else given.get("envs", base.get("env.id"))
    wanted = given.get("preset", True)
    if not isinstance(wanted, bool | str):
        raise UserError(f"preset in {path} must be true, false or a name, not {quoted(wanted)}.")
    first = flags.pop("seed", base.pop("seed", 0))
    seeds = num_seeds or given.get("seeds", 5)
    trials = make_trials(given.get("trials"), given.get("grid"), seeds, first, str(path), num_seeds is not None)
    base.pop("env.id", None)
    return make_plan(
        env_list(envs, str(path)),
        trials,
        base,
        flags,
        wanted if preset is True else preset,
        given.get("name") or path.stem,
    )


def make_trials(
    named: Any, grid: Any, seeds: Any, first: int = 0, source: str = "trials", same_seeds: bool = False
) -> list[Trial]:
    """Named trials, every combination of a grid, or every combination of both; one without changes if there is neither.

    A trial may have `seeds` of its own, unless `same_seeds`.
    """
    if not isinstance(named or {}, Mapping) or not isinstance(grid or {}, Mapping):
        raise UserError(f"trials and grid in {source} must be mappings: names with settings, settings with lists.")
    found: list[Trial] = []
    for name, given in (named or {ONLY_TRIAL: {}}).items():
        own = dict(given or {}) if isinstance(given or {}, Mapping) else None
        if own is None:
            raise UserError(f"The trial {name} in {source} must be a mapping of settings, not {quoted(given)}.")
        its_seeds = own.pop("seeds", seeds)
        values = settings.from_mapping(own, f"the trial {name} in {source}")
        its_seeds = seed_list(seeds if same_seeds else its_seeds, first, source)
        points = grid_points(grid or {}, source)
        _check_count(sum(len(trial.seeds) for trial in found) + len(points) * len(its_seeds))
        for point in points:
            if clash := [path for path in point if path in values]:
                raise UserError(f"{clash[0]} in {source} is both in the grid and in the trial {name}.")
            title = ", ".join(
                [*([str(name)] if named else []), *(f"{short(path)}={_shown(v)}" for path, v in point.items())]
            )
            found.append(Trial(title or ONLY_TRIAL, values | point, its_seeds))
    return found


def grid_points(grid: Mapping[str, Any], source: str) -> list[Values]:
    """Every combination of the listed values."""
    axes = []
    for path, values in _flat(grid).items():
        setting = settings.find_setting(path)
        if not isinstance(values, list | tuple) or not values:
            raise UserError(f"{path} in the grid of {source} must be a list of values, not {quoted(values)}.")
        converted = [settings.convert(setting, value) for value in values]
        if len(set(map(str, converted))) < len(converted):
            raise UserError(f"{path} in the grid of {source} lists a value twice: {quoted(values)}.")
        axes.append([(setting.path, value) for value in converted])
    _check_count(math.prod(map(len, axes)))  # before they are listed
    return [dict(point) for point in itertools.product(*axes)]


def _check_count(runs: int) -> None:
    if runs > MOST_RUNS:
        raise UserError(f"This experiment has at least {runs:,} runs; at most {MOST_RUNS:,} are allowed.")


def seed_list(given: Any, first: int = 0, source: str = "seeds") -> tuple[int, ...]:
    """Seeds from their number, `first` and those at equal distances after it, or as they are listed."""
    if type(given) is int and given >= 1:
        most = 1 + (MAX_SEED - first) // SPACING
        if given > most:
            raise UserError(
                f"There are not {quoted(given)} seeds that lie {SPACING:,} apart: at most {most:,} from {first:,} on; "
                f"list the seeds in {source}."
            )
        return tuple(first + SPACING * i for i in range(given))
    if isinstance(given, list | tuple) and given and all(type(seed) is int for seed in given):
        if len(set(given)) < len(given):
            raise UserError(f"seeds in {source} lists a seed twice: {quoted(given)}.")
        return tuple(given)
    raise UserError(f"seeds in {source} must be a number of at least 1 or a list of seeds, not {quoted(given)}.")


def overlap(runs: Sequence[PlannedRun], compiled: Set[str]) -> str | None:
    """A sentence about seeds of one trial that are so close that their runs share environments; None if there are none.
    Environments that are `compiled` have streams of random numbers of their own for each seed."""
    seeds: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in runs:
        if run.config.env.id not in compiled:
            seeds.setdefault((run.trial, run.config.env.id), []).append(run)
    for (_, env), group in seeds.items():
        num, ordered = group[0].config.env.num_envs, sorted(run.config.seed for run in group)
        for one, other in itertools.pairwise(ordered):
            if other - one < num:
                return (
                    f"The seeds {one} and {other} have {num - (other - one)} of {num} environments in common on {env}, "
                    f"so their runs are not independent; seeds at least env.num_envs apart share none."
                )
    return None


def env_list(given: Any, source: str) -> list[str]:
    """Environments from one id or a list of ids."""
    envs = [given] if isinstance(given, str) else given
    if not isinstance(envs, list | tuple) or not envs or not all(isinstance(env, str) for env in envs):
        raise UserError(f"envs in {source} must be an environment's id or a list of ids, not {quoted(given)}.")
    if len(set(envs)) < len(envs):
        raise UserError(f"envs in {source} lists an environment twice: {', '.join(envs)}.")
    return list(envs)


def default_folder(name: str) -> Path:
    """A new name under `runs/`."""
    return unused(RUNS / f"{file_name(name)}-experiment-{time.strftime('%Y%m%d-%H%M%S')}")


def file_name(text: str) -> str:
    """`text` as a part of a path, on every file system."""
    return re.sub(r"[^\w.=+-]+", "-", text).strip("-.")[:80] or "x"


def short(path: str) -> str:
    """A setting's name without its section, where that says enough."""
    return path.rpartition(".")[2]


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(list(value) if isinstance(value, tuple) else value)


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        path = f"{prefix}{key}"
        found |= _flat(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return found


def _loaded(run: dict[str, Any], out: Path) -> PlannedRun:
    config = settings.build(settings.from_mapping(run["settings"], str(out / PLAN)))
    overrides = settings.from_mapping(run["overrides"], str(out / PLAN))
    return PlannedRun(str(run["trial"]), overrides, config, run_folder(run["path"], out))


def run_folder(path: Any, out: Path) -> str:
    """The folder of a run, as the plan in `out` names it; one that no experiment has made is refused."""
    folder = str(path)
    if not re.fullmatch(r"runs/[\w.=+-]+", folder) or ".." in folder:
        raise UserError(f"{out / PLAN} names the folder {folder!r}, which is not one of an experiment.")
    return folder
