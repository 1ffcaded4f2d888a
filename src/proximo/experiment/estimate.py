"""How long an experiment takes: a few updates of each kind of run, timed."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path

from proximo.config import CheckpointConfig, Config, EvalConfig, StopConfig, TrainConfig
from proximo.experiment.plan import Plan
from proximo.fleet.cores import available_cores
from proximo.fleet.local import shape_of
from proximo.train.trainer import PPOTrainer

SECONDS = 1.0
"""Of training that are measured."""


def estimate(plan: Plan, jobs: int | None = None) -> tuple[float, int]:
    """Seconds that the whole plan takes if no run reaches its goal, and how many runs are trained at a time."""
    known: dict[object, tuple[float, float]] = {}
    used = max(1, min(jobs or len(available_cores()), len(plan.runs)))
    total = compiling = 0.0
    for run in plan.runs:
        shape = shape_of(run.config)
        if shape not in known:
            first, _ = _measure(run.config)
            known[shape] = _measure(run.config)
            compiling += max(0.0, first - known[shape][0])
        around, update = known[shape]
        total += around + run.config.num_updates * update
    return compiling + total / used, used


def _measure(config: Config) -> tuple[float, float]:
    """Seconds that a run takes besides its updates, and for each update."""
    short = dataclasses.replace(
        config,
        train=TrainConfig(total_timesteps=config.train.total_timesteps, max_seconds=SECONDS),
        stop=StopConfig(),
        eval=EvalConfig(frequency=0, episodes=1),
        checkpoint=CheckpointConfig(every_seconds=None, every_steps=10**12, num_checkpoints=0),
        track=dataclasses.replace(config.track, mlflow=False, video=False),
    )
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = PPOTrainer(config=short, out=Path(folder) / "run").train()
    training = result["total_steps"] / result["steps_per_second"]
    return time.perf_counter() - started - training, training / result["updates"]
