"""Presets, and defaults where there is none, reach a goal: the mean return of the last 100 episodes, within a budget of
steps, on fixed seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proximo import PPOTrainer
from proximo.presets import find_preset

GOALS = [
    # environment, goal, steps, seeds
    ("CartPole-v1", 475, 150_000, range(1)),
    pytest.param("CartPole-v1", 475, 150_000, range(1, 3), marks=pytest.mark.learning),
    pytest.param("Pendulum-v1", -250, 300_000, range(3), marks=pytest.mark.learning),
    pytest.param("LunarLander-v3", 200, 1_000_000, range(3), marks=pytest.mark.learning),
    ("gymnax/CartPole-v1", 475, 200_000, range(1)),
    pytest.param("gymnax/CartPole-v1", 475, 200_000, range(1, 5), marks=pytest.mark.learning),
    pytest.param("gymnax/Acrobot-v1", -90, 300_000, range(3), marks=pytest.mark.learning),
    pytest.param("gymnax/Pendulum-v1", -250, 300_000, range(3), marks=pytest.mark.learning),
    pytest.param("gymnax/Breakout-MinAtar", 8, 5_000_000, range(1), marks=pytest.mark.learning),
    pytest.param("brax/inverted_pendulum", 950, 250_000, range(2), marks=pytest.mark.learning),
]


@pytest.mark.slow
@pytest.mark.parametrize(("env", "goal", "steps", "seeds"), GOALS)
def test_the_goal_is_reached(env: str, goal: int, steps: int, seeds: tuple[int, ...], tmp_path: Path) -> None:
    given: dict[str, Any] = {"target_reward": goal, "eval_frequency": 0} | (
        {} if find_preset(env) else {"total_timesteps": steps}
    )
    for seed in seeds:
        trainer = PPOTrainer(env=env, seed=seed, out=tmp_path / str(seed), **given)
        result = trainer.train()
        print(f"{env} seed {seed}: {result['total_steps']:,} steps, {result['steps_per_second']:,.0f} steps/s")
        # Converged: ten windows of 100 episodes in a row averaged at least the goal.
        assert result["converged"], f"seed {seed}: best average {result['best_return']}"
        assert result["total_steps"] <= steps, f"seed {seed}"
