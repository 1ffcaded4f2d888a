"""What a study shows while it runs: as an experiment does, with the best trial so far."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from proximo.display.printing import safe
from proximo.experiment.plan import Plan, PlannedRun
from proximo.experiment.progress import ProgressDisplay
from proximo.experiment.tables import comparison_table
from proximo.run_dir.files import shown


class StudyDisplay(ProgressDisplay):
    """A live table where there is a terminal, else a line for each run that ended."""

    def start(self, plan: Plan, out: Path, missing: list[PlannedRun], jobs: int) -> None:
        self._missing, self._began = missing, time.monotonic()
        self._total = sum(run.config.train.total_timesteps for run in missing)
        done = len(plan.runs) - len(missing)
        before = f", of which {done} are done" if done else ""
        side = f", {jobs} at a time" if jobs > 1 else ""
        self.rich.print(f"Study [bold]{safe(plan.name)}[/bold]: at most {len(plan.runs)} runs{before}{side}.")
        self.rich.print(f"[dim]{safe(shown(out))}[/dim]")

    def headline(self, text: str) -> None:
        _, _, best = text.partition(", ")
        if best and best not in self._headline and not self._live:
            self.rich.print(f"[dim]{safe(text)}[/dim]")
        super().headline(text)

    def finish(self, summary: dict[str, Any], out: Path) -> None:
        if self.signal is not None:
            self.rich.print(f"[yellow]Interrupted[/yellow]: `proximo tune --resume {safe(shown(out))}` continues it.")
        if summary["trials"]:
            self.rich.print(comparison_table(summary), soft_wrap=False)
        self.rich.print(f"[bold]{safe(summary['search']['sentence'])}[/bold]")
        for note in summary["search"]["notes"]:
            self.rich.print(safe(note))
        self.rich.print(f"[dim]{safe(shown(out / 'report.html'))}[/dim]")
