"""What was seen once is recalled at the end of an episode of 6, 16 or 40 steps: both cells, with the documents' values
and the minibatches that are taken with memory.

pytest -m learning -s tests/test_recall.py        prints the table of docs/networks.md, a line for each test
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

import probes
from proximo import PPOTrainer, run_multiple_experiments
from proximo.run_dir.read import read_result

SOLVED = dict(target_reward=0.95, on="evaluation", early_stopping_patience=2, eval_frequency=4, eval_episodes=100)
"""Two evaluations in a row of 100 episodes each, 8,192 steps apart, and one more of the policy that is saved."""


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_a_cue_is_recalled_over_six_steps(tmp_path: Path, memory: str) -> None:
    small = {"hidden_sizes": [32], "memory_size": 32, "learning_rate": 1e-3, "epochs_per_update": 5}
    given: dict[str, Any] = (
        {"num_envs": 16, "total_timesteps": 40_000, "memory": memory, "preset": False} | small | SOLVED
    )
    result = PPOTrainer(probes.Errand(6), out=tmp_path / "run", **given).train()
    assert result["converged"], result["final_eval"]


@pytest.mark.learning
@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize(("length", "steps"), [(6, 150_000), (16, 150_000), (40, 300_000)])
def test_a_cue_is_recalled_with_every_seed(tmp_path: Path, length: int, steps: int, memory: str) -> None:
    given = probes.PLAIN | {"num_envs": 16, "total_timesteps": steps, "memory": memory, "preset": False} | SOLVED
    summary = run_multiple_experiments(probes.Errand(length), seeds=5, out=tmp_path / "all", **given)
    results = [read_result(tmp_path / "all" / run["path"]) or {} for run in summary["runs"]]
    taken = [result["total_steps"] for result in results]
    shown = f"{statistics.median(taken):,} ({min(taken):,} to {max(taken):,})"
    solved = [result["converged"] for result in results]
    print(f"\n| {length} | `{memory}` | {shown} | {sum(solved)} of 5 |", flush=True)
    assert all(solved)
