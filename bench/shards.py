"""What shards bring: `python bench/shards.py [--shards K] [--seconds S] [--repeats R] [--json FILE]`.

Updates of one learner on gymnax CartPole-v1, undivided and in K shards, by turns in one process, so that whatever else
the machine does falls on both alike. Compilation is not counted. Printed are the environment steps per second of each
and the median of the ratios.
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

from proximo import PPOTrainer
from proximo.train.setup import given_by

ENVIRONMENTS, UNITS = (8, 64, 1_024), (64, 512)
STEPS = 128


def measure(num_envs: int, units: int, shards: int) -> Callable[[float], float]:
    """The program, compiled; a call runs it for so many seconds and gives steps per second."""
    settings: dict[str, Any] = dict(
        num_envs=num_envs,
        rollout_length=STEPS,
        epochs_per_update=4,
        minibatch_size=num_envs * STEPS // 4,
        hidden_sizes=[units, units],
        shards=shards,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = PPOTrainer("gymnax/CartPole-v1", out=Path(folder) / "run", preset=False, **settings)
    state = trainer.program.init(given_by(trainer._agents))
    trainer.program.compile(state)
    trainer.program.run(state, 1)

    def run(seconds: float) -> float:
        now, updates, began = state, 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            now, _ = trainer.program.run(now, 1)
            updates += 1
        return updates * num_envs * STEPS / (time.perf_counter() - began)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    print(f"environments  units   1 shard   {given.shards} shards   ratio")
    for num_envs in ENVIRONMENTS:
        for units in UNITS:
            # The divided one first: JAX must know how many devices it needs before it is used.
            divided, plain = (measure(num_envs, units, shards) for shards in (given.shards, 1))
            pairs = [(plain(given.seconds), divided(given.seconds)) for _ in range(given.repeats)]
            one, several = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratio = statistics.median(b / a for a, b in pairs)
            rows.append({"num_envs": num_envs, "units": units, "one": one, "several": several, "ratio": ratio})
            print(f"{num_envs:12,}  {units:5}  {one:8,.0f}  {several:9,.0f}  {ratio:6.2f}", flush=True)
    if given.json:
        given.json.write_text(json.dumps({"shards": given.shards, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
