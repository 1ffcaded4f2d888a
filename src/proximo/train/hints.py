"""Hints at the start of a run: what is wrong with many environments, judged by numbers that are there anyway."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from proximo.config import Config
from proximo.envs.judge import constant_entries, constant_observations, no_end, no_reward, reward_scale
from proximo.envs.spec import EnvSpec
from proximo.policy.agents import Agents
from proximo.policy.normalize import RunningStats
from proximo.policy.observation import ObservationAdapter
from proximo.train.counters import Row

UPDATES = 5
"""After which rewards and observations are judged: the policy is still near to random."""
STEPS = 2_000
"""Of each environment, in which an episode should end where no limit is known."""
ROUNDING = 1e-10
"""The share of its squared mean below which the variance of a number in single precision may be rounding."""


class Hints:
    """Looks at the rows of the first updates. Each thing is judged after one certain update, and so said once, also in
    a run that is resumed."""

    def __init__(self, config: Config, spec: EnvSpec):
        self._config = config
        limits = [limit for limit in (spec.max_steps, config.env.max_steps_per_episode) if limit is not None]
        self._limit = min(limits, default=None)
        ends = max(2, math.ceil((self._limit or STEPS) / config.ppo.rollout_length))
        self._ends_due, self._due = (min(update, config.num_updates) for update in (ends, UPDATES))
        self._rewards: dict[int, tuple[float, float]] = {}  # the least and the greatest, by update

    def look(self, rows: list[Row], constant: Callable[[], list[str]]) -> list[str]:
        """What is to be said after these updates; `constant` names what never changed in observations."""
        said: list[str | None] = []
        for row in rows:
            update = row["update"]
            if update <= self._due:
                self._rewards[update] = min(_each(row, "reward_min")), max(_each(row, "reward_max"))
            if update == self._due:
                said += self._judge_rewards(row)
                said.append(constant_observations(constant(), row["step"]))
            if update == self._ends_due:
                said.append(no_end(row["episode"], update * self._config.ppo.rollout_length, self._limit))
        return [sentence for sentence in said if sentence is not None]

    def _judge_rewards(self, row: Row) -> list[str | None]:
        scale = reward_scale(max(_each(row, "return_std")), self._config.normalize.rewards)
        if len(self._rewards) < row["update"]:  # the run was resumed since its first update
            return [scale]
        low, high = zip(*self._rewards.values(), strict=True)
        return [no_reward(min(low), max(high), row["step"]), scale]


def _each(row: Row, name: str) -> list[float]:
    """A number of the rollouts of each group."""
    found = [value for key, value in row.items() if key.endswith(f"buffer/{name}") and value is not None]
    return found or [math.nan]


def constant_in(agents: Agents) -> list[str]:
    """The numbers in observations that never changed, where statistics of observations are kept."""
    found = []
    for name, agent in agents.groups.items():
        stats = agent.obs_stats["actor"] if isinstance(agent.obs_stats, dict) else agent.obs_stats
        whose = f"{name}'s " if len(agents.groups) > 1 else ""
        entries = [] if stats is None else unchanged(agents.policies[name].adapter, stats)
        found += [f"{whose}{entry}" for entry in entries]
    return found


def unchanged(adapter: ObservationAdapter, stats: RunningStats) -> list[str]:
    """The measurements whose variance is 0, or what rounding makes of that."""
    mean, var = np.asarray(stats.mean), np.asarray(stats.var)
    moved = np.where(var <= ROUNDING * np.square(mean), 0.0, var)
    places = adapter.measurements()
    each = (constant_entries(path, np.zeros(shape), moved[place].reshape(shape)) for path, shape, place in places)
    return [name for names in each for name in names]
