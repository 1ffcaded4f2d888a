"""Do two versions of Proximo teach many agents the same? Five seeds of each, on three environments, and the difference.

    PYTHONPATH=OLD/src python bench/many_agents.py train before.jsonl       # goes on where it was stopped
    PYTHONPATH=src python bench/many_agents.py train after.jsonl
    python bench/many_agents.py compare before.jsonl after.jsonl

A score is the mean return of the final policies over 100 deterministic episodes on environments of their own.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["PROXIMO_MLFLOW"] = "0"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

import numpy as np

SEEDS = range(0, 500_000, 100_000)
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "one policy for all, compiled": ("jaxmarl/MPE_simple_spread_v3", {"total_timesteps": 204_800}),
    "one policy for all, host": ("pettingzoo/mpe2.simple_spread_v3", {"total_timesteps": 64_000, "workers": 0}),
    "a policy for each group, critics that see everything": (
        "jaxmarl/MPE_simple_tag_v3",
        dict(
            agents_policy="groups",
            critic="central",
            num_envs=32,
            rollout_length=50,
            minibatch_size=400,
            epochs_per_update=5,
            learning_rate=7e-4,
            learning_rate_schedule="linear",
            entropy_coef=0.01,
            normalize_observations=False,
            normalize_rewards=False,
            total_timesteps=102_400,
        ),
    ),
}


def train(path: Path) -> None:
    from proximo import PPOTrainer

    done = {(row["run"], row["seed"]) for row in read(path)}
    for (name, (env, settings)), seed in ((run, seed) for run in RUNS.items() for seed in SEEDS):
        if (name, seed) in done:
            continue
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            given = {"eval_frequency": 0, "eval_episodes": 100, "num_checkpoints": 0} | settings
            trainer = PPOTrainer(env, seed=seed, out=Path(folder) / "run", **given)
            result = trainer.train()
        if trainer.interrupted_by is not None:
            sys.exit(128 + trainer.interrupted_by)
        row = {"run": name, "seed": seed, "score": result["final_eval"]["return_mean"]}
        with path.open("a") as file:
            file.write(json.dumps(row | {"trained_return": result["final_return"]}) + "\n")
        print(f"{name}, seed {seed}: {row['score']:.2f}, {time.perf_counter() - began:.0f} s", flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def compare(before: Path, after: Path) -> None:
    """Scores of each seed, the difference of the means, and its 95 % interval (bootstrap over seeds)."""
    rng = np.random.default_rng(0)
    for name in RUNS:
        for key in ("score", "trained_return"):
            old, new = (np.array([row[key] for row in read(path) if row["run"] == name]) for path in (before, after))
            drawn = [rng.choice(part, (10_000, len(part))).mean(axis=1) for part in (old, new)]
            low, high = np.quantile(drawn[1] - drawn[0], [0.025, 0.975])
            shown = "; ".join(" ".join(f"{score:.2f}" for score in part) for part in (old, new))
            print(f"{name}, {key}: {shown}; after - before {new.mean() - old.mean():.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    commands: dict[str, Callable[..., None]] = {"train": train, "compare": compare}
    commands[command](*map(Path, paths))
