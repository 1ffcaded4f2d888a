"""What runs there are: read from their folders, whatever state they are in."""

from __future__ import annotations

import fcntl
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proximo import settings
from proximo.errors import UserError
from proximo.run_dir.files import open_inside, read_json

TAIL = 100_000
COMPLETE = ("converged", "budget", "callback")
CUT = "stopped without an end"


@dataclass(frozen=True)
class RunSummary:
    """A run in a few words. `returned` is the mean of its final evaluation, or else of its recent episodes."""

    path: Path
    env: str
    steps: int
    returned: float | None
    state: str
    """running, complete, interrupted, failed, or stopped without an end."""
    changed: float
    """When it was last written to, in seconds since 1970."""

    def as_json(self) -> dict[str, Any]:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.changed))
        about = {"run": str(self.path), "env": self.env, "steps": self.steps, "return": self.returned}
        return about | {"state": self.state, "when": when}


def list_runs(folder: Path) -> list[RunSummary]:
    """The runs in `folder` and in experiments there, the newest first; what is damaged is left out."""
    files = [*folder.glob("*/config.yaml"), *folder.glob("*/runs/*/config.yaml")]
    found = [summary for file in files if (summary := _summary(file.parent))]
    return sorted(found, key=lambda run: run.changed, reverse=True)


def best_of(runs: list[RunSummary], env: str) -> list[RunSummary]:
    """Those with the highest return on `env`; more than one where several have the same."""
    known = sorted({run.env for run in runs})
    judged = [run for run in runs if run.env == env and run.returned is not None]
    if not judged:
        hint = f"there are runs of {', '.join(known)}" if known else "there are no runs yet"
        raise UserError(f"No run of {env} has a return to compare; {hint}.")
    most = max(run.returned for run in judged if run.returned is not None)
    return [run for run in judged if run.returned == most]


def _summary(path: Path) -> RunSummary | None:
    rows = path / "metrics.jsonl"
    try:
        config = settings.read_run(path)
        changed, result = rows.lstat().st_mtime, read_result(path)
        row = _last_row(rows)
        running = is_running(rows)
        if result is None or running:
            state, returned, steps = "running" if running else CUT, row.get("recent/return_mean"), row.get("step", 0)
        else:
            reason, steps = result["stop_reason"], result["total_steps"]
            played = (result["final_eval"] or {}).get("return_mean")
            returned = result["final_return"] if played is None else played
            state = "complete" if reason in COMPLETE else reason
        told = returned is None or (type(returned) in (int, float) and math.isfinite(returned))
        if not told or type(steps) is not int or type(state) is not str:
            return None
        return RunSummary(path, config.env.id, steps, returned, state, changed)
    except (UserError, OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None


def read_result(path: Path) -> dict[str, Any] | None:
    """What `result.json` of a run says; None while there is none."""
    try:
        result: dict[str, Any] = read_json(path / "result.json")
        return result
    except FileNotFoundError:
        return None


def _last_row(rows: Path) -> dict[str, Any]:
    """The last whole row; empty if there is none."""
    with open_inside(rows) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL))
        lines = file.read().split(b"\n")[:-1]
    row: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return row


def is_running(rows: Path) -> bool:
    """Whether a process that is alive trains the run: it holds a lock."""
    with open_inside(rows) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks: nobody can tell
            return False
    return False
