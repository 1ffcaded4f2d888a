"""From the outcomes of runs to one summary: what `summary.json` and `summary.csv` hold."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proximo.errors import printable
from proximo.experiment import statistics as st
from proximo.experiment.outcomes import Outcome
from proximo.run_dir.files import to_json

Record = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """Runs in their places: trials and environments in the order in which they first appear."""

    title: str
    outcomes: tuple[Outcome, ...]
    baseline: str | None = None

    @property
    def trials(self) -> list[str]:
        return list(dict.fromkeys(run.trial for run in self.outcomes))

    @property
    def envs(self) -> list[str]:
        return list(dict.fromkeys(run.env for run in self.outcomes))

    def runs(self, trial: str, env: str | None = None) -> list[Outcome]:
        return [run for run in self.outcomes if run.trial == trial and env in (None, run.env)]

    def scores(self, trial: str) -> dict[str, list[float]]:
        """The scores of its runs that count, by environment; environments without any are left out."""
        found: dict[str, list[float]] = {}
        for env in self.envs:
            known = [run.score for run in self.runs(trial, env) if run.counts and run.score is not None]
            if known:
                found[env] = known
        return found

    def own_metrics(self, trial: str) -> dict[tuple[str, str], list[float]]:
        """Those of its runs that count, by environment and name; each as far as runs have it."""
        found: dict[tuple[str, str], list[float]] = {}
        for run in self.runs(trial):
            for name, value in run.own_metrics.items() if run.counts else ():
                found.setdefault((run.env, name), []).append(value)
        return found

    @property
    def scale(self) -> dict[str, tuple[float, float]]:
        """The lowest and the highest score of all runs that count, of each environment."""
        by_env: dict[str, list[float]] = {}
        for trial in self.trials:
            for env, scores in self.scores(trial).items():
                by_env.setdefault(env, []).extend(scores)
        return {env: (min(by_env[env]), max(by_env[env])) for env in self.envs if env in by_env}

    def scaled(self, trial: str) -> dict[str, NDArray[Any]] | None:
        """Its scores on one scale, 0 to 1 in each environment; None if it has none in one of several."""
        scores, scale = self.scores(trial), self.scale
        if len(self.envs) < 2 or set(scores) != set(self.envs):
            return None
        return {env: st.to_one_scale(part, *scale[env]) for env, part in scores.items()}

    @property
    def excluded(self) -> list[Outcome]:
        return [run for run in self.outcomes if not run.counts]


def summarize(found: Comparison, out: Path) -> Record:
    """Everything that `summary.json` holds. What varies between two equal experiments stands under `timing` alone."""
    return {
        "title": found.title,
        "baseline": found.baseline,
        "environments": found.envs,
        "method": {
            "score": "mean return of the final evaluation, or else of the last training episodes",
            "statistic": "interquartile mean",
            "interval": "percentile interval of the stratified bootstrap",
            "confidence": st.CONFIDENCE,
            "resamples": st.RESAMPLES,
        },
        "scale": {env: {"0": low, "1": high} for env, (low, high) in found.scale.items()},
        "trials": [_trial(found, name) for name in found.trials],
        "pairs": [_pair(found, *pair) for pair in _pairs(found)],
        "runs": [_run(run, out) for run in found.outcomes],
        "notes": _notes(found),
        "timing": {
            "trials": {name: _timing(found.runs(name)) for name in found.trials},
            "runs": [{"wall_seconds": run.wall_seconds, "steps_per_second": run.steps_per_second}
                     for run in found.outcomes],
        },
    }  # fmt: skip


def as_csv(summary: Record) -> str:
    """A row for each run; own metrics, and the settings that trials change, have a column each."""
    overrides = {trial["name"]: trial["overrides"] for trial in summary["trials"]}
    names = list(dict.fromkeys(name for changed in overrides.values() for name in changed))
    file = io.StringIO()
    columns = ["trial", "env", "seed", "state", "counts", "score", "steps", "wall_seconds", "steps_per_second", "path"]
    writer = csv.writer(file, lineterminator="\n")
    told = list(dict.fromkeys(name for run in summary["runs"] for name in run["own_metrics"]))
    writer.writerow([*columns, *told, *names])
    for run, timing in zip(summary["runs"], summary["timing"]["runs"], strict=True):
        changed, row = overrides[run["trial"]], run | timing
        numbers = [_cell(row[name]) for name in columns] + [run["own_metrics"].get(name) for name in told]
        writer.writerow(numbers + [_cell(changed.get(name)) for name in names])
    return file.getvalue()


def link(path: Path, out: Path) -> str:
    """Where a run is, seen from the comparison's folder: both can be moved together."""
    return printable(Path(os.path.relpath(path.resolve(), out.resolve())).as_posix())


def _trial(found: Comparison, name: str) -> Record:
    scores, scaled = found.scores(name), found.scaled(name)
    runs = found.runs(name)
    return {
        "name": name,
        "overrides": runs[0].overrides,
        "runs": len(runs),
        "counted": sum(run.counts for run in runs),
        "scores": {env: _score({env: part}) | st.describe(part) for env, part in scores.items()},
        "overall": None if scaled is None else _score(scaled),
        "own_metrics": [
            {"environment": env, "name": metric} | _score({env: values}) | st.describe(values)
            for (env, metric), values in found.own_metrics(name).items()
        ],
    }


def _score(scores: Any) -> Record:
    return {"iqm": st.strata_iqm(scores), **st.iqm_interval(scores)._asdict()}


def _pairs(found: Comparison) -> list[tuple[str, str]]:
    """Every two trials; those with the baseline first, and with the baseline as the second."""
    pairs = list(combinations(found.trials, 2))
    against = [pair if pair[1] == found.baseline else pair[::-1] for pair in pairs if found.baseline in pair]
    return against + [pair for pair in pairs if found.baseline not in pair]


def _pair(found: Comparison, first: str, second: str) -> Record:
    one, other = found.scores(first), found.scores(second)
    envs = [env for env in one if env in other]
    about: Record = {"first": first, "second": second, "environments": envs}
    if not envs:
        nothing = {"probability": None, "low": None, "high": None, "p_value": None, "better": None}
        return about | nothing | {"note": "no runs to compare", "verdict": "nothing to compare"}
    result = st.improvement({env: one[env] for env in envs}, {env: other[env] for env in envs})
    better, worse = {1: (first, second), -1: (second, first), 0: (None, None)}[result.shown]
    verdict = st.NO_DIFFERENCE if better is None else f"{better} is better than {worse}"
    numbers = {"probability": result.probability, **result.interval._asdict(), "p_value": result.p_value}
    return about | numbers | {"per_environment": result.per_env, "better": better, "verdict": verdict}


def _run(run: Outcome, out: Path) -> Record:
    about = {"trial": run.trial, "env": run.env, "seed": run.seed, "state": run.state, "counts": run.counts}
    numbers = {"score": run.score, "own_metrics": run.own_metrics, "steps": run.steps}
    return about | numbers | {"path": link(run.path, out)}


def _timing(runs: Sequence[Outcome]) -> Record:
    def middle(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return float(np.median(known)) if known else None

    walls, counted = [run.wall_seconds for run in runs], [run for run in runs if run.counts]
    return {
        "wall_seconds_total": sum(wall for wall in walls if wall is not None),
        "wall_seconds_median": middle([run.wall_seconds for run in counted]),
        "steps_per_second_median": middle([run.steps_per_second for run in counted]),
    }


def _notes(found: Comparison) -> list[str]:
    """What a reader should know before believing the numbers."""
    notes = []
    if found.excluded:
        states = Counter(run.state for run in found.excluded)
        counted = ", ".join(f"{count} {state}" for state, count in states.items())
        notes.append(f"{len(found.excluded)} of {len(found.outcomes)} runs do not count: {counted}.")
    places = Counter((run.trial, run.env, run.seed) for run in found.outcomes)
    for (trial, env, seed), count in places.items():
        if count > 1:
            notes.append(
                f"{trial} has seed {seed} on {env} {count} times: equal seeds are no independent runs, and the "
                f"intervals are too narrow."
            )
    sets = {trial: sorted(found.scores(trial)) for trial in found.trials}
    for trial, envs in sets.items():
        lacking = [env for env in found.envs if env not in envs]
        if lacking and len(found.envs) > 1:
            notes.append(f"{trial} has no score on {', '.join(lacking)}: it has none over all environments either.")
    few = [trial for trial in found.trials for part in found.scores(trial).values() if len(part) < st.FEWEST]
    if few:
        names = ", ".join(dict.fromkeys(few))
        notes.append(f"{names}: fewer than {st.FEWEST} runs count, too few for an interval or a verdict.")
    return notes


def _cell(value: Any) -> Any:
    """As CSV has it: nothing for None, JSON for what is no plain value."""
    return to_json(value) if isinstance(value, bool | list | tuple | dict) else value
