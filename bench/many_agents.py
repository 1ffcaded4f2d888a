"""Do two versions of Proximo teach many agents the same? Five seeds of each, on four environments, and the difference.

    PYTHONPATH=OLD/src python bench/many_agents.py train before.jsonl       # goes on where it was stopped
    PYTHONPATH=src python bench/many_agents.py train after.jsonl
    python bench/many_agents.py compare before.jsonl after.jsonl

A score is the mean return of the final policies over 100 deterministic episodes on environments of their own; of
self-play, where that is always 0, the mean result of 400 games against random legal moves (won 1, drawn 1/2).
`--settings '{"minibatch_size": 256}'` gives all runs of a version settings whose unit or name has changed in between.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
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
    "self-play": (
        "pettingzoo/classic.tictactoe_v3",
        dict(
            selfplay=0.5,
            selfplay_every=5,
            workers=0,
            num_envs=16,
            rollout_length=128,
            minibatch_size=512,
            epochs_per_update=4,
            learning_rate=1e-3,
            learning_rate_schedule="constant",
            entropy_coef=0.01,
            normalize_observations=False,
            normalize_rewards=False,
            total_timesteps=81_920,
        ),
    ),
}
GAMES = 400


def train(path: Path, only: list[str], given: dict[str, Any]) -> None:
    from proximo import PPOTrainer

    done = {(row["run"], row["seed"]) for row in read(path)}
    for name, seed in ((name, seed) for name in only for seed in SEEDS):
        if (name, seed) in done:
            continue
        env, settings = RUNS[name]
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            shared = {"eval_frequency": 0, "eval_episodes": 100, "num_checkpoints": 0}
            trainer = PPOTrainer(env, seed=seed, out=Path(folder) / "run", **shared | settings | given)
            result = trainer.train()
        if trainer.interrupted_by is not None:
            sys.exit(128 + trainer.interrupted_by)
        row = {"run": name, "seed": seed, "score": result["final_eval"]["return_mean"]}
        if "selfplay" in settings:
            row["score"] = against_random(trainer.agent, seed)
        with path.open("a") as file:
            file.write(json.dumps(row | {"trained_return": result["final_return"]}) + "\n")
        print(f"{name}, seed {seed}: {row['score']:.2f}, {time.perf_counter() - began:.0f} s", flush=True)


def against_random(agent: Any, seed: int) -> float:
    """Mean result of tic-tac-toe against random legal moves, each side in half of the games."""
    from pettingzoo.classic import tictactoe_v3

    env, rng = tictactoe_v3.env(), np.random.default_rng(seed)
    results = []
    for game in range(GAMES):
        env.reset()
        ours = env.agents[game % 2]
        rewards = dict.fromkeys(env.agents, 0)
        for player in env.agent_iter():
            seen, reward, terminated, truncated, _ = env.last()
            rewards[player] += reward
            if terminated or truncated:
                env.step(None)
            elif player == ours:
                env.step(int(agent.act({player: seen})[player]))
            else:
                env.step(int(rng.choice(np.flatnonzero(seen["action_mask"]))))
        results.append((1 + rewards[ours]) / 2)
    return float(np.mean(results))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def compare(before: Path, after: Path, only: list[str]) -> None:
    """Scores of each seed, the difference of the means, and its 95 % interval (bootstrap over seeds)."""
    rng = np.random.default_rng(0)
    for name in only:
        for key in ("score", "trained_return"):
            old, new = (np.array([row[key] for row in read(path) if row["run"] == name]) for path in (before, after))
            drawn = [rng.choice(part, (10_000, len(part))).mean(axis=1) for part in (old, new)]
            low, high = np.quantile(drawn[1] - drawn[0], [0.025, 0.975])
            shown = "; ".join(" ".join(f"{score:.2f}" for score in part) for part in (old, new))
            print(f"{name}, {key}: {shown}; after - before {new.mean() - old.mean():.2f} ({low:.2f} to {high:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("command", choices=["train", "compare"])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--settings", type=json.loads, default={}, help="Settings of this version alone, as JSON.")
    options = parser.parse_args()
    if options.command == "train":
        train(options.paths[0], options.only, options.settings)
    else:
        compare(*options.paths, options.only)


if __name__ == "__main__":
    main()
