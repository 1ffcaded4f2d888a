"""Every family of host environments trains: a few updates, finite losses, evaluation, a policy that acts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from made import gymnasium_source
from proximo import PPOAgent, PPOTrainer
from proximo.envs.host.gymnasium import GymnasiumSource

FAMILIES = {
    "classic control": "Acrobot-v1",
    "toy text, with masks": "Taxi-v4",
    "toy text, a tuple": "Blackjack-v1",
    "Box2D": "BipedalWalker-v3",
    "MuJoCo": "Hopper-v5",
    "MiniGrid": "MiniGrid-DoorKey-5x5-v0",
    "Atari": "ALE/Breakout-v5",
    "EnvPool": "envpool/Acrobot-v1",
    "EnvPool MuJoCo": "envpool/Hopper-v4",
    "EnvPool dm_control": "envpool/CartpoleBalance-v1",
    "EnvPool Atari": "envpool/Breakout-v5",
}
LONG = ("toy text, a tuple", "classic control", "EnvPool MuJoCo", "EnvPool dm_control", "EnvPool Atari")
"""In `make test-learning` only: others are much like them."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "env",
    [
        pytest.param(env, id=name, marks=[pytest.mark.learning] if name in LONG else [])
        for name, env in FAMILIES.items()
    ],
)
def test_family_trains(env: Any, tmp_path: Path) -> None:
    trainer = PPOTrainer(
        env,
        out=tmp_path / "run",
        num_envs=2,
        rollout_length=8,
        minibatch_size=8,
        epochs_per_update=1,
        hidden_sizes=[8],
        total_timesteps=32,
        max_steps_per_episode=6,
        eval_episodes=2,
        eval_frequency=0,
        workers=0,
    )
    result = trainer.train()
    assert result["stop_reason"] == "budget"
    assert result["episodes"] >= 2
    assert result["final_eval"]["length_mean"] <= 6
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(np.isfinite(row["loss/total"]) for row in rows)
    agent = PPOAgent.load(tmp_path / "run" / "models" / "final_actor.safetensors")
    if not env.startswith("envpool/"):
        assert isinstance(trainer.env, GymnasiumSource)
        single = trainer.env.factory()
        obs, _ = single.reset(seed=0)
        assert single.action_space.contains(agent.act(obs))
        single.close()


@pytest.mark.slow
def test_atari_is_preprocessed_as_usual() -> None:
    source = gymnasium_source("ALE/Pong-v5")
    assert source.spec.observation_space == gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    env = source.factory()
    env.reset(seed=0)
    frame = env.unwrapped.ale.getEpisodeFrameNumber()
    env.step(0)
    assert env.unwrapped.ale.getEpisodeFrameNumber() == frame + 4
    env.close()
