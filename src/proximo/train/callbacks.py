"""What users hang into training: callables, and objects with methods for what happens.

    on_start(trainer)            before the first update
    log_training_step(metrics)   after each update
    on_updates(several)          after some updates, with what `log_training_step` gets of each, in order
    on_episode(metrics)          for each episode, in order, when the update in which it finished is made
    on_evaluation(metrics)       after each evaluation, the final one too
    on_checkpoint(path)          after a checkpoint was written
    on_end(result)               when `result.json` is written

An object has those of them that it wants. A plain callable is called as `on_episode` is: not at all for an update in
which no episode finished. One that returns False ends training cleanly. One that returns numbers by name has them in
the row of the update, as `callback/NAME`: `on_episode` in the mean over the update's episodes, `on_updates` in the row
of the last of them.

Where somebody hears of each update or each episode, updates are made one by one. `on_updates` asks for no such thing:
on compiled environments as many are made in one call as without callbacks.

The last update of a run is told of after the final evaluation, which then is its `eval_metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from proximo.errors import UserError
from proximo.metric_names import same_to_trackers
from proximo.rollout.summary import as_rewards, known_mean
from proximo.train.counters import Row

STEP = "log_training_step"
UPDATES = "on_updates"
EPISODE = "on_episode"
EVALUATION = "on_evaluation"
EVENTS = ("on_start", STEP, UPDATES, EPISODE, EVALUATION, "on_checkpoint", "on_end")
WRITTEN = (STEP, UPDATES, EPISODE, EVALUATION)
"""Those that belong to a row of `metrics.jsonl`, which has what they return."""


class Callbacks:
    """Everything that a user handed in: None, one callback, or several."""

    def __init__(self, given: Any):
        self._functions: dict[str, list[Callable[[Any], Any]]] = {event: [] for event in EVENTS}
        self.ended = False
        """Whether one of them has returned False."""
        self._returned: dict[str, tuple[Callable[[Any], Any], list[float]]] = {}  # by name: by whom, and what
        self._add(given)

    @property
    def one_by_one(self) -> bool:
        """Whether any wants to see each update, so that updates must be made one by one."""
        return bool(self._functions[STEP] or self._functions[EPISODE])

    @property
    def hear_of_episodes(self) -> bool:
        """Whether any wants to see each episode."""
        return bool(self._functions[EPISODE])

    def call(self, event: str, told: Any) -> None:
        """Tell everyone who listens."""
        answers = [(function, function(told)) for function in self._functions[event]]
        self.ended = self.ended or any(answer is False for _, answer in answers)
        for function, answer in answers:
            if isinstance(answer, Mapping):
                self._keep(event, function, answer)

    def updated(self, updates: list[tuple[Row, list[Row]]]) -> None:
        """Tell of updates: of the row of each, and of the episodes that finished in it."""
        told = [for_callback(row) for row, _ in updates]
        for metrics, (row, episodes) in zip(told, updates, strict=True):
            self.call(STEP, metrics)
            for number, episode in enumerate(episodes, row["episode"] - len(episodes) + 1):
                self.call(EPISODE, metrics | {"episode": number, "episode_metrics": episode})
        if told:
            self.call(UPDATES, told)

    def take_returned(self) -> Row:
        """What was returned since the last time, as a row has it."""
        found = {name: known_mean(np.array(values)) for name, (_, values) in self._returned.items()}
        self._returned = {}
        return found

    def _keep(self, event: str, function: Callable[[Any], Any], answer: Mapping[Any, Any]) -> None:
        if event not in WRITTEN:
            raise UserError(
                f"{event} returned numbers, and has no row to write them to; {', '.join(WRITTEN)} have one."
            )
        for name, value in answer.items():
            metric = f"callback/{name}"
            first, values = self._returned.setdefault(metric, (function, []))
            alike = same_to_trackers(self._returned)
            if first != function or alike is not None:
                one, other = alike or (metric, metric)
                raise UserError(f"Callbacks return {one} and {other}, which cannot be told apart; rename one of them.")
            values.append(returned_number(name, value))

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


def returned_number(name: Any, value: Any) -> float:
    """A number that a callback returned; NaN for None."""
    try:
        if not isinstance(name, str) or isinstance(value, str | bytes):
            raise TypeError("even if it can be read as a number")
        return math.nan if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(
            f"A callback returned {name!r}: {str(value)[:60]}. It may return False, which ends training, or numbers by "
            f"name, which are written down."
        ) from None


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
