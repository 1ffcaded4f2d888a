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
from proximo.display.printing import make_rich, safe
from proximo.run_dir.files import shown

Record = dict[str, Any]
PLAIN_SECONDS = 2.0
SPARKS, BARS = 40, "▁▂▃▄▅▆▇█"


class Console:
    """Says nothing but warnings: the null object. `Display` is the one that speaks."""

    each_update = False
    """Whether each update is shown by itself, so that updates must be made one by one."""

    def start(self, config: Config, path: Path) -> None: ...

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
    """Says in a line each what a user should know, and shows no progress: for Python."""

    def note(self, sentence: str) -> None:
        make_rich(stderr=True).print(f"[dim]{safe(sentence)}[/dim]")


class Display(Console):
    """A live block with progress, returns, rate and losses; plain lines where there is no terminal; a table at the
    end. With `verbose`, the whole block of statistics after every update."""

    def __init__(self, verbose: bool = False, rich: RichConsole | None = None):
        self.rich = rich or make_rich()
        self.verbose = self.each_update = verbose
        self._live: Live | None = None
        self._returns: list[float] = []
        self._printed = float("-inf")

    def start(self, config: Config, path: Path) -> None:
        self._config = config
        goal = config.stop.target_reward
        aim = f", until an evaluation confirms an average return of {goal:g}" if goal is not None else ""
        self.rich.print(
            f"Training [bold]{safe(config.env.id)}[/bold] for up to {config.train.total_timesteps:,} steps{aim}; "
            f"seed {config.seed}, {config.env.num_envs} environments."
        )
        self.rich.print(f"[dim]{safe(shown(path))}[/dim]")

    def __enter__(self) -> Console:
        if self.rich.is_terminal and not self.verbose:
            waiting = Spinner("dots", "starting the environments and compiling")
            self._live = Live(waiting, console=self.rich, transient=True, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def note(self, sentence: str) -> None:
        self.rich.print(f"[dim]{safe(sentence)}[/dim]")

    warn = note

    def show(self, records: list[Record]) -> None:
        self._returns += [
            record["recent/return_mean"] for record in records if record["recent/return_mean"] is not None
        ]
        if self.verbose:
            for record in records:
                self.rich.print(log_block(record, self._config), markup=False)
        elif records and self._live:
            self._returns = thinned(self._returns)
            self._live.update(live_block(records[-1], self._returns, self._config))
        elif records and time.monotonic() - self._printed >= PLAIN_SECONDS:
            self._printed = time.monotonic()
            self.rich.print(progress_line(records[-1], self._config))

    def finish(self, result: Record, path: Path) -> None:
        reason = result["stop_reason"]
        verdicts = {
            "converged": "[green]Solved[/green]: the average return reached the goal, and an evaluation confirmed it.",
            "callback": "A callback ended the run.",
            "interrupted": "[yellow]Interrupted[/yellow]: what was trained so far is saved.",
            "failed": "[red]The run failed[/red]; what was trained before is saved.",
        }
        verdict = spent(result, self._config) if reason == "budget" else verdicts[reason]
        played = result["final_eval"]
        table = Table(show_header=False, box=None, pad_edge=False)
        rows = [
            ("steps", f"{result['total_steps']:,} in {result['updates']:,} updates, {result['episodes']:,} episodes"),
            ("return", f"{number(result['final_return'])} on average at the end, best {number(result['best_return'])}"),
            ("time", f"{result['wall_seconds']:.1f} s; {result['steps_per_second']:,.0f} steps/s while training"),
            ("saved in", safe(shown(path))),
        ]
        if played:
            mean, std, least, most = (number(played[f"return_{name}"]) for name in ("mean", "std", "min", "max"))
            cut = f", {played['episodes_cut']} of them cut (eval.max_steps)" if played["episodes_cut"] else ""
            rows.insert(2, ("evaluation", f"{mean} ± {std} ({least} to {most}), {played['episodes']} episodes{cut}"))
        for kind, title in (("deterministic", "most likely"), ("stochastic", "drawn")):
            if played and f"{kind}/return_mean" in played:
                mean, std = (number(played[f"{kind}/return_{name}"]) for name in ("mean", "std"))
                rows.insert(3, ("", f"{mean} ± {std} with {title} actions (eval.actions=both)"))
        if played and "win_rate" in played:
            won, first, pool = (f"{100 * played[f'win_rate{part}']:.0f} %" for part in ("", "_first", "_pool"))
            rows.insert(3, ("wins", f"{won}: {first} against the first policy, {pool} against earlier ones"))
        for name, text in rows:
            table.add_row(f"[bold]{name}[/bold]", text)
        self.rich.print(verdict + unconfirmed(result))
        self.rich.print(table)


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


def progress_line(record: Record, config: Config) -> str:
    """Steps, return, rate and time left, in one line."""
    rate, total = record["time/steps_per_second"], config.train.total_timesteps
    left = duration(max(total - record["step"], 0) / rate)
    steps, returned = f"{record['step']:,} / {total:,} steps", number(record["recent/return_mean"])
    return f"{steps}   return {returned}   {rate:,.0f} steps/s   {left} left"


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
    total, rate = config.train.total_timesteps, record["time/steps_per_second"]
    head = Table.grid(padding=(0, 2))
    left = duration(max(total - record["step"], 0) / rate)
    bar = ProgressBar(total=total, completed=min(record["step"], total), width=SPARKS)
    head.add_row(bar, f"{record['step']:,} / {total:,} steps", f"[bold]{left}[/bold] left")
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
