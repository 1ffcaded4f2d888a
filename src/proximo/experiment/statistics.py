"""What scores of a few runs say, and how surely: after Agarwal et al. 2021, "Deep reinforcement learning at the edge
of the statistical precipice".

Scores are grouped into strata, one per environment: `{"env": [score of each run]}`. Resampling draws runs with
replacement within each stratum. Every function begins the same stream of random numbers anew: the same scores give the
same bits, in whatever order things are asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
RESAMPLES = 2_000
CURVE_RESAMPLES = 400
FEWEST = 3
"""Runs below which a bootstrap says nothing: with two, it knows three different samples."""
TOO_FEW = "too few seeds"
COVERAGE = {3: 75, 5: 90, 10: 93, 20: 94}
"""In how many of a hundred experiments the 95 % interval of the IQM holds the true one, by the number of runs of a
trial; normal and skewed (exponential) scores give the same. `tests/test_statistics.py` measures it."""
NO_DIFFERENCE = "no difference shown"

Values = Sequence[float] | NDArray[Any]
"""One of each run."""
Scores = Mapping[str, Values]


class Interval(NamedTuple):
    """The ends of a 95 % interval; None, and why, where there is none."""

    low: float | None
    high: float | None
    note: str = ""


class Improvement(NamedTuple):
    """How probably a run of the first trial scores higher than one of the second, in the mean over environments."""

    probability: float
    interval: Interval
    p_value: float
    per_env: dict[str, float]

    @property
    def shown(self) -> int:
        """1 where the first is better, -1 where the second is, 0 where neither is shown."""
        low, high, _ = self.interval
        if low is None or high is None or low <= 0.5 <= high or self.p_value > 1 - CONFIDENCE:
            return 0
        return 1 if low > 0.5 else -1


def iqm(values: NDArray[Any], weights: NDArray[Any] | None = None) -> NDArray[Any]:
    """The interquartile mean over the last axis: twice the integral of the quantile function from 1/4 to 3/4.

    Each of n values stands for 1 / n of the whole (or for its share of `weights`), and one that lies across a quartile
    counts in part. So it is defined for every n, and `scipy.stats.trim_mean(values, 0.25)` where 4 divides n.
    """
    values = np.asarray(values, np.float64)
    n = values.shape[-1]
    if weights is None:
        edges = np.arange(n + 1) / n
        ordered = np.sort(values, axis=-1)
    else:
        order = np.argsort(values, axis=-1, kind="stable")
        ordered = np.take_along_axis(values, order, axis=-1)
        share = np.take_along_axis(np.broadcast_to(weights, values.shape), order, axis=-1)
        sums = np.cumsum(share, axis=-1)
        edges = np.concatenate([np.zeros_like(sums[..., :1]), sums], axis=-1) / sums[..., -1:]
    inside = np.clip(edges, 0.25, 0.75)
    # From a value in the middle, so that equal values give exactly themselves.
    centre = ordered[..., n // 2]
    beyond: NDArray[np.float64] = np.sum((inside[..., 1:] - inside[..., :-1]) * (ordered - centre[..., None]), axis=-1)
    return np.asarray(centre + 2 * beyond)


def strata_iqm(scores: Scores) -> float:
    """The IQM of all scores together, in which each stratum counts the same."""
    return float(iqm(np.concatenate([np.asarray(part, np.float64) for part in scores.values()]), _weights(scores)))


def iqm_interval(scores: Scores) -> Interval:
    """The percentile interval of the stratified bootstrap of `strata_iqm`."""
    if any(len(part) < FEWEST for part in scores.values()):
        return Interval(None, None, TOO_FEW)
    rng, drawn = _rng(), []
    for part in scores.values():
        drawn.append(np.asarray(part, np.float64)[_resample(rng, len(part), RESAMPLES)])
    return _percentiles(iqm(np.concatenate(drawn, axis=1), None if len(scores) == 1 else _weights(scores)))


def describe(values: Values) -> dict[str, float | int | None]:
    """Mean, median, deviation (of the sample, n - 1) and extremes."""
    array = np.asarray(values, np.float64)
    return {
        "n": len(array),
        "mean": float(array.mean()),
        "median": float(np.median(array)),
        "std": float(array.std(ddof=1)) if len(array) > 1 else None,
        "min": float(array.min()),
        "max": float(array.max()),
    }


def to_one_scale(values: Values, low: float, high: float) -> NDArray[Any]:
    """`low` as 0, `high` as 1; where they are equal, everything is 0.5."""
    array = np.asarray(values, np.float64)
    return (array - low) / (high - low) if high > low else np.full(array.shape, 0.5)


def probability(first: Values, second: Values) -> float:
    """P(X > Y) + P(X = Y) / 2 for X of the first and Y of the second: Mann and Whitney's U / (m n)."""
    return float(_wins(first, second).mean())


def improvement(first: Scores, second: Scores) -> Improvement:
    """The probability of improvement in the mean over environments, with its stratified bootstrap interval, and the
    p-value of the permutation test within strata: in how many of the ways to deal the scores out to the two trials
    the mean lies as far from 1/2. With few runs the interval alone would call chance a difference too often."""
    wins = {name: _wins(first[name], second[name]) for name in first}
    per_env = {name: float(part.mean()) for name, part in wins.items()}
    mean = math.fsum(per_env.values()) / len(per_env)
    rng = _rng()
    if any(min(part.shape) < FEWEST for part in wins.values()):
        interval = Interval(None, None, TOO_FEW)
    else:
        interval = _percentiles(np.mean([_resampled_wins(rng, part) for part in wins.values()], axis=0))
    dealt = np.mean([_dealt(rng, first[name], second[name]) for name in first], axis=0)
    # A hair of slack: sums of the same halves in another order.
    as_far = int((np.abs(dealt - 0.5) >= abs(mean - 0.5) - 1e-9).sum())
    return Improvement(mean, interval, (as_far + 1) / (len(dealt) + 1), per_env)


def profile(scores: Scores, levels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """[K] the fraction of runs that score at least each level, in the mean over strata; [2, K] its pointwise interval,
    or None with too few runs."""
    reached = [np.asarray(part, np.float64)[:, None] >= levels for part in scores.values()]
    fraction = np.mean([part.mean(axis=0) for part in reached], axis=0)
    if any(len(part) < FEWEST for part in reached):
        return fraction, None
    rng = _rng()
    drawn = np.mean([_counts(rng, len(part)) @ part / len(part) for part in reached], axis=0)
    return fraction, np.quantile(drawn, _ends(), axis=0)


def curve_band(curves: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """[K] the IQM of curves [n, K] at each of K points, and [2, K] its pointwise interval, or None with too few runs.

    Whole curves are resampled."""
    middle = iqm(curves.T)
    if len(curves) < FEWEST:
        return middle, None
    drawn = curves.T[:, _resample(_rng(), len(curves), CURVE_RESAMPLES)]  # [K, resamples, n]
    return middle, np.quantile(iqm(drawn), _ends(), axis=1)


def on_grid(steps: Values, values: Values, grid: NDArray[Any]) -> NDArray[Any]:
    """A run's curve at the steps of `grid`: straight between what is known, nothing (NaN) before the first of it, and
    its last value after its end."""
    return np.asarray(np.interp(grid, steps, values, left=np.nan))


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _resample(rng: np.random.Generator, n: int, times: int) -> NDArray[Any]:
    return rng.integers(0, n, (times, n))


def _counts(rng: np.random.Generator, n: int) -> NDArray[Any]:
    """[RESAMPLES, n] how often each of n runs is drawn."""
    return rng.multinomial(n, np.full(n, 1 / n), RESAMPLES).astype(np.float64)


def _wins(first: Values, second: Values) -> NDArray[Any]:
    x, y = np.asarray(first, np.float64)[:, None], np.asarray(second, np.float64)[None]
    return np.asarray((x > y) + 0.5 * (x == y))


def _resampled_wins(rng: np.random.Generator, wins: NDArray[Any]) -> NDArray[Any]:
    m, n = wins.shape
    return np.asarray(np.sum(_counts(rng, m) @ wins * _counts(rng, n), axis=1) / (m * n))


def _dealt(rng: np.random.Generator, first: Values, second: Values) -> NDArray[Any]:
    """[RESAMPLES] the probability of improvement after the scores were dealt out anew."""
    m, n = len(first), len(second)
    both = [*first, *second]
    below = _wins(both, both).sum(axis=1)  # how many it beats, half of itself included
    order = np.argsort(rng.random((RESAMPLES, m + n)), axis=1)[:, :m]
    return np.asarray((below[order].sum(axis=1) - m * m / 2) / (m * n))


def _weights(scores: Scores) -> NDArray[Any]:
    return np.concatenate([np.full(len(part), 1 / len(part)) for part in scores.values()])


def _ends() -> tuple[float, float]:
    return (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2


def _percentiles(drawn: NDArray[Any]) -> Interval:
    low, high = np.quantile(drawn, _ends())
    return Interval(float(low), float(high))
