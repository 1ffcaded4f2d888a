"""The policy joins adapter, statistics, networks and distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from proximo.config import NetworkConfig, NormalizeConfig
from proximo.policy.networks import Network
from proximo.policy.normalize import RunningStats
from proximo.policy.policy import Policy

KEY = jax.random.key(0)
NETWORK = NetworkConfig(hidden_sizes=(4,))
MIXED = spaces.Dict(kind=spaces.Discrete(2), speed=spaces.Box(-100, 100, (1,)))


def policy_for(obs_space, action_space=None, observations=False):
    return Policy(obs_space, action_space or spaces.Discrete(3), NETWORK, NormalizeConfig(observations=observations))


@pytest.mark.parametrize(
    ("action_space", "num_params"),
    [
        (spaces.Discrete(3), 3),
        (spaces.MultiDiscrete([2, 3]), 5),
        (spaces.MultiBinary(4), 4),
        (spaces.Box(-1, 1, (2,)), 4),
    ],
    ids=lambda case: type(case).__name__,
)
def test_actor_emits_the_parameters_of_the_distribution(action_space, num_params):
    policy = policy_for(spaces.Box(-1, 1, (2,)), action_space)
    params, carry, obs = jax.eval_shape(policy.init, KEY), policy.initial_carry(5), jnp.zeros((5, 2))
    assert jax.eval_shape(policy.act, params, None, carry["actor"], obs)[1].shape == (5, num_params)
    assert jax.eval_shape(policy.value, params, None, carry["critic"], obs)[1].shape == (5,)


def test_actor_and_critic_start_from_different_keys():
    params = jax.jit(policy_for(spaces.Box(-1, 1, (2,))).init)(KEY)
    assert not np.allclose(params["actor"]["Dense_0"]["kernel"], params["critic"]["Dense_0"]["kernel"])


def test_initialising_draws_nothing_from_the_space():
    space = spaces.Dict(a=spaces.Box(-1e308, 1e308, (2,), np.float64), b=spaces.Tuple([spaces.Discrete(2, start=3)]))
    space.seed(0)
    state = space["b"][0].np_random.bit_generator.state
    jax.eval_shape(policy_for(space).init, KEY)
    assert space["b"][0].np_random.bit_generator.state == state


def test_only_measurements_are_standardised():
    policy = policy_for(MIXED, observations=True)
    stats = RunningStats(jnp.float32(10), jnp.array([0.5, 0.5, 20.0]), jnp.array([0.25, 0.25, 100.0]))
    obs = {"kind": jnp.array([1]), "speed": jnp.array([[50.0]])}
    # The one-hot stays; (50 - 20) / 10 = 3.
    np.testing.assert_allclose(policy.features(stats, obs).vector, [[0, 1, 3]], rtol=1e-6)
    np.testing.assert_allclose(policy.features(None, obs).vector, [[0, 1, 50]], rtol=1e-6)


def test_statistics_are_of_the_valid_observations():
    policy = policy_for(MIXED, observations=True)
    obs = {"kind": jnp.array([1, 0, 1]), "speed": jnp.array([[50.0], [30.0], [-99.0]])}
    stats = policy.update_stats(policy.initial_stats(), obs, jnp.array([True, True, False]))
    assert stats.count == 2
    assert stats.mean[2] == 40
    assert stats.var[2] == 100


def test_no_statistics_where_none_are_wanted_or_make_sense():
    assert policy_for(spaces.Box(-1, 1, (2,))).initial_stats() is None
    assert policy_for(spaces.Discrete(4), observations=True).initial_stats() is None
    assert policy_for(spaces.Box(-1, 1, (2,))).update_stats(None, jnp.zeros((1, 2)), jnp.ones(1, bool)) is None


def running_sum(scale):
    """A network of one parameter that remembers the sum of all it has read."""

    def init(key, features):
        return jnp.full((1,), scale), jnp.zeros_like(features.vector)

    def apply(params, carry, features):
        carry = carry + features.vector
        return carry, params[None] * carry

    return Network(init, apply)


def test_networks_with_memory_fit_the_seam():
    policy = policy_for(spaces.Box(-1, 1, (3,)))
    policy.actor, policy.critic = running_sum(2.0), running_sum(10.0)
    params, carry = policy.init(KEY), policy.initial_carry(2)
    assert carry["actor"].tolist() == [[0, 0, 0], [0, 0, 0]]

    # Two steps of one lane read 1 and then 2; those of the other 0 and then 5. Scaled sums come out.
    memory, _ = policy.act(params, None, carry["actor"], jnp.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))
    memory, outputs = policy.act(params, None, memory, jnp.array([[2.0, 2.0, 2.0], [5.0, 5.0, 5.0]]))
    assert memory.tolist() == [[3, 3, 3], [5, 5, 5]]
    assert outputs.tolist() == [[6, 6, 6], [10, 10, 10]]

    memory, values = policy.value(params, None, carry["critic"], jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    assert memory.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert values.tolist() == [10, 40]
