"""A distribution of a user's own; networks are in test_networks and test_policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from gymnasium import spaces

import probes
from proximo import PPOAgent, PPOTrainer
from proximo.config import NetworkConfig, NormalizeConfig
from proximo.errors import UserError
from proximo.policy.custom_networks import own_parts
from proximo.policy.distributions import Categorical
from proximo.policy.policy import shared_policy


@dataclass(frozen=True)
class Bounded(Categorical):
    """Logits between -3 and 3: of two actions, none is less likely than 1 / (1 + e^6)."""

    def log_prob(self, params: jax.Array, action: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        return super().log_prob(3 * jnp.tanh(params / 3), action, mask)

    def sample(self, params: jax.Array, noise: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        return super().sample(3 * jnp.tanh(params / 3), noise, mask)

    def entropy(self, params: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        return super().entropy(3 * jnp.tanh(params / 3), mask)


def bounded(space: spaces.Space[Any], settings: dict[str, Any]) -> Bounded:
    assert isinstance(space, spaces.Discrete)
    return Bounded(int(space.n), int(space.start))


def test_a_policy_with_a_distribution_of_its_own_has_no_key() -> None:
    moves: spaces.Space[Any] = spaces.Discrete(2)
    given = (spaces.Box(-1, 1, (2,)), moves, NetworkConfig(), NormalizeConfig())
    policy = shared_policy(*given, own_parts(None, bounded))
    assert isinstance(policy.distribution, Bounded)
    assert policy.key is None
    assert shared_policy(*given).key is not None


@pytest.mark.parametrize(
    ("distribution", "sentence"),
    [
        (lambda space, settings: "none", "with all its methods; str is none"),
        (
            lambda space, settings: type("Flat", (Categorical,), {"entropy": lambda self, params, mask=None: 0.0})(2),
            r"Your distribution's entropy must be float32\[B\] for B actions of Discrete\(2\); for 2 it is float32\[\]",
        ),
    ],
)
def test_what_is_no_distribution_is_refused(distribution: Callable[..., Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        PPOAgent(observation_dim=2, action_dim=2, distribution=distribution)


@pytest.mark.slow
def test_an_agent_with_a_distribution_of_its_own_is_loaded_with_it(tmp_path: Path) -> None:
    agent = PPOAgent(observation_dim=2, action_dim=2, distribution=bounded)
    file = agent.save(tmp_path / "agent")
    with pytest.raises(UserError, match="Its distribution of actions is not a built-in one: hand in again"):
        PPOAgent.load(file)
    loaded = PPOAgent.load(file, distribution=bounded)
    assert isinstance(loaded.policy.distribution, Bounded)
    plain = PPOAgent(observation_dim=2, action_dim=2).save(tmp_path / "plain")
    with pytest.raises(UserError, match="Its distribution of actions is a built-in one: hand in none"):
        PPOAgent.load(plain, distribution=bounded)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["compiled", "host"])
def test_a_distribution_of_its_own_is_trained_and_goes_on(env: str, tmp_path: Path) -> None:
    source = probes.MatchTheCue() if env == "compiled" else "CartPole-v1"
    few: dict[str, Any] = dict(
        num_envs=4, rollout_length=8, minibatch_size=16, total_timesteps=64, eval_frequency=0, eval_episodes=2
    )
    one = PPOTrainer(source, out=tmp_path / "run", preset=False, distribution=bounded, hidden_sizes=[4], **few)
    one.train()
    resumed = PPOTrainer.resume(tmp_path / "run", source, steps=32, distribution=bounded)
    assert isinstance(resumed.agent.policy.distribution, Bounded)
    assert resumed.train()["updates"] == 3
    with pytest.raises(UserError, match="The agent has its distribution already; hand in `agent` or `distribution`"):
        PPOTrainer(source, agent=one.agent, distribution=bounded)
