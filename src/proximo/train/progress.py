"""The progress of a run: from what the program reports to the rows of `metrics.jsonl`, and when to stop."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from proximo.config import Config
from proximo.envs.groups import Groups
from proximo.ppo.nonfinite import what_broke
from proximo.rollout.actions import scoring
from proximo.rollout.episodes import info_metrics
from proximo.rollout.summary import known_mean
from proximo.rollout.types import Episodes
from proximo.train.convergence import Convergence, window_averages
from proximo.train.counters import Counters, Resume, Row
from proximo.train.program import UpdateReport

MAX_SKIPPED = 20
"""Updates in a row that may be undone before it is plain that the run will not recover."""


class SavedProgress(NamedTuple):
    """What goes on after a resume."""

    counters: Counters
    windows: dict[str, np.ndarray]
    """The recent episodes, and the returns that the goal is judged by."""


class Progress:
    """Counts steps and episodes, averages the recent ones, watches convergence, and says when to stop."""

    def __init__(self, config: Config, groups: Groups, saved: SavedProgress | None = None):
        """At the start of a run, or where what was `saved` stopped: whether that was its end, `stop_reason` says."""
        self.config = config
        self.groups = groups
        self.counters = Counters()
        self.finished: list[np.ndarray] = []
        """Of each row of the last chunk the episodes that finished, as `finished_episodes` gives them."""
        self.notices: list[str] = []
        """What the user should know; whoever shows them takes them away."""
        self.stop_reason: str | None = None
        self.seconds_per_update = 0.0
        self.convergence = Convergence(config.stop)
        # Of the last episodes, as `finished_episodes` has them.
        self._recent = np.zeros((num_rows(config, groups), 0))
        self._created = self._chunk_started = time.perf_counter()
        if saved is not None:
            self._restore(saved)
        self.start_training()

    def saved(self) -> SavedProgress:
        """Everything here that goes on after a resume."""
        now, convergence = time.perf_counter(), self.convergence
        counters = dataclasses.replace(
            self.counters,
            streak=convergence.streak,
            claim=convergence.claim,
            converged=convergence.converged,
            elapsed_seconds=now - self._started,
            wall_seconds=now - self._created,
        )
        return SavedProgress(counters, {"recent": self._recent, "window": convergence.window})

    def _restore(self, saved: SavedProgress) -> None:
        self.counters, windows = saved
        convergence, self._recent = self.convergence, windows["recent"]
        convergence.streak, convergence.claim = self.counters.streak, self.counters.claim
        convergence.converged, convergence.window = self.counters.converged, windows["window"]
        self._created -= self.counters.wall_seconds
        self.stop_reason = self._reason(self.counters.elapsed_seconds)

    def train_on(self) -> None:
        """Go on although the goal is reached: it no longer ends the run."""
        self._count(goal_counts=not self.convergence.converged, final_eval=None)
        self.stop_reason = self._reason(self.counters.elapsed_seconds)

    def note_resume(self, exact: bool) -> None:
        """The run goes on here after a stop."""
        self._count(resumed=(*self.counters.resumed, Resume(self.counters.steps, exact)))

    def start_training(self) -> None:
        """Training begins now, or goes on; what came before was preparation."""
        self._started = time.perf_counter() - self.counters.elapsed_seconds

    def start_chunk(self) -> None:
        """Updates are made from now until `add`; what comes between, such as evaluation, is not training."""
        self._chunk_started = time.perf_counter()

    def add(self, reports: list[UpdateReport], parts: Mapping[str, float]) -> list[Row]:
        """The rows of a chunk's updates, up to the one that ends the run (`stop_reason`) or claims its goal, if one
        does. `parts` are the seconds that each part of an update took, if known."""
        self.seconds_per_update = (time.perf_counter() - self._chunk_started) / len(reports)
        rows: list[Row] = []
        self.finished = []
        for number, report in enumerate(reports, 1):
            if not self._take(report):
                self.stop_reason = "failed"
                break
            elapsed = self._chunk_started - self._started + self.seconds_per_update * number
            rows.append(self._add(report, elapsed) | {f"time/{name}": value for name, value in parts.items()})
            self.stop_reason = self._reason(elapsed)
            if self.stop_reason or self.claimed:
                break
        return rows

    def await_evaluation(self, row: Row) -> None:
        """`row` is finished by the evaluation that comes now; if that is stopped, it is made up for after a resume."""
        self._count(unfinished=row)

    def _count(self, **values: object) -> None:
        self.counters = dataclasses.replace(self.counters, **values)  # type: ignore[arg-type]

    @property
    def claimed(self) -> bool:
        """Whether the goal was reached in training, and an evaluation is to decide if it counts."""
        return self.convergence.claim is not None

    def add_evaluation(self, played: Row) -> Row:
        """Judge the evaluation of the policy as it is now; what its row says of the goal, if that was claimed."""
        mean, convergence = played["return_mean"], self.convergence
        if self.counters.goal_counts and self.config.stop.on == "evaluation":
            convergence.observe(np.array([-np.inf if mean is None else mean]))
        claim, found = convergence.claim, {}
        if claim is not None:
            confirmed = convergence.confirm(mean)
            found = {"goal/training_return": claim, "goal/confirmed": int(confirmed)}
            if confirmed:
                self.stop_reason = "converged"
            else:
                self._refuse(claim, played)
        self._count(unfinished=None)
        if self.stop_reason is not None:
            self._count(final_eval=played)
        return found if self.config.stop.on == "training" else {}

    def _refuse(self, claim: float, played: Row) -> None:
        self._count(unconfirmed=self.counters.unconfirmed + 1)
        if self.counters.unconfirmed > 1:
            return
        mean = "no number" if played["return_mean"] is None else f"{played['return_mean']:.4g}"
        kind = scoring(self.config)
        goal, goes_on = self.config.stop.target_reward, "" if self.stop_reason else " Training goes on."
        self.notices.append(
            f"Not solved: after {self.counters.steps:,} steps the training return averaged {claim:.4g} with sampled "
            f"actions (the goal is {goal:g}), but an evaluation with {kind} actions averaged {mean} over "
            f"{played['episodes']} episodes.{goes_on} Further such cases are counted, as unconfirmed_goals."
        )

    def told_episodes(self, finished: np.ndarray) -> list[Row]:
        """Episodes as `finished_episodes` has them, as callbacks hear of them."""
        columns: Row = {"return": finished[0], "length": finished[1].astype(int), "success": finished[2].astype(bool)}
        rows: list[Row] = [{name: column[n].item() for name, column in columns.items()} for n in range(len(finished.T))]
        for metric, column in episode_info(finished, self.config.track.info, self.groups).items():
            kind, _, name = metric.partition("/")
            for row, value in zip(rows, column.tolist(), strict=True):
                row.setdefault(kind, {})[name] = None if math.isnan(value) else value
        return rows

    @property
    def recent_returns(self) -> np.ndarray:
        """Of the last training episodes."""
        found: np.ndarray = self._recent[0]
        return found

    def note_score(self, score: float | None) -> bool:
        """Note the score of the policy as it is now; whether none before had a better one. Of equals the later wins."""
        best = self.counters.best_score
        if score is None or math.isnan(score) or (best is not None and score < best):
            return False
        self._count(best_score=score, best_step=self.counters.steps)
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

    def summary(self, final_eval: Row | None) -> Row:
        """The counters of a run, as `result.json` names them. The returns at the end and at their best are averages
        over as many episodes: over `track.recent_episodes`, or, while there were fewer, over all."""
        counted = self.counters
        best = self.recent_return if counted.best_average is None else counted.best_average
        confirmed = final_eval is not None and self.convergence.meets(final_eval["return_mean"])
        return {
            "total_steps": counted.steps,
            "episodes": counted.episodes,
            "updates": counted.updates,
            "wall_seconds": time.perf_counter() - self._created,
            "steps_per_second": counted.steps / max(counted.training_seconds, 1e-9),
            "converged": self.convergence.converged and confirmed,
            "unconfirmed_goals": counted.unconfirmed,
            "best_return": best,
            "final_return": self.recent_return,
            "best_policy": {"step": counted.best_step, "score": counted.best_score, "by": self.judged_by},
            "skipped_updates": counted.skipped,
            "resumed": [dataclasses.asdict(place) for place in counted.resumed],
        }

    @property
    def judged_by(self) -> str:
        """Whose returns, or with self-play whose wins, choose the best policy."""
        by = "evaluation" if self.config.eval.frequency else "training"
        return f"win rate in {by}" if self.config.agents.selfplay else by

    def _take(self, report: UpdateReport) -> bool:
        """Whether an update counts: it is finite, or it was undone and the run may go on."""
        seen, in_a_row = what_broke(report.metrics), self.counters.skipped_in_a_row
        if seen is None:
            self._count(skipped_in_a_row=0)
            return True
        if self.config.train.on_nonfinite == "stop" or in_a_row + 1 >= MAX_SKIPPED:
            return False
        if not in_a_row:
            self.notices.append(f"Update {self.counters.updates + 1:,} was undone: {seen} (train.on_nonfinite=skip).")
        self._count(skipped=self.counters.skipped + 1, skipped_in_a_row=in_a_row + 1)
        return True

    def _add(self, report: UpdateReport, elapsed: float) -> Row:
        finished, before = finished_episodes(report.episodes, self.groups), self.counters
        self.finished.append(finished)
        self._count(
            updates=before.updates + 1,
            steps=before.steps + int(report.num_valid),
            episodes=before.episodes + finished.shape[1],
            training_seconds=before.training_seconds + self.seconds_per_update,
        )
        self._remember(finished)
        counted = self.counters
        if counted.goal_counts and self.config.stop.on == "training":
            self.convergence.observe(finished[0])
        return {
            "update": counted.updates,
            "step": counted.steps,
            "episode": counted.episodes,
            "rollout/episodes": finished.shape[1],
            "rollout/return_mean": _mean(finished[0]),
            "rollout/length_mean": _mean(finished[1]),
            "rollout/reward_mean": float(report.mean_reward),
            "recent/return_mean": self.recent_return,
            "recent/length_mean": _mean(self._recent[1]),
            "recent/success_rate": _mean(self._recent[2]),
            **self._of_agents(),
            **self._of_info(),
            "skipped": counted.skipped,
            **{name: value.item() for name, value in report.metrics.items()},
            "time/elapsed": elapsed,
            "time/update": self.seconds_per_update,
            "time/steps_per_second": counted.steps / counted.training_seconds,
        }

    def _remember(self, finished: np.ndarray) -> None:
        """The recent episodes, with these, and the best average there was of as many."""
        size, best = self.config.track.recent_episodes, self.counters.best_average
        averages = window_averages(self._recent[0], finished[0], size)
        known = [] if best is None else [best]
        self._count(best_average=max([*known, *averages[np.isfinite(averages)].tolist()], default=None))
        self._recent = np.concatenate([self._recent, finished], axis=1)[:, -size:]

    def _of_agents(self) -> Row:
        """Of many agents, the recent returns of each; and how the learning side did against earlier policies."""
        last = 3 + len(self.groups.agents)
        named = self.groups.by_name(self._recent[3:last].T)
        found: Row = {f"recent/{name}/return_mean": _mean(returns) for name, returns in named.items()}
        if self.config.agents.selfplay:
            found["selfplay/win_rate"] = self._win_rate
        return found

    def _of_info(self) -> Row:
        """What is tracked of infos, in the mean over the recent episodes that had it."""
        rows = episode_info(self._recent, self.config.track.info, self.groups)
        return {name: known_mean(values) for name, values in rows.items()}

    def _reason(self, elapsed: float) -> str | None:
        train, counted = self.config.train, self.counters
        if self.convergence.converged and counted.goal_counts:
            return "converged"
        spent = (
            counted.steps >= train.total_timesteps,  # counted: filler steps are none
            train.max_episodes is not None and counted.episodes >= train.max_episodes,
            train.max_seconds is not None and elapsed >= train.max_seconds,
        )
        return "budget" if any(spent) else None


def num_rows(config: Config, groups: Groups) -> int:
    """Numbers that are kept of an episode."""
    return 3 + len(groups.agents) + 2 * len(config.track.info) + bool(config.agents.selfplay)


def finished_episodes(episodes: Episodes, groups: Groups) -> np.ndarray:
    """[3 + A + 2 I, n] return, length and success of the episodes that finished, in the order they did (time, then
    environment), the return of each agent, and what is tracked of infos, at the end and in the mean; with self-play,
    then the score."""
    ended = episodes.length > 0
    parts = [part[ended][None] for part in (episodes.episode_return, episodes.length, episodes.success)]
    parts += [episodes.members[name][ended].T for name in groups]
    parts += [part[ended].T for part in (episodes.info, episodes.info_mean) if part is not None]
    if episodes.score is not None:
        parts.append(episodes.score[ended][None])
    return np.concatenate([part.astype(np.float64) for part in parts])


def episode_info(finished: np.ndarray, names: Sequence[str], groups: Groups) -> dict[str, np.ndarray]:
    """Of episodes as `finished_episodes` has them, what is tracked of infos, by the names of metrics."""
    first, metrics = 3 + len(groups.agents), info_metrics(names)
    return dict(zip(metrics, finished[first : first + len(metrics)], strict=True))


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
