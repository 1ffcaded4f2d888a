"""From what the program reports to the row of `metrics.jsonl`: counters and running averages of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from proximo.config import Config
from proximo.envs.groups import Groups
from proximo.ppo.nonfinite import what_broke
from proximo.rollout.types import Episodes
from proximo.train.convergence import Convergence, window_averages
from proximo.train.program import UpdateReport

Record = dict[str, Any]
COUNTERS = (
    *("updates", "steps", "episodes", "skipped", "skipped_in_a_row", "best_score", "best_step"),
    *("resumed", "unfinished", "unconfirmed", "final_eval"),
)
MAX_SKIPPED = 20
"""Updates in a row that may be undone before it is plain that the run will not recover."""


class History:
    """Counts steps and episodes, averages the recent ones, watches convergence, and says when to stop."""

    def __init__(self, config: Config, groups: Groups):
        self.config = config
        self.groups = groups
        self.updates = 0
        self.steps = 0
        self.episodes = 0
        self.skipped = 0
        self.best_score: float | None = None
        self.best_step = 0
        self.finished: list[np.ndarray] = []
        """Of each row of the last chunk the episodes that finished, as `finished_episodes` gives them."""
        self.notices: list[str] = []
        """What the user should know; whoever shows them takes them away."""
        self.resumed: list[Record] = []
        self.unfinished: Record | None = None  # the last row, if its evaluation was stopped
        self.unconfirmed = 0  # claims of the goal that an evaluation has refused
        self.final_eval: Record | None = None  # of the last policy, if the run ended with its evaluation
        self.best_average: float | None = None  # of the full windows of recent episodes
        self.stop_reason: str | None = None
        self.seconds_per_update = 0.0
        self.convergence = Convergence(config.stop)
        self._goal_counts = True
        self.skipped_in_a_row = 0
        # Of the last episodes: return, length, success, each agent's return; with self-play the score.
        self._recent = np.zeros((num_rows(config, groups), 0))
        self._training_seconds = self._elapsed_before = 0.0
        self._created = self._started = self._chunk_started = time.perf_counter()

    def save(self) -> tuple[Record, dict[str, np.ndarray]]:
        """Everything here that goes on after a resume: as JSON, and as arrays."""
        now = time.perf_counter()
        numbers = {name: getattr(self, name) for name in COUNTERS} | {
            "best_average": self.best_average,
            "streak": self.convergence.streak,
            "claim": self.convergence.claim,
            "converged": self.convergence.converged,
            "goal_counts": self._goal_counts,
            "training_seconds": self._training_seconds,
            "elapsed_seconds": now - self._started,
            "wall_seconds": now - self._created,
        }
        return numbers, {"recent": self._recent, "window": self.convergence.window}

    def load(self, numbers: Record, arrays: dict[str, np.ndarray]) -> None:
        """Go on from what `save` gave; whether that was the end already, `stop_reason` says."""
        for name in COUNTERS:
            setattr(self, name, numbers[name])
        convergence, self.best_average = self.convergence, numbers["best_average"]
        convergence.streak, convergence.converged = numbers["streak"], numbers["converged"]
        convergence.claim = numbers["claim"]
        convergence.window, self._recent = arrays["window"], arrays["recent"]
        self._goal_counts = numbers["goal_counts"]
        self._training_seconds = numbers["training_seconds"]
        self._created -= numbers["wall_seconds"]
        self._elapsed_before = numbers["elapsed_seconds"]
        self.stop_reason = self._reason(self._elapsed_before)

    def go_on(self) -> None:
        """Train on although the goal is reached: it no longer ends the run."""
        self._goal_counts = not self.convergence.converged
        self.final_eval = None
        self.stop_reason = self._reason(self._elapsed_before)

    def start_training(self) -> None:
        """Training begins now, or goes on; what came before was preparation."""
        self._started = time.perf_counter() - self._elapsed_before

    def start_chunk(self) -> None:
        """Updates are made from now until `add_chunk`; what comes between, such as evaluation, is not training."""
        self._chunk_started = time.perf_counter()

    def add_chunk(self, reports: list[UpdateReport], parts: Mapping[str, float]) -> list[Record]:
        """The rows of a chunk's updates, up to the one that ends the run (`stop_reason`) or claims its goal, if one
        does. `parts` are the seconds that each part of an update took, if known."""
        self.seconds_per_update = (time.perf_counter() - self._chunk_started) / len(reports)
        records: list[Record] = []
        self.finished = []
        for number, report in enumerate(reports, 1):
            if not self._take(report):
                self.stop_reason = "failed"
                break
            self._training_seconds += self.seconds_per_update
            elapsed = self._chunk_started - self._started + self.seconds_per_update * number
            records.append(self._add(report, elapsed) | {f"time/{name}": value for name, value in parts.items()})
            self.stop_reason = self._reason(elapsed)
            if self.stop_reason or self.claimed:
                break
        return records

    @property
    def claimed(self) -> bool:
        """Whether the goal was reached in training, and an evaluation is to decide if it counts."""
        return self.convergence.claim is not None

    def add_evaluation(self, played: Record) -> Record:
        """Judge the evaluation of the policy as it is now; what its row says of the goal, if that was claimed."""
        mean, convergence = played["return_mean"], self.convergence
        if self._goal_counts and self.config.stop.on == "evaluation":
            convergence.observe(np.array([-np.inf if mean is None else mean]))
        claim, found = convergence.claim, {}
        if claim is not None:
            confirmed = convergence.confirm(mean)
            found = {"goal/training_return": claim, "goal/confirmed": int(confirmed)}
            if confirmed:
                self.stop_reason = "converged"
            else:
                self._refuse(claim, played)
        if self.stop_reason is not None:
            self.final_eval = played
        return found if self.config.stop.on == "training" else {}

    def _refuse(self, claim: float, played: Record) -> None:
        self.unconfirmed += 1
        if self.unconfirmed > 1:
            return
        mean = "no number" if played["return_mean"] is None else f"{played['return_mean']:.4g}"
        goal, goes_on = self.config.stop.target_reward, "" if self.stop_reason else " Training goes on."
        self.notices.append(
            f"Not solved: after {self.steps:,} steps the training return averaged {claim:.4g} with sampled actions "
            f"(the goal is {goal:g}), but an evaluation with deterministic actions averaged {mean} over "
            f"{played['episodes']} episodes.{goes_on} Further such cases are counted, as unconfirmed_goals."
        )

    def is_best(self, score: float | None) -> bool:
        """Note the score of the policy as it is now; whether none before had a better one. Of equals the later wins."""
        if score is None or math.isnan(score) or (self.best_score is not None and score < self.best_score):
            return False
        self.best_score, self.best_step = score, self.steps
        return True

    @property
    def recent_return(self) -> float | None:
        return _mean(self._recent[0])

    @property
    def recent_score(self) -> float | None:
        """What chooses the best policy where there are no evaluations: the last returns, once there are enough of them;
        with self-play recent wins."""
        return self._win_rate if self.config.agents.selfplay else self.full_return

    @property
    def _win_rate(self) -> float | None:
        scores = self._recent[-1]
        return _mean(scores[scores >= 0])

    @property
    def full_return(self) -> float | None:
        """The average of the last `track.recent_episodes` returns; None while there are fewer."""
        return self.recent_return if self._recent.shape[1] == self.config.track.recent_episodes else None

    def summary(self, final_eval: Record | None) -> Record:
        """The counters of a run, as `result.json` names them. The returns at the end and at their best are averages
        over as many episodes: over `track.recent_episodes`, or, while there were fewer, over all."""
        best = self.recent_return if self.best_average is None else self.best_average
        confirmed = final_eval is not None and self.convergence.meets(final_eval["return_mean"])
        return {
            "total_steps": self.steps,
            "episodes": self.episodes,
            "updates": self.updates,
            "wall_seconds": time.perf_counter() - self._created,
            "steps_per_second": self.steps / max(self._training_seconds, 1e-9),
            "converged": self.convergence.converged and confirmed,
            "unconfirmed_goals": self.unconfirmed,
            "best_return": best,
            "final_return": self.recent_return,
            "best_policy": {"step": self.best_step, "score": self.best_score, "by": self.judged_by},
            "skipped_updates": self.skipped,
            "resumed": self.resumed,
        }

    @property
    def judged_by(self) -> str:
        """Whose returns, or with self-play whose wins, choose the best policy."""
        by = "evaluation" if self.config.eval.frequency else "training"
        return f"win rate in {by}" if self.config.agents.selfplay else by

    def _take(self, report: UpdateReport) -> bool:
        """Whether an update counts: it is finite, or it was undone and the run may go on."""
        seen = what_broke(report.metrics)
        if seen is None:
            self.skipped_in_a_row = 0
            return True
        if self.config.train.on_nonfinite == "stop" or self.skipped_in_a_row + 1 >= MAX_SKIPPED:
            return False
        if not self.skipped_in_a_row:
            self.notices.append(f"Update {self.updates + 1:,} was undone: {seen} (train.on_nonfinite=skip).")
        self.skipped += 1
        self.skipped_in_a_row += 1
        return True

    def _add(self, report: UpdateReport, elapsed: float) -> Record:
        finished = finished_episodes(report.episodes, self.groups)
        self.finished.append(finished)
        self.updates += 1
        self.steps += int(report.num_valid)
        self.episodes += finished.shape[1]
        self._remember(finished)
        if self._goal_counts and self.config.stop.on == "training":
            self.convergence.observe(finished[0])
        return {
            "update": self.updates,
            "step": self.steps,
            "episode": self.episodes,
            "rollout/episodes": finished.shape[1],
            "rollout/return_mean": _mean(finished[0]),
            "rollout/length_mean": _mean(finished[1]),
            "rollout/reward_mean": float(report.mean_reward),
            "recent/return_mean": self.recent_return,
            "recent/length_mean": _mean(self._recent[1]),
            "recent/success_rate": _mean(self._recent[2]),
            **self._of_agents(),
            "skipped": self.skipped,
            **{name: value.item() for name, value in report.metrics.items()},
            "time/elapsed": elapsed,
            "time/update": self.seconds_per_update,
            "time/steps_per_second": self.steps / self._training_seconds,
        }

    def _remember(self, finished: np.ndarray) -> None:
        """The recent episodes, with these, and the best average there was of as many."""
        size = self.config.track.recent_episodes
        averages = window_averages(self._recent[0], finished[0], size)
        known = [] if self.best_average is None else [self.best_average]
        self.best_average = max([*known, *averages[np.isfinite(averages)].tolist()], default=None)
        self._recent = np.concatenate([self._recent, finished], axis=1)[:, -size:]

    def _of_agents(self) -> Record:
        """Of many agents, the recent returns of each; and how the learning side did against earlier policies."""
        last = 3 + len(self.groups.agents)
        named = self.groups.by_name(self._recent[3:last].T)
        found: Record = {f"recent/{name}/return_mean": _mean(returns) for name, returns in named.items()}
        if self.config.agents.selfplay:
            found["selfplay/win_rate"] = self._win_rate
        return found

    def _reason(self, elapsed: float) -> str | None:
        train = self.config.train
        if self.convergence.converged and self._goal_counts:
            return "converged"
        spent = (
            self.steps >= train.total_timesteps,  # counted: filler steps are none
            train.max_episodes is not None and self.episodes >= train.max_episodes,
            train.max_seconds is not None and elapsed >= train.max_seconds,
        )
        return "budget" if any(spent) else None


def num_rows(config: Config, groups: Groups) -> int:
    """Numbers that are kept of an episode."""
    return 3 + len(groups.agents) + bool(config.agents.selfplay)


def finished_episodes(episodes: Episodes, groups: Groups) -> np.ndarray:
    """[3 + A, n] return, length and success of the episodes that finished, in the order they did (time, then
    environment), and the return of each agent; with self-play, then the score."""
    ended = episodes.length > 0
    parts = [part[ended][None] for part in (episodes.episode_return, episodes.length, episodes.success)]
    parts += [episodes.members[name][ended].T for name in groups]
    if episodes.score is not None:
        parts.append(episodes.score[ended][None])
    return np.concatenate([part.astype(np.float64) for part in parts])


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
