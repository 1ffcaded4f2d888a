"""When is a run good enough? A sliding average over finished episodes, patience, and an evaluation that confirms it."""

from __future__ import annotations

import numpy as np

from proximo.config import StopConfig


class Convergence:
    """Watches finished episodes in order.

    Each episode completes a window of the last `convergence_window` returns. When `early_stopping_patience` consecutive
    windows have an average at or above `target_reward`, the goal is claimed; a window below it starts the count anew.

    A claim is decided by an evaluation of the policy as it is then. Where that does not reach the target, windows and
    patience begin anew with the episodes that follow: so there is at most one evaluation for every
    `convergence_window + early_stopping_patience - 1` episodes.

    With `stop.on: evaluation` each evaluation is a window by itself, training episodes decide nothing, and the last
    evaluation of a claim is the one that confirms it.
    """

    def __init__(self, stop: StopConfig):
        self.stop = stop
        self.streak = 0
        self.claim: float | None = None
        """The average with which the goal was reached, until an evaluation has decided."""
        self.converged = False
        self.window = np.zeros(0)
        self._size = stop.convergence_window if stop.on == "training" else 1

    def observe(self, returns: np.ndarray) -> None:
        """Take in the returns of episodes, in the order they finished."""
        if self.stop.target_reward is None or not len(returns):
            return
        averages = window_averages(self.window, returns, self._size)
        self.window = np.concatenate([self.window, returns.astype(np.float64)])[-self._size :]
        if len(averages):
            self._count(averages)

    def meets(self, mean_return: float | None) -> bool:
        """Whether the mean return of an evaluation reaches the target, if there is one."""
        target = self.stop.target_reward
        return target is not None and mean_return is not None and mean_return >= target

    def confirm(self, mean_return: float | None) -> bool:
        """Decide a claim by the mean return of an evaluation; whether training has converged."""
        self.claim = None
        self.converged = self.meets(mean_return)
        if not self.converged:
            self.streak, self.window = 0, np.zeros(0)
        return self.converged

    def _count(self, averages: np.ndarray) -> None:
        reached = averages >= self.stop.target_reward
        # Length of the run of true values that ends at each position, going on from the streak so far.
        position = np.arange(len(reached))
        last_miss = np.maximum.accumulate(np.where(reached, -1, position))
        streaks = np.where(last_miss < 0, position + 1 + self.streak, position - last_miss)
        patient = np.flatnonzero(streaks >= self.stop.early_stopping_patience)
        if len(patient) and self.claim is None:
            self.claim = float(averages[patient[0]])
        self.streak = int(streaks[-1])


def window_averages(window: np.ndarray, new: np.ndarray, size: int) -> np.ndarray:
    """The averages of the full windows of `size` numbers that the `new` ones complete, after those in `window`."""
    recent = np.concatenate([window, new.astype(np.float64)])
    # The window that was already full when these came has been judged before.
    fresh = recent[1:] if len(window) == size else recent
    if len(fresh) < size:
        return np.zeros(0)
    return np.asarray(np.lib.stride_tricks.sliding_window_view(fresh, size).mean(axis=-1))
