"""The pictures of a run, each as a figure; None where there is nothing to show."""

from __future__ import annotations

from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from proximo.config import Config
from proximo.display.console import loss_terms
from proximo.plots import drawing as d

Figure = Any
Record = dict[str, Any]
MAX_PANELS = 6


class RunData(NamedTuple):
    """What a run's pictures are drawn from."""

    rows: list[Record]  # of metrics.jsonl, in order; some of them, where there are very many
    config: Config
    result: Record  # as result.json has it
    trace: Record | None  # of the final policy, as `proximo.rollout.episode_log` makes it

    def column(self, name: str) -> np.ndarray:
        """A metric of each row; NaN where it is missing, or was no number."""
        return np.array([_number(row.get(name)) for row in self.rows], np.float64)

    @property
    def steps(self) -> np.ndarray:
        return self.column("step")

    @property
    def subtitle(self) -> str:
        name = self.config.env.id
        return f"{name if len(name) <= 40 else f'{name[:39]}…'}, seed {self.config.seed}"

    def evaluations(self, name: str) -> np.ndarray:
        """[4, n] step, mean of `name`, lower and upper end of its 95 % interval; the final evaluation included."""
        found = {
            row["step"]: [row.get(f"eval/{name}_{part}") for part in ("mean", "low", "high")]
            for row in self.rows
            if "eval/episodes" in row
        }
        final = self.result.get("final_eval")
        if final and "interrupted" not in final:
            found[self.result["total_steps"]] = [final.get(f"{name}_{part}") for part in ("mean", "low", "high")]
        numbers = np.array([[step, *map(_number, played)] for step, played in found.items()], np.float64)
        return numbers[np.isfinite(numbers[:, 1])].T if len(numbers) else np.zeros((4, 0))

    def played(self, name: str) -> np.ndarray:
        """[2, n] step and `name` of each evaluation, the final one included."""
        found = {row["step"]: row.get(f"eval/{name}") for row in self.rows if "eval/episodes" in row}
        if final := self.result.get("final_eval"):
            found[self.result["total_steps"]] = final.get(name)
        return np.array([[*found], [*map(_number, found.values())]], np.float64)


def learning_curve(run: RunData) -> Figure | None:
    figure, axes = _over_training(run, "Learning curve", "Return of an episode", "return")
    if figure is None:
        return None
    goal, best = run.config.stop.target_reward, run.result.get("best_policy") or {}
    judged = not run.config.agents.selfplay  # by a return
    if judged and best.get("score") is not None and run.result["updates"]:
        ring = {
            "markersize": 12,
            "markerfacecolor": "none",
            "markeredgecolor": d.BLACK,
            "markeredgewidth": 1.5,
            "in_layout": False,
        }
        axes.plot([best["step"]], [best["score"]], "o", clip_on=False, zorder=4, label="best policy", **ring)
    if goal is not None:
        d.reference(axes, goal, f"goal {d.number(goal)}")
    d.heading(axes, "Return of an episode", legend=True)
    return figure


def episode_lengths(run: RunData) -> Figure | None:
    return _over_training(run, "Episode lengths", "Steps in an episode", "length")[0]


TERMS = {
    "objective": "Clipped objective, to be maximised",
    "critic": "Critic's squared error",
    "entropy": "Entropy of the policy (nats)",
}
"""What the terms of the built-in loss are."""
MAX_TERMS = 8


def losses(run: RunData) -> Figure | None:
    names = loss_terms({name: None for row in run.rows for name in row})[:MAX_TERMS]
    columns = [run.column(f"loss/{name}") for name in names]
    if not any_number(*columns):
        return None
    spoken = {} if "loss" in run.config.ppo.own else TERMS
    figure, panels = over_steps(run, "Losses", [d.LOW] * len(names))
    for axes, name, values, colour in zip(panels, names, columns, cycle((d.BLUE, d.VERMILION, d.GREEN)), strict=False):
        wide = " (logarithmic)" if name == "critic" and d.logarithmic_if_wide(axes, values) else ""
        d.series(axes, run.steps, values, colour)
        d.heading(axes, spoken.get(name, d.escaped(name)) + wide)
    return figure


def kl_and_clipping(run: RunData) -> Figure | None:
    kl, clipped = run.column("ppo/approx_kl"), 100 * run.column("ppo/clip_fraction")
    if not any_number(kl, clipped):
        return None
    figure, (above, below) = over_steps(run, "How far each update moved the policy", [d.LOW * 1.3] * 2)
    d.points(above, run.steps, kl, d.BLUE)
    d.trend(above, run.steps, d.smoothed(kl), d.BLUE, "mean of the epochs")
    target = run.config.ppo.target_kl
    if target is not None:
        d.trend(above, run.steps, d.smoothed(run.column("ppo/last_epoch_kl")), d.SKY, "last epoch")
        d.reference(above, target, f"target {d.number(target)}")
    d.series(below, run.steps, clipped, d.VERMILION)
    above.set_ylim(bottom=0)
    below.set_ylim(bottom=0)
    d.heading(above, "KL divergence from the policy before (nats)", legend=target is not None)
    d.heading(below, "Samples whose ratio was clipped (%)")
    return figure


def value_fit(run: RunData) -> Figure | None:
    explained, mean, std = (
        run.column(name) for name in ("ppo/explained_variance", "buffer/return_mean", "buffer/return_std")
    )
    if not any_number(explained, mean):
        return None
    figure, (above, below) = over_steps(run, "Value fit", [d.LOW * 1.3] * 2)
    d.series(above, run.steps, explained, d.BLUE)
    above.axhline(0, color=d.BLACK, linewidth=1, linestyle=(0, (4, 3)), alpha=0.8)
    lowest = np.nanmin(explained) if any_number(explained) else 0.0
    above.set_ylim(max(-1.0, min(-0.05, lowest)) - 0.05, 1.05)
    low, middle, high = (d.smoothed(part) for part in (mean - std, mean, mean + std))
    d.points(below, run.steps, mean, d.GREEN)
    d.trend(below, run.steps, middle, d.GREEN, "mean")
    below.fill_between(run.steps, low, high, color=d.GREEN, alpha=0.15, linewidth=0, label="± deviation")
    beyond = "; some below −1" if lowest < -1 else ""
    d.heading(above, f"Share of the value targets' variance that the critic explains (1: all, 0: none{beyond})")
    units = " (of clipped rewards)" if run.config.normalize.clip_rewards else ""
    d.heading(below, f"Value target: discounted return{units}", legend=True)
    return figure


def actions(run: RunData) -> Figure | None:
    """The share of each choice as a stacked area; means and deviations of continuous actions as bands."""
    names = [name for name in run.rows[-1] if "buffer/action_" in name] if run.rows else []
    means = [name.removesuffix("_mean") for name in names if name.endswith("_mean")]
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        group, _, choice = name.rpartition("_")
        if choice not in ("mean", "std"):
            groups.setdefault(group, []).append((int(choice), name))
    shown = list(groups)[: MAX_PANELS - bool(means)]
    if not shown and not means:
        return None
    count = len(shown) + bool(means)
    heights = [d.TALL if count == 1 else 2.2 if count == 2 else d.LOW] * count
    figure, panels = over_steps(run, "Actions during training", heights)
    for axes, group in zip(panels, shown, strict=False):
        _shares(axes, run, sorted(groups[group]), _spoken(group))
    if means:
        _bands(panels[-1], run, means)
    return figure


def own_metrics(run: RunData) -> Figure | None:
    """What is tracked of infos: at the end of episodes, over their steps, in evaluations; and what callbacks return."""
    told = [(name, run.column(f"info/{name}")) for name in run.config.track.info]
    returned = dict.fromkeys(name for row in run.rows for name in row if name.startswith("callback/"))
    told += [(name, run.column(name)) for name in returned]
    told = [(name, values) for name, values in told if any_number(values)][:MAX_TERMS]
    if not told:
        return None
    figure, panels = over_steps(run, "Own metrics", [d.LOW * 1.3] * len(told))
    for axes, (name, values) in zip(panels, told, strict=True):
        title = d.escaped(name.removeprefix("callback/"))
        if name in returned:
            known = np.isfinite(values)
            d.series(axes, run.steps[known], values[known], d.GREEN)
            d.heading(axes, f"{title} (callback)")
            continue
        d.trend(axes, run.steps, values, d.BLUE, "at the end of episodes")
        d.trend(axes, run.steps, run.column(f"info_mean/{name}"), d.SKY, "mean over their steps")
        step, mean = run.played(f"info/{name}")
        axes.plot(step, mean, "D", color=d.VERMILION, markersize=5, zorder=3, label="evaluations, at the end")
        d.heading(axes, title, legend=True)
    return figure


def final_episode(run: RunData) -> Figure | None:
    trace = run.trace
    if not trace or not trace["length"]:
        return None
    reward, valued = np.array(trace["reward"], np.float64), trace["value"] is not None
    returned = d.number(float(f"{trace['return']:.4g}"))
    outcome = f"{returned} after {trace['length']:,} steps, {trace['end']}"
    heights = [d.LOW] * (3 + valued)
    figure, panels = d.canvas("An episode of the final policy", run.subtitle, heights, "step of the episode")
    x = np.arange(1, len(reward) + 1)
    mark = "." if len(x) <= d.FEW else None
    panels[0].plot(x, reward, color=d.BLUE, linewidth=1.4, marker=mark, drawstyle="steps-mid")
    panels[1].plot(x, np.cumsum(reward), color=d.BLUE, linewidth=1.8, marker=mark)
    if not np.ptp(reward):
        panels[0].set_ylim(*sorted([0.0, 1.5 * reward[0] or 1.0]))
    if valued:
        value = np.array(trace["value"], np.float64)
        panels[2].plot(x, value, color=d.GREEN, linewidth=1.4, marker=mark)
        d.at_least_a_tenth(panels[2], value)
        units = ", of clipped rewards" if run.config.normalize.clip_rewards else ""
        d.heading(panels[2], f"Critic's estimate of the discounted return to come{units}")
    d.heading(panels[0], "Reward of the step")
    d.heading(panels[1], f"Return so far: {outcome}")
    _action_trace(panels[-1], x, trace["actions"], mark)
    return figure


PICTURES = {
    "learning_curve": learning_curve,
    "losses": losses,
    "kl_and_clipping": kl_and_clipping,
    "value_fit": value_fit,
    "actions": actions,
    "episode_lengths": episode_lengths,
    "own_metrics": own_metrics,
    "final_episode": final_episode,
}


def over_steps(run: RunData, title: str, heights: list[float]) -> tuple[Figure, list[Any]]:
    figure, panels = d.canvas(title, run.subtitle, heights, "environment steps")
    panels[-1].set_xlim(0, 1.01 * max(run.steps.max(initial=0.0), run.result["total_steps"], 1))
    return figure, panels


def _over_training(run: RunData, title: str, what: str, name: str) -> tuple[Figure | None, Any]:
    """Rollouts, the average of recent episodes, and evaluations with their intervals."""
    rollouts, recent = run.column(f"rollout/{name}_mean"), run.column(f"recent/{name}_mean")
    played = run.evaluations(name)
    if not any_number(recent, played[1]):
        return None, None
    figure, (axes,) = over_steps(run, title, [d.TALL])
    d.points(axes, run.steps, rollouts, d.BLUE, "rollouts")
    d.trend(axes, run.steps, recent, d.BLUE, f"last {run.config.track.recent_episodes:,} episodes")
    if played.shape[1]:
        step, mean, low, high = played
        ends = np.nan_to_num([mean - low, high - mean])
        size, width = (6, 1.6) if len(step) <= d.FEW else (3, 0.8)
        how = {"markersize": size, "elinewidth": width, "capsize": size / 2, "color": d.VERMILION, "zorder": 3}
        axes.errorbar(step, mean, ends, fmt="D", label="evaluations, 95 % interval", **how)
    for stop in run.result.get("resumed") or ():
        axes.axvline(stop["step"], color=d.GREY, linewidth=1, linestyle=":")
        place = {"xycoords": ("data", "axes fraction"), "xytext": (3, 4), "textcoords": "offset points"}
        axes.annotate("resumed", (stop["step"], 0), **place, size=8, color=d.GREY)
    d.heading(axes, what, legend=True)
    return figure, axes


def _shares(axes: Any, run: RunData, choices: list[tuple[int, str]], what: str) -> None:
    shares = 100 * np.stack([run.column(name) for _, name in choices])
    known = np.isfinite(shares).all(axis=0)
    x, shares = run.steps[known], shares[:, known]
    if not len(x):
        return
    shares = np.stack([d.smoothed(share) for share in shares])
    # The first rollout began at step 0.
    x, shares = np.insert(x, 0, 0.0), np.insert(shares, 0, shares[:, 0], axis=1)
    few = len(choices) <= len(d.COLOURS)
    labels = [d.number(choice) for choice, _ in choices]
    colours = d.palette(len(choices))
    axes.stackplot(x, shares, colors=colours, labels=labels, alpha=0.85, edgecolor="white", linewidth=0.4)
    axes.set_ylim(0, 100)
    axes.set_xlim(0, x[-1])
    d.heading(axes, f"Share of each {what} in the rollout (%)", legend=few)
    if few:
        return
    middle = np.cumsum(shares[:, -1]) - shares[:, -1] / 2
    for label, y, share in zip(labels, middle, shares[:, -1], strict=True):
        if share > 4:
            place = {"xycoords": ("axes fraction", "data"), "xytext": (4, 0), "textcoords": "offset points"}
            axes.annotate(label, (1, y), **place, size=8, va="center", color=d.BLACK)


def _bands(axes: Any, run: RunData, names: list[str]) -> None:
    for name, colour in zip(names, d.palette(len(names)), strict=True):
        mean, std = run.column(f"{name}_mean"), run.column(f"{name}_std")
        d.trend(axes, run.steps, d.smoothed(mean), colour, d.escaped(_spoken(name)))
        low, high = d.smoothed(mean - std), d.smoothed(mean + std)
        axes.fill_between(run.steps, low, high, color=colour, alpha=0.6 / (len(names) + 2), linewidth=0)
    d.heading(axes, "Action: mean ± deviation in the rollout", legend=len(names) > 1)


def _action_trace(axes: Any, x: np.ndarray, columns: list[Record], mark: str | None) -> None:
    first = columns[0]["choices"] if len(columns) == 1 else None
    if first:
        low, high = first
        dense = high - low >= 32 or len(x) > 1_000
        style, size = (".", 3) if dense else ("s", 5) if len(x) <= d.FEW else ("|", 8)
        axes.plot(x, np.array(columns[0]["values"], np.float64), style, color=d.VERMILION, markersize=size)
        axes.set_ylim(low - 0.6, high + 0.6)
        if high - low < 8:
            axes.set_yticks(range(low, high + 1))
        d.heading(axes, "Action")
        return
    for column, colour in zip(columns, d.palette(len(columns)), strict=True):
        values, style = np.array(column["values"], np.float64), "steps-mid" if column["choices"] else "default"
        name = d.escaped(column["name"])
        axes.plot(x, values, color=colour, linewidth=1.2, marker=mark, drawstyle=style, label=name)
    d.heading(axes, "Action", legend=len(columns) > 1)


def _spoken(name: str) -> str:
    """`buffer/action_move_0` as `move 0`, `buffer/action_0` as `action 0`, `buffer/action` as `action`; of a group of
    agents, `group/wolf/buffer/action` as `action of wolf`."""
    owner, _, rest = name.rpartition("buffer/action")
    words = rest.replace("_", " ").strip()
    spoken = f"action {words}".strip() if not words or words.split()[0].isdecimal() else words
    return f"{spoken} of {owner.removeprefix('group/').rstrip('/')}" if owner else spoken


def any_number(*columns: np.ndarray) -> bool:
    return any(bool(np.isfinite(column).any()) for column in columns)


def _number(value: Any) -> float:
    return np.nan if value is None else float(value)
