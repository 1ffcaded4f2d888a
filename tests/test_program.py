"""The compiled program: the same bits however it is cut, and compiled once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import probes
import proximo.compile
from made import jax_env
from proximo import PPOAgent, settings
from proximo.envs.api import Transition
from proximo.envs.compiled.vectorize import VectorizedEnv
from proximo.envs.groups import ONE
from proximo.policy.behaviour import Learners
from proximo.policy.policies import Policies
from proximo.seeding import network_key
from proximo.train.program import CompiledProgram, ProgramState, UpdateReport

SMALL = probes.PLAIN | dict(num_envs=4, rollout_length=16, minibatch_size=32, epochs_per_update=2, hidden_sizes=[16])


def program(env: Any = "gymnax/CartPole-v1", **keywords: Any) -> CompiledProgram:
    source = jax_env(env)
    config = settings.build(settings.from_keywords(SMALL | keywords | {"id": source.spec.id}))
    env = VectorizedEnv(source, config.env.num_envs)
    policies = Policies(env.spec.groups, config.network, config.normalize, config.agents)
    return CompiledProgram(env, Learners(policies), config)


def bits(tree: Any) -> list[bytes]:
    """Every leaf as bytes."""
    leaves = [
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in jax.tree.leaves(tree)
    ]
    return [np.asarray(leaf).tobytes() for leaf in leaves]


def start(one: CompiledProgram) -> ProgramState:
    policies = one.behaviour.policies
    return one.init((policies.init(network_key(one.config.seed)), policies.initial_stats(), {}))


def run_in(chunks: Sequence[int], one: CompiledProgram) -> tuple[ProgramState, list[UpdateReport]]:
    state, reports = start(one), []
    for size in chunks:
        state, some = one.run(state, size)
        reports += some
    return state, reports


@pytest.fixture(scope="module")
def cartpole() -> CompiledProgram:
    return program(normalize_observations=True, normalize_rewards=True)


@pytest.mark.slow
def test_chunks_of_any_size_give_the_same_bits(cartpole: CompiledProgram) -> None:
    whole = run_in([12], cartpole)
    for chunks in ([1] * 12, [5, 7], [11, 1], [4, 4, 4]):
        assert bits(run_in(chunks, cartpole)) == bits(whole)


def test_nothing_is_compiled_after_the_first_chunk(cartpole: CompiledProgram) -> None:
    compilations = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if "backend_compile" in event:
            compilations.append(event)

    state, _ = run_in([1], cartpole)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for size in (1, 3, 7):
            state, _ = cartpole.run(state, size)
        assert not compilations
        jax.jit(lambda x: x * 3.25 + 1)(np.float32(1)).block_until_ready()
        assert compilations, "the listener must notice a compilation for this test to say anything"
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_running_leaves_the_state_it_started_from_intact(cartpole: CompiledProgram) -> None:
    """Replaying a chunk depends on it."""
    state = start(cartpole)
    before = bits(state)
    cartpole.run(state, 3)
    assert bits(state) == before


@pytest.mark.slow
def test_seeds_change_everything_and_the_same_seed_changes_nothing() -> None:
    first, again, other = (run_in([2], program(seed=seed))[0] for seed in (3, 3, 4))
    assert bits(first) == bits(again)
    assert bits(first.train.of("params")) != bits(other.train.of("params"))
    assert bits(first.runner.obs) != bits(other.runner.obs)


def test_episode_bookkeeping(cartpole: CompiledProgram) -> None:
    """CartPole pays 1 a step: every finished episode's return is its length, and lengths fill the environments."""
    state, reports = run_in([30], cartpole)
    lengths = np.concatenate([report.episodes.length for report in reports])
    returns = np.concatenate([report.episodes.episode_return for report in reports])
    members = np.concatenate([report.episodes.members[ONE] for report in reports])
    ended = lengths > 0
    assert ended.any()
    np.testing.assert_array_equal(returns[ended], lengths[ended])
    np.testing.assert_array_equal(members[ended], lengths[ended][:, None])
    assert (lengths.sum(axis=0) + np.asarray(state.runner.episode_length)).tolist() == [30 * 16] * 4
    assert sum(int(report.num_valid) for report in reports) == 30 * 16 * 4


@pytest.mark.parametrize(("flags", "level"), [("", 1), ("--xla_backend_optimization_level=3", None)])
def test_what_xla_flags_say_is_left_to_them_but_in_small_programs(
    monkeypatch: pytest.MonkeyPatch, flags: str, level: int | None
) -> None:
    proximo.compile.jit(abs, small=True)  # finds out, once, which options there are
    given = []
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(jax, "jit", lambda _, compiler_options: given.append(compiler_options))
    proximo.compile.jit(abs)
    proximo.compile.jit(abs, small=True)
    assert [options.get("xla_backend_optimization_level") for options in given] == [level, 1]


class PartlySick(probes.Counter):
    """Pays its clock. In environments with the cue 1, the reward and the observation after the second step are NaN."""

    def observe(self, clock: jax.Array, cue: jax.Array) -> jax.Array:
        return super().observe(clock, cue) + jnp.where((clock == 2) & (cue > 0), jnp.nan, 0.0).astype(jnp.float32)

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        following, moved = super().step(key, state, action)
        return following, replace(moved, reward=moved.reward + moved.obs[0] - following[0].astype(jnp.float32))


@pytest.mark.slow
def test_what_lanes_remember_follows_a_rollout_whose_update_is_undone() -> None:
    """Rollouts of four steps with rewards 1 to 4 and gamma 1/2: the discounted sum is 4 + 3/2 + 2/4 + 1/8 = 6.125. The
    critic has seen the clock at 0 to 3, with the parameters that are kept. Where numbers are not finite, both are as
    at the start of an episode."""
    given = {"num_envs": 8, "rollout_length": 4, "minibatch_size": 32, "memory": "gru", "memory_size": 3}
    given |= {"gamma": 0.5, "normalize_rewards": True, "on_nonfinite": "skip"}
    one = program(PartlySick(), **given)
    first = start(one)
    state, (report,) = one.run(first, 1)
    assert not np.isfinite(report.metrics["loss/critic"])
    assert bits(state.train.of("params")) == bits(first.train.of("params"))
    assert (int(state.train.update), int(state.train.env_steps.batches)) == (1, 1)
    sick = np.asarray(first.runner.env.env[1]) > 0
    assert 0 < sick.sum() < 8
    np.testing.assert_array_equal(state.lanes[ONE].discounted, np.where(sick, 0, 6.125))
    policy, params = one.behaviour.policies[ONE], first.train.groups[ONE].params
    carry = policy.initial_carry(1)["critic"]
    for clock in range(4):
        carry, _ = policy.value(params, None, carry, jnp.full((1, 1), clock, jnp.float32))
    for expected, found in zip(jax.tree.leaves(carry), jax.tree.leaves(state.lanes[ONE].critic_carry), strict=True):
        wanted = np.where(sick[:, None], 0, np.asarray(expected))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state.runner.carry, state.lanes)))
    after, (report,) = one.run(state, 1)
    assert np.isfinite(report.metrics["loss/critic"])
    assert bits(after.train.of("params")) != bits(first.train.of("params"))


@pytest.mark.slow
def test_actions_without_sensible_bounds_reach_compiled_environments() -> None:
    """Nothing can be drawn from between the smallest and the largest double, not even an example."""

    class Wide(probes.Probe):
        name = "wide"
        action_space = spaces.Box(-np.finfo(np.float64).max, np.finfo(np.float64).max, (1,), np.float64)

        def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
            return state, Transition(obs=state[1][None], reward=action[0], terminated=True)

    env = VectorizedEnv(Wide(), 2)
    state, _ = env.reset(jax.random.key(0))
    policy = PPOAgent(Wide.observation_space, Wide.action_space).policy
    action = policy.distribution.to_env(jnp.array([[0.125], [-3.0]]))
    assert env.step(jax.random.key(1), state, {ONE: action})[1].groups[ONE].reward.tolist() == [0.125, -3]
