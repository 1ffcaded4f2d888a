"""The policy joins adapter, statistics, networks and distribution."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from proximo.config import NetworkConfig, NormalizeConfig
from proximo.errors import UserError
from proximo.policy.networks import Network
from proximo.policy.normalize import RunningStats
from proximo.policy.observation import Features
from proximo.policy.policy import Policy, part_of

KEY = jax.random.key(0)
NETWORK = NetworkConfig(hidden_sizes=(4,))
MIXED = spaces.Dict(kind=spaces.Discrete(2), speed=spaces.Box(-100, 100, (1,)))


def policy_for(
    obs_space: spaces.Space[Any], action_space: spaces.Space[Any] | None = None, observations: bool = False
) -> Policy:
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
def test_actor_emits_the_parameters_of_the_distribution(action_space: spaces.Space[Any], num_params: int) -> None:
    policy = policy_for(spaces.Box(-1, 1, (2,)), action_space)
    params, carry, obs = jax.eval_shape(policy.init, KEY), policy.initial_carry(5), jnp.zeros((5, 2))
    assert jax.eval_shape(policy.act, params, None, carry["actor"], obs)[1].shape == (5, num_params)
    assert jax.eval_shape(policy.value, params, None, carry["critic"], obs)[1].shape == (5,)


def test_actor_and_critic_start_from_different_keys() -> None:
    params = jax.jit(policy_for(spaces.Box(-1, 1, (2,))).init)(KEY)
    assert not np.allclose(params["actor"]["Dense_0"]["kernel"], params["critic"]["Dense_0"]["kernel"])


def test_initialising_draws_nothing_from_the_space() -> None:
    inner: spaces.Space[Any] = spaces.Discrete(2, start=3)
    space = spaces.Dict(a=spaces.Box(-1e308, 1e308, (2,), np.float64), b=spaces.Tuple([inner]))
    space.seed(0)
    state = inner.np_random.bit_generator.state
    jax.eval_shape(policy_for(space).init, KEY)
    assert inner.np_random.bit_generator.state == state


def test_only_measurements_are_standardised() -> None:
    policy = policy_for(MIXED, observations=True)
    stats = RunningStats(jnp.float32(10), jnp.array([0.5, 0.5, 20.0]), jnp.array([0.25, 0.25, 100.0]))
    obs = {"kind": jnp.array([1]), "speed": jnp.array([[50.0]])}
    # The one-hot stays; (50 - 20) / 10 = 3.
    np.testing.assert_allclose(policy.features(stats, obs).vector, [[0, 1, 3]], rtol=1e-6)
    np.testing.assert_allclose(policy.features(None, obs).vector, [[0, 1, 50]], rtol=1e-6)


def test_statistics_are_of_the_valid_observations() -> None:
    policy = policy_for(MIXED, observations=True)
    obs = {"kind": jnp.array([1, 0, 1]), "speed": jnp.array([[50.0], [30.0], [-99.0]])}
    stats = policy.update_stats(policy.initial_stats(), obs, jnp.array([True, True, False]))
    assert isinstance(stats, RunningStats)
    assert stats.count == 2
    assert stats.mean[2] == 40
    assert stats.var[2] == 100


def test_no_statistics_where_none_are_wanted_or_make_sense() -> None:
    assert policy_for(spaces.Box(-1, 1, (2,))).initial_stats() is None
    assert policy_for(spaces.Discrete(4), observations=True).initial_stats() is None
    assert policy_for(spaces.Box(-1, 1, (2,))).update_stats(None, jnp.zeros((1, 2)), jnp.ones(1, bool)) is None


def running_sum(scale: float) -> Network:
    """A network of one parameter that remembers the sum of all it has read."""

    def init(key: jax.Array, features: Features) -> tuple[jax.Array, jax.Array]:
        return jnp.full((1,), scale), jnp.zeros_like(features.vector)

    def apply(params: Any, carry: Any, features: Features) -> tuple[jax.Array, jax.Array]:
        carry = carry + features.vector
        return carry, params[None] * carry

    return Network(init, apply)


def test_networks_with_memory_fit_the_seam() -> None:
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


# One torso for both


def shared_policy(**network: Any) -> Policy:
    settings = NetworkConfig(hidden_sizes=(4,), torso="shared", **network)
    return Policy(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,)), settings, NormalizeConfig())


def test_a_shared_torso_has_parameters_of_its_own() -> None:
    params = jax.eval_shape(shared_policy().init, KEY)
    shapes = {name: jax.tree.map(lambda leaf: leaf.shape, part) for name, part in params.items()}
    assert shapes == {
        "torso": {"Dense_0": {"kernel": (3, 4), "bias": (4,)}},
        "actor": {"Dense_0": {"kernel": (4, 2), "bias": (2,)}, "log_std": (2,)},
        "critic": {"Dense_0": {"kernel": (4, 1), "bias": (1,)}},
    }
    assert set(part_of(params, "actor")) == {"torso", "actor"}
    assert set(part_of(params, "critic")) == {"torso", "critic"}
    assert set(part_of({"actor": 1, "critic": 2}, "actor")) == {"actor"}


@pytest.mark.slow
@pytest.mark.parametrize("torso", ["shared", "separate"])
def test_both_at_once_are_what_each_is_alone(torso: Any) -> None:
    policy = Policy(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), NetworkConfig(torso=torso), NormalizeConfig())
    params, carry, obs = jax.jit(policy.init)(KEY), policy.initial_carry(2), jnp.array([[1.0, 2, 3], [4, 5, 6]])
    memory, outputs, value = policy.act_and_value(params, None, carry, obs)
    actors, alone = policy.act(params, None, carry["actor"], obs)
    critics, worth = policy.value(params, None, carry["critic"], obs)
    assert memory == {"actor": actors, "critic": critics}
    np.testing.assert_array_equal(outputs, alone)
    np.testing.assert_array_equal(value, worth)


@pytest.mark.slow
def test_both_losses_flow_into_a_shared_torso() -> None:
    policy = shared_policy()
    params, carry, obs = jax.jit(policy.init)(KEY), policy.initial_carry(1), jnp.array([[0.1, 0.2, 0.3]])

    def slopes(actor: float, critic: float) -> Any:
        def total(params: Any) -> jax.Array:
            _, outputs, value = policy.act_and_value(params, None, carry, obs)
            return actor * outputs.sum() + critic * value.sum()

        return jax.grad(total)(params)["torso"]["Dense_0"]["kernel"]

    of_actor, of_critic = slopes(1.0, 0.0), slopes(0.0, 1.0)
    assert of_actor.any()
    assert of_critic.any()
    np.testing.assert_allclose(slopes(1.0, 1.0), of_actor + of_critic, rtol=1e-5)


def test_a_shared_torso_runs_once_for_both() -> None:
    policy, calls = shared_policy(), []
    torso = policy.torso
    assert torso is not None

    def counted(*args: Any) -> Any:
        calls.append(1)
        return torso.apply(*args)

    policy.torso = Network(torso.init, counted)
    params = jax.eval_shape(policy.init, KEY)
    carry, obs = policy.initial_carry(2), jnp.zeros((2, 3))
    calls.clear()
    jax.eval_shape(policy.act_and_value, params, None, carry, obs)
    assert len(calls) == 1


def test_a_shared_torso_may_remember() -> None:
    """Each one's memory holds the torso's, so that either can run alone."""
    policy = shared_policy()
    policy.torso, policy.actor, policy.critic = running_sum(1.0), running_sum(2.0), running_sum(10.0)
    for network in (policy.actor, policy.critic):
        assert network.init(KEY, policy.adapter(jnp.zeros((1, 3))))[1].shape == (1, 3)
    heads = {name: reading(getattr(policy, name)) for name in ("actor", "critic")}
    policy.actor, policy.critic = heads["actor"], heads["critic"]
    params, carry = policy.init(KEY), policy.initial_carry(1)
    for _ in range(2):
        carry, outputs, value = policy.act_and_value(params, None, carry, jnp.ones((1, 3)))
    # The torso gives 1 and then 2; the heads remember 1 and then 3.
    assert (outputs.tolist(), value.tolist()) == ([[6, 6, 6]], [30])
    assert [leaf.tolist() for leaf in jax.tree.leaves(carry)] == [[[2, 2, 2]], [[3, 3, 3]]] * 2


def reading(network: Network) -> Network:
    """`network` on what a torso gives, instead of features."""
    return Network(
        lambda key, hidden: network.init(key, Features(hidden, ())),
        lambda params, carry, hidden: network.apply(params, carry, Features(hidden, ())),
    )


# Networks of a user's own


def constant(shape: tuple[int, ...], dtype: Any = jnp.float32, params: Any = None) -> Network:
    """A network that gives zeros of one shape whatever it reads."""
    return Network(lambda key, _: ({} if params is None else params, ()), lambda p, c, _: (c, jnp.zeros(shape, dtype)))


GOOD = {"actor": constant((2, 3)), "critic": constant((2, 1))}


def own_policy(own: Any) -> Policy:
    return Policy(spaces.Box(-1, 1, (2,)), spaces.Discrete(3), NETWORK, NormalizeConfig(), own)


def test_own_networks_are_a_dictionary_or_a_function_of_the_policy() -> None:
    assert own_policy(GOOD).actor is not None
    asked = []

    def own(policy: Policy) -> dict[str, Network]:
        asked.append((policy.distribution.num_params, policy.adapter.vector_size))
        return GOOD

    own_policy(own)
    assert asked == [(3, 2)]


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"actor": GOOD["actor"]}, r"not the entries \['actor'\]"),
        (lambda policy: None, "not NoneType"),
        (GOOD | {"critic": "teapot"}, r"The critic must be a Network\(init, apply\)"),
        (GOOD | {"actor": constant((2, 4))}, r"Your actor must give float32\[B, 3\] .* it gave float32\[2, 4\]"),
        (GOOD | {"actor": constant((2, 3), jnp.int32)}, r"it gave int32\[2, 3\]"),
        (GOOD | {"critic": constant((2,))}, r"Your critic must give float32\[B, 1\] .* it gave float32\[2\]"),
        (
            GOOD | {"critic": constant((2, 1), params={"n": jnp.arange(2)})},
            "parameter critic/n of your network is int32",
        ),
    ],
)
def test_own_networks_that_do_not_fit_are_refused(own: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        own_policy(own)
