"""Evaluation with the most likely actions, with actions that are drawn as in training, or with both: which one scores,
and what is said where they differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from proximo.config import Config

LIKELY, DRAWN, BOTH = "deterministic", "stochastic", "both"
OTHER = {LIKELY: DRAWN, DRAWN: LIKELY}
FEWEST = 20
"""Training episodes from which it can be said what training returns."""
SURE = 0.999
"""How sure it must be that one mean is larger than another before anything is said."""
MUCH = 0.25
"""The share of the larger of two returns by which they must differ."""


def scoring(config: Config) -> str:
    """The kind of actions whose evaluation chooses the best policy, confirms the goal and is the score."""
    if config.eval.actions != BOTH:
        return config.eval.actions
    return LIKELY if config.eval.score == "auto" else config.eval.score


def under(kind: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary under the name of a kind of actions: `stochastic/return_mean`."""
    return {f"{kind}/{name}": value for name, value in summary.items()}


class Returns(NamedTuple):
    """Of some episodes."""

    mean: float | None
    std: float | None
    """Of the population."""
    episodes: int

    @classmethod
    def of(cls, summary: Mapping[str, Any], prefix: str = "") -> Returns:
        return cls(*(summary[f"{prefix}{name}"] for name in ("return_mean", "return_std", "episodes")))


def final_note(played: Mapping[str, Any], config: Config, training: NDArray[Any], run: str) -> list[str]:
    """What is said of the final evaluation of `run` if it depends much on how actions are chosen: with both kinds, if
    their returns differ; with the most likely ones alone, if they return less than the last `training` episodes did, in
    which actions were drawn. Not with self-play, where one side wins what the other loses."""
    if config.agents.selfplay or not played or config.eval.actions == DRAWN:
        return []
    if config.eval.actions == BOTH:
        other = OTHER[scoring(config)]
        found = {OTHER[other]: Returns.of(played), other: Returns.of(played, f"{other}/")}
        return difference_in_words(found[LIKELY], found[DRAWN], run)
    known = training[np.isfinite(training)]
    if len(known) < FEWEST:
        return []
    drawn = Returns(float(known.mean()), float(known.std()), len(known))
    return difference_in_words(Returns.of(played), drawn, run, trained=True)


def difference_in_words(likely: Returns, drawn: Returns, run: str, trained: bool = False) -> list[str]:
    """What is said where returns with the most likely actions and with drawn ones differ much, and surely; where the
    drawn ones were `trained` with, only if these are better: a policy may have become better since."""
    if surely_larger(drawn, likely):
        where = " in training" if trained else ""
        return [
            f"The policy returns {likely.mean:.4g} with its most likely actions, and {drawn.mean:.4g} with sampled ones"
            f"{where}. Use it with sampled ones: agent.act(obs, deterministic=False), `proximo evaluate {run} "
            f"--actions stochastic`. eval.actions=stochastic chooses the best policy by them; both evaluates both."
        ]
    if not trained and surely_larger(likely, drawn):
        return [
            f"The policy returns {likely.mean:.4g} with its most likely actions, and {drawn.mean:.4g} with sampled "
            f"ones. Use it with the most likely ones, as agent.act(obs) does."
        ]
    return []


def surely_larger(one: Returns, other: Returns) -> bool:
    """Whether the mean of `one` is much larger than that of the `other`, and not by chance: Welch's test,

    t = (m_1 - m_2) / sqrt(e_1 + e_2) with e_i = s_i^2 / (n_i - 1), s_i the deviations of the populations, and
    (e_1 + e_2)^2 / (e_1^2 / (n_1 - 1) + e_2^2 / (n_2 - 1)) degrees of freedom.
    """
    from scipy import special  # on demand: it takes its time to load

    if (
        one.mean is None
        or other.mean is None
        or one.std is None
        or other.std is None
        or min(one.episodes, other.episodes) < 2
    ):
        return False
    more = one.mean - other.mean
    if more <= MUCH * max(abs(one.mean), abs(other.mean)):
        return False
    errors = one.std**2 / (one.episodes - 1), other.std**2 / (other.episodes - 1)
    if not sum(errors):
        return True
    degrees = sum(errors) ** 2 / (errors[0] ** 2 / (one.episodes - 1) + errors[1] ** 2 / (other.episodes - 1))
    return bool(more / math.sqrt(sum(errors)) > special.stdtrit(degrees, SURE))
