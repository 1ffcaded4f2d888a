"""The pictures of a comparison, each as a figure; None where there is nothing to show."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proximo.experiment import statistics as st
from proximo.experiment.outcomes import Outcome
from proximo.experiment.summarize import Comparison
from proximo.plots import drawing as d
from proximo.plots import panels as p

Figure = Any
Record = dict[str, Any]
GRID = 120
"""Points of a common grid of steps."""
LEVELS = 241
"""Scores at which a profile is known."""
MANY_RUNS = 60
"""Single runs above so many would cover everything else, and are left out."""
MANY_PAIRS = 15
"""Above so many, pairs are shown as a matrix."""
OVERALL = "all environments"
MATRIX = "Probability that a run of the row scores higher; coloured where a difference is shown"
ONE_SCALE = "score on one scale: 0 the lowest, 1 the highest run of each environment"


def draw(found: Comparison, summary: Record) -> dict[str, Figure]:
    """Every picture there is something to show of, by its file's name."""
    figures: dict[str, Figure | None] = {}
    for env, name in names(found.envs).items():
        figures[f"learning_curves{name}"] = learning_curves(found, env, evaluations=False)
        figures[f"evaluation_curves{name}"] = learning_curves(found, env, evaluations=True)
        figures[f"final_scores{name}"] = final_scores(found, summary, env)
        figures[f"profile{name}"] = profile(found, env)
    if len(found.envs) > 1:
        figures["final_scores_overall"] = final_scores(found, summary, None)
        figures["profile_overall"] = profile(found, None)
    figures["improvement"] = improvement(found, summary)
    figures["speed"] = speed(found)
    return {name: figure for name, figure in figures.items() if figure is not None}


def names(envs: list[str]) -> dict[str, str]:
    """What to add to a picture's name for each environment; nothing for a single one."""
    if len(envs) == 1:
        return {envs[0]: ""}
    plain = [re.sub(r"[^A-Za-z0-9.-]+", "-", env).strip("-.") for env in envs]
    unlike = len({text.lower() for text in (*plain, "overall")}) == len(plain) + 1 and all(plain)
    return {env: f"_{text if unlike else f'{i}-{text}'}" for i, (env, text) in enumerate(zip(envs, plain, strict=True))}


def learning_curves(found: Comparison, env: str, evaluations: bool) -> Figure | None:
    """The IQM of the runs that count over steps, its band, and single runs; those that do not count end in a cross."""
    shown = [(run, *points(run, evaluations)) for run in found.outcomes if run.env == env]
    shown = [entry for entry in shown if len(entry[1])]
    if not shown or (evaluations and all(len(steps) < 2 for _, steps, _ in shown)):
        return None
    trials = [trial for trial in found.trials if any(run.trial == trial for run, _, _ in shown)]
    lines = [
        p.Line(trial, *trial_curve([curve for run, *curve in shown if run.trial == trial and run.counts]))
        for trial in trials
    ]
    title = "Evaluations on the way" if evaluations else "Learning curves"
    what = "Mean return of an evaluation" if evaluations else "Mean return of recent training episodes"
    style = p.looks(found.trials)
    figure, axes = p.curves(title, p.cut(env, 40), "environment steps", what, lines, style)
    few = len(shown) <= MANY_RUNS
    for run, steps, values in shown:
        colour, place = style[run.trial].colour, axes[run.trial]
        if few or not run.counts:
            place.plot(steps, values, color=colour, linewidth=0.8, alpha=0.35, zorder=2)
        if not run.counts:
            place.plot(steps[-1:], values[-1:], "x", color=colour, markersize=7, markeredgewidth=1.6, zorder=4)
    d.at_least_a_tenth(axes[trials[0]], np.concatenate([values for _, _, values in shown]))
    axes[trials[0]].set_xlim(left=0)
    return figure


def points(run: Outcome, evaluations: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    curve = run.curve
    pair = (curve.eval_steps, curve.eval_returns) if evaluations else (curve.steps, curve.returns)
    return np.array(pair[0], np.float64), np.array(pair[1], np.float64)


def trial_curve(curves: list[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Grid, IQM and band of a trial's runs (steps, returns): from where all of them are known to the end of the
    longest; a run that ended before, because it had converged, keeps its last value."""
    if not curves:
        return np.zeros(0), np.zeros(0), None
    start, end = max(steps[0] for steps, _ in curves), max(steps[-1] for steps, _ in curves)
    grid = np.linspace(start, end, GRID) if end > start else np.array([start])
    middle, band = st.curve_band(np.stack([st.on_grid(steps, values, grid) for steps, values in curves]))
    return grid, middle, band


def final_scores(found: Comparison, summary: Record, env: str | None) -> Figure | None:
    """A row for each trial: single runs as dots, the IQM as a diamond, its interval as a bar, all in numbers too."""
    scores = [trial["overall"] if env is None else trial["scores"].get(env) for trial in summary["trials"]]
    if not any(scores):
        return None
    where, xlabel = (OVERALL, ONE_SCALE) if env is None else (p.cut(env, 40), "final score (mean return)")
    style = p.looks(found.trials)
    what = "◆ interquartile mean with its 95 % interval,  ● single runs"
    figure, axes = p.rows("Final scores", where, xlabel, [look.label for look in style.values()], what)
    for i, (trial, score) in enumerate(zip(found.trials, scores, strict=True)):
        if not score:
            p.beside(axes, i, "no score")
            continue
        values = np.concatenate([np.asarray(part) for part in _scores(found, trial, env).values()])
        lift = 0.22 * np.cos(np.pi * np.arange(len(values)))  # two lines, so that neighbours cover each other less
        colour, faint = style[trial].colour, 0.4 if len(values) <= 40 else 0.2
        axes.plot(values, i + lift, "o", color=colour, alpha=faint, markersize=5, markeredgewidth=0, zorder=2)
        ends = score["iqm"], score["low"], score["high"]
        p.interval(axes, i, *ends, colour)
        p.beside(axes, i, p.interval_text(*ends, score["note"], digits=3 if env is None else None))
    return figure


def improvement(found: Comparison, summary: Record) -> Figure | None:
    """A row for each pair of trials (with the baseline only, if there is one), or a matrix of many."""
    pairs = [pair for pair in summary["pairs"] if pair["probability"] is not None]
    against = [pair for pair in pairs if pair["second"] == found.baseline]
    if not pairs:
        return None
    if len(pairs) > MANY_PAIRS and not against:
        return _matrix(found, pairs)
    where = OVERALL if len(found.envs) > 1 else p.cut(found.envs[0], 40)
    style = p.looks(found.trials)
    if against:
        labels = [style[pair["first"]].label for pair in against]
        what = f"Probability to score higher than {p.cut(found.baseline or '', 24)} (grey: no difference shown)"
    else:
        labels = [f"{p.cut(pair['first'], 20)} > {p.cut(pair['second'], 20)}" for pair in pairs]
        what = "Probability that a run of the first scores higher (grey: no difference shown)"
    figure, axes = p.rows("Probability of improvement", where, "probability (0.5: no difference)", labels, what)
    axes.axvline(0.5, color=d.BLACK, linewidth=1, linestyle=(0, (4, 3)), alpha=0.8, zorder=1.5)
    for i, pair in enumerate(against or pairs):
        colour = d.GREY if pair["better"] is None else d.BLUE if pair["better"] == pair["first"] else d.VERMILION
        ends = pair["probability"], pair["low"], pair["high"]
        p.interval(axes, i, *ends, colour)
        p.beside(axes, i, p.interval_text(*ends, pair["note"], digits=2))
    axes.set_xlim(-0.03, 1.03)
    axes.set_xticks(np.linspace(0, 1, 5))
    return figure


def _matrix(found: Comparison, pairs: list[Record]) -> Figure:
    """Rows against columns; only what is shown has a colour."""
    count = len(found.trials)
    labels = [f"{look.label}  {i}" for i, look in enumerate(p.looks(found.trials).values(), 1)]
    where = OVERALL if len(found.envs) > 1 else p.cut(found.envs[0], 40)
    figure, (axes,) = d.canvas("Probability of improvement", where, [0.4 * count], "number of the trial", MATRIX)
    place, values = {trial: i for i, trial in enumerate(found.trials)}, np.full((count, count), np.nan)
    for pair in pairs:
        i, j = place[pair["first"]], place[pair["second"]]
        for row, column, value in ((i, j, pair["probability"]), (j, i, 1 - pair["probability"])):
            colour = d.BLACK
            if pair["better"] is not None:
                values[row, column] = value
                colour = "#fefefe" if abs(value - 0.5) > 0.3 else "#111111"
            how = {"ha": "center", "va": "center", "size": 8 if count <= 12 else 6, "color": colour}
            axes.text(column, row, f"{value:.2f}", **how)
    axes.imshow(values, cmap="PuOr_r", vmin=0, vmax=1, aspect="auto")
    axes.grid(False)
    axes.tick_params(length=0, labelcolor=d.BLACK)
    axes.set_yticks(range(count), [d.escaped(label) for label in labels])
    axes.set_xticks(range(count), [str(i) for i in range(1, count + 1)])
    axes.spines[:].set_visible(False)
    return figure


def profile(found: Comparison, env: str | None) -> Figure | None:
    """The fraction of runs with at least a score, over that score."""
    known = {trial: scores for trial in found.trials if (scores := _scores(found, trial, env))}
    if all(len(values) < 2 for part in known.values() for values in part.values()):
        return None
    everything = np.concatenate([np.asarray(values) for part in known.values() for values in part.values()])
    low, high = float(everything.min()), float(everything.max())
    margin = 0.03 * (high - low) or max(0.05 * abs(high), 0.5)
    levels = np.linspace(low - margin, high + margin, LEVELS)
    lines = []
    for trial, part in known.items():
        fraction, band = st.profile(part, levels)
        lines.append(p.Line(trial, levels, 100 * fraction, None if band is None else 100 * band))
    where, xlabel = (OVERALL, ONE_SCALE) if env is None else (p.cut(env, 40), "final score (mean return)")
    what, style = "Runs with at least this score (%)", p.looks(found.trials)
    figure, axes = p.curves("Performance profile", where, xlabel, what, lines, style)
    for panel in {*axes.values()}:
        panel.set_ylim(-3, 103)
        panel.locator_params(axis="x", integer=False)
    return figure


def speed(found: Comparison) -> Figure | None:
    """Steps per second of each run that counts, and their median."""
    style = p.looks(found.trials)
    paces = [
        [run.steps_per_second for run in found.runs(trial) if run.counts and run.steps_per_second is not None]
        for trial in found.trials
    ]
    if not any(paces):
        return None
    labels = [look.label for look in style.values()]
    figure, axes = p.rows("Speed", "", "environment steps per second", labels, "◆ median,  ● single runs")
    for i, (look, values) in enumerate(zip(style.values(), paces, strict=True)):
        if not values:
            p.beside(axes, i, "no run")
            continue
        middle = float(np.median(values))
        axes.plot(values, np.full(len(values), i), "o", color=look.colour, alpha=0.3, markersize=5, markeredgewidth=0)
        p.interval(axes, i, middle, None, None, look.colour)
        p.beside(axes, i, d.number(float(f"{middle:.3g}")))
    axes.set_xlim(0, 1.04 * max(max(values, default=0.0) for values in paces))
    return figure


def _scores(found: Comparison, trial: str, env: str | None) -> dict[str, Any]:
    """Of one environment as they are, or of all on one scale; empty where there are none."""
    if env is None:
        return dict(found.scaled(trial) or {})
    return {name: part for name, part in found.scores(trial).items() if name == env}
