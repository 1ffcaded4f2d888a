"""The EnvPool adapter: the contract, and its filler steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from contracts.host import ENVS, check_contract, check_restoring, lanes, play
from made import host_source
from proximo import PPOTrainer
from proximo.config import EnvConfig
from proximo.envs.api import with_info
from proximo.envs.groups import ONE
from proximo.errors import EnvError, UserError


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5", "FrozenLake-v1"])
def test_contract(env: str) -> None:
    seeded = env != "FrozenLake-v1"  # which always starts in the same corner
    check_contract(host_source(f"envpool/{env}"), EnvConfig(max_steps_per_episode=7), steps=40, seeded=seeded)


@pytest.mark.slow
def test_restoring_by_replay() -> None:
    check_restoring(host_source("envpool/CartPole-v1"), EnvConfig(max_steps_per_episode=7), steps=20)


@pytest.mark.slow
def test_contract_on_images() -> None:
    check_contract(host_source("envpool/Pong-v5"), EnvConfig(max_steps_per_episode=7), steps=16, seeded=False)


def test_the_step_after_an_end_is_a_filler() -> None:
    """With a limit of 7 steps: seven that count, one that does not, and so on, for environments that do not fall."""
    _, moved = play(host_source("envpool/Pendulum-v1"), EnvConfig(max_steps_per_episode=7), steps=24)
    rest = lanes(moved)
    expected = np.tile(np.arange(8) != 7, 3)
    np.testing.assert_array_equal(rest.valid, np.repeat(expected[:, None], ENVS, 1))
    np.testing.assert_array_equal(rest.truncated[:, 0], np.tile(np.arange(8) == 6, 3))
    # The observation of the cut step is the true last one; the filler leads to the next episode's first.
    np.testing.assert_array_equal(rest.obs[6], rest.final_obs[6])
    assert (rest.reward[7] == 0).all()
    # An episode is over once, and what follows the filler remembers nothing of it.
    np.testing.assert_array_equal(moved.reset[:, 0], np.tile(np.arange(8) == 6, 3))
    np.testing.assert_array_equal(rest.reset_mask[:, 0], np.tile(np.arange(8) >= 6, 3))
    # Gravity and torque change the speed by at most (15 + 6) * 0.05 in a step.
    assert np.abs(np.diff(rest.obs[:, 0, 2]))[:6].max() < 1.06


@pytest.mark.slow
def test_fillers_do_not_make_a_schedule_end_early(tmp_path: Path) -> None:
    """Four environments with seven steps that count of eight: 56 in an update of 64. The rate falls by 56 / 640 of
    itself in each, and 12 updates are made, the last one with 1 - 11 * 56 / 640 = 0.0375 of it. The 10 updates that
    640 steps would be without fillers are not the end."""
    settings: dict[str, Any] = {
        "num_envs": 4,
        "rollout_length": 16,
        "minibatch_size": 64,
        "epochs_per_update": 1,
        "hidden_sizes": [4],
    }
    settings |= {"max_steps_per_episode": 7, "learning_rate": 0.01, "learning_rate_schedule": "linear"}
    budget: dict[str, Any] = {"total_timesteps": 640, "eval_frequency": 0, "eval_episodes": 1}
    PPOTrainer("envpool/Pendulum-v1", preset=False, out=tmp_path / "run", **settings, **budget).train()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [56 * update for update in range(1, 13)]
    rates = [row["ppo/learning_rate"] for row in rows]
    assert rates == pytest.approx([0.01 * (1 - 56 * update / 640) for update in range(12)], rel=1e-4)


@pytest.mark.slow
def test_a_reset_gives_no_reward() -> None:
    """EnvPool's dm_control environments report whatever their memory held, before the first step."""
    pool = host_source("envpool/CartpoleBalance-v1").open_envs(2, EnvConfig())
    for seed in range(30):
        assert (lanes(pool.reset(seed)).reward == 0).all()
        pool.send(0, {ONE: np.zeros((1, 1))})
        assert lanes(pool.recv(0)).reward[0] > 0.5  # of at most 1, while the pole is balanced
    pool.close()


def test_groups_and_threads_do_not_change_a_bit() -> None:
    source = host_source("envpool/CartPole-v1")
    one = play(source, EnvConfig(groups=1, workers=1), steps=50)
    two = play(source, EnvConfig(groups=2, workers=2), steps=50)
    for name in ("obs", "reward", "terminated", "truncated", "valid"):
        np.testing.assert_array_equal(getattr(lanes(one[1]), name), getattr(lanes(two[1]), name))


def test_unbounded_spaces_are_mended() -> None:
    space = host_source("envpool/CheetahRun-v1").spec.observation_space
    assert isinstance(space, spaces.Dict)
    assert isinstance(space["position"], spaces.Box)
    assert np.isneginf(space["position"].low).all()
    assert np.isposinf(space["position"].high).all()


def test_mistakes() -> None:
    with pytest.raises(UserError, match="did you mean envpool/CartPole-v1"):
        host_source("envpool/CartPol-v1")
    with pytest.raises(UserError, match=r"env\.on_error=stop"):
        host_source("envpool/CartPole-v1").open_envs(2, EnvConfig(on_error="restart"))


@pytest.mark.slow
def test_fillers_count_for_nothing_in_a_run(tmp_path: Path) -> None:
    """Episodes of 5 steps and a filler: of 48 steps of each, 40 count; training goes on to the steps asked for."""
    trainer = PPOTrainer(
        "envpool/Pendulum-v1",
        preset=False,
        out=tmp_path / "run",
        num_envs=4,
        rollout_length=24,
        minibatch_size=48,
        epochs_per_update=1,
        hidden_sizes=[8],
        max_steps_per_episode=5,
        total_timesteps=160,
        eval_episodes=2,
    )
    result = trainer.train()
    assert result["total_steps"] == 160
    assert result["updates"] == 2
    assert result["episodes"] == 32
    assert result["final_eval"]["length_mean"] == 5


def test_numbers_of_infos_are_reported() -> None:
    """`elapsed_step` counts the steps of an episode; a filler has none."""
    source = with_info(host_source("envpool/CartPole-v1"), ("elapsed_step", "nothing"))
    pool = source.open_envs(3, EnvConfig(groups=1, max_steps_per_episode=4))
    pool.reset(0)
    told = []
    for _ in range(6):
        pool.send(0, {ONE: np.zeros(3, np.int32)})
        told.append(np.array(pool.recv(0).info))
    assert pool.info_names == ["elapsed_step"]
    pool.close()
    each = [[number, np.nan] for number in (1, 2, 3, 4, np.nan, 1)]
    np.testing.assert_array_equal(told, [[row] * 3 for row in each])
    wide = with_info(host_source("envpool/Pong-v5"), ("ram",)).open_envs(2, EnvConfig())
    with pytest.raises(EnvError, match=r"info\['ram'\] \(track.info\) must be one for each of"):
        wide.reset(0)
