"""One update on a rollout of four steps and two lanes, with known answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from proximo import Config
from proximo.config import AgentsConfig, NetworkConfig, NormalizeConfig
from proximo.envs.groups import ONE, one_group
from proximo.policy.normalize import RunningStats, initial_stats, update_stats
from proximo.policy.policies import Policies
from proximo.policy.policy import Policy
from proximo.ppo import update as module
from proximo.ppo.loss import explained_variance
from proximo.ppo.recipe import BUILT_IN
from proximo.ppo.samples import Samples
from proximo.ppo.types import EnvSteps, LearnerLanes, LearnerState, TrainState
from proximo.ppo.update import Rates, current_rates, initial_train_state
from proximo.rollout.types import Rollout
from proximo.seeding import training_keys
from proximo.settings import build, from_keywords
from proximo.types import AnyArray

T, L, N = 4, 2, 8
SECTIONS = NetworkConfig(hidden_sizes=(4,)), NormalizeConfig(observations=True)
POLICY = Policy(spaces.Box(-9, 9, (2,)), spaces.Discrete(3), *SECTIONS)
POLICIES = Policies(
    one_group(POLICY.observation_space, POLICY.action_space), *SECTIONS, AgentsConfig(), made={ONE: POLICY}
)
NO_STATE = None  # what only critics see
LANES = LearnerLanes(POLICY.initial_carry(L)["critic"], jnp.zeros(L))
training_samples = jax.jit(module.training_samples, static_argnums=(5, 6))
optimize = jax.jit(module.optimize, static_argnums=(1, 5, 6, 7, 8))
judged_again = jax.jit(module.judged_again, static_argnums=(5, 6))
final_values = jax.jit(module.final_values, static_argnums=5)
act, value = jax.jit(POLICY.act), jax.jit(POLICY.value)


def config_with(**keywords: Any) -> Config:
    small = {"num_envs": L, "rollout_length": T, "minibatch_size": 2, "epochs_per_update": 3, "total_timesteps": 10 * N}
    plain = {"normalize_advantages": "none", "normalize_observations": True, "normalize_rewards": False}
    rates = {"learning_rate": 3e-4, "learning_rate_schedule": "constant", "entropy_coef": 0.01}
    return build(from_keywords(small | plain | rates | keywords))


# Few settings, shared by the tests: each compiles anew.
PLAIN = config_with()
ONE_STEP = config_with(gae_lambda=0, gamma=0.5, normalize_advantages="batch")
ANEW = config_with(recompute_advantages=True)
CAREFUL = config_with(normalize_advantages="minibatch", minibatch_size=4, target_kl=1e-4)
CALM = config_with(learning_rate=1e-6, learning_rate_schedule="adaptive", normalize_rewards=True, gamma=0.5)


def numbers(*shape: Any, seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


@pytest.fixture(scope="module")
def state() -> TrainState:
    """Before the first update, with made-up parameters and the statistics of ten observations seen."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(POLICY.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape).astype(np.float32)), shapes)
    stats = POLICY.initial_stats()
    assert isinstance(stats, RunningStats)
    return begun(params, update_stats(stats, EARLIER, jnp.ones(10, bool)), PLAIN)


def begun(
    params: Any, obs_stats: RunningStats | None, config: Config, reward_stats: RunningStats | None = None
) -> TrainState:
    """The state before the first update of one group."""
    return initial_train_state({ONE: params}, {ONE: obs_stats}, config, {ONE: reward_stats})


EARLIER = 2 + 3 * numbers(10, 2, seed=1)
ROLLOUT = Rollout(
    obs=numbers(T, L, 2, seed=2),
    action_mask=None,
    action=jnp.array([[0, 1], [2, 0], [1, 2], [0, 0]], jnp.int32),
    reward=numbers(T, L, seed=3),
    terminated=jnp.array([[0, 0], [1, 0], [0, 0], [0, 0]], bool),
    truncated=jnp.array([[0, 0], [0, 0], [0, 1], [0, 0]], bool),
    valid=jnp.ones((T, L), bool),
    final_obs=numbers(T, L, 2, seed=4),
    last_obs=numbers(L, 2, seed=5),
    carry=POLICY.initial_carry(L)["actor"],
)


def sampled(state: TrainState, rollout: Rollout, reward: AnyArray, config: Config) -> Samples:
    samples: Samples = training_samples(state.groups[ONE], LANES, rollout, NO_STATE, reward, POLICY, config)[0]
    return samples


def optimized(state: TrainState, samples: Samples, rates: Rates, config: Config, *more: Any) -> Any:
    return optimize(state, ONE, samples, NO_STATE, rates, POLICY, config, *more)


def updated_by(state: TrainState, config: Config) -> Any:
    update = jax.jit(lambda state, lanes, rollouts: module.update(state, lanes, rollouts, NO_STATE, POLICIES, config))
    return update(state, {ONE: LANES}, {ONE: ROLLOUT})


@pytest.fixture(scope="module")
def samples(state: TrainState) -> Samples:
    return sampled(state, ROLLOUT, ROLLOUT.reward, PLAIN)


def value_of(state: TrainState, obs: Any) -> np.ndarray:
    one = state.groups[ONE]
    return np.asarray(value(one.params, one.obs_stats, (), obs)[1])


def rates(learning: float, clip: float = 0.2, entropy: float = 0.0) -> Rates:
    return Rates(jnp.float32(learning), jnp.float32(clip), jnp.float32(entropy))


def step_size(before: Any, after: Any, part: str) -> float:
    """How far the parameters of the actor or of the critic have moved."""
    moves = jax.tree.map(lambda a, b: np.sum(np.square(np.asarray(b) - np.asarray(a))), before[part], after[part])
    return float(np.sqrt(sum(jax.tree.leaves(moves))))


def equal(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


# From a rollout to samples


@pytest.mark.slow
def test_samples_are_steps_and_lanes_flattened(state: TrainState, samples: Samples) -> None:
    np.testing.assert_array_equal(samples.obs[2 * L + 1], ROLLOUT.obs[2, 1])
    assert samples.action[2 * L + 1] == ROLLOUT.action[2, 1]
    np.testing.assert_allclose(samples.value[2 * L + 1], value_of(state, ROLLOUT.obs[2])[1], rtol=1e-5)


def test_log_probabilities_are_those_of_the_policy_that_acted(state: TrainState, samples: Samples) -> None:
    # The same network on other statistics would not agree.
    one = state.groups[ONE]
    _, outputs = act(one.params, one.obs_stats, (), samples.obs)
    log_probs = np.asarray(jax.nn.log_softmax(outputs))
    np.testing.assert_allclose(samples.log_prob, log_probs[np.arange(N), samples.action], rtol=1e-5)
    _, outputs = act(one.params, POLICY.initial_stats(), (), samples.obs)
    log_probs = np.asarray(jax.nn.log_softmax(outputs))
    assert not np.allclose(samples.log_prob, log_probs[np.arange(N), samples.action], rtol=1e-5)


def test_values_bootstrap_from_what_each_step_led_to(state: TrainState) -> None:
    # With lambda = 0 the target is r + gamma V(what followed): nothing after the termination, the final
    # observation after the truncation, `last_obs` after the cut, and otherwise the next observation.
    target = sampled(state, ROLLOUT, ROLLOUT.reward, ONE_STEP).target.reshape(T, L)
    following = np.stack([*(value_of(state, ROLLOUT.obs[t]) for t in (1, 2, 3)), value_of(state, ROLLOUT.last_obs)])
    following[1, 0] = 0
    following[2, 1] = value_of(state, ROLLOUT.final_obs[2])[1]
    np.testing.assert_allclose(target, np.asarray(ROLLOUT.reward) + 0.5 * following, rtol=1e-5, atol=1e-6)


def test_final_values_are_of_steps_with_a_truncation(state: TrainState) -> None:
    one = state.groups[ONE]
    result = final_values(one.params, one.obs_stats, ROLLOUT, NO_STATE, LANES.critic_carry, POLICY)
    np.testing.assert_allclose(result[2], value_of(state, ROLLOUT.final_obs[2]), rtol=1e-5)
    assert result[2].all()
    assert not result[jnp.array([0, 1, 3])].any()


def test_advantages_of_the_batch_are_standardised_where_asked(state: TrainState, samples: Samples) -> None:
    # One invalid step with a reward beyond all measure: it takes no part.
    valid = jnp.asarray(ROLLOUT.valid).at[3, 1].set(False)
    reward = jnp.asarray(ROLLOUT.reward).at[3, 1].set(1e6)
    rollout = replace(ROLLOUT, valid=valid, terminated=jnp.asarray(ROLLOUT.terminated).at[2, 1].set(True))
    batch = sampled(state, rollout, reward, ONE_STEP)
    kept = np.asarray(batch.advantage)[np.asarray(batch.valid)]
    assert len(kept) == 7
    assert kept.mean() == pytest.approx(0, abs=1e-6)
    assert kept.std() == pytest.approx(1, rel=1e-5)
    # Otherwise they stay: the target is the advantage and the value.
    np.testing.assert_allclose(samples.advantage + samples.value, samples.target, rtol=1e-5)


def first_lane(rollout: Rollout) -> Rollout:
    one: Rollout = jax.tree.map(lambda leaf: leaf[:, :1], replace(rollout, last_obs=None))
    return replace(one, last_obs=rollout.last_obs[:1])


def test_rewards_are_scaled_by_the_deviation_of_their_discounted_sums() -> None:
    # From 4 with gamma 1/2, as in test_normalize: sums 3, 3.5 and the end, 3, 5.5.
    config = config_with(normalize_rewards=True, gamma=0.5, num_envs=1)

    def lane(*values: float) -> jax.Array:
        return jnp.array(values)[:, None]

    rollout = replace(
        first_lane(ROLLOUT),
        reward=lane(1.0, 2.0, 3.0, 4.0),
        terminated=lane(False, True, False, False),
        truncated=lane(False, False, False, False),
        valid=lane(True, True, True, True),
    )
    fresh = LearnerState(None, None, None, initial_stats(()), jnp.float32(0))
    reward, stats, discounted = module.normalized_rewards(fresh, rollout, jnp.array([4.0]), config)
    np.testing.assert_allclose(reward[:, 0], np.array([1, 2, 3, 4]) / np.std([3, 3.5, 3, 5.5]), rtol=1e-5)
    assert stats is not None
    assert stats.count == 4
    assert discounted.tolist() == [5.5]


def test_rewards_are_clipped_before_they_are_scaled() -> None:
    rollout = replace(
        first_lane(ROLLOUT),
        reward=jnp.array([[3.0], [-0.5], [-7.0], [1.0]]),
        terminated=jnp.ones((4, 1), bool),
        truncated=jnp.zeros((4, 1), bool),
        valid=jnp.ones((4, 1), bool),
    )
    plain = LearnerState(None, None, None, None, jnp.float32(0))
    reward, _, _ = module.normalized_rewards(plain, rollout, jnp.zeros(1), config_with(clip_rewards=2.0, num_envs=1))
    np.testing.assert_array_equal(reward[:, 0], [2, -0.5, -2, 1])
    fresh = replace(plain, reward_stats=initial_stats(()))
    both = config_with(clip_rewards=2.0, normalize_rewards=True, num_envs=1)
    reward, _, _ = module.normalized_rewards(fresh, rollout, jnp.zeros(1), both)
    # Each step ends an episode, so the sums are the rewards themselves.
    np.testing.assert_allclose(reward[:, 0], np.array([2, -0.5, -2, 1]) / np.std([2, -0.5, -2, 1]), rtol=1e-5)


# Epochs and minibatches


@pytest.mark.slow
def test_every_epoch_visits_every_sample_once(state: TrainState, samples: Samples) -> None:
    # While nothing moves, the objective of a minibatch is its mean advantage, so that the mean of those of
    # 1, 2, 4, ... 128 is 255 / 8: no other eight of these numbers add up to 255.
    samples = replace(samples, advantage=jnp.array([1.0, 2, 4, 8, 16, 32, 64, 128]))
    params, _, metrics = optimized(state, samples, rates(0), PLAIN)
    assert metrics["loss/objective"] == pytest.approx(255 / 8, rel=1e-5)
    assert metrics["loss/critic"] == pytest.approx(
        np.square(np.asarray(samples.value - samples.target)).mean(), rel=1e-5
    )
    assert metrics["ppo/epochs"] == 3
    assert equal(params, state.groups[ONE].params)


@pytest.mark.parametrize("size", [1, 7, 4_096, 4_097, 20_000])
def test_an_order_has_every_number_once(size: int) -> None:
    order = np.asarray(module.shuffled(jax.random.key(3), size))
    np.testing.assert_array_equal(np.sort(order), np.arange(size))


@pytest.mark.parametrize("size", [1_024, 8_192])
def test_orders_are_random(size: int) -> None:
    """Half of the neighbours stand in their old order, positions say nothing of numbers, and no number is likelier to
    come first; each within four standard deviations."""
    orders = np.asarray(jax.vmap(lambda key: module.shuffled(key, size))(jax.random.split(jax.random.key(0), 64)))
    places = np.argsort(orders, axis=1)
    assert np.mean(places[:, :-1] < places[:, 1:]) == pytest.approx(0.5, abs=4 * np.sqrt(1 / 12 / orders.size))
    correlations = [np.corrcoef(order, np.arange(size))[0, 1] for order in orders]
    assert np.mean(correlations) == pytest.approx(0, abs=4 / np.sqrt(orders.size))
    assert orders[:, 0].mean() == pytest.approx((size - 1) / 2, abs=4 * size / np.sqrt(12 * 64))


def test_the_entropy_weight_is_the_scheduled_one(state: TrainState, samples: Samples) -> None:
    _, _, metrics = optimized(state, samples, rates(0, entropy=0.25), PLAIN)
    parts = -metrics["loss/objective"] + 0.5 * metrics["loss/critic"] - 0.25 * metrics["loss/entropy"]
    assert metrics["loss/total"] == pytest.approx(float(parts), rel=1e-5)


def test_the_clip_range_is_the_scheduled_one(state: TrainState, samples: Samples) -> None:
    # The old policy was less likely by 1.1: within a range of 0.2, and outside one of 0.05.
    samples = replace(samples, log_prob=samples.log_prob - np.float32(np.log(1.1)))
    for clip, fraction in ((0.2, 0), (0.05, 1)):
        assert optimized(state, samples, rates(0, clip=clip), PLAIN)[2]["ppo/clip_fraction"] == fraction


def test_the_order_differs_between_updates_and_not_between_runs(state: TrainState, samples: Samples) -> None:
    first, again, later = (
        optimized(replace(state, update=jnp.int32(number)), samples, rates(0.01), PLAIN)[0] for number in (0, 0, 1)
    )
    assert equal(first, again)
    assert not equal(first, later)


def test_learning_lowers_the_loss(state: TrainState, samples: Samples) -> None:
    one = state.groups[ONE]

    def loss(params: Any) -> Any:
        at = replace(state, groups={ONE: replace(one, params=params)})
        return optimized(at, samples, rates(0), PLAIN)[2]

    params, _, _ = optimized(state, samples, rates(0.01), PLAIN)
    before, after = loss(one.params), loss(params)
    assert after["loss/critic"] < before["loss/critic"]
    assert after["loss/objective"] > before["loss/objective"]


@pytest.mark.slow
def test_a_large_kl_ends_the_update(state: TrainState, samples: Samples) -> None:
    _, _, still = optimized(state, samples, rates(0), CAREFUL)
    assert still["ppo/epochs"] == 3
    _, _, wild = optimized(state, samples, rates(0.1), CAREFUL)
    assert wild["ppo/epochs"] == 1
    assert wild["ppo/last_epoch_kl"] > 1e-4
    assert wild["ppo/approx_kl"] == wild["ppo/last_epoch_kl"]


def test_advantages_of_minibatches_are_standardised_where_asked(state: TrainState, samples: Samples) -> None:
    # Standardised in each minibatch, their scale and offset do not matter, and their mean is zero.
    other = replace(samples, advantage=10 * samples.advantage + 5)
    _, _, metrics = optimized(state, samples, rates(0), CAREFUL)
    assert metrics["loss/objective"] == pytest.approx(0, abs=1e-5)
    one, two = (optimized(state, each, rates(0.01), CAREFUL)[0] for each in (samples, other))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), one, two)
    one, two = (optimized(state, each, rates(0.01), PLAIN)[0] for each in (samples, other))
    assert step_size(one, two, "actor") > 1e-3


# Values, advantages and targets anew


def test_a_rollout_is_judged_again_by_the_critic_as_it_is(state: TrainState) -> None:
    # Another bias of the critic's last layer, by 2: each value is higher by 2. With lambda = 0 the advantage is
    # r + gamma V' - V: lower by 2 - 0.5 * 2 = 1, and by all of 2 where nothing follows the step.
    one = state.groups[ONE]
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf + 2 if leaf.shape == (1,) and path[0].key == "critic" else leaf, one.params
    )
    plain = config_with(gae_lambda=0, gamma=0.5)
    before = sampled(state, ROLLOUT, ROLLOUT.reward, plain)
    given = (one, LANES, ROLLOUT, NO_STATE, ROLLOUT.reward, POLICY, plain)
    value, advantage, target = judged_again(*given, params)
    fall = np.ones((T, L))
    fall[1, 0] = 2  # the termination
    np.testing.assert_allclose(value, before.value + 2, rtol=1e-5)
    np.testing.assert_allclose(advantage, before.advantage - fall.reshape(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(target, advantage + value, rtol=1e-5)


@pytest.mark.slow
def test_what_was_judged_again_is_learned_from_after_the_first_epoch(state: TrainState, samples: Samples) -> None:
    # While nothing moves, the objective is the mean advantage: 2 in the first epoch of three, then 7.
    samples = replace(samples, advantage=jnp.full(N, 2.0))
    again = lambda params: (samples.value, jnp.full(N, 7.0), samples.value + 3)  # noqa: E731
    for config, objective in ((ANEW, 16 / 3), (PLAIN, 2)):
        _, _, metrics = optimized(state, samples, rates(0), config, BUILT_IN, again)
        assert metrics["loss/objective"] == pytest.approx(objective, rel=1e-5)


@pytest.mark.slow
def test_each_epoch_is_judged_by_the_parameters_that_it_begins_with(state: TrainState, samples: Samples) -> None:
    # The second of two epochs learns from the critic's bias as it is after the first.
    two = config_with(recompute_advantages=True, epochs_per_update=2, minibatch_size=N)
    one = config_with(epochs_per_update=1, minibatch_size=N)

    def bias(params: Any) -> Any:
        return next(leaf for leaf in jax.tree.leaves(params["critic"]) if leaf.shape == (1,))[0]

    def again(params: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        return samples.value, jnp.full(N, bias(params)), samples.target

    still = replace(samples, advantage=jnp.zeros(N))
    after, _, _ = optimized(state, still, rates(0.01), one)
    _, _, metrics = optimized(state, still, rates(0.01), two, BUILT_IN, again)
    assert bias(after) != bias(state.groups[ONE].params)
    assert 2 * metrics["loss/objective"] == pytest.approx(float(bias(after)), rel=1e-4)  # the first epoch's is 0


@pytest.mark.slow
def test_memory_is_judged_again_from_where_the_rollout_began() -> None:
    policy = Policy(
        spaces.Box(-9, 9, (2,)), spaces.Discrete(3), NetworkConfig(hidden_sizes=(4,), memory="gru"), NormalizeConfig()
    )
    params, other = (policy.init(jax.random.key(seed)) for seed in (0, 1))
    carry = jax.tree.map(lambda leaf: leaf + 0.5, policy.initial_carry(L))
    rollout, config = replace(ROLLOUT, carry=carry["actor"]), config_with(normalize_observations=False)
    learner, lanes = begun(params, None, config).groups[ONE], LearnerLanes(carry["critic"], jnp.zeros(L))
    value, _, _ = judged_again(learner, lanes, rollout, NO_STATE, rollout.reward, policy, config, other)
    memory, expected = carry["critic"], []
    for t in range(T):
        memory, now = policy.value(other, None, memory, rollout.obs[t])
        expected.append(now)
        memory = policy.forget(memory, rollout.ended[t])
    np.testing.assert_allclose(value.reshape(T, L), np.stack(expected), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_an_update_with_values_anew_differs_from_the_second_epoch_on(state: TrainState) -> None:
    def params(config: Config) -> Any:
        return updated_by(state, config)[0].groups[ONE].params

    assert not equal(params(PLAIN), params(ANEW))
    once = [config_with(epochs_per_update=1, recompute_advantages=flag) for flag in (False, True)]
    assert equal(*(params(config) for config in once))


# Gradients and rates


@pytest.mark.slow
def test_separate_optimizers_have_their_own_rate_and_norm(state: TrainState, samples: Samples) -> None:
    # With an epsilon far above the gradients, Adam's first direction is the gradient / epsilon. Clipped to a norm
    # of 0.001 each, the actor moves by rate * 0.001 / 1000 = 1 and the critic by ten times that.
    config = config_with(
        optimizers="separate",
        learning_rate=0.001,
        critic_learning_rate=0.01,
        max_grad_norm=0.001,
        adam_epsilon=1000.0,
        epochs_per_update=1,
        minibatch_size=N,
    )
    params, _, metrics = optimized(state, samples, rates(1e6), config)
    before = state.groups[ONE].params
    assert step_size(before, params, "actor") == pytest.approx(1, rel=1e-3)
    assert step_size(before, params, "critic") == pytest.approx(10, rel=1e-3)
    assert metrics["ppo/gradient_norm"] > 0.01


@pytest.mark.parametrize(("steps", "share"), [(0, 1.0), (36, 0.55), (40, 0.5), (80, 0.0), (96, 0.0)])
def test_schedules_end_with_the_steps_of_training(steps: int, share: float) -> None:
    # Ten updates of eight steps; learning rate 0.3 to 0.1, clip 0.2 to 0.1, entropy weight 0.02 to 0.
    config = config_with(
        learning_rate=0.3,
        learning_rate_end=0.1,
        learning_rate_schedule="linear",
        clip_epsilon=0.2,
        clip_epsilon_end=0.1,
        clip_epsilon_schedule="linear",
        entropy_coef=0.02,
        entropy_coef_schedule="linear",
    )
    taken = EnvSteps(jnp.int32(steps // 8), jnp.int32(steps % 8))
    state = TrainState(
        {ONE: LearnerState(None, None, None, None, jnp.float32(77))}, training_keys(0), jnp.int32(99), taken
    )
    now = current_rates(state, ONE, config)
    assert now.learning == pytest.approx(0.1 + 0.2 * share, rel=1e-5)
    assert now.clip == pytest.approx(0.1 + 0.1 * share, rel=1e-5)
    assert now.entropy == pytest.approx(0.02 * share, abs=1e-7)


def test_steps_are_counted_beyond_what_32_bits_hold() -> None:
    """Batches of 10 steps: 7 + 5 is one batch and 2 steps; a full batch more leaves the rest as it is."""
    counted = EnvSteps(jnp.int32(2**31 - 3), jnp.int32(7)).after(jnp.int32(5), 10)
    assert (int(counted.batches), int(counted.rest)) == (2**31 - 2, 2)
    counted = counted.after(jnp.int32(10), 10)
    assert (int(counted.batches), int(counted.rest)) == (2**31 - 1, 2)


def test_an_adaptive_rate_is_the_one_of_the_state() -> None:
    learners = {
        name: LearnerState(None, None, None, None, jnp.float32(rate)) for name, rate in (("other", 0.5), (ONE, 0.007))
    }
    state = TrainState(learners, training_keys(0), jnp.int32(3), EnvSteps.none())
    assert current_rates(state, ONE, config_with(learning_rate_schedule="adaptive")).learning == jnp.float32(0.007)


# The whole update


def calm(state: TrainState) -> TrainState:
    one = state.groups[ONE]
    return begun(one.params, one.obs_stats, CALM)


@pytest.fixture(scope="module")
def updated(state: TrainState) -> Any:
    """After one update that all but stands still, for its rate of a millionth."""
    return updated_by(calm(state), CALM)


@pytest.mark.slow
def test_observation_statistics_are_merged_after_the_update(state: TrainState, updated: Any) -> None:
    after, _, metrics = updated
    before, after = state.groups[ONE], after.groups[ONE]
    everything = np.concatenate([EARLIER, np.asarray(ROLLOUT.obs).reshape(N, 2)])
    assert after.obs_stats.count == 18
    np.testing.assert_allclose(after.obs_stats.mean, everything.mean(0), rtol=1e-5)
    np.testing.assert_allclose(after.obs_stats.var, everything.var(0), rtol=1e-5)
    # And not before: the entropy is that of the old statistics.
    entropies = []
    for stats in (before.obs_stats, after.obs_stats):
        _, outputs = act(before.params, stats, (), ROLLOUT.obs.reshape(N, 2))
        entropies.append(np.asarray(POLICY.distribution.entropy(outputs)).mean())
    assert metrics["loss/entropy"] == pytest.approx(entropies[0], rel=1e-4)
    assert metrics["loss/entropy"] != pytest.approx(entropies[1], rel=1e-2)
    assert metrics["ppo/clip_fraction"] == 0
    assert metrics["ppo/approx_kl"] == pytest.approx(0, abs=1e-8)


def test_reward_statistics_and_sums_are_carried_on(updated: Any) -> None:
    after, lanes, _ = updated
    # Lane 0 began anew at step 2, lane 1 at step 3.
    reward = np.asarray(ROLLOUT.reward)
    np.testing.assert_allclose(lanes[ONE].discounted, [reward[3, 0] + 0.5 * reward[2, 0], reward[3, 1]], rtol=1e-5)
    assert after.groups[ONE].reward_stats.count == N


def test_an_update_counts_itself_and_keeps_the_keys(state: TrainState, updated: Any) -> None:
    after, lanes, _ = updated
    assert after.update == 1
    assert all((a == b).all() for a, b in zip(jax.tree.leaves(after.keys), jax.tree.leaves(state.keys), strict=True))
    assert lanes[ONE].critic_carry == ()


def test_a_small_kl_raises_an_adaptive_rate_for_the_next_update(updated: Any) -> None:
    after, _, metrics = updated
    assert metrics["ppo/learning_rate"] == pytest.approx(1e-6)
    assert after.groups[ONE].learning_rate == pytest.approx(1.5e-6)


@pytest.mark.slow
def test_the_update_learns_from_scaled_rewards(state: TrainState, updated: Any) -> None:
    after, _, metrics = updated
    reward, _, _ = module.normalized_rewards(calm(state).groups[ONE], ROLLOUT, jnp.zeros(L), CALM)
    samples = sampled(state, ROLLOUT, reward, CALM)
    expected = explained_variance(samples.value, samples.target, samples.valid)
    assert metrics["ppo/explained_variance"] == pytest.approx(float(expected), rel=1e-4)
    assert not equal(after.groups[ONE].params, state.groups[ONE].params)


@pytest.mark.slow
def test_initial_state_follows_the_settings() -> None:
    params = {"actor": jnp.ones(2), "critic": jnp.ones(3)}
    state = begun(params, None, config_with(normalize_rewards=True, learning_rate=0.125))
    one = state.groups[ONE]
    assert one.learning_rate == 0.125
    assert state.update == 0
    assert one.reward_stats is not None
    assert one.reward_stats.count == 0
    assert not any(leaf.any() for leaf in jax.tree.leaves(one.opt_state))
    assert begun(params, None, config_with()).groups[ONE].reward_stats is None
    # A critic that learned before goes on in its unit.
    before = RunningStats(jnp.float32(7), jnp.float32(1), jnp.float32(9))
    gone_on = begun(params, None, config_with(normalize_rewards=True), before)
    assert gone_on.groups[ONE].reward_stats is before
