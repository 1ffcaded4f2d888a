"""Do two shards learn as one does? `python bench/shards_learning.py [--steps N] [--seeds S] [--out DIR]`.

Trains gymnax CartPole-v1 with `train.shards` 1 and 2 over several seeds, as an experiment. Its folder, which is
printed, holds the learning curves and the report with the difference of the two and its interval.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from proximo import run_multiple_experiments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="gymnax/CartPole-v1")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = given.out or Path(tempfile.mkdtemp()) / "shards"
    trials = {"one": {"train.shards": 1}, "two": {"train.shards": 2}}
    run_multiple_experiments(given.env, trials, seeds=given.seeds, total_timesteps=given.steps, out=out)
    print(f"Curves and report: {out}")


if __name__ == "__main__":
    main()
