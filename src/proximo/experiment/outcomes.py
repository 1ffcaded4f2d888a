"""What became of runs: read from their folders, whatever state they are in."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from proximo.errors import UserError
from proximo.plots.write import read_rows
from proximo.run_dir.read import COMPLETE, CUT, is_running, read_result

MAX_POINTS = 400
"""Of a curve: a picture has no room for more."""
MISSING, DAMAGED = "missing", "damaged"
ERROR = "error.txt"
"""In the folder of a run: what ended the last attempt."""
UNREADABLE = (UserError, OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


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
    score: float | None
    """The mean return of the final evaluation, or else of the last training episodes; None while it has no end."""
    steps: int
    wall_seconds: float | None
    steps_per_second: float | None
    curve: Curve

    @property
    def counts(self) -> bool:
        """Whether it enters the statistics: it came to its end, and has a score."""
        return self.state == "complete" and self.score is not None


def read_outcome(path: Path, trial: str, overrides: dict[str, Any], env: str, seed: int) -> Outcome:
    """What became of the run in `path`. One that is unfinished, missing or damaged is no error: its state says so."""

    def outcome(state: str, steps: int = 0, curve: Curve = NOTHING, result: dict[str, Any] | None = None) -> Outcome:
        result = result or {}
        final, wall, speed = (
            _score(result),
            _finite(result.get("wall_seconds")),
            _finite(result.get("steps_per_second")),
        )
        return Outcome(trial, env, seed, path, overrides, state, final, steps, wall, speed, curve)

    rows = path / "metrics.jsonl"
    try:
        if not rows.is_file() or not (path / "config.yaml").is_file():
            return outcome("failed" if (path / ERROR).is_file() else MISSING)
        running, result = is_running(rows), read_result(path)
        records = read_rows(rows, MAX_POINTS, MAX_POINTS)
        reached = int(records[-1]["step"]) if records else 0
        if running or result is None:
            return outcome("running" if running else CUT, reached, _curve(records))
        reason, steps = result["stop_reason"], int(result["total_steps"])
        state = "complete" if reason in COMPLETE else str(reason)
        return outcome(state, steps, _curve(records, steps, result), result)
    except UNREADABLE:
        return outcome(DAMAGED)


def _score(result: dict[str, Any]) -> float | None:
    played = _finite((result.get("final_eval") or {}).get("return_mean"))
    return _finite(result.get("final_return")) if played is None else played


def _curve(records: list[dict[str, Any]], end: int = 0, result: dict[str, Any] | None = None) -> Curve:
    recent = _known((row["step"], row.get("recent/return_mean")) for row in records)
    played = _known((row["step"], row.get("eval/return_mean")) for row in records)
    final = _finite(((result or {}).get("final_eval") or {}).get("return_mean"))
    if final is not None:
        played[float(end)] = final
    return Curve(tuple(recent), tuple(recent.values()), tuple(played), tuple(played.values()))


def _known(points: Iterable[tuple[Any, Any]]) -> dict[float, float]:
    found = ((float(step), _finite(value)) for step, value in points)
    return {step: value for step, value in sorted(found, key=lambda point: point[0]) if value is not None}


def _finite(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
