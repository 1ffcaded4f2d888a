"""What became of runs: read from their folders, whatever state they are in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from proximo.run_dir.directory import CONFIG, ERROR, METRICS
from proximo.run_dir.read import UNREADABLE, RunStatus, finite, read_rows, read_status

MAX_POINTS = 400
"""Of a curve: a picture has no room for more."""
MISSING, DAMAGED = "missing", "damaged"


class Curve(NamedTuple):
    """Mean returns over environment steps: of recent training episodes, and of evaluations (the final one too)."""

    steps: tuple[float, ...] = ()
    returns: tuple[float, ...] = ()
    eval_steps: tuple[float, ...] = ()
    eval_returns: tuple[float, ...] = ()


NOTHING = Curve()


@dataclass(frozen=True)
class Outcome:
    """One run of an experiment, as far as it came."""

    trial: str
    env: str
    seed: int
    path: Path
    overrides: dict[str, Any]
    """What the trial changes, by dotted path: `{"ppo.clip_epsilon": 0.1}`."""
    state: str
    """complete, failed, interrupted, running, stopped without an end, missing or damaged."""
    score: float | None = None
    """The mean return of the final evaluation, or else of the last training episodes; None while it has no end."""
    steps: int = 0
    wall_seconds: float | None = None
    steps_per_second: float | None = None
    curve: Curve = NOTHING
    own_metrics: dict[str, float] = field(default_factory=dict)
    """What is tracked of infos (`info/NAME`, `info_mean/NAME`), of the final evaluation; and the last that callbacks
    returned (`callback/NAME`)."""

    @property
    def counts(self) -> bool:
        """Whether it enters the statistics: it came to its end, and has a score."""
        return self.state == "complete" and self.score is not None


def read_outcome(path: Path, trial: str, overrides: dict[str, Any], env: str, seed: int) -> Outcome:
    """What became of the run in `path`. One that is unfinished, missing or damaged is no error: its state says so."""
    damaged = Outcome(trial, env, seed, path, overrides, DAMAGED)
    try:
        if not (path / METRICS).is_file() or not (path / CONFIG).is_file():
            return replace(damaged, state="failed" if (path / ERROR).is_file() else MISSING)
        status = read_status(path)
        result = status.result or {}
        rows = read_rows(path, MAX_POINTS, MAX_POINTS)
        return replace(
            damaged,
            state=status.state,
            score=status.episode_return if result else None,
            steps=status.steps,
            wall_seconds=finite(result.get("wall_seconds")),
            steps_per_second=finite(result.get("steps_per_second")),
            curve=_curve(rows, status),
            own_metrics=_own_metrics(rows, result.get("final_eval") or {}),
        )
    except UNREADABLE:
        return damaged


def _own_metrics(rows: list[dict[str, Any]], played: dict[str, Any]) -> dict[str, float]:
    told = [(name, value) for name, value in played.items() if name.startswith(("info/", "info_mean/"))]
    told += [(name, value) for row in rows for name, value in row.items() if name.startswith("callback/")]
    return {name: known for name, value in told if (known := finite(value)) is not None}


def _curve(rows: list[dict[str, Any]], status: RunStatus) -> Curve:
    recent = _known((row["step"], row.get("recent/return_mean")) for row in rows)
    played = _known((row["step"], row.get("eval/return_mean")) for row in rows)
    final = finite(((status.result or {}).get("final_eval") or {}).get("return_mean"))
    if final is not None and status.state == "complete":
        played[float(status.steps)] = final
    return Curve(tuple(recent), tuple(recent.values()), tuple(played), tuple(played.values()))


def _known(points: Iterable[tuple[Any, Any]]) -> dict[float, float]:
    found = ((float(step), finite(value)) for step, value in points)
    return {step: value for step, value in sorted(found, key=lambda point: point[0]) if value is not None}
