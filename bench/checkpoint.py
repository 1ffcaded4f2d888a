"""How long training stands still for a checkpoint: median of ten, and its share of a run with the usual settings."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from proximo import PPOTrainer
from proximo.train import checkpoint
from proximo.train.progress import Progress

RUNS: dict[str, dict[str, Any]] = {
    "gymnax/CartPole-v1": {},
    "gymnax/Breakout-MinAtar": {"num_envs": 1024, "rollout_length": 8, "hidden_sizes": [1024, 1024]},
    "CartPole-v1": {"workers": 1},
    "MountainCarContinuous-v0": {"num_envs": 256, "rollout_length": 8, "workers": 2},
}


def measure(env: str, settings: dict[str, Any]) -> tuple[float, int]:
    """Seconds that a checkpoint takes, and its size."""
    with tempfile.TemporaryDirectory() as folder, PPOTrainer(env, preset="documents", **settings) as trainer:
        state = trainer.program.init(trainer._given())
        progress, run, times = Progress(trainer.config, trainer.env.spec.groups), Path(folder), []
        for _ in range(10):
            started = time.perf_counter()
            envs = trainer.program.envs(state)
            saved = progress.saved()
            checkpoint.save(run, "bench", trainer.config, state, envs, saved, trainer._agents, by_id=True)
            times.append(time.perf_counter() - started)
        return statistics.median(times), (run / "checkpoints" / "bench.safetensors").stat().st_size


if __name__ == "__main__":
    for env, settings in RUNS.items():
        seconds, size = measure(env, settings)
        share = seconds / max(60, 100 * seconds)
        print(f"{env:26} {size / 1e6:7.2f} MB {1e3 * seconds:8.1f} ms, {100 * share:.3f} % of a run")
