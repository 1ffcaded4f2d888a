"""What users hang into training: callables, and objects with a method `log_training_step`.

They are called with the metrics after each update; returning False ends training cleanly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from proximo.errors import UserError

Record = dict[str, Any]


def as_callables(given: Any) -> list[Callable[[Record], Any]]:
    """The functions to call after each update, from what a user handed in: None, one callback, or several."""
    if given is None:
        return []
    if hasattr(given, "log_training_step"):
        return [given.log_training_step]
    if callable(given):
        return [given]
    if isinstance(given, Iterable) and not isinstance(given, str):
        return [function for one in given for function in as_callables(one)]
    raise UserError(
        f"A callback must be callable or have a method log_training_step; {type(given).__name__} has neither."
    )


def for_callback(record: Record) -> Record:
    """A row as callbacks see it: `episode`, `step_metrics` with `avg_reward`, and `eval_metrics` (or None)."""
    evaluated = {name.removeprefix("eval/"): value for name, value in record.items() if name.startswith("eval/")}
    steps = {name: value for name, value in record.items() if not name.startswith("eval/")}
    return {
        "episode": record["episode"],
        "step": record["step"],
        "update": record["update"],
        "step_metrics": steps | {"avg_reward": record["recent/return_mean"]},
        "eval_metrics": evaluated or None,
    }
