"""Presets, and defaults where there is none, reach a goal: the mean return of the last 100 episodes, within a budget of
steps, on fixed seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
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


def shorter_pole() -> gymnasium.Env[Any, Any]:
    """CartPole whose pole is half as long, and so falls faster."""
    env: gymnasium.Env[Any, Any] = gymnasium.make("CartPole-v1")
    pole: Any = env.unwrapped
    pole.length = 0.25
    pole.polemass_length = pole.masspole * pole.length
    return env


@pytest.mark.slow
@pytest.mark.learning
def test_a_saved_policy_learns_a_changed_environment_in_less_than_half_of_the_steps(tmp_path: Path) -> None:
    """Steps until 16 training episodes in a row first average 475, and an evaluation confirms it: from a policy that
    has learned CartPole so, and from nothing; five seeds of each, together. Sixteen environments in which nothing falls
    take 8,000 steps for so many episodes."""
    goal: dict[str, Any] = {"target_reward": 475, "convergence_window": 16, "early_stopping_patience": 1}
    goal |= {"eval_frequency": 0, "total_timesteps": 200_000, "workers": 0}
    PPOTrainer("CartPole-v1", seed=100, out=tmp_path / "saved", **goal).train()
    steps: dict[str, list[int]] = {"anew": [], "on": []}
    for seed in range(5):
        for name, start in (("anew", None), ("on", tmp_path / "saved")):
            trainer = PPOTrainer(shorter_pole, start_from=start, seed=seed, out=tmp_path / f"{name}{seed}", **goal)
            result = trainer.train()
            assert result["converged"], f"{name}, seed {seed}: best {result['best_policy']}"
            steps[name].append(result["total_steps"])
    print(f"from nothing {steps['anew']}, from a saved policy {steps['on']}")
    assert 2 * sum(steps["on"]) < sum(steps["anew"])
