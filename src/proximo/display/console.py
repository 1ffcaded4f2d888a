"""What a run shows while it trains: a live line, plain lines where there is no terminal, or nothing."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table

from proximo.config import Config
from proximo.display.notebook import NotebookArea
from proximo.display.printing import make_rich, safe, say
from proximo.errors import UserError, quoted
from proximo.run_dir.files import shown

Record = dict[str, Any]
PLAIN_SECONDS = 2.0
SPARKS, BARS = 40, "▁▂▃▄▅▆▇█"
NOTHING, PROGRESS, STATISTICS = range(3)
"""What `verbose` means."""


class Console:
    """Says nothing but warnings: the null object. `Display` is the one that speaks."""

    each_update = False
    """Whether each update is shown by itself, so that updates must be made one by one."""

    def start(self, config: Config, path: Path) -> None: ...

    def phase(self, what: str, how_far: str = "") -> None:
        """What is being done now, until the next phase or `show`. It may be called many times in a second."""

    def note(self, sentence: str) -> None: ...

    def warn(self, sentence: str) -> None:
        """Say what must not be missed, also where nothing else is said."""
        warnings.warn(sentence, stacklevel=2)

    def show(self, records: list[Record]) -> None: ...

    def finish(self, result: Record, path: Path) -> None: ...

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None: ...


class Messages(Console):
    """Says in a line each what a user should know, and shows no progress: for scripts that nobody watches."""

    def note(self, sentence: str) -> None:
        say(make_rich(stderr=True), safe(sentence), "dim")


def make_console(verbose: bool | int | None = None) -> Console:
    """What shows a run: nothing (0), its progress (1), or a block of statistics after every update (2, or True). By
    default progress where somebody watches, in a terminal or a notebook; elsewhere only what a user should know."""
    if verbose is None:
        rich = make_rich()
        return Display(rich=rich) if rich.is_terminal or rich.is_jupyter else Messages()
    level = STATISTICS * verbose if isinstance(verbose, bool) else verbose
    if level not in (NOTHING, PROGRESS, STATISTICS):
        raise UserError(
            f"verbose must be 0 (nothing), 1 (progress) or 2 (statistics after every update), not {quoted(verbose)}."
        )
    return Console() if level == NOTHING else Display(level == STATISTICS)


class Display(Console):
    """A live block with progress, returns, rate and losses, in a terminal or a notebook; plain lines where there is
    neither; a summary at the end. With `verbose`, the whole block of statistics after every update."""

    def __init__(self, verbose: bool = False, rich: RichConsole | None = None):
        self.rich = rich or make_rich()
        self.verbose = self.each_update = verbose
        self._area: Live | NotebookArea | None = None
        self._spinner, self._doing = Spinner("dots"), ""
        self._record: Record | None = None
        self._returns: list[float] = []
        self._phases: set[str] = set()
        self._printed = float("-inf")

    def start(self, config: Config, path: Path) -> None:
        self._config = config
        asked, end, goal = config.train.total_timesteps, last_step(config), config.stop.target_reward
        whole = f" ({asked:,} in whole updates of {config.frames_per_batch:,})" if end > asked else ""
        aim = f", until an evaluation confirms an average return of {goal:g}" if goal is not None else ""
        say(
            self.rich,
            f"Training on [bold]{safe(config.env.id)}[/bold] for up to {end:,} steps{whole}{aim}; "
            f"seed {config.seed}, {config.env.num_envs} environments.",
        )
        self.rich.print(f"[dim]{safe(shown(path))}[/dim]")

    def __enter__(self) -> Console:
        self._record, self._returns = None, []
        self._phases.clear()
        self._doing = "starting"
        if self.rich.is_jupyter and not self.verbose:
            self._area = NotebookArea(self._picture)
        elif self.rich.is_terminal and not self.verbose:
            drawn = self._picture
            self._area = Live(console=self.rich, get_renderable=drawn, transient=True, refresh_per_second=8)
        if self._area:
            self._area.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._area:
            self._area.stop()
            self._area = None

    def phase(self, what: str, how_far: str = "") -> None:
        self._doing = f"{what}: {how_far}" if how_far else what
        if self._area is None and what not in self._phases:
            self._phases.add(what)
            self.rich.print(f"[dim]{what}[/dim]")
        self._redraw()

    def note(self, sentence: str) -> None:
        say(self.rich, safe(sentence), "dim")

    warn = note

    def show(self, records: list[Record]) -> None:
        if not records:
            return
        self._returns += [
            record["recent/return_mean"] for record in records if record["recent/return_mean"] is not None
        ]
        self._returns, self._record = thinned(self._returns), records[-1]
        self._doing = ""
        self._redraw()
        if self.verbose:
            for record in records:
                self.rich.print(log_block(record, self._config), markup=False)
        elif self._area is None and time.monotonic() - self._printed >= PLAIN_SECONDS:
            self._printed = time.monotonic()
            self.rich.print(progress_line(records[-1], self._config))

    def finish(self, result: Record, path: Path) -> None:
        say(self.rich, verdict(result, self._config) + unconfirmed(result))
        for name, text in summary(result, path):
            self.rich.print(f"[bold]{name:<12}[/bold]{text}")

    def _redraw(self) -> None:
        if isinstance(self._area, NotebookArea):  # in a terminal, a thread does that
            self._area.refresh()

    def _picture(self) -> RenderableType:
        record, doing = self._record, self._doing
        parts: list[RenderableType] = [] if record is None else [live_block(record, self._returns, self._config)]
        if doing:
            self._spinner.update(text=doing)
            parts.append(self._spinner)
        return Group(*parts)


def verdict(result: Record, config: Config) -> str:
    """Why a run has ended."""
    reasons = {
        "converged": "[green]Solved[/green]: the average return reached the goal, and an evaluation confirmed it.",
        "callback": "A callback ended the run.",
        "interrupted": "[yellow]Interrupted[/yellow]: what was trained so far is saved.",
        "failed": "[red]The run failed[/red]; what was trained before is saved.",
    }
    reason = result["stop_reason"]
    return spent(result, config) if reason == "budget" else reasons[reason]


def summary(result: Record, path: Path) -> list[tuple[str, str]]:
    """What is to be known of a run that has ended, by name."""
    rows = [
        ("steps", f"{result['total_steps']:,} in {result['updates']:,} updates, {result['episodes']:,} episodes"),
        ("return", f"{number(result['final_return'])} on average at the end, best {number(result['best_return'])}"),
    ]
    played = result["final_eval"] or {}
    if played:
        mean, std, least, most = (number(played[f"return_{name}"]) for name in ("mean", "std", "min", "max"))
        cut = f", {played['episodes_cut']} of them cut (eval.max_steps)" if played["episodes_cut"] else ""
        stopped = "; interrupted, so short episodes count too much" if "interrupted" in played else ""
        rows.append(("evaluation", f"{mean} ± {std} ({least} to {most}), {played['episodes']} episodes{cut}{stopped}"))
    if "win_rate" in played:
        won, first, pool = (f"{100 * played[f'win_rate{part}']:.0f} %" for part in ("", "_first", "_pool"))
        rows.append(("wins", f"{won}: {first} against the first policy, {pool} against earlier ones"))
    for kind, title in (("stochastic", "sampled"), ("deterministic", "most likely")):
        if f"{kind}/return_mean" in played:
            mean, std = (number(played[f"{kind}/return_{name}"]) for name in ("mean", "std"))
            rows.append(("", f"{mean} ± {std} with {title} actions (eval.actions=both)"))
    rows.append(("time", f"{result['wall_seconds']:.1f} s; {result['steps_per_second']:,.0f} steps/s while training"))
    return [*rows, ("saved in", safe(shown(path)))]


def spent(result: Record, config: Config) -> str:
    """Which budget has ended a run."""
    steps, wanted = config.train.total_timesteps, config.train.max_episodes
    if wanted is not None and result["episodes"] >= wanted:
        return f"The budget is used up: {result['episodes']:,} episodes, train.max_episodes={wanted}."
    if result["total_steps"] < steps:
        return f"The budget is used up: train.max_seconds={config.train.max_seconds:g}."
    fewer = "" if wanted is None else f" The run ended before train.max_episodes={wanted} was reached."
    return f"The budget is used up: train.total_timesteps={steps}.{fewer}"


def unconfirmed(result: Record) -> str:
    """What is to be said of goals that training reached and evaluations did not."""
    times = result["unconfirmed_goals"]
    if not times or result["stop_reason"] == "converged":
        return ""
    often = "once" if times == 1 else f"{times:,} times"
    return f" Training returns reached the goal {often}, but no evaluation confirmed it, so this is not solved."


def number(value: float | None) -> str:
    """A return or a loss for people: three digits that matter, no more."""
    if value is None or value != value:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def duration(seconds: float) -> str:
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60}:{seconds % 60:02} min"
    return f"{seconds // 3600}:{seconds % 3600 // 60:02} h"


def last_step(config: Config) -> int:
    """The step that a run with these settings can come to: budgets are rounded up to whole updates."""
    return config.num_updates * config.frames_per_batch


def progress_line(record: Record, config: Config) -> str:
    """Steps, return, rate and time left, in one line."""
    rate, left = record["time/steps_per_second"], duration(seconds_left(record, config))
    returned = number(record["recent/return_mean"])
    return f"{counted(record, config)}   return {returned}   {rate:,.0f} steps/s   {left} left"


def counted(record: Record, config: Config) -> str:
    """The steps so far and, where they are limited, the episodes; never more than there can be."""
    end, most = last_step(config), config.train.max_episodes
    steps = f"{min(record['step'], end):,} / {end:,} steps"
    return steps if most is None else f"{steps}, {min(record['episode'], most):,} / {most:,} episodes"


def shares(record: Record, config: Config) -> list[float]:
    """The part of each budget that is spent, from 0 to 1: steps, episodes, seconds."""
    train = config.train
    pairs = [(record["step"], last_step(config)), (record["episode"], train.max_episodes)]
    pairs.append((record["time/elapsed"], train.max_seconds))
    return [min(spent / most, 1.0) for spent, most in pairs if most is not None]


def seconds_left(record: Record, config: Config) -> float:
    """Until the first of the budgets is spent, at the speed so far."""
    train, training = config.train, record["step"] / record["time/steps_per_second"]
    left = [(last_step(config) - record["step"]) / record["time/steps_per_second"]]
    if train.max_episodes is not None and record["episode"]:
        left.append((train.max_episodes - record["episode"]) * training / record["episode"])
    if train.max_seconds is not None:
        left.append(train.max_seconds - record["time/elapsed"])
    return max(min(left), 0.0)


def thinned(values: list[float]) -> list[float]:
    """At most a few hundred, over the whole time."""
    return values if len(values) < 8 * SPARKS else values[::2]


def sparkline(values: list[float]) -> str:
    """A small curve of characters, the first value to the left."""
    if not values:
        return ""
    count = min(SPARKS, len(values))
    shown = [values[round(i * (len(values) - 1) / max(count - 1, 1))] for i in range(count)]
    low, high = min(shown), max(shown)
    height = len(BARS) - 1
    return "".join(BARS[round(height * (value - low) / (high - low)) if high > low else 0] for value in shown)


def live_block(record: Record, returns: list[float], config: Config) -> RenderableType:
    """What is to be seen of a run at a glance."""
    rate, left = record["time/steps_per_second"], duration(seconds_left(record, config))
    head = Table.grid(padding=(0, 2))
    head.add_column(max_width=SPARKS)  # narrower where the rest needs the room
    head.add_column(no_wrap=True)
    head.add_column(no_wrap=True)
    bar = ProgressBar(total=1.0, completed=max(shares(record, config)))
    head.add_row(bar, counted(record, config), f"[bold]{left}[/bold] left")
    rows = Table.grid(padding=(0, 2))
    goal = config.stop.target_reward
    aim = f" of {goal:g}" if goal is not None and config.stop.on == "training" else ""
    curve = f"[green]{sparkline(returns)}[/green]"
    rows.add_row("return", f"[bold]{number(record['recent/return_mean'])}[/bold]{aim}  {curve}")
    rows.add_row("speed", f"{rate:,.0f} steps/s{split(record)}  [dim]{jax.default_backend()}[/dim]")
    losses = {name: record[f"loss/{name}"] for name in loss_terms(record)}
    rows.add_row("losses", "  ".join(f"[dim]{safe(name)}[/dim] {number(loss)}" for name, loss in losses.items()))
    kept = f"[dim]clipped[/dim] {100 * (record['ppo/clip_fraction'] or 0):.0f} %"
    rows.add_row("change", f"[dim]KL[/dim] {number(record['ppo/approx_kl'])}  {kept}")
    return Group(head, rows)


def loss_terms(record: Mapping[str, Any]) -> list[str]:
    """The names of the terms of the loss in a row, the built-in ones first."""
    known = ["objective", "critic", "entropy"]
    others = [name.removeprefix("loss/") for name in record if name.startswith("loss/")]
    return [name for name in known if name in others] + [name for name in others if name not in (*known, "total")]


def split(record: Record) -> str:
    """How an update's time is divided, where that is known."""
    parts = {name: record.get(f"time/{name}") for name in ("environment", "policy", "learning")}
    known = {name: seconds for name, seconds in parts.items() if seconds is not None}
    total = sum(known.values())
    if not total:
        return ""
    return "  [dim]" + ", ".join(f"{name} {100 * seconds / total:.0f} %" for name, seconds in known.items()) + "[/dim]"


def log_block(record: Record, config: Config) -> str:
    """The verbose block: this rollout, the recent episodes, the whole run."""
    sections = {
        "ROLLOUT STATISTICS": {
            "mean_ep_len": number(record["rollout/length_mean"]),
            "mean_ep_return": number(record["rollout/return_mean"]),
            "mean_reward": number(record["rollout/reward_mean"]),
            "mean_clipped_ratio": number(record["ppo/clip_fraction"]),
            "approx_kl": number(record["ppo/approx_kl"]),
            "rollout_len": f"{config.frames_per_batch:,}",
            "time_elapsed": f"{record['time/update']:.3f} s",
        },
        f"RECENT {config.track.recent_episodes} EPISODES": {
            "mean_ep_len": number(record["recent/length_mean"]),
            "mean_ep_return": number(record["recent/return_mean"]),
            "success_rate": number(record["recent/success_rate"]),
        },
        "TRAINER STATISTICS": {
            "episodes_count": f"{record['episode']:,}",
            "timesteps_count": f"{record['step']:,}",
            "rollouts_count": f"{record['update']:,}",
            "total_timesteps": f"{config.train.total_timesteps:,}",
            "clip_range": f"{record['ppo/clip_epsilon']:g}",
        },
    }
    lines = ["=" * 35]
    for title, rows in sections.items():
        lines += [title, "-" * 35, *(f"  {name + ':':<20}{value}" for name, value in rows.items()), ""]
    return "\n".join([*lines[:-1], "=" * 35])
