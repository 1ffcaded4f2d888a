"""Sixteen seeds in one experiment against sixteen runs one after the other; `python bench/experiment.py [--seeds N]`.

Both in one process in which everything is compiled, with the same files written; prints the ratio of the times, and
whether each seed gave the same policy, to the bit. With `--vmap`, the alternative that was not taken: one program over
all seeds at once, against the same seeds one after the other, training alone.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from proximo.train.program import CompiledProgram

os.environ["PROXIMO_MLFLOW"] = "0"

import jax
import jax.numpy as jnp
import numpy as np

from proximo import PPOTrainer, run_multiple_experiments

ENV = "gymnax/CartPole-v1"
SETTINGS: dict[str, Any] = {"total_timesteps": 100_000, "target_reward": None}


def policies(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("*seed*/models/final_actor.safetensors"))]


def compare(num_seeds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        PPOTrainer(ENV, out=folder / "warm", seed=999, **SETTINGS).train()
        started = time.perf_counter()
        for seed in range(num_seeds):
            PPOTrainer(ENV, out=folder / "alone" / f"seed{seed}", seed=seed, **SETTINGS).train()
        alone = time.perf_counter() - started
        print(f"one after the other: {alone:6.1f} s", flush=True)
        started = time.perf_counter()
        run_multiple_experiments(ENV, seeds=range(num_seeds), out=folder / "experiment", **SETTINGS)
        together = time.perf_counter() - started
        same = policies(folder / "alone") == policies(folder / "experiment" / "runs")
        print(f"one experiment:      {together:6.1f} s, {together / alone:.2f} of it; same policies: {same}")


def vmapped(num_seeds: int) -> None:
    config = PPOTrainer(ENV, **SETTINGS).config
    trainers = [PPOTrainer(config=replace(config, seed=seed)) for seed in range(num_seeds)]
    states = [trainer.program.init(trainer._given()) for trainer in trainers]
    program = trainers[0].program
    assert isinstance(program, CompiledProgram)
    program.compile(states[0])
    all_states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    jitted = jax.jit(jax.vmap(program._chunk, in_axes=(0, None, None)))
    many = jitted.lower(all_states, np.int32(1), program._numbers).compile()

    def seconds(run: Callable[..., Any], state: Any) -> float:
        started = time.perf_counter()
        for _ in range(config.num_updates // program.max_chunk):
            state, _ = run(state, np.int32(program.max_chunk), program._numbers)
        jax.block_until_ready(state)
        return time.perf_counter() - started

    seconds(program._run, states[0]), seconds(many, all_states)
    alone = sum(seconds(program._run, state) for state in states)
    print(f"one program over {num_seeds} seeds: {seconds(many, all_states) / alone:.2f} of their time one by one")


def main() -> None:
    parser = argparse.ArgumentParser(description="An experiment against runs one after the other.")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--vmap", action="store_true")
    given = parser.parse_args()
    (vmapped if given.vmap else compare)(given.seeds)


if __name__ == "__main__":
    main()
