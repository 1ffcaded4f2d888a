"""What users hang into training: callables, and objects with methods for what happens.

    on_start(trainer)            before the first update
    log_training_step(metrics)   after each update
    on_updates(several)          after some updates, with what `log_training_step` gets of each, in order
    on_episode(metrics)          for each episode, in order, when the update in which it finished is made
    on_evaluation(metrics)       after each evaluation, the final one too
    on_checkpoint(path)          after a checkpoint was written
    on_end(result)               when `result.json` is written

An object has those of them that it wants. A plain callable is called as `on_episode` is: not at all for an update in
which no episode finished. One that returns False ends training cleanly.

Where somebody hears of each update or each episode, updates are made one by one. `on_updates` asks for no such thing:
on compiled environments as many are made in one call as without callbacks.

The last update of a run is told of after the final evaluation, which then is its `eval_metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from proximo.errors import UserError
from proximo.rollout.summary import as_rewards
from proximo.train.counters import Row

STEP = "log_training_step"
UPDATES = "on_updates"
EPISODE = "on_episode"
EVENTS = ("on_start", STEP, UPDATES, EPISODE, "on_evaluation", "on_checkpoint", "on_end")


class Callbacks:
    """Everything that a user handed in: None, one callback, or several."""

    def __init__(self, given: Any):
        self._functions: dict[str, list[Callable[[Any], Any]]] = {event: [] for event in EVENTS}
        self.ended = False
        """Whether one of them has returned False."""
        self._add(given)

    @property
    def one_by_one(self) -> bool:
        """Whether any wants to see each update, so that updates must be made one by one."""
        return bool(self._functions[STEP] or self._functions[EPISODE])

    def call(self, event: str, told: Any) -> None:
        """Tell everyone who listens."""
        wishes = [function(told) for function in self._functions[event]]
        self.ended = self.ended or any(wish is False for wish in wishes)

    def updated(self, updates: list[tuple[Row, np.ndarray]]) -> None:
        """Tell of updates: of the row of each, and of the episodes that finished in it: [3+, n] return, length,
        success."""
        told = [for_callback(row) for row, _ in updates]
        for metrics, (row, finished) in zip(told, updates, strict=True):
            self.call(STEP, metrics)
            first = row["episode"] - finished.shape[1] + 1
            for number, (episode_return, length, success) in enumerate(finished[:3].T.tolist(), first):
                episode = {"return": episode_return, "length": int(length), "success": bool(success)}
                self.call(EPISODE, metrics | {"episode": number, "episode_metrics": episode})
        if told:
            self.call(UPDATES, told)

    def _add(self, given: Any) -> None:
        methods = [event for event in EVENTS if callable(getattr(given, event, None))]
        if methods:
            for event in methods:
                self._functions[event].append(getattr(given, event))
        elif callable(given):
            self._functions[EPISODE].append(given)
        elif isinstance(given, Iterable) and not isinstance(given, str):
            for one in given:
                self._add(one)
        elif given is not None:
            raise UserError(
                f"A callback must be callable or have one of the methods {', '.join(EVENTS)}; "
                f"{type(given).__name__} has neither."
            )


def for_callback(row: Row) -> Row:
    """A row as callbacks see it: `episode`, `step_metrics` with `avg_reward` (nan before the first episode), and
    `eval_metrics` (or None)."""
    evaluated = {name.removeprefix("eval/"): value for name, value in row.items() if name.startswith("eval/")}
    steps = {name: value for name, value in row.items() if not name.startswith("eval/")}
    average = row["recent/return_mean"]
    return {
        "episode": row["episode"],
        "step": row["step"],
        "update": row["update"],
        "step_metrics": steps | {"avg_reward": math.nan if average is None else average},
        "eval_metrics": evaluated | as_rewards(evaluated) if evaluated else None,
    }
