"""What an experiment shows while it runs: one bar for all of it and a line for each run at work; or nothing."""

from __future__ import annotations

import re
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from proximo.display.console import duration, last_step, number
from proximo.display.printing import make_rich, safe, say
from proximo.errors import printable
from proximo.experiment.plan import Plan, PlannedRun
from proximo.experiment.tables import comparison_table
from proximo.fleet.jobs import Ended
from proximo.run_dir.files import shown
from proximo.run_dir.read import Row

WIDTH = 40
STYLES = {"failed": "red", "interrupted": "yellow"}


class Progress:
    """Says nothing, but warns of what fails."""

    signal: int | None = None
    """What interrupted the experiment."""

    def start(self, plan: Plan, out: Path, missing: list[PlannedRun], jobs: int) -> None: ...

    def began(self, run: PlannedRun) -> None: ...

    def advanced(self, run: PlannedRun, row: Row) -> None: ...

    def noted(self, run: PlannedRun, sentence: str) -> None: ...

    def ended(self, run: PlannedRun, how: Ended) -> None:
        if how.end == "failed":
            warnings.warn(printable(f"{run.folder} failed: {how.sentence}"), stacklevel=1)

    def note(self, sentence: str) -> None: ...

    def warn(self, sentence: str) -> None:
        warnings.warn(sentence, stacklevel=2)

    def finish(self, summary: dict[str, Any], out: Path) -> None: ...

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None: ...


def make_progress() -> Progress:
    """What shows an experiment that Python runs: a table in a terminal, lines in a notebook, else only what fails."""
    rich = make_rich()
    return ProgressDisplay(rich) if rich.is_terminal or rich.is_jupyter else Progress()


class ProgressDisplay(Progress):
    """A live table where there is a terminal, else a line for each run that ended."""

    def __init__(self, rich: RichConsole | None = None):
        self.rich = rich or make_rich()
        self._live: Live | None = None
        self._lock = threading.Lock()
        self._at: dict[str, tuple[PlannedRun, int, float | None]] = {}
        self._said: set[str] = set()
        self._done_steps = self._ended = 0

    def start(self, plan: Plan, out: Path, missing: list[PlannedRun], jobs: int) -> None:
        self._missing = missing
        self._total = sum(run.config.train.total_timesteps for run in missing)
        self._began = time.monotonic()
        done = len(plan.runs) - len(missing)
        before = f", of which {done} are done" if done else ""
        side = f", {jobs} at a time" if jobs > 1 else ""
        self.rich.print(f"Experiment [bold]{safe(plan.name)}[/bold]: {len(plan.runs)} runs{before}{side}.")
        self.rich.print(f"[dim]{safe(shown(out))}[/dim]")

    def __enter__(self) -> Progress:
        if self.rich.is_terminal and self._missing:
            self._live = Live(self._table(), console=self.rich, transient=True, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def began(self, run: PlannedRun) -> None:
        self._show(run, 0, None)

    def advanced(self, run: PlannedRun, row: Row) -> None:
        self._show(run, row["step"], row.get("recent/return_mean"))

    def noted(self, run: PlannedRun, sentence: str) -> None:
        key = re.sub(r"\d[\d.,]*", "#", sentence)  # that another takes 9 us and not 8 is no news
        self.note(f"{run.folder.removeprefix('runs/')}: {sentence}", key)

    def ended(self, run: PlannedRun, how: Ended) -> None:
        with self._lock:
            self._at.pop(run.folder, None)
            self._done_steps += run.config.train.total_timesteps
            self._ended += 1
        style = STYLES.get(how.end, "")
        name, why = safe(run.folder.removeprefix("runs/")), safe(how.sentence)
        if how.end == "failed":
            self.rich.print(f"[{style}]failed[/{style}] {name}: {why}")
        elif not self._live:
            took = "" if how.seconds is None else f" in {duration(how.seconds)}"
            self.rich.print(f"{self._ended} of {len(self._missing)}  {name}: {how.end}{took}")
        self._refresh()

    def note(self, sentence: str, key: str | None = None) -> None:
        with self._lock:
            if (key or sentence) in self._said:
                return
            self._said.add(key or sentence)
        say(self.rich, safe(sentence), "dim")

    def warn(self, sentence: str) -> None:
        self.note(sentence)

    def finish(self, summary: dict[str, Any], out: Path) -> None:
        if self.signal is not None:
            self.rich.print(
                f"[yellow]Interrupted[/yellow]: `proximo experiment --resume {safe(shown(out))}` continues it."
            )
        self.rich.print(comparison_table(summary), soft_wrap=False)
        self.rich.print(f"[dim]{safe(shown(out / 'report.html'))}[/dim]")

    def _show(self, run: PlannedRun, step: int, returned: float | None) -> None:
        with self._lock:
            self._at[run.folder] = (run, step, returned)
        self._refresh()

    def _refresh(self) -> None:
        if self._live:
            self._live.update(self._table())

    def _table(self) -> Table:
        with self._lock:
            running = list(self._at.values())
            done = self._done_steps + sum(min(step, run.config.train.total_timesteps) for run, step, _ in running)
        table = Table.grid(padding=(0, 2))
        elapsed = time.monotonic() - self._began
        left = duration(elapsed * (self._total - done) / done) if done else "?"
        bar = ProgressBar(total=self._total, completed=done, width=WIDTH)
        table.add_row(bar, f"{self._ended} of {len(self._missing)} runs", f"[bold]{left}[/bold] left")
        for run, step, returned in running:
            total = last_step(run.config)
            steps = f"{min(step, total):,} / {total:,} steps" if step else "starting"
            table.add_row(f"[dim]{safe(run.folder.removeprefix('runs/'))}[/dim]", steps, f"return {number(returned)}")
        return table
