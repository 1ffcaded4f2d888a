"""What runs there are, and what is known of each: the one reader of run folders, whatever state these are in.

A folder may come from a stranger, or be half written. What cannot be understood raises one of UNREADABLE, which callers
put into words; `list_runs` leaves such a run out.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proximo import settings
from proximo.config import Config
from proximo.errors import UserError
from proximo.run_dir.directory import CONFIG, METRICS, RESULT, RUNS
from proximo.run_dir.files import check_inside, open_inside, read_json, read_lines
from proximo.run_dir.lock import take_lock
from proximo.yaml_file import read_yaml

Row = dict[str, Any]
TAIL = 100_000
MAX_ROWS, MAX_EVALUATIONS = 3_000, 300
"""What is read of longer runs is evenly spaced: a picture has no room for more."""
MOST_BYTES = 1_000_000
SHORT_LIST = 5
COMPLETE = ("converged", "budget", "callback")
CUT = "stopped without an end"
POLICIES = {"best": "best_return_pi_ckpt", "final": "final_actor"}
UNREADABLE = (UserError, OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading a damaged file may raise."""


@dataclass(frozen=True)
class RunStatus:
    """How far a run came."""

    state: str
    """running, complete, interrupted, failed, or stopped without an end."""
    steps: int
    episode_return: float | None
    """The mean of its final evaluation, or else of its recent episodes."""
    result: dict[str, Any] | None
    """As `result.json` has it; None while the run is trained, or if it was cut off."""


@dataclass(frozen=True)
class RunSummary:
    """A run in a few words."""

    path: Path
    env: str
    status: RunStatus
    changed: float
    """When it was last written to, in seconds since 1970."""

    def as_json(self) -> dict[str, Any]:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.changed))
        about = {"run": str(self.path), "env": self.env, "steps": self.status.steps}
        return about | {"return": self.status.episode_return, "state": self.status.state, "when": when}


def find_run(name: Path) -> Path:
    """The run directory `name`, or the one of that name under `runs/`."""
    places = (name, RUNS / name)
    for path in places:
        if (path / CONFIG).is_file():
            check_folder(path)
            return path
    for path in places:
        if path.is_dir():
            raise UserError(f"{path} is not a run: it has no {CONFIG}.")
    known = sorted(RUNS.glob(f"*/{CONFIG}"), key=lambda file: file.stat().st_mtime, reverse=True)
    newest = ", ".join(file.parent.name for file in known[:SHORT_LIST])
    hint = f"the newest runs there: {newest}." if known else "which holds none yet."
    raise UserError(f"There is no run {name}, as a folder or under {RUNS}/; {hint}")


def check_folder(path: Path) -> None:
    """Refuse a run or an experiment that holds links, devices or the like."""
    try:
        check_inside(path)
    except OSError as error:
        raise UserError(f"{path} cannot be used: {error.strerror}.") from None


def list_runs(folder: Path) -> list[RunSummary]:
    """The runs in `folder` and in experiments there, the newest first; what is damaged is left out."""
    files = [*folder.glob(f"*/{CONFIG}"), *folder.glob(f"*/runs/*/{CONFIG}")]
    found = [summary for file in files if (summary := _summary(file.parent))]
    return sorted(found, key=lambda run: run.changed, reverse=True)


def best_of(runs: list[RunSummary], env: str) -> list[RunSummary]:
    """Those with the highest return on `env`; more than one where several have the same."""
    known = sorted({run.env for run in runs})
    scores = [run.status.episode_return for run in runs if run.env == env]
    judged = [score for score in scores if score is not None]
    if not judged:
        hint = f"there are runs of {', '.join(known)}" if known else "there are no runs yet"
        raise UserError(f"No run of {env} has a return to compare; {hint}.")
    return [run for run in runs if run.env == env and run.status.episode_return == max(judged)]


def _summary(path: Path) -> RunSummary | None:
    try:
        changed = (path / METRICS).lstat().st_mtime
        return RunSummary(path, read_config(path).env.id, read_status(path), changed)
    except UNREADABLE:
        return None


def read_status(path: Path) -> RunStatus:
    """How far the run in `path` came. A result that another process is about to replace does not count."""
    running, result = is_running(path), read_result(path)
    if running or result is None:
        row = _last_row(path)
        state, score, steps = "running" if running else CUT, row.get("recent/return_mean"), row.get("step", 0)
        result = None
    else:
        reason, steps = result["stop_reason"], result["total_steps"]
        state = "complete" if reason in COMPLETE else reason
        # Of an evaluation that was stopped, the mean is one of short episodes.
        played = (result["final_eval"] or {}).get("return_mean") if state == "complete" else None
        score = result["final_return"] if played is None else played
    if type(steps) is not int or type(state) is not str:
        raise ValueError(f"{RESULT if result else METRICS} is damaged")
    return RunStatus(state, steps, finite(score), result)


def is_complete(path: Path) -> bool:
    """Whether the run in `path` has come to its end, and its process has let go of it: nothing will be added."""
    try:
        return read_status(path).state == "complete"
    except UNREADABLE:
        return False


def finite(value: Any) -> float | None:
    """A number of a run's files, where None stands for one that is not known; ValueError for anything else."""
    if value is not None and (type(value) not in (int, float) or not math.isfinite(value)):
        raise ValueError("a number is damaged")
    number: float | None = value
    return number


def is_running(path: Path) -> bool:
    """Whether a process that is alive trains the run: it holds the lock."""
    with open_inside(path / METRICS) as file:
        return not take_lock(file, shared=True)


def read_config(path: Path) -> Config:
    """The settings that the run in `path` was trained with."""
    file = path / CONFIG
    mapping = read_yaml(file, inside=True)
    return settings.build(settings.from_mapping({} if mapping is None else mapping, str(file)))


def read_result(path: Path) -> dict[str, Any] | None:
    """What `result.json` of a run says; None while there is none."""
    try:
        result: dict[str, Any] = read_json(path / RESULT)
        return result
    except FileNotFoundError:
        return None


def read_rows(path: Path, most: int = MAX_ROWS, most_evaluations: int = MAX_EVALUATIONS) -> list[Row]:
    """The rows of a run's `metrics.jsonl`: all, or of more than `most` evenly spaced ones, and so of those with an
    evaluation. Only these are parsed: that is what takes time."""
    count, evaluated = 0, []
    with open_inside(path / METRICS) as lines:
        for line in read_lines(lines):
            if b'"eval/episodes"' in line:
                evaluated.append(count)
            count += line.endswith(b"\n")
    wanted = {*thinned(range(count), most), *thinned(evaluated, most_evaluations)}
    with open_inside(path / METRICS) as lines:
        return [json.loads(line) for number, line in enumerate(read_lines(lines)) if number in wanted]


def thinned(items: Sequence[int], most: int) -> list[int]:
    """At most `most` of them, evenly spaced, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _last_row(path: Path) -> Row:
    """The last whole row; empty if there is none."""
    with open_inside(path / METRICS) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL))
        lines = file.read().split(b"\n")[:-1]
    row: Row = json.loads(lines[-1]) if lines else {}
    return row


class NewRows:
    """The rows of a run's `metrics.jsonl` as they are added; each is read once."""

    def __init__(self, path: Path):
        self._path = path / METRICS
        self._offset, self._line = 0, b""  # how far it was read, and the line before

    def read(self) -> list[Row]:
        """The next whole rows, not too many at once; none when there are none yet."""
        with open_inside(self._path) as file:
            file.seek(self._offset - len(self._line))
            if file.read(len(self._line)) != self._line:
                self._offset, self._line = 0, b""  # cut back by a resume: all rows are read again
                file.seek(0)
            text = file.read(MOST_BYTES)
        lines = text[: text.rfind(b"\n") + 1].splitlines(keepends=True)
        self._offset += sum(map(len, lines))
        self._line = lines[-1] if lines else self._line
        return [json.loads(line) for line in lines]


def default_policy(path: Path) -> str:
    """The one that is meant where none is named: the final one, or while there is none the last checkpoint."""
    return "final" if policy_files(path, "final") else "last"


def policy_file(path: Path, which: str) -> Path:
    """Where the policy of a run with one agent is: `best` or `final`."""
    return path / "models" / f"{POLICIES[which]}.safetensors"


def policy_files(path: Path, which: str) -> list[Path]:
    """Those that there are: one, or one for each group of many agents."""
    one = policy_file(path, which)
    return [one] if one.is_file() else sorted(one.parent.glob(f"{POLICIES[which]}.*.safetensors"))
