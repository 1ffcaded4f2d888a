"""Runs on many environments that are killed with SIGKILL again and again, in the middle of episodes: they end with the
same bits as runs that were left alone."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from killed import assert_same_run, kill_at_random_moments, run_to_end
from proximo.envs import make
from proximo.envs.host.snapshot import unpack
from proximo.errors import UserError
from proximo.train import checkpoint

pytestmark = pytest.mark.faults
SPREAD = "pettingzoo/mpe2.simple_spread_v3"
TWENTY = {"CartPole-v1": 4, "HalfCheetah-v5": 4, "LunarLander-v3": 3, "MiniGrid-DoorKey-5x5-v0": 3, SPREAD: 3}
TWENTY |= {"ALE/Pong-v5": 3}
OTHERS = ["Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "FrozenLake-v1", "Blackjack-v1", "Hopper-v5", "Ant-v5"]
UPDATES = {"ALE/Pong-v5": 30, "CartPole-v1": 200}


def named(env_id: str) -> str:
    return env_id


def middle_of_an_episode(run: Path) -> bool:
    """Whether the run will go on from the middle of an episode."""
    saved, _ = checkpoint.load_newest(run)
    return saved is not None and any(unpack(env).length for env in saved.envs or [])


def check_killed(env_id: str, kills: int, folder: Path) -> None:
    """Train a run that is killed and one that is not; they must not differ."""
    try:
        make(env_id)
    except UserError:
        pytest.skip(f"{env_id} is not installed")
    settings = dict(total_timesteps=64 * UPDATES.get(env_id, 100), workers=0, max_steps_per_episode=100)
    settings |= dict(eval_frequency=25)
    cut = []
    make_env = partial(named, env_id)
    run_to_end(make_env, folder / "whole", settings)
    look = lambda run: cut.append(middle_of_an_episode(run))  # noqa: E731
    kill_at_random_moments(make_env, folder / "killed", settings, kills, seed=kills, early=False, after=look)
    assert_same_run(folder / "whole", folder / "killed")
    resumed = json.loads((folder / "killed" / "result.json").read_text())["resumed"]
    assert len(resumed) == kills
    assert all(part["exact"] for part in resumed), resumed
    assert any(cut), "it was never killed in the middle of an episode"


def test_twenty_kills_over_six_environments(tmp_path: Path) -> None:
    assert sum(TWENTY.values()) == 20
    for env_id, kills in TWENTY.items():
        check_killed(env_id, kills, tmp_path / env_id.replace("/", "-"))


@pytest.mark.parametrize("env_id", OTHERS)
def test_killed_in_the_middle_of_an_episode(env_id: str, tmp_path: Path) -> None:
    check_killed(env_id, 2, tmp_path)
