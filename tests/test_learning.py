"""Presets reach their goals: the mean return of the last 100 episodes, within a budget of steps, on fixed seeds."""

import json

import pytest

from proximo import PPOTrainer

GOALS = [
    # environment, goal, steps, seeds
    ("gymnax/CartPole-v1", 475, 200_000, range(5)),
    ("gymnax/Acrobot-v1", -90, 300_000, range(3)),
    ("gymnax/Pendulum-v1", -250, 1_000_000, range(3)),
    pytest.param("gymnax/Breakout-MinAtar", 8, 5_000_000, range(1), marks=pytest.mark.learning),
]


@pytest.mark.slow
@pytest.mark.parametrize(("env", "goal", "steps", "seeds"), GOALS)
def test_preset_reaches_the_goal(env, goal, steps, seeds, tmp_path):
    reached = {}
    for seed in seeds:
        path = tmp_path / str(seed)
        result = PPOTrainer(env=env, seed=seed, out=path, target_reward=goal, eval_frequency=0).train()
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        over = [row["step"] for row in rows if row["episode"] >= 100 and row["recent/return_mean"] >= goal]
        reached[seed] = min(over, default=None)
        print(f"{env} seed {seed}: {goal} after {reached[seed]} steps, {result['steps_per_second']:,.0f} steps/s")
    assert all(step is not None and step <= steps for step in reached.values()), reached
