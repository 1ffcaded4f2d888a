"""Many agents that learn, on environments that others wrote. Random policies are the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

import probes
from proximo import PPOTrainer
from proximo.policy.behaviour import Learners, actors
from proximo.rollout.evaluate import make_evaluator

SPREAD = {"jaxmarl/MPE_simple_spread_v3": 8.0, "pettingzoo/mpe2.simple_spread_v3": 8.0}
"""By how much the return of an episode must be better than that of random actions."""


def random_return(trainer: PPOTrainer) -> float:
    """What the policy at the start gets, which does anything with nearly the same probability."""
    given = (trainer.env, Learners(trainer.agent.policies), 200, trainer.config.env, 0)
    evaluator = make_evaluator(*given, deterministic=False)
    try:
        played = evaluator(actors(trainer.agent.groups))
        assert played is not None
        return float(played.returns.mean())
    finally:
        evaluator.close()


@pytest.mark.learning
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("env", SPREAD)
def test_simple_spread_is_learnt(env: str, seed: int, tmp_path: Path) -> None:
    trainer = PPOTrainer(
        env, seed=seed, out=tmp_path / "run", console=probes.Notes(), eval_frequency=0, eval_episodes=200
    )
    start = random_return(trainer)
    end = trainer.train()["final_eval"]["return_mean"]
    print(f"\n{env}, seed {seed}: {start:.1f} at random, {end:.1f} trained")
    assert end > start + SPREAD[env]
