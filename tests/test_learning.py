"""Presets, and defaults where there is none, reach a goal: the mean return of the last 100 episodes, within a budget of
steps, on fixed seeds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from proximo import PPOTrainer, evaluate_policy
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


def cartpole(length: float = 0.5) -> gymnasium.Env[Any, Any]:
    """CartPole with a pole of this length, as it counts it: from the joint to the pole's middle."""
    env: gymnasium.Env[Any, Any] = gymnasium.make("CartPole-v1")
    pole: Any = env.unwrapped
    pole.length = length
    pole.polemass_length = pole.masspole * length
    return env


@pytest.mark.slow
@pytest.mark.learning
def test_a_saved_policy_learns_a_changed_environment_in_less_than_half_of_the_steps(tmp_path: Path) -> None:
    """The criterion, written down before the first run that counts:

    A policy learns CartPole (seed 100). Its pole is then made four times as long, with which it must not balance at
    once: its evaluation there averages under 475. From there and from nothing, with the same settings and seeds 0 to 4,
    training goes on until an evaluation of 20 episodes, made after every update of 2,048 steps, averages 475. The steps
    of all five seeds from the saved policy, added up, must be under half of those from nothing. A seed that does not
    get there within 200,000 steps fails the test.
    """
    until: dict[str, Any] = {"target_reward": 475, "early_stopping_patience": 1, "eval_episodes": 20}
    until |= {"total_timesteps": 200_000, "workers": 0}
    saved = tmp_path / "saved"
    trainer = PPOTrainer("CartPole-v1", seed=100, eval_frequency=0, out=saved, **until)
    trainer.train()
    at_once = evaluate_policy(trainer.agent, partial(cartpole, 2.0), 20)["return_mean"]
    steps: dict[str, list[int]] = {"from nothing": [], "from the saved policy": []}
    for seed in range(5):
        for (name, counts), start in zip(steps.items(), (None, saved), strict=True):
            trainer = PPOTrainer(
                cartpole,
                env_kwargs={"length": 2.0},
                start_from=start,
                seed=seed,
                out=tmp_path / f"{name} {seed}",
                eval_frequency=1,
                on="evaluation",
                **until,
            )
            result = trainer.train()
            assert result["converged"], f"{name}, seed {seed}: best {result['best_policy']}"
            counts.append(result["total_steps"])
    print(f"at once {at_once:.1f}; steps {steps}")
    assert at_once < 475
    assert 2 * sum(steps["from the saved policy"]) < sum(steps["from nothing"])
