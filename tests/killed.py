"""A run that is killed again and again, and resumed each time; and what must then be the same as if it never was."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proximo import PPOTrainer
from proximo.run_dir import tensors
from proximo.train import checkpoint, finish

SETTINGS: dict[str, Any] = dict(
    num_envs=4,
    rollout_length=16,
    minibatch_size=32,
    epochs_per_update=2,
    hidden_sizes=[16],
    eval_frequency=7,
    eval_episodes=3,
    every_steps=128,
    num_checkpoints=3,
    normalize_observations=True,
    normalize_rewards=True,
    learning_rate=3e-4,
    learning_rate_schedule="linear",
    entropy_coef=0.01,
)


def train_on(make_env: Callable[[], Any], path: Path, settings: dict[str, Any]) -> None:
    """Start the run, or go on with it; compiled as it is for users, not as quickly as in other tests. Undrawn."""
    os.environ.pop("XLA_FLAGS", None)
    finish.write_plots = lambda *_: []
    if (path / "config.yaml").exists():
        PPOTrainer.resume(path, make_env()).train()
    else:
        PPOTrainer(make_env(), out=path, preset=False, **(SETTINGS | settings)).train()


def started(
    make_env: Callable[[], Any], path: Path, settings: dict[str, Any]
) -> multiprocessing.context.ForkServerProcess:
    """A process in which the run is trained; what takes long to load is loaded once for all of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["killed"])
    process = context.Process(target=train_on, args=(make_env, path, settings))
    process.start()
    return process


def run_to_end(make_env: Callable[[], Any], path: Path, settings: dict[str, Any]) -> None:
    process = started(make_env, path, settings)
    process.join()
    assert process.exitcode == 0


def kill_at_random_moments(
    make_env: Callable[[], Any],
    path: Path,
    settings: dict[str, Any],
    kills: int,
    seed: int = 0,
    early: bool = True,
    after: Callable[[Path], None] = lambda path: None,
) -> None:
    """If `early`, every other time a while after the start of the process, the other times a while after training goes
    on. Otherwise a while after the next checkpoint. Each time, `after` looks at what is left."""
    moments = random.Random(seed)
    rows = path / "metrics.jsonl"
    for kill in range(kills):
        size, saved = rows.stat().st_size if rows.exists() else 0, checkpoint.steps(path)
        process = started(make_env, path, settings)
        if not early:
            while process.is_alive() and checkpoint.steps(path) == saved:
                time.sleep(0.005)
            time.sleep(moments.uniform(0, 0.2))
        elif kill % 2:
            while process.is_alive() and not (rows.exists() and rows.stat().st_size > size):
                time.sleep(0.005)
            time.sleep(moments.uniform(0, 0.2))
        else:
            time.sleep(moments.uniform(0, 1.5))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "the run was over, or failed, before it could be killed"
        after(path)
    run_to_end(make_env, path, settings)


def lines(run: Path) -> list[str]:
    return (run / "metrics.jsonl").read_text().splitlines()


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if not name.startswith("time/")}


def assert_same_run(one: Path, other: Path) -> None:
    """Rows, policies, and the whole state at the end, to the bit; times apart."""
    rows = [[without_times(json.loads(line)) for line in lines(run)] for run in (one, other)]
    assert rows[0] == rows[1]
    assert [row["update"] for row in rows[0]] == list(range(1, len(rows[0]) + 1))
    models = [sorted(file.name for file in (run / "models").iterdir()) for run in (one, other)]
    assert models[0] == models[1]
    for name in models[0]:
        assert (one / "models" / name).read_bytes() == (other / "models" / name).read_bytes(), name
    states = [tensors.read(checkpoint.newest(run), "checkpoint")[0] for run in (one, other)]
    assert states[0].keys() == states[1].keys()
    for name, array in states[0].items():
        assert array.tobytes() == states[1][name].tobytes(), name
    results = [json.loads((run / "result.json").read_text()) for run in (one, other)]
    for result in results:
        for name in ("wall_seconds", "steps_per_second", "resumed"):
            del result[name]
    assert results[0] == results[1]
