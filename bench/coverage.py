"""How often the intervals of a report hold what they should; `python bench/coverage.py [--experiments N]`.

Simulated experiments of a known distribution: the share of 95 % intervals that hold the true interquartile mean, by the
percentile bootstrap (which the report shows), the BCa bootstrap and Student's t of trimmed means, with its width;
and, of two trials that are the same, how often the interval alone, and the verdict, see a difference.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable

import numpy as np
from scipy import stats

from proximo.experiment.statistics import Interval, improvement, iqm, iqm_interval

SEEDS = (3, 5, 10, 20)
TRUE = {
    "normal": 0.0,
    # The mean of an exponential between its quartiles: twice the integral of its quantiles from 1/4 to 3/4.
    "exponential": 2 * ((0.75 - 0.75 * math.log(0.75)) - (0.25 - 0.25 * math.log(0.25))),
}


def ends(interval: Interval) -> tuple[float, float]:
    """Of an interval that is there."""
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


def trimmed_t(scores: np.ndarray) -> tuple[float, float]:
    """Student's t with the winsorized deviation, 25 % trimmed on each side (Tukey and McLaughlin 1963)."""
    n = len(scores)
    trimmed = int(0.25 * n)
    held = np.clip(scores, *np.sort(scores)[[trimmed, n - trimmed - 1]])
    error = held.std(ddof=1) / ((1 - 2 * trimmed / n) * math.sqrt(n))
    half = stats.t.ppf(0.975, n - 2 * trimmed - 1) * error
    return float(iqm(scores)) - half, float(iqm(scores)) + half


def bca(scores: np.ndarray, seed: int) -> tuple[float, float]:
    found = stats.bootstrap((scores,), lambda x, axis: iqm(x), n_resamples=1000, vectorized=True, rng=seed)
    return found.confidence_interval.low, found.confidence_interval.high


def coverage(experiments: int, rng: np.random.Generator) -> None:
    draw: dict[str, Callable[..., np.ndarray]] = {"normal": rng.standard_normal, "exponential": rng.exponential}
    for n in SEEDS:
        for kind, truth in TRUE.items():
            held: dict[str, list[bool]] = {"percentile": [], "BCa": [], "t": []}
            width: dict[str, list[float]] = {name: [] for name in held}
            for number in range(experiments):
                scores = draw[kind](size=n)
                found = {"percentile": ends(iqm_interval({"env": scores.tolist()})), "t": trimmed_t(scores)}
                if number < experiments / 7:  # it takes long
                    found["BCa"] = bca(scores, number)
                for name, (low, high) in found.items():
                    held[name].append(low <= truth <= high)
                    width[name].append(high - low)
            shown = ", ".join(f"{name} {100 * np.mean(hits):.0f} %" for name, hits in held.items())
            wider = np.mean(width["t"]) / np.mean(width["percentile"])
            print(f"{n:3} seeds, {kind:11}: {shown} ({wider:.1f} times as wide)", flush=True)


def false_alarms(experiments: int, rng: np.random.Generator) -> None:
    for n in (3, 4, 5, 10):
        found = [
            improvement({"env": rng.standard_normal(n).tolist()}, {"env": rng.standard_normal(n).tolist()})
            for _ in range(experiments)
        ]
        alone = np.mean([not low <= 0.5 <= high for low, high in (ends(one.interval) for one in found)])
        verdict = np.mean([one.shown != 0 for one in found])
        print(
            f"{n:3} seeds, no difference: interval alone {100 * alone:.0f} %, verdict {100 * verdict:.0f} %", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="How often intervals hold what they should.")
    parser.add_argument("--experiments", type=int, default=10_000)
    experiments = parser.parse_args().experiments
    warnings.simplefilter("ignore")  # BCa of constant scores
    rng = np.random.default_rng(2)
    coverage(experiments, rng)
    false_alarms(max(1, experiments // 10), rng)


if __name__ == "__main__":
    main()
