"""Nothing is lost: runs that are stopped in any way go on as if they had not been."""

import json

import pytest

import stateful
from killed import SETTINGS, assert_same_run, kill_at_random_moments
from proximo import PPOTrainer


def compiled():
    return "gymnax/CartPole-v1"


def hooked():
    return stateful.Hooked


def registered():
    return "CartPole-v1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_env", "updates", "workers"),
    [(compiled, 2400, 0), (hooked, 300, 2), (registered, 300, 0)],
    ids=["compiled", "hook and workers", "attributes"],
)
def test_a_run_killed_twenty_times_ends_with_the_same_bits(make_env, updates, workers, tmp_path):
    settings = {"total_timesteps": 64 * updates, "workers": workers}
    PPOTrainer(make_env(), out=tmp_path / "whole", preset=False, **(SETTINGS | settings)).train()
    kill_at_random_moments(make_env, tmp_path / "killed", settings, kills=20)
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    resumed = json.loads((tmp_path / "killed" / "result.json").read_text())["resumed"]
    assert len(resumed) >= 10
    assert all(part["exact"] for part in resumed)
