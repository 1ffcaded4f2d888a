"""What is said of an environment by numbers."""

from __future__ import annotations

import numpy as np
import pytest

from proximo.envs import judge


def test_no_end() -> None:
    assert judge.no_end(1, 1000, None) is None
    assert judge.no_end(0, 100, max_steps=500) is None, "it has not had the time to end"
    assert "within 500 steps" in str(judge.no_end(0, 500, max_steps=500))
    assert "env.max_steps_per_episode" in str(judge.no_end(0, 128, None))


def test_the_spread_of_discounted_returns() -> None:
    """Rewards 1, 1, 1 with gamma 1/2, the episode ended after the second: sums 1, 1.5, 1, with the mean 7/6 and squared
    distances 1/36, 4/36, 1/36: a variance of 1/18."""
    rewards, ended = np.ones((3, 1)), np.array([[False], [True], [False]])
    assert judge.return_spread(rewards, ended, 0.5) == pytest.approx((1 / 18) ** 0.5)
    assert judge.return_spread(rewards[:0], ended[:0], 0.5) == 0


def test_reward_scale() -> None:
    assert judge.reward_scale(1.0, normalized=False) is None
    assert judge.reward_scale(0.0, normalized=False) is None, "that all are 0 is another matter"
    assert judge.reward_scale(5000.0, normalized=True) is None
    assert "large: discounted returns spread by 5e+03" in str(judge.reward_scale(5000.0, normalized=False))
    assert "small" in str(judge.reward_scale(0.001, normalized=False))


def test_rewards_that_are_all_nothing() -> None:
    assert judge.no_reward(-1.0, -1.0, 10) is None, "a cost for each step is one that can be shortened"
    assert judge.no_reward(0.0, 1.0, 10) is None
    assert "Every reward of 1,000 steps was 0" in str(judge.no_reward(0.0, 0.0, 1000))


def test_constant_observations() -> None:
    low, high = np.array([[0.0, 1.0], [2.0, 3.0]]), np.array([[0.0, 1.0], [2.0, 4.0]])
    names = judge.constant_entries(("a",), low, high)
    assert names == ["observation['a'][0, 0]", "observation['a'][0, 1]", "observation['a'][1, 0]"]
    assert judge.constant_entries((), low, low) == ["observation"]
    assert judge.constant_entries((), np.array(1.0), np.array(2.0)) == []
    assert judge.constant_observations([], 10) is None
    sentence = str(judge.constant_observations([f"observation[{i}]" for i in range(7)], 1000))
    assert sentence.startswith(
        "observation[0], observation[1], observation[2], observation[3], observation[4] and 2 more"
    )


def test_idle_actions() -> None:
    assert judge.idle_actions([], 10) is None
    assert "action[1] made no difference in 10 steps" in str(judge.idle_actions(["action[1]"], 10))


def test_episodes_of_one_length() -> None:
    assert judge.same_length([10, 10], 2) is None, "two are no pattern"
    assert judge.same_length([10, 10, 11], 3) is None
    assert judge.same_length([10, 10, 10], 2) is None, "one of them was cut"
    assert "All 3 episodes terminated after exactly 10 steps" in str(judge.same_length([10, 10, 10], 3))


def test_what_is_not_repeated() -> None:
    assert judge.not_repeated(None) is None
    assert "Two resets with the same seed" in str(judge.not_repeated(0))
    assert "lead somewhere else at step 3" in str(judge.not_repeated(3))


def test_how_long_steps_take() -> None:
    assert judge.duration_of(100, 1.0) == "100 seconds"
    assert judge.duration_of(600, 1.0) == "10 minutes"
    assert judge.duration_of(36_000, 1.0) == "10 hours"
    assert judge.duration_of(864_000, 1.0) == "10 days"
