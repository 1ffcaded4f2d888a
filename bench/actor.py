"""What the options for small programs give the actor: `python bench/actor.py [ENV] [--workers N]`.

Compiles the actor with XLA's usual options, in one thread, and without the library for matrix products as well, and
collects rollouts with each by turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from typing import Any

import jax

from proximo import PPOTrainer
from proximo.compile import CPU_OPTIONS, NO_LIBRARY, ONE_THREAD
from proximo.rollout.host_actor import actor
from proximo.train.host_program import HostProgram

WAYS: dict[str, dict[str, Any]] = {
    "usual": CPU_OPTIONS,
    "one thread": CPU_OPTIONS | ONE_THREAD,
    "one thread, no library": CPU_OPTIONS | ONE_THREAD | NO_LIBRARY,
}
REPEATS = 30


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("env", nargs="?", default="CartPole-v1")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trainer = PPOTrainer(
            options.env,
            preset="documents",
            out=f"{folder}/run",
            num_envs=8,
            rollout_length=128,
            workers=options.workers,
        )
        with trainer:
            program = trainer.program
            assert isinstance(program, HostProgram)
            state = program.init(trainer._given())
            program.compile(state)
            runner, behaviour = program._runner, program.behaviour
            packed, noise = program._acting(state)
            chosen = jax.eval_shape(behaviour.choose, state.train)
            actors = {
                name: [jax.jit(actor(behaviour, part, chosen), compiler_options=given) for part in runner.env.parts]
                for name, given in WAYS.items()
            }
            seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
            for number in range(REPEATS + 1):
                for name, act in actors.items():
                    runner._act = act
                    runner.run(packed, state.runner, noise, bool)
                    if number:  # the first compiles
                        seconds[name].append((runner.policy_seconds, runner.env_seconds))
    for name, values in seconds.items():
        policy, env = (statistics.median(part) * 1e3 for part in zip(*values, strict=True))
        print(f"{name:24} a rollout of 1,024 steps: {policy:5.1f} ms policy, {env:5.1f} ms environments")


if __name__ == "__main__":
    main()
