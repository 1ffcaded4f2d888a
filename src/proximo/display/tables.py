"""Tables for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from proximo.display.console import duration, number
from proximo.display.printing import safe
from proximo.run_dir.read import RunSummary
from proximo.settings import Setting

STYLES = {"running": "green", "failed": "red", "interrupted": "yellow", "stopped without an end": "yellow"}


def evaluation_table(summary: dict[str, Any]) -> Table:
    """The numbers of `Evaluation.summary`."""
    table = Table("", box=None, pad_edge=False)
    for title in ("mean", "std", "min", "max", "95 % interval"):
        table.add_column(title, justify="right")
    for name in ("return", "length"):
        *spread, low, high = (
            number(summary[f"{name}_{part}"]) for part in ("mean", "std", "min", "max", "low", "high")
        )
        table.add_row(name, *spread, "-" if summary[f"{name}_low"] is None else f"{low} to {high}")
    rate, low, high = (f"{100 * summary[f'success_{part}']:.0f} %" for part in ("rate", "low", "high"))
    table.add_row("success", rate, "", "", "", f"{low} to {high}")
    for name, mean in summary.items():
        kind, slash, rest = name.partition("/")
        if slash:  # of many agents, each one's return
            table.add_row(safe(f"{kind} {rest.removesuffix('/return_mean')}"), number(mean))
    return table


def settings_table(chosen: list[Setting]) -> Table:
    """Settings with their defaults."""
    table = Table(box=None, pad_edge=False)
    for title in ("setting", "default", "what it does"):
        table.add_column(title, overflow="fold")
    for setting in chosen:
        table.add_row(*map(safe, (setting.path, plain(setting.default), setting.help)))
    return table


def findings_table(findings: Iterable[tuple[str, str, str]], styles: Mapping[str, str]) -> Table:
    """Sentences, each with its kind and what it is about."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for kind, about, sentence in findings:
        table.add_row(f"[{styles[kind]}]{safe(kind)}[/{styles[kind]}]", safe(about), safe(sentence))
    return table


def runs_table(runs: list[RunSummary]) -> Table:
    """Runs, one in each row."""
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("environment", overflow="fold")
    for title in ("steps", "return"):
        table.add_column(title, justify="right")
    for title in ("state", "last written"):
        table.add_column(title)
    now = time.time()
    for run in runs:
        style = STYLES.get(run.status.state, "")
        state = f"[{style}]{run.status.state}[/{style}]" if style else safe(run.status.state)
        ago = f"{duration(max(0.0, now - run.changed))} ago"
        name, env = safe(_name(run.path)), safe(run.env)
        table.add_row(name, env, f"{run.status.steps:,}", number(run.status.episode_return), state, ago)
    return table


def _name(path: Path) -> str:
    """What a run is called under `runs/`."""
    home = path.parent.parent
    return f"{home.name}/runs/{path.name}" if (home / "experiment.json").is_file() else path.name


def plain(value: Any) -> str:
    """A value as YAML would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(list(value) if isinstance(value, tuple) else value)
