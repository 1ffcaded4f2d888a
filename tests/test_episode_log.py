"""One episode, step by step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import probes
from proximo import PPOAgent
from proximo.config import EnvConfig
from proximo.envs import make
from proximo.envs.api import Transition
from proximo.policy.agents import Agents
from proximo.policy.behaviour import Learners, actors
from proximo.policy.normalize import RunningStats
from proximo.rollout import episode_log
from proximo.rollout.episode_log import columns
from proximo.rollout.evaluate import make_evaluator


def logged(
    env: Any, agent: PPOAgent | None = None, seed: int = 3, stop: Callable[[], bool] = bool, **keywords: Any
) -> tuple[dict[str, Any], PPOAgent]:
    source = make(env)
    agent = agent or PPOAgent(source.spec.observation_space, source.spec.action_space)
    found: Any = episode_log.episode_log(source, Agents.of_one(agent), EnvConfig(**keywords), seed, stop)
    return found, agent


@pytest.mark.slow
def test_rewards_values_and_actions_of_each_step() -> None:
    """The clock is observed before the step, and is the reward after it."""
    found, agent = logged(probes.Counter(), max_steps_per_episode=4)
    assert (found["env"], found["seed"], found["length"]) == ("probe/counter", 3, 4)
    assert (found["reward"], found["return"], found["end"]) == ([1.0, 2.0, 3.0, 4.0], 10.0, "truncated")
    seen = np.arange(4, dtype=np.float32)[:, None]
    np.testing.assert_allclose(found["value"], agent.value(seen), rtol=1e-4, atol=1e-5)
    assert found["actions"] == [{"name": "action", "choices": [0, 1], "values": agent.act(seen).tolist()}]


def test_values_are_in_the_units_of_the_rewards_beside_them() -> None:
    plain = logged(probes.Counter(), max_steps_per_episode=4)[0]
    scaled = PPOAgent(probes.Counter.observation_space, spaces.Discrete(2))
    scaled.reward_stats = RunningStats(jnp.float32(9), jnp.float32(0), jnp.float32(64.0))
    found, _ = logged(probes.Counter(), scaled, max_steps_per_episode=4)
    np.testing.assert_allclose(found["value"], 8 * np.array(plain["value"]), rtol=1e-4)


class Ending(probes.Counter):
    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        state, moved = super().step(key, state, action)
        return state, dataclasses.replace(moved, terminated=state[0] == 3)


def test_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    found, whole = logged(Ending())
    assert (found["length"], found["end"]) == (3, "terminated")
    assert logged(Ending(), whole, stop=lambda: True)[0] is None
    monkeypatch.setattr(episode_log, "MAX_STEPS", 2)
    # An actor alone can be logged too; it expects nothing.
    spaces_of = (whole.policy.observation_space, whole.policy.action_space)
    found, _ = logged(Ending(), PPOAgent(*spaces_of, whole.config, {"actor": whole.params["actor"]}))
    assert (found["length"], found["end"], found["value"]) == (2, "cut here", None)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "CartPole-v1", "envpool/CartPole-v1"])
def test_it_is_the_first_episode_of_the_evaluation(env: str) -> None:
    if env.startswith("envpool"):
        pytest.importorskip("envpool")
    found, agent = logged(env, workers=0)
    agents = Agents.of_one(agent)
    evaluator = make_evaluator(make(env), Learners(agents.policies), 2, EnvConfig(workers=0), 3)
    played = evaluator(actors(agents.groups))
    assert played is not None
    assert (found["return"], found["length"]) == (played.returns[0], played.lengths[0])


@pytest.mark.slow
def test_masks_are_obeyed() -> None:
    class Long(probes.Masked):
        def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
            return state, dataclasses.replace(super().step(key, state, action)[1], terminated=jnp.bool_(False))

    found, _ = logged(Long(), max_steps_per_episode=5)
    assert 2 not in found["actions"][0]["values"]


@pytest.mark.slow
def test_actions_become_columns() -> None:
    space = spaces.Dict(
        {"go": spaces.Discrete(3, start=1), "arm": spaces.Box(-1, 1, (2,)), "keys": spaces.MultiBinary(2)}
    )
    actions = {"go": np.array([1, 3]), "arm": np.array([[0.5, -3.0], [0.25, 1.0]]), "keys": np.array([[0, 1], [1, 1]])}
    assert columns(space, actions) == [
        {"name": "arm 0", "choices": None, "values": [0.5, 0.25]},
        {"name": "arm 1", "choices": None, "values": [-1.0, 1.0]},
        {"name": "go", "choices": [1, 3], "values": [1, 3]},
        {"name": "keys 0", "choices": [0, 1], "values": [0, 1]},
        {"name": "keys 1", "choices": [0, 1], "values": [1, 1]},
    ]
    large = columns(spaces.Box(-1, 1, (99,)), np.zeros((2, 99)))
    assert len(large) == episode_log.MAX_COLUMNS
