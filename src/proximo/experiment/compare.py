"""Compare runs: find them, and write `summary.json`, `summary.csv`, `report.html` and `plots/`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from proximo import settings
from proximo.errors import UserError, printable
from proximo.experiment.outcomes import Outcome, read_outcome
from proximo.experiment.plan import PLAN, run_folder
from proximo.experiment.report import Section, page
from proximo.experiment.summarize import Comparison, as_csv, summarize
from proximo.plots import charts
from proximo.plots.drawing import png
from proximo.plots.panels import svg
from proximo.run_dir.directory import CONFIG, METRICS
from proximo.run_dir.files import LARGEST_PLAN, read_json, to_json, write_atomically
from proximo.run_dir.read import read_config

IRRELEVANT = (
    "seed",
    "env.id",
    "env.workers",
    "env.timeout",
    "env.replay_limit",
    "env.start_method",
    "checkpoint.",
    "track.",
)
"""Settings in which the runs of a trial may differ: what comes out does not depend on them."""


class Addition(NamedTuple):
    """What a report shows besides the comparison."""

    record: dict[str, Any]
    """Of the summary."""
    figures: dict[str, Any]
    """Pictures by their file's name."""
    sections: Callable[[Mapping[str, str]], Sequence[Section]]
    """With the pictures as SVG."""


def write_comparison(
    outcomes: Sequence[Outcome], out: Path, title: str, baseline: str | None = None, more: Addition | None = None
) -> dict[str, Any]:
    """Write the summary, the report and its pictures into `out`; the summary."""
    found = Comparison(title, tuple(outcomes), baseline)
    if not outcomes and more is None:
        raise UserError("There are no runs to compare.")
    if baseline is not None and baseline not in found.trials:
        raise UserError(f"There is no trial {baseline} to compare with; there are {', '.join(found.trials)}.")
    summary = summarize(found, out) | ({} if more is None else more.record)
    figures = charts.draw(found, summary) | ({} if more is None else more.figures)
    for old in (out / "plots").glob("*.png"):
        if old.stem not in figures:
            old.unlink()
    for name, figure in figures.items():
        write_atomically(out / "plots" / f"{name}.png", png(figure))
    write_atomically(out / "summary.csv", as_csv(summary))
    pictures = {name: svg(figure, name) for name, figure in figures.items()}
    write_atomically(out / "report.html", page(summary, pictures, () if more is None else more.sections(pictures)))
    write_atomically(out / "summary.json", to_json(summary, indent=2) + "\n")
    return summary


class _Loose(NamedTuple):
    """A run that no experiment tells of."""

    path: Path
    place: str  # the name of the folder it was found under; empty for a run that was named itself
    env: str
    seed: int
    values: dict[str, Any]


def gather(paths: Sequence[Path]) -> list[Outcome]:
    """The runs in `paths`: each is a run, an experiment's folder, or a folder with runs anywhere below it.

    An experiment's runs keep their trials. Others are grouped by their settings: runs with the same settings (apart
    from the seed, the environment, and what does not change a result) are one trial, named by what differs between
    trials, and by their folder where folders of runs were given.
    """
    planned: list[tuple[Path, dict[str, Any]]] = []
    loose: list[_Loose] = []
    seen: set[Path] = set()
    labels = _distinct(paths)
    for path in paths:
        folders = list(_folders(path))
        if not folders:
            raise UserError(_nothing(path))
        for folder, is_experiment in folders:
            if is_experiment:
                planned += [(folder, run) for run in _read_plan(folder) if _new(folder / run["path"], seen)]
            elif _new(folder, seen):
                loose.append(_read_loose(folder, "" if folder == path else labels[path]))
    outcomes = _name_planned(planned)
    return outcomes + _name_loose(loose, {run.trial for run in outcomes})


def _nothing(path: Path) -> str:
    if not path.exists():
        return f"There is no {path}; name a run, an experiment, or a folder with runs in it."
    return f"{path} holds no runs: no folder in it has the {CONFIG} and {METRICS} of a run, or an {PLAN}."


def _new(path: Path, seen: set[Path]) -> bool:
    place = path.resolve()
    fresh = place not in seen
    seen.add(place)
    return fresh


def _folders(path: Path) -> Iterator[tuple[Path, bool]]:
    """Runs and experiments at or below `path`, and whether it is an experiment; nothing inside of one is looked for."""
    for place, inner, files in os.walk(path):
        inner.sort()
        is_experiment = PLAN in files
        if is_experiment or {CONFIG, METRICS} <= {*files}:
            inner.clear()
            yield Path(place), is_experiment


def _read_plan(folder: Path) -> list[dict[str, Any]]:
    file = folder / PLAN
    try:
        runs = read_json(file, LARGEST_PLAN)["runs"]
        plan = [
            {
                "path": run_folder(run["path"], folder),
                "trial": str(run["trial"]),
                "env": str(run["env"]),
                "seed": int(run["seed"]),
            }
            | {"overrides": dict(run.get("overrides") or {})}
            for run in runs
        ]
    except OSError as error:
        raise UserError(f"Cannot read {file}: {error.strerror}.") from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
        raise UserError(f"{file} is damaged: it must list `runs` with path, trial, env and seed.") from None
    if not plan:
        raise UserError(f"{file} lists no runs.")
    return plan


def _read_loose(path: Path, place: str) -> _Loose:
    config = read_config(path)
    values = settings.from_mapping(settings.to_mapping(config), "config")
    return _Loose(path, place, config.env.id, config.seed, values)


def _name_planned(planned: Sequence[tuple[Path, dict[str, Any]]]) -> list[Outcome]:
    """Trials of the same name in two experiments are two trials: the experiment's name tells them apart."""
    homes: dict[str, set[Path]] = {}
    for folder, run in planned:
        homes.setdefault(run["trial"], set()).add(folder)
    labels = _distinct([folder for folder, _ in planned])
    return [
        read_outcome(
            folder / run["path"],
            run["trial"] if len(homes[run["trial"]]) == 1 else f"{labels[folder]}: {run['trial']}",
            run["overrides"],
            run["env"],
            run["seed"],
        )
        for folder, run in planned
    ]


def _distinct(folders: Iterable[Path]) -> dict[Path, str]:
    """Their last names, where these tell them apart."""
    names = Counter(folder.resolve().name for folder in {*folders})
    return {path: printable(name if names[name := path.resolve().name] == 1 else path.as_posix()) for path in folders}


def _name_loose(loose: Sequence[_Loose], taken: set[str]) -> list[Outcome]:
    everywhere = _differing(loose)
    places = list(dict.fromkeys(run.place for run in loose))
    outcomes = []
    for place in places:
        runs = [run for run in loose if run.place == place]
        # What differs from one folder to the next is said by their names.
        names = _differing(runs) if place else everywhere
        for run in runs:
            words = ", ".join(f"{settings.SETTINGS[name].name}={_plain(run.values[name])}" for name in names)
            prefix = place if len(places) > 1 or not words else ""
            trial = " ".join(filter(None, [prefix, words])) or "runs"
            overrides = {name: run.values[name] for name in everywhere}
            trial = f"{trial} (single runs)" if trial in taken else trial
            outcomes.append(read_outcome(run.path, trial, overrides, run.env, run.seed))
    return outcomes


def _differing(runs: Sequence[_Loose]) -> list[str]:
    """Settings that differ between runs on the same environment; presets make environments differ anyway."""
    seen: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        for name in settings.SETTINGS:
            seen.setdefault((run.env, name), set()).add(_plain(run.values[name]))
    differing = {name for (_, name), values in seen.items() if len(values) > 1}
    return [name for name in settings.SETTINGS if name in differing and not name.startswith(IRRELEVANT)]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value)
