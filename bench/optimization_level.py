"""What LLVM's optimisation levels cost and give: `python bench/optimization_level.py [ENV]`.

Compiles the training program at levels 1, 2 and 3, and runs the three by turns.
"""

from __future__ import annotations

import statistics
import sys
import time

import jax
import numpy as np

from proximo import PPOTrainer
from proximo.train.program import CompiledProgram

UPDATES = 32
REPEATS = 7


def main() -> None:
    env = sys.argv[1] if len(sys.argv) > 1 else "gymnax/CartPole-v1"
    trainer = PPOTrainer(env=env, preset="documents", minibatch_size=256, epochs_per_update=4)
    program = trainer.program
    assert isinstance(program, CompiledProgram)
    state = program.init(trainer._given())
    seconds, compiled = {}, {}
    for level in (1, 2, 3, 1):  # the first compilation of a process is slower than the others, so it is repeated
        lowered = jax.jit(program._chunk).lower(state, np.int32(1), program._numbers)
        start = time.perf_counter()
        compiled[level] = lowered.compile(compiler_options={"xla_backend_optimization_level": str(level)})
        seconds[level] = time.perf_counter() - start
    times: dict[int, list[float]] = {level: [] for level in compiled}
    for _ in range(REPEATS):
        for level, run in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(run(state, np.int32(UPDATES), program._numbers))
            times[level].append((time.perf_counter() - start) / UPDATES * 1000)
    for level, values in times.items():
        print(f"level {level}: compiled in {seconds[level]:.1f} s, {statistics.median(values):.2f} ms per update")


if __name__ == "__main__":
    main()
