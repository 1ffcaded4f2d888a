"""What evaluated episodes amount to, with 95 % confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
QUANTILE = (1 + LEVEL) / 2
Interval = tuple[float, float] | tuple[None, None]


@dataclass(frozen=True)
class Evaluation:
    """Returns, lengths and successes of evaluated episodes."""

    returns: NDArray[Any]
    lengths: NDArray[Any]
    successes: NDArray[Any]  # bool
    cut: int = 0
    """How many of the episodes were cut because nothing else limits them (`eval.max_steps`)."""
    agents: dict[str, NDArray[Any]] = field(default_factory=dict)
    """With many agents: the returns of each agent and each group, by names such as `agent/wolf_0`."""
    by_agent: NDArray[Any] = field(default_factory=lambda: np.zeros((0, 0)))  # [N, A] the returns of each agent
    complete: bool = True
    """Whether all episodes were played that were to be; of some, short ones are more than their share."""
    info: dict[str, NDArray[Any]] = field(default_factory=dict)
    """What was tracked of infos, by the names of metrics; NaN where an episode had none."""

    def summary(self) -> dict[str, float | int | None]:
        """As `result.json` names them. `_low` and `_high` bound the mean's, or the rate's, 95 % interval; what is no
        finite number is None. `interrupted` stands there only if not all episodes were played."""
        low, high = share_interval(int(self.successes.sum()), len(self.successes))
        success = {"success_rate": float(self.successes.mean()), "success_low": low, "success_high": high}
        each: dict[str, float | None] = {
            f"{name}/return_mean": float(returns.mean()) for name, returns in self.agents.items()
        }
        each |= {name: known_mean(values) for name, values in self.info.items()}
        numbers = described("return", self.returns) | described("length", self.lengths) | success | each
        finite = {name: None if value is None or not math.isfinite(value) else value for name, value in numbers.items()}
        marked = {} if self.complete else {"interrupted": True}
        return {"episodes": len(self.returns), "episodes_cut": self.cut, **finite, **marked}


def as_rewards(summary: Mapping[str, Any]) -> dict[str, float]:
    """Of a summary, what `PPOTrainer.evaluate` gives, under its names."""
    names = {"avg_reward": "return_mean", "std_reward": "return_std", "min_reward": "return_min"}
    names |= {"max_reward": "return_max", "avg_length": "length_mean"}
    return {name: summary[ours] for name, ours in names.items()}


def known_mean(values: NDArray[Any]) -> float | None:
    """The mean of those that are known; None if none is."""
    known = values[np.isfinite(values)]
    return float(known.mean(dtype=np.float64)) if len(known) else None


def described(name: str, values: NDArray[Any]) -> dict[str, float | None]:
    """Mean, deviation, extremes and the mean's interval, each under `name`."""
    low, high = mean_interval(values)
    return {
        f"{name}_mean": float(values.mean()),
        f"{name}_std": float(values.std()),
        f"{name}_min": float(values.min()),
        f"{name}_max": float(values.max()),
        f"{name}_low": low,
        f"{name}_high": high,
    }


def mean_interval(values: NDArray[Any]) -> Interval:
    """Student's interval of the mean, m -+ t(n - 1) s / sqrt(n); nothing is known from fewer than two values."""
    from scipy import special  # on demand, and not scipy.stats: that one takes a second to load

    n = len(values)
    if n < 2:
        return None, None
    mean = float(values.mean())
    half = float(special.stdtrit(n - 1, QUANTILE)) * float(values.std(ddof=1)) / math.sqrt(n)
    return mean - half, mean + half


def share_interval(count: int, n: int) -> Interval:
    """Wilson's interval of a share p = count / n, which stays within 0 and 1 and holds for few trials too:

    (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
    """
    if n < 1:
        return None, None
    z = NormalDist().inv_cdf(QUANTILE)
    p, weight = count / n, z * z / n
    centre, half = p + weight / 2, z * math.sqrt(p * (1 - p) / n + weight / (4 * n))
    # At the ends the two cancel, and rounding must not lead outside.
    return max(0.0, (centre - half) / (1 + weight)), min(1.0, (centre + half) / (1 + weight))
