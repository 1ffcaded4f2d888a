"""How long a study takes: trial 0 and a few trials at random, measured as experiments measure their runs."""

from __future__ import annotations

from proximo.experiment.estimate import estimate as estimate_plan
from proximo.experiment.plan import Plan
from proximo.fleet.cores import available_cores
from proximo.tuning.protocol import Protocol, settings_of, trial_run
from proximo.tuning.space import GroupsOf
from proximo.tuning.study import Study, in_memory

MEASURED = 3
"""Trials besides trial 0."""


def estimate(protocol: Protocol, groups_of: GroupsOf, jobs: int | None = None) -> tuple[float, int]:
    """Seconds that all runs take, if none is pruned or reaches its goal, and how many are trained at a time."""
    used = max(1, min(jobs or len(available_cores()), protocol.num_runs))
    study = Study(protocol.space, protocol.base, in_memory(), "estimate", "random", seed=protocol.base.seed)
    study.begin({}, outside=True)
    trials = [study.trials[0], *(study.ask() for _ in range(min(MEASURED, protocol.trials - 1)))]
    runs = [trial_run(protocol, trial.number, settings_of(protocol, trial, groups_of)) for trial in trials]
    seconds, _ = estimate_plan(Plan("estimate", tuple(runs)), jobs=1)
    return seconds / len(runs) * protocol.num_runs / used, used
