"""What tracking costs: `python bench/tracking.py [--windows N] [--pairs N]`.

On an environment that keeps two cores busy (CartPole-v1, one worker process) and on a compiled one:

- Share: how much of a core the process that feeds MLflow takes in the first minute of training, in which it sends
  most. It loads MLflow before that, while programs are compiled.
- Slowdown: how much longer training takes beside a process that sends rows of that run to an MLflow without pause, at
  the priority of the feeding process; stopped and continued by turns within one run.
- What tracking costs of the time of training is their product: the one applies during the share of the time that is
  the other. It is too small to be seen in the times of runs themselves, which differ by more than that.
- Pairs: the same short training with and without MLflow, by turns; of training, and of the whole call, which ends
  later because everything is sent by then.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from proximo import PPOTrainer, settings
from proximo.tracking.feed import NICENESS
from proximo.tracking.mlflow import MlflowTracker

os.environ.pop("PROXIMO_MLFLOW", None)
os.environ.pop("MLFLOW_TRACKING_URI", None)
BASE: dict[str, Any] = {"epochs_per_update": 4, "minibatch_size": 256, "preset": "documents", "eval_frequency": 0}
SHORT = {"gymnax/CartPole-v1": 500_000, "CartPole-v1": 200_000}
FAR = 1_000_000_000
WINDOW = 3.0
SHARE_SECONDS = 60.0
ROWS = 5
"""That are sent at a time."""


class Clock:
    """Ends training after some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_start(self, trainer: PPOTrainer) -> None:
        self.feeder = next(one for one in psutil.Process().children() if "proximo.tracking.feed" in one.cmdline())
        self._before, self._end = self._spent, time.monotonic() + self._seconds

    @property
    def _spent(self) -> float:
        return float(sum(self.feeder.cpu_times()[:2]))

    def log_training_step(self, metrics: dict[str, Any]) -> bool:
        if time.monotonic() < self._end:
            return True
        self.cpu = self._spent - self._before
        return False


def share(env: str, folder: Path) -> float:
    """Seconds of a core for each second of training."""
    clock = Clock(SHARE_SECONDS)
    PPOTrainer(env, out=folder / "run", total_timesteps=FAR, **BASE).train(clock)
    return clock.cpu / SHARE_SECONDS


def send_without_pause(path: Path, uri: str) -> None:
    """Send the rows of a run to an MLflow, again and again, under new numbers."""
    os.nice(NICENESS)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    run = MlflowTracker(path, settings.build(settings.from_file(path / "config.yaml")), uri)
    run.open(live=True)
    print("ready", flush=True)
    for number in itertools.count(1):
        run.rows([row | {"update": number * ROWS + i} for i, row in enumerate(rows[-ROWS:])])


class Switch:
    """Stops and continues a process by turns, and ends training after so many pairs of windows."""

    def __init__(self, process: psutil.Process, pairs: int) -> None:
        self.process, self.pairs = process, pairs
        self.marks: list[tuple[float, bool]] = []
        """When each window began, by the clock of training, and whether the process runs in it."""
        self._over = threading.Event()

    def on_start(self, trainer: PPOTrainer) -> None:
        threading.Thread(target=self._switch, daemon=True).start()

    def _switch(self) -> None:
        began = time.perf_counter()
        for number in range(2 * self.pairs):
            # In the order on, off, off, on: what grows or fades in the run is in both alike.
            running = number % 4 in (0, 3)
            self.process.send_signal(signal.SIGCONT if running else signal.SIGSTOP)
            self.marks.append((time.perf_counter() - began, running))
            time.sleep(WINDOW)
        self.marks.append((time.perf_counter() - began, True))
        self._over.set()

    def log_training_step(self, metrics: dict[str, Any]) -> bool:
        return not self._over.is_set()


def slowdown(env: str, pairs: int, folder: Path) -> tuple[float, float, float, float]:
    """How much longer training takes beside a process that sends without pause, with a 95 % interval; and the share of
    a core that process had."""
    sending = [sys.executable, __file__, "--send", str(folder / "run"), f"sqlite:///{folder / 'other.db'}"]
    with subprocess.Popen(sending, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        other = psutil.Process(process.pid)
        before, switch, path = sum(other.cpu_times()[:2]), Switch(other, pairs), folder / "beside"
        PPOTrainer(env, out=path, total_timesteps=FAR, enable_mlflow=False, **BASE).train(switch)
        busy = sum(other.cpu_times()[:2]) - before
        process.kill()
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    elapsed, steps = [row["time/elapsed"] for row in rows], [row["step"] for row in rows]
    times = [mark for mark, _ in switch.marks]
    rates = np.diff(np.interp(times, elapsed, steps)) / np.diff(times)
    running = np.array([on for _, on in switch.marks[:-1]])
    on, off = rates[running], rates[~running]
    drawn = np.random.default_rng(0).integers(len(on), size=(10_000, len(on)))  # whole pairs
    low, high = np.quantile(off[drawn].sum(1) / on[drawn].sum(1) - 1, [0.025, 0.975])
    return off.sum() / on.sum() - 1, low, high, busy / (pairs * WINDOW)


def cost(env: str, pairs: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        part = share(env, folder)
        longer, low, high, busy = slowdown(env, pairs, folder)
    times = part / busy
    print(
        f"{env:20} the feeding process takes {part:.1%} of a core in a run of {SHARE_SECONDS:.0f} s\n"
        f"{'':20} beside one that sends without pause, and takes {busy:.0%} of a core, training takes {longer:+.0%} "
        f"(95 % interval {low:+.0%} to {high:+.0%}, {pairs} pairs of windows)\n"
        f"{'':20} so tracking costs {times * longer:.2%} of the time of training "
        f"({times * low:.2%} to {times * high:.2%})",
        flush=True,
    )


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
    parser.add_argument("--windows", type=int, default=16, help="Pairs of windows.")
    parser.add_argument("--pairs", type=int, default=6, help="Pairs of short runs.")
    parser.add_argument("--send", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.send:
        send_without_pause(Path(given.send[0]), given.send[1])
    for env in SHORT:
        if given.pairs:
            pairs(env, given.pairs)
        if given.windows:
            cost(env, given.windows)


if __name__ == "__main__":
    main()
