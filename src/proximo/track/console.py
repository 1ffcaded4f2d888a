"""What a run shows while it trains: a live line, plain lines where there is no terminal, or nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from proximo.config import Config

Record = dict[str, Any]
PLAIN_SECONDS = 2.0


class Console:
    """Says nothing: the null object. `Display` is the one that speaks."""

    def start(self, config: Config, path: Path) -> None: ...

    def note(self, sentence: str) -> None: ...

    def show(self, records: list[Record]) -> None: ...

    def finish(self, result: Record, path: Path) -> None: ...

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None: ...


class Display(Console):
    """A progress line with steps, return, rate and time left, and a table at the end."""

    def __init__(self, verbose: bool = False, rich: RichConsole | None = None):
        self.rich = rich or RichConsole(highlight=False, soft_wrap=True)
        self.verbose = verbose
        self._progress: Progress | None = None
        self._task: Any = None
        self._printed = float("-inf")

    def start(self, config: Config, path: Path) -> None:
        self._config = config
        goal = config.stop.target_reward
        aim = f", until the average return reaches {goal:g}" if goal is not None else ""
        self.rich.print(
            f"Training [bold]{config.env.id}[/bold] for up to {config.train.total_timesteps:,} steps{aim}; "
            f"seed {config.seed}, {config.env.num_envs} environments."
        )
        self.rich.print(f"[dim]{path}[/dim]")

    def __enter__(self) -> Console:
        if self.rich.is_terminal and not self.verbose:
            self._progress = Progress(
                SpinnerColumn(),
                BarColumn(bar_width=12),
                TextColumn("{task.description}"),
                console=self.rich,
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task("compiling", total=self._config.train.total_timesteps)
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.stop()

    def note(self, sentence: str) -> None:
        self.rich.print(f"[dim]{escape(sentence)}[/dim]")

    def show(self, records: list[Record]) -> None:
        if self.verbose:
            for record in records:
                self.rich.print(log_block(record, self._config), markup=False)
        elif records and self._progress:
            line = progress_line(records[-1], self._config)
            self._progress.update(self._task, completed=records[-1]["step"], description=line)
        elif records and time.monotonic() - self._printed >= PLAIN_SECONDS:
            self._printed = time.monotonic()
            self.rich.print(progress_line(records[-1], self._config))

    def finish(self, result: Record, path: Path) -> None:
        verdict = {
            "converged": "[green]Solved[/green]: the average return reached the goal.",
            "budget": "The budget is used up.",
            "callback": "A callback ended the run.",
            "interrupted": "[yellow]Interrupted[/yellow]: what was trained so far is saved.",
            "failed": "[red]The run failed[/red]; what was trained before is saved.",
        }[result["stop_reason"]]
        played = result["final_eval"]
        table = Table(show_header=False, box=None, pad_edge=False)
        rows = [
            ("steps", f"{result['total_steps']:,} in {result['updates']:,} updates, {result['episodes']:,} episodes"),
            ("return", f"{number(result['final_return'])} on average at the end, best {number(result['best_return'])}"),
            ("time", f"{result['wall_seconds']:.1f} s; {result['steps_per_second']:,.0f} steps/s while training"),
            ("saved in", str(path)),
        ]
        if played:
            mean, std, least, most = (number(played[f"return_{name}"]) for name in ("mean", "std", "min", "max"))
            rows.insert(2, ("evaluation", f"{mean} ± {std} ({least} to {most}), {played['episodes']} episodes"))
        for name, text in rows:
            table.add_row(f"[bold]{name}[/bold]", text)
        self.rich.print(verdict)
        self.rich.print(table)


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


def log_block(record: Record, config: Config) -> str:
    """The verbose block: this rollout, the recent episodes, the whole run."""
    sections = {
        "ROLLOUT STATISTICS": {
            "mean_ep_len": number(record["rollout/length_mean"]),
            "mean_ep_return": number(record["rollout/return_mean"]),
            "mean_reward": number(record["rollout/reward_mean"]),
            "mean_clipped_ratio": f"{record['ppo/clip_fraction']:.4f}",
            "approx_kl": f"{record['ppo/approx_kl']:.5f}",
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
