"""The pictures of a search: its history, what matters, slices through the space, parallel coordinates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proximo.plots import drawing as d
from proximo.plots import panels as p
from proximo.run_dir.files import to_json
from proximo.tuning.space import Dimension, Space, same
from proximo.tuning.study import Asked

Figure = Any
COLUMNS = 3
SCORE = "score (mean return)"


def draw(
    env: str, space: Space, trials: Sequence[Asked], importances: Mapping[str, float], best: int | None
) -> dict[str, Figure]:
    """Every picture there is something to show of, by its file's name; `best` is the winner, once there is one."""
    figures = {
        "search_history": history(env, trials),
        "search_importance": importance(env, importances),
        "search_slices": slices(env, space, trials, best),
        "search_parallel": parallel(env, space, trials, best),
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def history(env: str, trials: Sequence[Asked]) -> Figure | None:
    """The score of each trial, and the best so far."""
    complete = judged(trials)
    if not complete:
        return None
    figure, (axes,) = d.canvas("History of the search", p.cut(env, 40), [d.TALL], "trial")
    numbers, scores = (np.array(each, np.float64) for each in zip(*complete, strict=True))
    axes.plot(numbers, scores, "o", color=d.BLUE, markersize=5, alpha=0.6, markeredgewidth=0, label="trial")
    axes.step(numbers, np.maximum.accumulate(scores), where="post", color=d.VERMILION, label="best so far")
    if numbers[0] == 0:
        axes.plot([0], scores[:1], "D", color=d.GREEN, markersize=8, label="trial 0", zorder=3)
    pruned = [(trial.number, trial.reported[-1][1]) for trial in trials if trial.state == "pruned" and trial.reported]
    if pruned:
        axes.plot(*zip(*pruned, strict=True), "x", color=d.GREY, label="pruned")
    failed = [trial.number for trial in trials if trial.state == "failed"]
    if failed:
        axes.plot(failed, [scores.min()] * len(failed), "x", color=d.BLACK, markeredgewidth=1.6, label="failed")
    d.heading(axes, SCORE.capitalize(), legend=True)
    return figure


def importance(env: str, shares: Mapping[str, float]) -> Figure | None:
    """A bar for each setting, the most important first."""
    if not shares:
        return None
    ordered = sorted(shares, key=lambda name: -shares[name])
    what = "Share in what tells the best tenth of the trials from all (PED-ANOVA)"
    figure, axes = p.rows("Importance", p.cut(env, 40), "share", [p.cut(name) for name in ordered], what)
    for row, name in enumerate(ordered):
        axes.barh(row, shares[name], height=0.6, color=d.BLUE)
        p.beside(axes, row, f"{shares[name]:.2f}")
    axes.set_xlim(left=0)
    return figure


def slices(env: str, space: Space, trials: Sequence[Asked], best: int | None) -> Figure | None:
    """A panel for each setting: scores over its values."""
    scores = dict(judged(trials))
    if len(scores) < 2:
        return None
    rows = math.ceil(len(space) / COLUMNS)
    what = (
        f"{SCORE.capitalize()} over each setting; the line marks the winner" if best is not None else SCORE.capitalize()
    )
    figure, grid = d.canvas("Slices", p.cut(env, 40), [1.6] * rows, "", what, COLUMNS, same_x=False)
    for panel in grid[len(space) :]:
        panel.set_axis_off()
    for panel, dimension in zip(grid, space, strict=False):
        shown = [trial for trial in trials if trial.number in scores and dimension.name in trial.params]
        x = positions(dimension, [trial.params[dimension.name] for trial in shown])
        y = [scores[trial.number] for trial in shown]
        panel.plot(x, y, "o", color=d.BLUE, markersize=4, alpha=0.6, markeredgewidth=0)
        for place, trial in zip(x, shown, strict=True):
            if trial.number == best:
                panel.axvline(place, color=d.VERMILION, linewidth=1, alpha=0.8)
        label(panel, dimension)
        panel.set_title(d.escaped(p.cut(dimension.name)), loc="left", size=8, color=d.BLACK, pad=4)
        panel.tick_params(labelsize=8)
    return figure


def parallel(env: str, space: Space, trials: Sequence[Asked], best: int | None) -> Figure | None:
    """A line for each trial through all of its settings; the better the lighter, the winner thick."""
    ranked = sorted(judged(trials), key=lambda entry: entry[1])
    if len(ranked) < 2 or len(space) < 2:
        return None
    what = "A line for each trial: light ones score high, dark ones low"
    figure, (axes,) = d.canvas("Parallel coordinates", p.cut(env, 40), [d.TALL], "", what)
    by_number = {trial.number: trial for trial in trials}
    from matplotlib import colormaps

    for rank, (number, _) in enumerate(ranked):
        held = [(place, dim) for place, dim in enumerate(space) if dim.name in by_number[number].params]
        heights = [float(heights_of(dim, [by_number[number].params[dim.name]])[0]) for _, dim in held]
        look = {"color": colormaps["viridis"](rank / (len(ranked) - 1)), "alpha": 0.55, "linewidth": 1.0}
        if number == best:
            look = {"color": d.VERMILION, "linewidth": 2.6, "zorder": 3}
        axes.plot([place for place, _ in held], heights, **look)
    for place, dimension in enumerate(space):
        low, high = ends(dimension)
        axes.text(place, -0.04, low, ha="center", va="top", size=7, color=d.BLACK)
        axes.text(place, 1.04, high, ha="center", va="bottom", size=7, color=d.BLACK)
    axes.set_xticks(range(len(space)), [d.escaped(p.cut(dim.name, 22)) for dim in space], rotation=35, ha="right")
    axes.tick_params(labelsize=8)
    axes.set_yticks([])
    axes.set_ylim(-0.14, 1.14)
    axes.margins(x=0.05)
    return figure


def judged(trials: Sequence[Asked]) -> list[tuple[int, float]]:
    """Numbers and scores of those that came to their end."""
    return [(trial.number, trial.value) for trial in trials if trial.state == "complete" and trial.value is not None]


def positions(dimension: Dimension, values: Sequence[Any]) -> NDArray[Any]:
    """Where values stand on the axis of a dimension: the number itself, or the place among the choices."""
    if dimension.choices:
        return np.array([next(i for i, c in enumerate(dimension.choices) if same(c, value)) for value in values], float)
    return np.array(values, np.float64)


def heights_of(dimension: Dimension, values: Sequence[Any]) -> NDArray[Any]:
    """Positions from 0 to 1."""
    places = positions(dimension, values)
    if dimension.choices:
        return places / max(1, len(dimension.choices) - 1)
    low, high = dimension.low, dimension.high
    if dimension.form == "log":
        return np.asarray(np.log(places / low) / np.log(high / low))
    return np.asarray((places - low) / (high - low))


def label(axes: Any, dimension: Dimension) -> None:
    """The horizontal axis of a dimension."""
    if dimension.choices:
        texts = [d.escaped(p.cut(shown(choice), 10)) for choice in dimension.choices]
        axes.set_xticks(range(len(texts)), texts, size=7)
        axes.margins(x=0.15)
    elif dimension.form == "log":
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.set_xlim(0.9 * dimension.low, 1.1 * dimension.high)
    else:
        axes.locator_params(axis="x", nbins=3, integer=dimension.whole)


def ends(dimension: Dimension) -> tuple[str, str]:
    """The first and the last of what a dimension holds."""
    low, high = (dimension.choices[0], dimension.choices[-1]) if dimension.choices else (dimension.low, dimension.high)
    return shown(low), shown(high)


def shown(value: Any) -> str:
    """A value of a setting, for people."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return value if isinstance(value, str) else to_json(value)
