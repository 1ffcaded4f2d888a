"""What users hang into training: callables, and objects with methods for what happens.

    on_start(trainer)            before the first update
    log_training_step(metrics)   after each update; a plain callable is called likewise
    on_evaluation(metrics)       after each evaluation, the final one too
    on_checkpoint(path)          after a checkpoint was written
    on_end(result)               when `result.json` is written

An object has those of them that it wants. One that returns False ends training cleanly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from proximo.errors import UserError

Record = dict[str, Any]
STEP = "log_training_step"
EVENTS = ("on_start", STEP, "on_evaluation", "on_checkpoint", "on_end")


class Callbacks:
    """Everything that a user handed in: None, one callback, or several."""

    def __init__(self, given: Any):
        self._functions: dict[str, list[Callable[[Any], Any]]] = {event: [] for event in EVENTS}
        self.ended = False
        """Whether one of them has returned False."""
        self._add(given)

    @property
    def see_updates(self) -> bool:
        """Whether any wants to see each update, so that updates must be made one by one."""
        return bool(self._functions[STEP])

    def call(self, event: str, told: Any) -> None:
        """Tell everyone who listens."""
        wishes = [function(told) for function in self._functions[event]]
        self.ended = self.ended or any(wish is False for wish in wishes)

    def _add(self, given: Any) -> None:
        methods = [event for event in EVENTS if callable(getattr(given, event, None))]
        if methods:
            for event in methods:
                self._functions[event].append(getattr(given, event))
        elif callable(given):
            self._functions[STEP].append(given)
        elif isinstance(given, Iterable) and not isinstance(given, str):
            for one in given:
                self._add(one)
        elif given is not None:
            raise UserError(
                f"A callback must be callable or have one of the methods {', '.join(EVENTS)}; "
                f"{type(given).__name__} has neither."
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
