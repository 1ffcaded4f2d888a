"""When is a run good enough? A sliding average over finished episodes, and patience."""

from __future__ import annotations

import numpy as np

from proximo.config import StopConfig


class Convergence:
    """Watches finished episodes in order.

    Each episode completes a window of the last `convergence_window` returns. Training has converged when
    `early_stopping_patience` consecutive windows have an average at or above `target_reward`; one below starts
    the count anew. The best average is tracked from the start, while windows still fill.

    With `stop.on: evaluation` each evaluation is a window by itself, and training episodes decide nothing.
    """

    def __init__(self, stop: StopConfig):
        self.stop = stop
        self.best_average = -np.inf
        self.streak = 0
        self.converged = False
        self.window = np.zeros(0)
        self._size = stop.convergence_window if stop.on == "training" else 1

    @property
    def average(self) -> float:
        """Of the last window; NaN before the first episode."""
        return float(self.window.mean()) if len(self.window) else np.nan

    def observe(self, returns: np.ndarray) -> bool:
        """Take in the returns of episodes, in the order they finished; whether training has converged."""
        size = self._size
        if not len(returns):
            return self.converged
        recent = np.concatenate([self.window, returns.astype(np.float64)])
        filling = range(len(self.window) + 1, min(len(recent), size - 1) + 1)
        averages = [recent[:n].mean() for n in filling]
        full = np.zeros(0)
        if len(recent) >= size:
            # The window that was already full when this batch came has been judged before.
            fresh = recent[1:] if len(self.window) == size else recent
            full = np.lib.stride_tricks.sliding_window_view(fresh, size).mean(axis=-1)
        self.best_average = max([self.best_average, *averages, *full.tolist()])
        self.window = recent[-size:]
        if self.stop.target_reward is not None:
            self._count(full >= self.stop.target_reward)
        return self.converged

    def _count(self, reached: np.ndarray) -> None:
        if not len(reached):
            return
        # Length of the run of true values that ends at each position, going on from the streak so far.
        position = np.arange(len(reached))
        last_miss = np.maximum.accumulate(np.where(reached, -1, position))
        streaks = np.where(last_miss < 0, position + 1 + self.streak, position - last_miss)
        self.converged |= bool((streaks >= self.stop.early_stopping_patience).any())
        self.streak = int(streaks[-1])
