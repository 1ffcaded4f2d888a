"""Evaluations of the policies that a run trains, on environments of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from proximo import envs
from proximo.config import Config
from proximo.errors import UserError
from proximo.multi_agent.matches import make_matches
from proximo.policy.agents import Agents
from proximo.policy.behaviour import Behaviour, Learners, Trained, actors
from proximo.rollout.actions import OTHER, scoring, under
from proximo.rollout.evaluate import Evaluator, make_evaluator


class Evaluations:
    """Plays episodes as `eval.actions` says; with self-play also games against earlier policies."""

    def __init__(self, env: envs.JaxEnv | envs.HostSource, agents: Agents, behaviour: Behaviour, config: Config):
        self.notices: list[str] = []
        """What the user should know; whoever shows them takes them away."""
        self._env, self._agents, self._config = env, agents, config
        self._evaluators: dict[tuple[int, bool], Evaluator] = {}
        self._running: tuple[int, Evaluator] | None = None
        self._matches = make_matches(env, behaviour, config)

    @property
    def played(self) -> str:
        """How far the running evaluation is, in words; for `stop`, which is asked again and again."""
        if self._running is None:
            return ""
        episodes, evaluator = self._running
        return f"{evaluator.played} of {episodes} episodes"

    def __call__(self, train: Trained, stop: Callable[[], bool]) -> dict[str, Any]:
        """The summary of an evaluation as training has them; if it was stopped, of what was played until then, marked
        `interrupted`, and empty if that is nothing. With both kinds of actions, that of the kind which does not score
        is under its name: `stochastic/return_mean`."""
        episodes, kind = self._config.eval.episodes, scoring(self._config)
        summary = self.play(episodes, stop)
        if summary and self._config.eval.actions == "both":
            other = self.play(episodes, stop, deterministic=kind != "deterministic")
            summary |= under(OTHER[kind], other) if is_whole(other) else {"interrupted": True}
        if not is_whole(summary) or self._matches is None:
            return summary
        won = self._matches(train, stop)
        self.notices += self._matches.notices
        self._matches.notices.clear()
        return summary | (won or {"interrupted": True})

    def play(self, episodes: int, stop: Callable[[], bool] = bool, deterministic: bool | None = None) -> dict[str, Any]:
        """The summary of `episodes` episodes, by default with the actions that score; if they were stopped, of those
        that were finished, and empty if none were."""
        if episodes < 1:
            raise UserError(f"An evaluation takes at least 1 episode, not {episodes}.")
        config = self._config
        likely = scoring(config) == "deterministic" if deterministic is None else deterministic
        if (episodes, likely) not in self._evaluators:
            how = (
                config.env,
                config.seed,
                config.track.success_return,
                likely,
                config.eval.max_steps,
                config.track.info,
            )
            made = make_evaluator(self._env, Learners(self._agents.policies), episodes, *how)
            self._evaluators[episodes, likely] = made
        evaluator = self._evaluators[episodes, likely]
        self._running = episodes, evaluator
        try:
            played = evaluator(actors(self._agents.groups), stop)
        finally:
            self._running = None
        self.notices += [f"In an evaluation: {notice}" for notice in evaluator.notices]
        evaluator.notices.clear()
        return played.summary() if played else {}

    def close(self) -> None:
        for evaluator in self._evaluators.values():
            evaluator.close()
        if self._matches is not None:
            self._matches.close()


def is_whole(played: Mapping[str, Any]) -> bool:
    """Whether a summary is of a whole evaluation, not of one that was stopped."""
    return bool(played) and "interrupted" not in played


def score(played: Mapping[str, Any]) -> float | None:
    """What chooses the best policy: the mean return of an evaluation, with self-play the share of games won, since
    what one side wins the other loses."""
    found: float | None = played.get("win_rate", played.get("return_mean"))
    return found
