"""Tables for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.table import Table

from proximo.display.console import number
from proximo.display.printing import safe
from proximo.errors import printable
from proximo.run_dir.read import CUT, RunSummary
from proximo.settings import Setting

STYLES = {"running": "green", "failed": "red", "interrupted": "yellow", "cut off": "yellow"}


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


def runs_lines(runs: list[RunSummary], width: int | None) -> list[str]:
    """Runs, one in each line, below their titles. Names are always whole, so that they can be copied; where the rest
    does not fit `width` (None: any), environments are cut short, and then columns left out."""
    now = time.time()
    titles = ("run", "environment", "steps", "return", "state", "last written")
    rows = [titles, *(_cells(run, now) for run in runs)]
    columns = {title: [printable(cell) for cell in cells] for title, *cells in zip(titles, *rows, strict=True)}
    for spared in (None, "environment", "last written", "steps"):
        columns.pop(spared or "", None)
        over = 0 if width is None else sum(map(_width, columns.values())) + 2 * (len(columns) - 1) - width
        room = _width(columns["environment"]) - over if "environment" in columns else 0
        if over > 0 and room >= SHORTEST:
            columns["environment"] = [_cut(cell, room) for cell in columns["environment"]]
            over = 0
        if over <= 0:
            break
    return [_line(columns, number) for number in range(len(rows))]


SHORTEST = 8


def _cells(run: RunSummary, now: float) -> tuple[str, ...]:
    status = run.status
    state = "cut off" if status.state == CUT else status.state
    steps, returned = f"{status.steps:,}", number(status.episode_return)
    return _name(run.path), run.env, steps, returned, state, f"{age(now - run.changed)} ago"


def _width(cells: list[str]) -> int:
    return max(map(cell_len, cells))


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}…"


def _line(columns: dict[str, list[str]], row: int) -> str:
    """One of the rows, as markup; the first has the titles."""
    cells = []
    for title, column in columns.items():
        text, missing = column[row], " " * (_width(column) - cell_len(column[row]))
        style = "bold" if not row else STYLES.get(text, "") if title == "state" else ""
        marked = f"[{style}]{safe(text)}[/{style}]" if style else safe(text)
        cells.append(missing + marked if title in ("steps", "return") else marked + missing)
    return "  ".join(cells).rstrip()


def age(seconds: float) -> str:
    """How long ago, to the largest unit."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def _name(path: Path) -> str:
    """What a run is called under `runs/`."""
    home = path.parent.parent
    return f"{home.name}/runs/{path.name}" if (home / "experiment.json").is_file() else path.name


def plain(value: Any) -> str:
    """A value as YAML would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(list(value) if isinstance(value, tuple) else value)
