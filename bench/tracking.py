"""What tracking costs: the same training with and without MLflow, by turns; `python bench/tracking.py [--long]`.

Prints the seconds of a core that the process took which feeds MLflow, from its start until training had ended, over the
time of training on all cores: what it takes of the machine. Beside it stand the times of training with tracking over
those without, which are what counts, and need a quiet machine or many repeats; and how much longer the whole
call takes. MLflow is loaded after two minutes of training, or at its end: `--long` runs a little longer than that.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from proximo import PPOTrainer

os.environ.pop("PROXIMO_MLFLOW", None)
os.environ.pop("MLFLOW_TRACKING_URI", None)
BASE = {"epochs_per_update": 4, "minibatch_size": 256}
RUNS = {
    "gymnax/CartPole-v1": BASE | {"total_timesteps": 1_000_000, "eval_frequency": 0},
    "CartPole-v1": BASE | {"total_timesteps": 500_000, "eval_frequency": 0},
}
LONG = {"gymnax/CartPole-v1": BASE | {"total_timesteps": 20_000_000}}


class Watch:
    """How much of a core the feeding process has taken when training ends."""

    seconds = 0.0

    def on_end(self, result: dict) -> None:
        for child in psutil.Process().children():
            if "proximo.track.feed" in child.cmdline():
                self.seconds = sum(child.cpu_times()[:2])


def seconds(env: str, tracked: bool, folder: str, settings: dict) -> tuple[float, float, float]:
    """Of training, of the whole call, and of the process that feeds MLflow."""
    path, watch = Path(folder) / f"{time.time_ns()}", Watch()
    started = time.perf_counter()
    trainer = PPOTrainer(env, out=path, preset=False, enable_mlflow=tracked, **settings)
    result = trainer.train(callback=watch)
    return result["total_steps"] / result["steps_per_second"], time.perf_counter() - started, watch.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="What tracking costs of the time of training.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--long", action="store_true")
    given = parser.parse_args()
    repeats, cores = given.repeats, len(os.sched_getaffinity(0))
    for env, settings in (LONG if given.long else RUNS).items():
        with tempfile.TemporaryDirectory() as folder:
            seconds(env, True, folder, settings | {"total_timesteps": 10_000})  # makes the database, compiles
            shares, ratios, ends = [], [], []
            for turn in range(repeats):
                pair = {tracked: seconds(env, tracked, folder, settings) for tracked in (turn % 2 == 0, turn % 2 == 1)}
                (without, whole, _), (with_it, tracked_whole, fed) = pair[False], pair[True]
                shares.append(fed / (with_it * cores))
                ratios.append(with_it / without)
                ends.append(tracked_whole - whole)
                print(
                    f"{env:20} {fed:.2f} s of a core in {with_it:.1f} s on {cores}: {shares[-1]:.2%}; "
                    f"{without:.1f} s without, ratio {ratios[-1]:.3f}",
                    flush=True,
                )
            share, ratio, end = map(statistics.median, (shares, ratios, ends))
            print(f"{env:20} median {share:.2%}, of times {ratio:.3f}; the whole call {end:+.1f} s", flush=True)


if __name__ == "__main__":
    main()
