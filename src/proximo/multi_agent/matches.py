"""Self-play judged: games of the policies that learn against earlier ones of their run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from proximo.config import Config
from proximo.envs.api import HostSource, JaxEnv
from proximo.multi_agent.self_play import Match, scores
from proximo.policy.behaviour import Behaviour, Trained, actors
from proximo.rollout.evaluate import make_evaluator

MOST_OPPONENTS = 3
"""Policies of the pool that an evaluation plays against."""


def make_matches(source: JaxEnv | HostSource, behaviour: Behaviour, config: Config) -> Matches | None:
    """What judges self-play; None where there is none."""
    return None if behaviour.sides is None else Matches(source, behaviour, config)


class Matches:
    """Plays the policies that learn on each side in turn, against the first ones of the run and against some of the
    pool, spread over it. Actions are drawn: two policies that always do what is most likely play one game again and
    again, and a policy that is good because it is unpredictable would be judged as if it were not."""

    def __init__(self, source: JaxEnv | HostSource, behaviour: Behaviour, config: Config):
        assert behaviour.sides is not None
        self._sides = list(behaviour.sides.values())
        games = -(-config.eval.episodes // len(self._sides))  # of each side, against each opponent
        match = Match(behaviour.policies)
        self._evaluator = make_evaluator(
            source, match, games, config.env, config.seed, deterministic=False, max_steps=config.eval.max_steps
        )

    @property
    def notices(self) -> list[str]:
        return self._evaluator.notices

    def __call__(self, train: Trained, stop: Callable[[], bool] = bool) -> dict[str, float] | None:
        """The share of games won, a draw counting half: in all, which is the mean of the other two, against the first
        policies, and against the pool. The same state always gives the same. None if `stop` became true on the way."""
        rates, pool = {}, train.opponents
        for name, opponents in (("first", [pool["first"]]), ("pool", of_pool(pool))):
            won = [self._won(train, theirs, side, stop) for theirs in opponents for side in range(len(self._sides))]
            if any(share is None for share in won):
                return None
            rates[f"win_rate_{name}"] = float(np.mean(np.array(won, np.float64)))
        return {"win_rate": sum(rates.values()) / len(rates), **rates}

    def close(self) -> None:
        self._evaluator.close()

    def _won(self, train: Trained, theirs: Any, side: int, stop: Callable[[], bool]) -> float | None:
        """The share that one side wins of its games."""
        played = self._evaluator({"side": self._sides[side], "ours": actors(train.groups), "theirs": theirs}, stop)
        if played is None or not played.complete:
            return None
        means = [played.by_agent[:, flags].mean(-1) for flags in self._sides]
        own = means.pop(side)
        return float(np.asarray(scores(own, np.max(means, axis=0)), np.float64).mean())


def of_pool(pool: Any) -> list[Any]:
    """Up to MOST_OPPONENTS of the policies in a pool, from its first place to its last."""
    size = jax.tree.leaves(pool["kept"])[0].shape[0]
    filled = min(int(pool["count"]), size)
    places = np.linspace(0, filled - 1, min(filled, MOST_OPPONENTS)).round().astype(int)
    return [jax.tree.map(lambda leaf, place=place: leaf[place], pool["kept"]) for place in places]
