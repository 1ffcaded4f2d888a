"""Training speed against a plain PPO: `python bench/compiled.py [--steps N] [--repeats R] [--json FILE]`.

Both train gymnax CartPole-v1 with 8 environments, 128 steps, 4 epochs of 4 minibatches and 64-64 tanh networks,
in one process and by turns, so that whatever else the machine does falls on both alike. Compilation is not
counted; what Proximo reads back, computes and writes for every update is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from proximo import PPOTrainer
from reference_ppo import make_train

ENV = "CartPole-v1"
NUM_ENVS = 8
ROLLOUT_LENGTH = 128
EPOCHS = 4
NUM_MINIBATCHES = 4
BATCH = NUM_ENVS * ROLLOUT_LENGTH

Measure = Callable[[int], float]
"""From a seed to the steps per second of one training."""


def reference_steps_per_second(num_updates: int) -> Measure:
    """The reference, compiled; one call is a whole training."""
    train = make_train(ENV, NUM_ENVS, ROLLOUT_LENGTH, EPOCHS, NUM_MINIBATCHES, num_updates * BATCH)
    compiled = train.lower(jax.random.key(0)).compile()

    def measure(seed: int) -> float:
        start = time.perf_counter()
        jax.device_get(compiled(jax.random.key(seed)))
        return num_updates * BATCH / (time.perf_counter() - start)

    return measure


def proximo_steps_per_second(num_updates: int) -> Measure:
    """Proximo as a user runs it: `PPOTrainer` with its metrics file, timed from the first update to the last."""
    folder = Path(tempfile.mkdtemp())
    trainer = PPOTrainer(
        env=f"gymnax/{ENV}",
        preset="documents",
        num_envs=NUM_ENVS,
        rollout_length=ROLLOUT_LENGTH,
        epochs_per_update=EPOCHS,
        minibatch_size=BATCH // NUM_MINIBATCHES,
        hidden_sizes=(64, 64),
        activation="tanh",
        total_timesteps=num_updates * BATCH,
        eval_frequency=0,
        eval_episodes=1,
    )

    fresh = trainer.agent.params

    def measure(seed: int) -> float:
        trainer.path = folder / str(seed)
        trainer.agent.params = fresh
        trainer.train()
        last = json.loads((trainer.path / "metrics.jsonl").read_text().splitlines()[-1])
        return float(last["step"] / last["time/elapsed"])

    measure(-1)  # compiles
    return measure


def compare(steps: int, repeats: int) -> dict[str, list[float]]:
    """Steps per second of each, measured by turns."""
    num_updates = max(1, round(steps / BATCH))
    measures = {
        "reference": reference_steps_per_second(num_updates),
        "proximo": proximo_steps_per_second(num_updates),
    }
    for measure in measures.values():
        measure(repeats)  # The first call after a compilation is not like the others.
    results: dict[str, list[float]] = {name: [] for name in measures}
    for seed in range(repeats):
        for name, measure in measures.items():
            results[name].append(measure(seed))
    return results


def summary(results: dict[str, list[float]]) -> dict[str, Any]:
    """The numbers that are printed and written."""
    medians = {name: statistics.median(values) for name, values in results.items()}
    paired = [ours / theirs for ours, theirs in zip(results["proximo"], results["reference"], strict=True)]
    return {
        "steps_per_second": results,
        "median": medians,
        "ratio_of_medians": medians["proximo"] / medians["reference"],
        "paired_ratios": paired,
        "median_of_paired_ratios": statistics.median(paired),
    }


def show(numbers: dict[str, Any]) -> None:
    print(f"\n{'steps per second':<18}{'min':>12}{'median':>12}{'max':>12}")
    for name, values in numbers["steps_per_second"].items():
        print(f"{name:<18}{min(values):>12,.0f}{statistics.median(values):>12,.0f}{max(values):>12,.0f}")
    print(f"\nproximo / reference: {numbers['ratio_of_medians']:.3f} (ratio of medians)")
    pairs = " ".join(f"{ratio:.3f}" for ratio in numbers["paired_ratios"])
    print(f"in pairs: {pairs}; median {numbers['median_of_paired_ratios']:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Training speed against a plain PPO, on gymnax CartPole-v1.")
    parser.add_argument("--steps", type=int, default=500_000, help="environment steps of each training")
    parser.add_argument("--repeats", type=int, default=5, help="trainings of each")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    numbers = summary(compare(arguments.steps, arguments.repeats))
    show(numbers)
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
