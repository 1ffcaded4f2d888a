"""`evaluate_agent`, and the units of what `PPOTrainer.collect` shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import probes
from host_probes import Walk
from proximo import PPOAgent, PPOTrainer, evaluate_agent
from proximo.errors import UserError
from proximo.policy.normalize import RunningStats


@pytest.mark.slow
def test_an_agent_is_evaluated_on_an_environment() -> None:
    """`Walk` upwards: 0.25, 1, 1.75, 2.5 and terminated; the rewards 1 + 1.75 + 2.5 = 5.25 in 3 steps."""
    up = PPOAgent(Walk.observation_space, Walk.action_space)
    up.params["actor"]["Dense_2"]["bias"] = np.array([-99.0, 99.0], np.float32)
    played = evaluate_agent(up, Walk, num_episodes=3)
    assert (played["avg_reward"], played["std_reward"], played["avg_length"]) == (5.25, 0, 3)
    assert (played["min_reward"], played["max_reward"], played["success_rate"], played["episodes"]) == (
        5.25,
        5.25,
        1,
        3,
    )


def test_an_agent_of_another_environment_or_no_episode_is_refused() -> None:
    with pytest.raises(UserError, match="observation_space"):
        evaluate_agent(PPOAgent(probes.UNIT, Walk.action_space), Walk)
    with pytest.raises(UserError, match="at least 1 episode"):
        evaluate_agent(PPOAgent(Walk.observation_space, Walk.action_space), Walk, num_episodes=0)


@pytest.mark.slow
def test_what_a_rollout_holds_is_in_the_environments_units(tmp_path: Path) -> None:
    """With a deviation of 8 the critic's numbers count eightfold; rewards are as they were paid."""
    small: dict[str, Any] = dict(num_envs=2, rollout_length=4, minibatch_size=8, hidden_sizes=[8], preset=False)
    one = PPOTrainer(probes.OneStep(), out=tmp_path / "run", normalize_rewards=True, **small)
    one.agent.reward_stats = RunningStats(count=jnp.float32(9), mean=jnp.float32(0), var=jnp.float32(64))
    held = one.collect()
    np.testing.assert_array_equal(held["rewards"], 1.0)
    known = one.agent.value(held["observations"].reshape(8, 1))
    np.testing.assert_allclose(held["values"], known.reshape(4, 2), rtol=1e-5)
    np.testing.assert_allclose(held["returns"], 1.0, rtol=1e-5)  # every step ends an episode
    np.testing.assert_allclose(held["advantages"], 1.0 - held["values"], rtol=1e-4, atol=1e-6)
