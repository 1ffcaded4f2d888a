"""From what the program reports to the row of `metrics.jsonl`: counters and running averages of a run."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from proximo.config import Config
from proximo.ppo.rollout import Episodes
from proximo.train.convergence import Convergence
from proximo.train.program import UpdateReport

Record = dict[str, Any]


FINITE = ("loss/objective", "loss/critic", "loss/entropy", "ppo/gradient_norm")


class History:
    """Counts steps and episodes, averages the recent ones, watches convergence, and says when to stop."""

    def __init__(self, config: Config):
        self.config = config
        self.updates = 0
        self.steps = 0
        self.episodes = 0
        self.stop_reason: str | None = None
        self.failure: str | None = None
        self.seconds_per_update = 0.0
        self.convergence = Convergence(config.stop)
        self._recent = np.zeros((3, 0))  # return, length, success of the last episodes
        self._training_seconds = 0.0
        self._created = self._started = self._chunk_started = time.perf_counter()

    def start_training(self) -> None:
        """Training begins now; what came before was preparation."""
        self._started = time.perf_counter()

    def start_chunk(self) -> None:
        """Updates are made from now until `add_chunk`; what comes between, such as evaluation, is not training."""
        self._chunk_started = time.perf_counter()

    def add_chunk(self, reports: list[UpdateReport]) -> list[Record]:
        """The rows of a chunk's updates, up to the one that ends the run (`stop_reason`), if one does."""
        self.seconds_per_update = (time.perf_counter() - self._chunk_started) / len(reports)
        records = []
        for number, report in enumerate(reports, 1):
            self.failure = nonfinite(report, self.updates + 1)
            if self.failure:
                self.stop_reason = "failed"
                break
            self._training_seconds += self.seconds_per_update
            elapsed = self._chunk_started - self._started + self.seconds_per_update * number
            records.append(self._add(report, elapsed))
            self.stop_reason = self._reason(elapsed)
            if self.stop_reason:
                break
        return records

    def summary(self) -> Record:
        """The counters of a run, as `result.json` names them."""
        best = self.convergence.best_average
        return {
            "total_steps": self.steps,
            "episodes": self.episodes,
            "updates": self.updates,
            "wall_seconds": time.perf_counter() - self._created,
            "steps_per_second": self.steps / max(self._training_seconds, 1e-9),
            "converged": self.convergence.converged,
            "best_return": best if np.isfinite(best) else None,
            "final_return": self.convergence.average,
        }

    def _add(self, report: UpdateReport, elapsed: float) -> Record:
        finished = finished_episodes(report.episodes)
        self.updates += 1
        self.steps += int(report.num_valid)
        self.episodes += finished.shape[1]
        recent = np.concatenate([self._recent, finished], axis=1)
        self._recent = recent[:, -self.config.track.recent_episodes :]
        self.convergence.observe(finished[0])
        return {
            "update": self.updates,
            "step": self.steps,
            "episode": self.episodes,
            "rollout/episodes": finished.shape[1],
            "rollout/return_mean": _mean(finished[0]),
            "rollout/length_mean": _mean(finished[1]),
            "rollout/reward_mean": float(report.mean_reward),
            "recent/return_mean": _mean(self._recent[0]),
            "recent/length_mean": _mean(self._recent[1]),
            "recent/success_rate": _mean(self._recent[2]),
            **{name: value.item() for name, value in report.metrics.items()},
            "time/elapsed": elapsed,
            "time/update": self.seconds_per_update,
            "time/steps_per_second": self.steps / self._training_seconds,
        }

    def _reason(self, elapsed: float) -> str | None:
        train = self.config.train
        if self.convergence.converged:
            return "converged"
        spent = (
            self.steps >= train.total_timesteps,  # counted: filler steps are none
            train.max_episodes is not None and self.episodes >= train.max_episodes,
            train.max_seconds is not None and elapsed >= train.max_seconds,
        )
        return "budget" if any(spent) else None


def nonfinite(report: UpdateReport, number: int) -> str | None:
    """A sentence that names what is not finite in an update's report, if anything is."""
    for name in FINITE:
        if not np.isfinite(report.metrics[name]):
            return f"Update {number} gave {name} = {report.metrics[name]}, so training stopped."
    return None


def finished_episodes(episodes: Episodes) -> np.ndarray:
    """[3, n] return, length and success of the episodes that finished, in the order they did (time, then lane)."""
    ended = episodes.length > 0
    return np.stack([part[ended].astype(np.float64) for part in (episodes.returned, episodes.length, episodes.success)])


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
