"""What tracking costs: `python bench/tracking.py [--windows N] [--pairs N]`.

On an environment that keeps two cores busy (CartPole-v1, one worker process) and on a compiled one, in two ways:

- Windows: one run, in which the process that feeds MLflow is stopped and continued by turns. Windows with it against
  those beside them, in which all else is alike, say what it takes from training. After each pause it has the work of
  two windows to do, so the figure is rather too high. The first pair, in which MLflow is loaded, stands apart: runs of
  less than two minutes load it when training has ended.
- Pairs: the same short training with and without MLflow, by turns; of training, and of the whole call, which ends
  later because everything is sent by then.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil

from proximo import PPOTrainer
from proximo.track.tracker import Tracker

os.environ.pop("PROXIMO_MLFLOW", None)
os.environ.pop("MLFLOW_TRACKING_URI", None)
BASE = {"epochs_per_update": 4, "minibatch_size": 256, "preset": False, "eval_frequency": 0}
SHORT = {"gymnax/CartPole-v1": 500_000, "CartPole-v1": 200_000}
FAR = 1_000_000_000
WINDOW = 8.0
"""Longer than the pauses between two things that are sent."""


def feeders() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "proximo.track.feed" in child.cmdline()]


class Switch:
    """Stops and continues the feeding process by turns, and ends training after so many pairs of windows."""

    def __init__(self, pairs: int):
        self.pairs = pairs
        self.marks: list[tuple[float, bool]] = []
        """When each window began, by the clock of training, and whether the process runs in it."""
        self.cpu = 0.0
        self._over = threading.Event()

    def on_start(self, trainer: PPOTrainer) -> None:
        threading.Thread(target=self._switch, daemon=True).start()

    def _switch(self) -> None:
        (feeder,), began = feeders(), time.perf_counter()
        for number in range(2 * self.pairs):
            # In the order on, off, off, on: what grows or fades in the run is in both alike.
            running = number % 4 in (0, 3)
            feeder.send_signal(signal.SIGCONT if running else signal.SIGSTOP)
            self.marks.append((time.perf_counter() - began, running))
            time.sleep(WINDOW)
        self.marks.append((time.perf_counter() - began, True))
        self.cpu = sum(feeder.cpu_times()[:2])
        feeder.send_signal(signal.SIGCONT)
        self._over.set()

    def log_training_step(self, metrics: dict) -> bool:
        return not self._over.is_set()


def windows(env: str, pairs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, switch = Path(folder) / "run", Switch(pairs)
        Tracker.begin_after = WINDOW / 4  # loaded in the first window
        PPOTrainer(env, out=path, total_timesteps=FAR, **BASE).train(switch)
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    elapsed, steps = [row["time/elapsed"] for row in rows], [row["step"] for row in rows]
    times = [mark for mark, _ in switch.marks]
    rates = np.diff(np.interp(times, elapsed, steps)) / np.diff(times)
    running = np.array([on for _, on in switch.marks[:-1]])
    (first, *on), (second, *off) = rates[running], rates[~running]
    longer = np.array(off).sum() / np.array(on).sum() - 1
    drawn = np.random.default_rng(0).integers(len(on), size=(10_000, len(on)))  # whole pairs
    low, high = np.quantile(np.take(off, drawn).sum(1) / np.take(on, drawn).sum(1) - 1, [0.025, 0.975])
    print(
        f"{env:20} {len(on)} pairs of windows of {WINDOW:g} s: training takes {longer:+.1%} (95 % interval "
        f"{low:+.1%} to {high:+.1%}); loading MLflow costs {WINDOW * (1 - first / second):+.1f} s, once; the process "
        f"took {switch.cpu:.1f} s of a core in {times[-1]:.0f} s"
    )
    print(" " * 20, "pair by pair:", " ".join(f"{b / a - 1:+.1%}" for a, b in zip(on, off, strict=True)), flush=True)


def short(env: str, tracked: bool, folder: str) -> tuple[float, float]:
    """Seconds of training, and of the whole call."""
    started = time.perf_counter()
    trainer = PPOTrainer(
        env, out=f"{folder}/{time.time_ns()}", enable_mlflow=tracked, total_timesteps=SHORT[env], **BASE
    )
    result = trainer.train()
    return result["total_steps"] / result["steps_per_second"], time.perf_counter() - started


def pairs(env: str, number: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        short(env, True, folder)  # makes the database, compiles
        training, call = [], []
        for turn in range(number):
            pair = {tracked: short(env, tracked, folder) for tracked in (turn % 2 == 0, turn % 2 == 1)}
            training.append(pair[True][0] / pair[False][0])
            call.append(pair[True][1] - pair[False][1])
    print(
        f"{env:20} {number} pairs of {SHORT[env]:,} steps: training takes {statistics.median(training) - 1:+.1%} "
        f"({min(training) - 1:+.0%} to {max(training) - 1:+.0%}), the whole call {statistics.median(call):+.1f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What tracking costs of the time of training.")
    parser.add_argument("--windows", type=int, default=12, help="Pairs of windows.")
    parser.add_argument("--pairs", type=int, default=6, help="Pairs of short runs.")
    given = parser.parse_args()
    for env in SHORT:
        if given.pairs:
            pairs(env, given.pairs)
        if given.windows:
            windows(env, given.windows)


if __name__ == "__main__":
    main()
