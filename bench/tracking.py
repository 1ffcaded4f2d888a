"""What tracking costs: the same training with and without MLflow, by turns; `python bench/tracking.py [--long]`.

Prints the time of training (not of compiling, evaluating or ending) with tracking over the time without, for each pair
and as a median, and how much longer the whole call takes. MLflow is loaded after a minute of training, or at its end:
`--long` makes a run of about a minute and a half.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from proximo import PPOTrainer

os.environ.pop("PROXIMO_MLFLOW", None)
os.environ.pop("MLFLOW_TRACKING_URI", None)
RUNS = {
    "gymnax/CartPole-v1": {"total_timesteps": 1_000_000, "epochs_per_update": 4, "minibatch_size": 256},
    "CartPole-v1": {"total_timesteps": 500_000, "epochs_per_update": 4, "minibatch_size": 256},
}


LONG = {"gymnax/CartPole-v1": RUNS["gymnax/CartPole-v1"] | {"total_timesteps": 12_000_000}}


def seconds(env: str, tracked: bool, folder: str, settings: dict) -> tuple[float, float]:
    """Of training, and of the whole call."""
    path = Path(folder) / f"{time.time_ns()}"
    started = time.perf_counter()
    result = PPOTrainer(env, out=path, preset=False, enable_mlflow=tracked, eval_frequency=0, **settings).train()
    return result["total_steps"] / result["steps_per_second"], time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description="Training time with tracking over training time without.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--long", action="store_true")
    given = parser.parse_args()
    repeats = given.repeats
    for env, settings in (LONG if given.long else RUNS).items():
        with tempfile.TemporaryDirectory() as folder:
            seconds(env, True, folder, settings | {"total_timesteps": 10_000})  # makes the database, compiles
            ratios, ends = [], []
            for turn in range(repeats):
                pair = {tracked: seconds(env, tracked, folder, settings) for tracked in (turn % 2 == 0, turn % 2 == 1)}
                ratios.append(pair[True][0] / pair[False][0])
                ends.append(pair[True][1] - pair[False][1])
                without, with_it = pair[False][0], pair[True][0]
                print(f"{env:20} {without:6.2f} s without, {with_it:6.2f} s with: {ratios[-1]:.3f}", flush=True)
            print(f"{env:20} median {statistics.median(ratios):.3f}; the whole call {statistics.median(ends):+.1f} s")


if __name__ == "__main__":
    main()
