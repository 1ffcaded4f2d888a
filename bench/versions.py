"""Steps per second of two versions of Proximo, by turns: what did a change cost?

    git worktree add ../before COMMIT
    python bench/versions.py ../before . [--rounds 5] [--only workers]

Each measurement is a process of its own that trains, after a warm-up, with the same settings; a pair is one of each
version, and which of the two goes first changes from pair to pair. Where a setting has changed its unit or name in
between, `--before-settings '{"minibatch_size": 256}'` are those of the version before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = dict(
    num_envs=8,
    rollout_length=128,
    minibatch_size=256,
    epochs_per_update=4,
    learning_rate=3e-4,
    learning_rate_schedule="constant",
    entropy_coef=0.0,
    normalize_observations=False,
    normalize_rewards=False,
    eval_frequency=0,
    eval_episodes=1,
    num_checkpoints=0,
    workers=0,
)
WARM_UP = 16_384
REPORT_SECONDS = 1e-3
"""More than it takes to report one update, less than it takes to make one."""


def ten_agents() -> Any:
    """An environment whose agents each have a policy of their own."""
    import jaxmarl

    return jaxmarl.make("MPE_simple_spread_v3", num_agents=10)


CASES: dict[str, tuple[str | Callable[[], Any], int, dict[str, Any]]] = {
    "process": ("CartPole-v1", 400_000, {}),
    "workers": ("CartPole-v1", 250_000, {"workers": 2}),
    "random": ("CartPole-v1", 400_000, {"learning_rate": 1e-30}),  # a policy that never learns: episodes of 20 steps
    "compiled": ("gymnax/CartPole-v1", 1_500_000, {}),
    "agents": ("jaxmarl/MPE_simple_spread_v3", 400_000, {"minibatch_size": 768}),
    "independent": (ten_agents, 60_000, {"agents_policy": "independent"}),
}


def measure(case: str, given: dict[str, Any]) -> float:
    """Steps per second of the version that Python finds, from the end of the warm-up to the last update but one."""
    from proximo import PPOTrainer

    env, steps, own = CASES[case]
    settings = SETTINGS | own | given
    times: list[tuple[int, float]] = []

    def watch(metrics: dict[str, Any]) -> None:
        times.append((metrics["step"], time.perf_counter()))

    with tempfile.TemporaryDirectory() as folder:
        trainer = PPOTrainer(
            env if isinstance(env, str) else env(),
            preset=False,
            out=f"{folder}/run",
            total_timesteps=WARM_UP + steps,
            **settings,
        )
        trainer.train(watch)
    # Compiled updates are reported by the chunk, all at once: what counts is the last report of each. The very last
    # one comes after the final evaluation.
    ends = [now for now, later in pairwise(times) if later[1] - now[1] > REPORT_SECONDS]
    begun, last = next(end for end in ends if end[0] >= WARM_UP), ends[-1]
    return (last[0] - begun[0]) / (last[1] - begun[1])


def measured(case: str, version: Path, settings: str) -> float:
    here = os.environ | {"PYTHONPATH": str(version / "src"), "JAX_PLATFORMS": "cpu", "PROXIMO_MLFLOW": "0"}
    command = [sys.executable, __file__, "--measure", case, "--before-settings", settings]
    done = subprocess.run(command, env=here, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{case} of {version}:\n{done.stderr}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("versions", nargs="*", type=Path, help="Two source trees: before and after.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--before-settings", default="{}", help="Settings that only the first gets, as JSON.")
    parser.add_argument("--measure", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, json.loads(options.before_settings))))
        return
    if len(options.versions) != 2:
        parser.error("expected two source trees, before and after")
    before, after = (path.resolve() for path in options.versions)
    for case in options.only:
        ratios = []
        for turn in range(options.rounds):
            order = (before, after) if turn % 2 == 0 else (after, before)
            given = {before: options.before_settings, after: "{}"}
            rates = {version: measured(case, version, given[version]) for version in order}
            ratios.append(rates[after] / rates[before])
            print(f"{case:12} before {rates[before]:9,.0f}, after {rates[after]:9,.0f} steps/s", end="  ")
            print(f"ratio {ratios[-1]:.3f}", flush=True)
        print(f"{case:12} median ratio {statistics.median(ratios):.3f}", flush=True)


if __name__ == "__main__":
    main()
