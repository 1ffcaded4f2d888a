"""`evaluate_agent`, and the units of what `PPOTrainer.collect` shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import probes
import team_probes
from host_probes import Walk
from proximo import PPOAgent, PPOTrainer, evaluate_agent, evaluate_policy
from proximo.config import EnvConfig
from proximo.errors import UserError
from proximo.policy.normalize import RunningStats
from proximo.train.experience import remade


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


class Upright:
    """Pushes under the pole; remembers how often it was asked, and told that an episode begins."""

    def __init__(self) -> None:
        self.begun = self.asked = 0

    def reset(self) -> None:
        self.begun += 1

    def act(self, obs: Any) -> int:
        self.asked += 1
        return int(obs[2] + obs[3] > 0)


@pytest.mark.parametrize("env", ["CartPole-v1", "gymnax/CartPole-v1"])
def test_anybodys_agent_is_evaluated(env: str) -> None:
    """Pushing under the pole holds it for a few hundred steps, always to the left for about 9; an object is told where
    episodes begin."""
    agent = Upright()
    found = evaluate_policy(agent, env, 3)
    assert found["episodes"] == 3
    assert found["return_mean"] == found["length_mean"] == found["avg_reward"] == agent.asked / 3 > 100
    assert agent.begun == 4  # the last end is a beginning too
    assert 8 <= evaluate_policy(lambda obs: 0, env, 3)["return_mean"] <= 11
    assert evaluate_policy(lambda obs: 0, env, 3) == evaluate_policy(lambda obs: 0, env, 3)


def test_many_agents_of_anybody() -> None:
    """Sorters who name the bit that they see, aimers who give back their number: 1 each, the best there is."""

    def act(seen: dict[str, Any]) -> dict[str, Any]:
        return {name: obs if name.startswith("sorter") else obs[:1] for name, obs in seen.items()}

    found = evaluate_policy(act, team_probes.TwoKinds(), 5)
    assert found["return_mean"] == found["agent/aimer_0/return_mean"] == 1
    with pytest.raises(UserError, match="gives a dictionary of actions by agent, not int"):
        evaluate_policy(lambda seen: 1, team_probes.TwoKinds(), 5)
    with pytest.raises(UserError, match="There is no action for sorter_0"):
        evaluate_policy(lambda seen: {}, team_probes.TwoKinds(), 5)


def test_what_an_agent_takes_is_given_to_it() -> None:
    asked = []

    def act(obs: Any, deterministic: bool = True, action_mask: Any = None) -> int:
        asked.append((deterministic, action_mask))
        return int(np.flatnonzero(action_mask)[0])

    found = evaluate_policy(act, probes.Masked(), 2, actions="both")
    assert {deterministic for deterministic, _ in asked} == {True, False}
    assert found["stochastic/return_mean"] == found["return_mean"]
    with pytest.raises(UserError, match=r"takes no `deterministic`"):
        evaluate_policy(lambda obs: 0, "CartPole-v1", actions="stochastic")
    with pytest.raises(UserError, match=r"actions must be one of deterministic, stochastic, both"):
        evaluate_policy(act, probes.Masked(), actions="greedy")
    with pytest.raises(UserError, match=r"The agent's action is 7, which is not in Discrete\(2\)"):
        evaluate_policy(lambda obs: 7, "CartPole-v1")
    with pytest.raises(UserError, match="int is neither"):
        evaluate_policy(5, "CartPole-v1")


def test_an_agent_of_proximos_is_evaluated_as_in_training() -> None:
    agent = PPOAgent(observation_dim=4, action_dim=2)
    usual = evaluate_policy(agent, "CartPole-v1", 4, actions="both")
    assert usual["avg_reward"] == evaluate_agent(agent, "CartPole-v1", 4)["avg_reward"]
    drawn = evaluate_agent(agent, "CartPole-v1", 4, deterministic=False)
    assert usual["stochastic/return_mean"] == drawn["return_mean"]


def test_an_id_is_made_as_the_run_of_an_agent_had_it() -> None:
    """The arguments and wrappers of the very id, unless others are given; code that a policy names is not imported."""
    trained = EnvConfig(id="Some-v0", kwargs={"a": 1}, wrappers=("gymnasium.wrappers:FlattenObservation",))

    def how(env: Any, trained: EnvConfig = trained, **given: Any) -> tuple[Any, Any]:
        made = remade(env, trained, given.get("kwargs"), given.get("wrappers"))
        return made.kwargs, made.wrappers

    assert how("Some-v0") == ({"a": 1}, ("gymnasium.wrappers:FlattenObservation",))
    assert how("Some-v0", kwargs={"a": 2}, wrappers=[]) == ({"a": 2}, ())
    assert how("Some-v0", kwargs={})[0] is None
    assert how("Other-v0") == how(object()) == (None, ())
    strange = replace(trained, wrappers=("my_package:Mine",))
    with pytest.raises(UserError, match=r"was trained inside of my_package:Mine.* hand in `env_wrappers`: \['my_pack"):
        how("Some-v0", strange)
    assert how("Some-v0", strange, wrappers=[])[1] == ()


@pytest.mark.slow
def test_evaluations_report_what_is_tracked_of_infos() -> None:
    found = evaluate_policy(lambda obs: 0, probes.TruncatedForever(), 2, info=["seven"])
    assert (found["info/seven"], found["info_mean/seven"]) == (7.0, 7.0)
