"""Networks that remember: the cells, the way through time, and what can be learned only with memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import probes
from made import jax_env
from proximo import PPOAgent, PPOTrainer, settings
from proximo.config import NetworkConfig, NormalizeConfig
from proximo.envs.api import Transition
from proximo.envs.groups import ONE
from proximo.errors import UserError
from proximo.policy.networks import Network
from proximo.policy.policy import Policy
from proximo.policy.recurrent import GRU, LSTM, forget, lasting, through_time, unrolled
from proximo.ppo.samples import Samples, in_sequences
from proximo.ppo.update import training_samples

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
FOUR: spaces.Space[Any] = spaces.Discrete(4)

MEMORIES_AND_TORSOS = pytest.mark.parametrize(("memory", "torso"), [("gru", "separate"), ("lstm", "shared")])
"""Each once; `test_matrix.py` crosses them."""


def policy_with(memory: Any = "gru", **network: Any) -> Policy:
    return Policy(
        BOX, FOUR, NetworkConfig(hidden_sizes=(5,), memory=memory, memory_size=6, **network), NormalizeConfig()
    )


def random(shape: Any, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


# The cells, against Flax's own


@pytest.mark.slow
def test_a_gru_is_that_of_flax() -> None:
    ours, theirs = GRU(4), nn.GRUCell(4)
    x, h = random((2, 3)), random((2, 4), 1)
    params = ours.init(jax.random.key(0), x)["params"]
    params = params | {"bias": random(4, 2), "inner": params["inner"] | {"bias": random(12, 3)}}
    wx, wh = (jnp.split(params[part]["kernel"], 3, axis=-1) for part in ("inner", "recurrent"))
    bias = jnp.split(params["inner"]["bias"], 3)
    given = {f"i{gate}": {"kernel": wx[i], "bias": bias[i]} for i, gate in enumerate("rzn")}
    given |= {f"h{gate}": {"kernel": wh[i]} for i, gate in enumerate("rz")}
    given["hn"] = {"kernel": wh[2], "bias": params["bias"]}
    expected, _ = theirs.apply({"params": given}, h, x)
    projected = ours.apply({"params": params}, x, method="project")
    (found,), output = ours.apply({"params": params}, (h,), projected, method="step")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found, output)


@pytest.mark.slow
def test_an_lstm_is_that_of_flax() -> None:
    ours, theirs = LSTM(4), nn.OptimizedLSTMCell(4)
    x, c, h = random((2, 3)), random((2, 4), 1), random((2, 4), 2)
    params = ours.init(jax.random.key(0), x)["params"]
    params = params | {"bias": random(16, 3)}
    wx, wh = (jnp.split(params[part]["kernel"], 4, axis=-1) for part in ("inner", "recurrent"))
    bias = jnp.split(params["bias"], 4)
    given = {f"i{gate}": {"kernel": wx[i]} for i, gate in enumerate("ifgo")}
    given |= {f"h{gate}": {"kernel": wh[i], "bias": bias[i]} for i, gate in enumerate("ifgo")}
    (expected_c, expected_h), _ = theirs.apply({"params": given}, (c, h), x)
    projected = ours.apply({"params": params}, x, method="project")
    (found_c, found_h), _ = ours.apply({"params": params}, (c, h), projected, method="step")
    np.testing.assert_allclose(found_c, expected_c, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found_h, expected_h, rtol=1e-5, atol=1e-6)


def test_an_lstm_by_hand() -> None:
    """One cell that reads x as its candidate and nothing else: i = o = sigmoid(0) = 1/2, f = sigmoid(1) = 0.731059,
    so c1 = tanh(1) / 2 = 0.380797, c2 = 0.731059 c1 = 0.278385, and h = tanh(c) / 2 of each. Over n steps after the
    first, c fades as 0.731059^n."""
    held = {"inner": {"kernel": jnp.array([[0.0, 0.0, 1.0, 0.0]])}, "recurrent": {"kernel": jnp.zeros((1, 4))}}
    params = {"params": held | {"bias": jnp.array([0.0, 1.0, 0.0, 0.0])}}
    projected: Any = LSTM(1).apply(params, jnp.array([[1.0], [0.0], [0.0]]), method="project")
    step = lambda carry, now: LSTM(1).apply(params, carry, now, method="step")  # noqa: E731
    episode_start = jnp.zeros((3, 1), bool)
    memory, outputs = through_time(step, (jnp.zeros((1, 1)), jnp.zeros((1, 1))), projected[:, None], episode_start)
    np.testing.assert_allclose(memory[0].reshape(-1), [0.380797, 0.278385, 0.203516], rtol=1e-5)
    np.testing.assert_allclose(memory[1].reshape(-1), [0.181706, 0.135713, 0.100376], rtol=1e-4)
    np.testing.assert_array_equal(memory[1], outputs)


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_gradients_of_a_sequence_are_those_of_its_steps(memory: str) -> None:
    """Through a new start, too: it cuts them off."""
    policy = policy_with(memory)
    params = policy.init(jax.random.key(0))
    carry = jax.tree.map(lambda leaf: random(leaf.shape, 7), policy.initial_carry(2))
    obs, weights = random((4, 2, 3)), random((4, 2, 4), 5)

    def at_once(params: Any, carry: Any, obs: Any) -> jax.Array:
        _, outputs, values = policy.unroll(params, None, carry, obs, EPISODE_START)
        return (weights * outputs).sum() + jnp.square(values).sum()

    def in_steps(params: Any, carry: Any, obs: Any) -> jax.Array:
        _, outputs, values = by_steps(policy, params, carry, obs, EPISODE_START)
        return (weights * outputs).sum() + jnp.square(values).sum()

    slopes = (jax.jit(jax.grad(of, argnums=(0, 1, 2))) for of in (at_once, in_steps))
    found, expected = (slope(params, carry, obs) for slope in slopes)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    of_carry = jax.tree.leaves(found[1]["actor"])
    assert all(not leaf[1].any() and leaf[0].any() for leaf in of_carry)  # lane 1 starts again at once


@pytest.mark.parametrize(("cell", "num"), [(GRU, 3), (LSTM, 4)])
def test_each_gate_starts_orthogonal(cell: Any, num: int) -> None:
    """With a gain of 1 for what is remembered, and of 2 for what is seen."""
    params = cell(4).init(jax.random.key(0), jnp.zeros((1, 4)))["params"]
    for part, square in (("recurrent", 1.0), ("inner", 4.0)):
        for gate in jnp.split(params[part]["kernel"], num, axis=-1):
            np.testing.assert_allclose(gate @ gate.T, square * np.eye(4), atol=1e-5)


def test_units_forget_over_times_from_2_to_128_steps() -> None:
    """A gate that starts at sigmoid(b) keeps something for 1 / (1 - that) = 1 + e^b steps. With b uniform on
    0 .. log 127 their mean is 1 + 126 / log 127 = 27.0, half are below 1 + sqrt(127) = 12.3, and a quarter below
    1 + 127^(1/4) = 4.36."""
    bias = np.asarray(lasting(jax.random.key(3), 4_000), np.float64)
    time = 1 / (1 - 1 / (1 + np.exp(-bias)))
    assert 2 <= time.min() < 2.01
    assert 127 < time.max() <= 128 + 1e-4
    assert time.mean() == pytest.approx(27.0, abs=1.5)
    assert np.quantile(time, 0.5) == pytest.approx(12.3, abs=1)
    assert np.quantile(time, 0.25) == pytest.approx(4.36, abs=0.3)
    np.testing.assert_array_equal(bias, lasting(jax.random.key(3), 4_000))


@pytest.mark.slow
def test_the_gate_that_keeps_starts_with_these_times() -> None:
    """Of a GRU the second gate of three; of an LSTM the second of four, and the first, which takes in, the opposite."""
    x = jnp.zeros((1, 4))
    gru, other = (GRU(8).init(jax.random.key(seed), x)["params"]["inner"]["bias"].reshape(3, 8) for seed in (0, 1))
    lstm = LSTM(8).init(jax.random.key(0), x)["params"]["bias"].reshape(4, 8)
    for keep in (gru[1], lstm[1]):
        assert ((keep >= 0) & (keep <= np.log(127) + 1e-6)).all()
        assert len(set(keep.tolist())) == 8
    assert (gru[1] != other[1]).all()
    assert not gru[0].any()
    assert not gru[2].any()
    np.testing.assert_array_equal(lstm[0], -lstm[1])
    assert not lstm[2:].any()


@pytest.mark.parametrize(("cell", "kind"), [(GRU, "gru"), (LSTM, "lstm")])
def test_a_gate_s_share_is_kept_at_each_step(cell: Any, kind: str) -> None:
    """The gate in place of the biases above is the one that keeps: at log 3 it leaves 3/4 of what was remembered, and
    takes in 1/4 of what is new, which is tanh(0) = 0."""
    params = jax.tree.map(jnp.zeros_like, cell(1).init(jax.random.key(0), jnp.zeros((1, 1)))["params"])
    if kind == "gru":
        params["inner"]["bias"] = jnp.array([0.0, np.log(3.0), 0.0], jnp.float32)
    else:
        params["bias"] = jnp.array([-np.log(3.0), np.log(3.0), 0.0, 0.0], jnp.float32)
    projected = cell(1).apply({"params": params}, jnp.zeros((1, 1)), method="project")
    carry = cell(1).start(1)
    carry, _ = cell(1).apply({"params": params}, (jnp.ones((1, 1)), *carry[1:]), projected, method="step")
    np.testing.assert_allclose(carry[0], [[0.75]], rtol=1e-6)


# Through time


EPISODE_START = jnp.array([[False, True], [False, False], [True, False], [False, True]])


def by_steps(
    policy: Policy, params: Any, carry: Any, obs: Any, episode_start: jax.Array
) -> tuple[Any, jax.Array, jax.Array]:
    """One step after the other, as in collection."""
    step = jax.jit(lambda params, carry, obs: policy.act_and_value(params, None, carry, obs))
    outputs, values = [], []
    for t in range(len(episode_start)):
        carry = forget(carry, episode_start[t])
        carry, output, value = step(params, carry, obs[t])
        outputs.append(output)
        values.append(value)
    return carry, jnp.stack(outputs), jnp.stack(values)


@pytest.mark.slow
@MEMORIES_AND_TORSOS
def test_a_sequence_at_once_is_one_step_after_the_other(memory: str, torso: str) -> None:
    policy = policy_with(memory, torso=torso)
    params = policy.init(jax.random.key(0))
    carry = jax.tree.map(lambda leaf: random(leaf.shape, 7), policy.initial_carry(2))
    obs = random((4, 2, 3))
    memories, outputs, values = policy.unroll(params, None, carry, obs, EPISODE_START)
    last, expected_outputs, expected_values = by_steps(policy, params, carry, obs, EPISODE_START)
    np.testing.assert_allclose(outputs, expected_outputs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(values, expected_values, rtol=1e-5, atol=1e-6)
    for found, expected in zip(jax.tree.leaves(memories), jax.tree.leaves(last), strict=True):
        np.testing.assert_allclose(found[-1], expected, rtol=1e-5, atol=1e-6)
    assert policy.recurrent
    assert not policy_with("none").recurrent


@pytest.mark.slow
def test_a_fresh_start_forgets_everything_before() -> None:
    policy = policy_with("lstm")
    params = policy.init(jax.random.key(0))
    obs = random((4, 2, 3))
    for seed in (1, 2):
        other = jax.tree.map(lambda leaf, seed=seed: random(leaf.shape, seed), policy.initial_carry(2))
        outputs = policy.unroll(params, None, other, obs, EPISODE_START)[1]
        if seed == 1:
            first = outputs
    np.testing.assert_array_equal(first[:, 1], outputs[:, 1])  # lane 1 starts again at once
    assert not np.allclose(first[0, 0], outputs[0, 0])
    np.testing.assert_array_equal(first[2:, 0], outputs[2:, 0])  # lane 0 from its third step on


def test_a_network_without_an_unroll_of_its_own_goes_step_by_step() -> None:
    """carry' = carry + x, output = carry': running sums."""
    sums = Network(lambda key, x: ((), (x,)), lambda params, carry, x: ((carry[0] + x,), carry[0] + x))
    inputs = jnp.arange(1.0, 9.0).reshape(4, 2, 1)
    memory, outputs = unrolled(sums, (), (jnp.array([[10.0], [20.0]]),), inputs, EPISODE_START)
    assert outputs[..., 0].tolist() == [[11.0, 2.0], [14.0, 6.0], [5.0, 12.0], [12.0, 8.0]]
    np.testing.assert_array_equal(memory[0], outputs)


def test_sequences_are_pieces_of_lanes_in_time_order() -> None:
    """Four steps, two lanes, pieces of two: samples are numbered 10 * step + lane."""
    numbers = jnp.array([[10 * t + lane for lane in range(2)] for t in range(4)]).reshape(-1)
    flags = numbers > 15
    floats = numbers.astype(jnp.float32)
    samples = Samples(numbers, None, numbers, floats, floats, floats, floats, flags, flags, (floats[:, None],))
    pieces = in_sequences(samples, 2, 2)
    assert pieces.obs.tolist() == [[0, 10], [1, 11], [20, 30], [21, 31]]
    assert pieces.carry[0].tolist() == [[0.0], [1.0], [20.0], [21.0]]
    assert pieces.valid.tolist() == [[False, False], [False, False], [True, True], [True, True]]


SMALL: dict[str, Any] = probes.PLAIN | dict(
    num_envs=4, rollout_length=8, epochs_per_update=1, minibatch_size=32, hidden_sizes=[8], preset=False
)


def collected(trainer: PPOTrainer) -> tuple[Any, Any, Any]:
    """A rollout of the trainer's environment, and what the networks make of it."""
    program, policy = trainer.program, trainer.agent.policy
    state, _ = program.run(program.init(trainer._given()), 2)
    rollout = program.collect(state).groups[ONE]

    @jax.jit
    def seen(learner: Any, lanes: Any, rollout: Any) -> Any:
        return training_samples(learner, lanes, rollout, None, rollout.reward, policy, trainer.config)

    return state, rollout, seen(state.train.groups[ONE], state.lanes[ONE], rollout)


@pytest.mark.slow
@MEMORIES_AND_TORSOS
def test_the_rollout_is_seen_again_as_it_was_acted_on(memory: str, torso: str) -> None:
    """The actions follow from the same noise and what is computed afterwards, through ends of episodes."""
    trainer = PPOTrainer(probes.LongRecall(), memory=memory, torso=torso, **SMALL)
    state, rollout, (samples, _) = collected(trainer)
    assert rollout.ended.any()
    policy = trainer.agent.policy
    episode_start = samples.episode_start.reshape(8, 4)
    start = {"actor": rollout.carry, "critic": state.lanes[ONE].critic_carry}
    unroll = jax.jit(lambda *given: policy.unroll(given[0], None, *given[1:])[1])
    outputs = unroll(state.train.groups[ONE].params, start, rollout.obs, episode_start)
    noise = policy.distribution.noise(jax.random.fold_in(state.train.keys.action, state.train.update), (8, 4))
    np.testing.assert_array_equal(policy.distribution.sample(outputs, noise, None), rollout.action)
    expected = policy.distribution.log_prob(outputs, rollout.action, None)
    np.testing.assert_allclose(samples.log_prob.reshape(8, 4), expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("length", [None, 2, 8])
def test_the_first_pass_finds_the_policy_unchanged(length: int | None) -> None:
    """Whatever the length of sequences: each starts from what was remembered then, so the ratio is 1."""
    trainer = PPOTrainer(probes.LongRecall(), memory="gru", sequence_length=length, **SMALL)
    program = trainer.program
    _, reports = program.run(program.init(trainer._given()), 3)
    for report in reports:
        assert report.metrics["ppo/approx_kl"] == pytest.approx(0, abs=1e-9)
        assert report.metrics["ppo/clip_fraction"] == 0


class Cut(probes.Probe):
    """Shows the cue, then nothing; cut after three steps, never terminated. What it pays is the cue: the value of the
    last observation can be known only from memory."""

    name = "cut"

    def observe(self, clock: jax.Array, cue: jax.Array) -> jax.Array:
        return jnp.where(clock == 0, cue, 0.0)[None]

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        clock, cue = state
        moved = Transition(obs=self.observe(clock + 1, cue), reward=cue, truncated=clock == 2)
        return (clock + 1, cue), moved


@pytest.mark.slow
@pytest.mark.parametrize("torso", ["separate", "shared"])
def test_a_cut_episode_is_valued_with_what_was_remembered_of_it(torso: str) -> None:
    trainer = PPOTrainer(Cut(), memory="gru", torso=torso, **SMALL)
    state, rollout, (samples, carry) = collected(trainer)
    policy, params = trainer.agent.policy, state.train.groups[ONE].params
    # By hand: step by step, the critic alone, with a look at the final observation where it was cut.
    judge = jax.jit(lambda memory, obs: policy.value(params, None, memory, obs))
    memory, values, finals = state.lanes[ONE].critic_carry, [], []
    for t in range(8):
        memory, value = judge(memory, rollout.obs[t])
        values.append(value)
        finals.append(judge(memory, rollout.final_obs[t])[1])
        memory = forget(memory, rollout.ended[t])
    last = judge(memory, rollout.last_obs)[1]
    for found, expected in zip(jax.tree.leaves(carry), jax.tree.leaves(memory), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    following = jnp.concatenate([jnp.stack(values)[1:], last[None]])
    following = jnp.where(rollout.truncated, jnp.stack(finals), following)
    gamma, decay = trainer.config.ppo.gamma, trainer.config.ppo.gae_lambda
    advantage, expected = jnp.zeros(4), []
    for t in reversed(range(8)):
        delta = rollout.reward[t] + gamma * following[t] - values[t]
        advantage = delta + gamma * decay * jnp.where(rollout.ended[t], 0.0, advantage)
        expected.append(advantage)
    assert rollout.truncated.any()
    np.testing.assert_allclose(samples.advantage.reshape(8, 4), jnp.stack(expected[::-1]), rtol=1e-4, atol=1e-5)


# Settings


def test_sequences_must_divide_rollout_and_minibatch() -> None:
    with pytest.raises(UserError, match=r"sequence_length=3 does not divide ppo.rollout_length=128.*is 64\."):
        settings.build({"ppo.sequence_length": 3, "ppo.minibatch_size": 64})
    with pytest.raises(UserError, match=r"sequence_length=128 does not divide ppo.minibatch_size=64"):
        settings.build({"ppo.sequence_length": 128, "ppo.minibatch_size": 64})


def sizes(
    num_envs: int = 8,
    rollout_length: int = 128,
    minibatch_size: int | str = "auto",
    sequence_length: int | str | None = None,
    memory: str = "gru",
) -> tuple[int, int]:
    ppo = {"rollout_length": rollout_length, "minibatch_size": minibatch_size, "sequence_length": sequence_length}
    given = {"env.num_envs": num_envs, "network.memory": memory} | {f"ppo.{name}": size for name, size in ppo.items()}
    config = settings.build(given)
    return config.minibatch_size, config.sequence_length


def test_with_memory_a_minibatch_is_a_quarter_of_the_update() -> None:
    assert sizes()[0] == 256
    assert sizes(num_envs=16)[0] == 512
    assert sizes(num_envs=1, rollout_length=2048)[0] == 512
    assert sizes(num_envs=3, rollout_length=10)[0] == 10  # 30 samples: a third, since four do not divide them
    assert sizes(num_envs=6, sequence_length=128)[0] == 256  # six sequences: three minibatches of two
    assert sizes(minibatch_size=64)[0] == 64
    assert sizes(num_envs=32, memory="none")[0] == 256


def test_a_sequence_is_as_long_as_leaves_four_in_a_minibatch() -> None:
    assert sizes(num_envs=16)[1] == 128  # four whole rollouts
    assert sizes()[1] == 64  # halves: two whole ones would be too few
    assert sizes(num_envs=1, rollout_length=2048)[1] == 128
    assert sizes(minibatch_size=64)[1] == 16
    assert sizes(minibatch_size=1024)[1] == 128
    assert sizes(num_envs=3, rollout_length=10)[1] == 5  # 10 samples: fourths and thirds of 10 are not whole, so halves
    assert sizes(rollout_length=127)[1] == 127  # a prime number: two whole ones, rather than pieces of one step
    assert sizes(minibatch_size=64, sequence_length=32) == (64, 32)
    assert sizes(num_envs=2, rollout_length=1, minibatch_size=2) == (2, 1)


def test_sequences_without_memory_are_refused() -> None:
    with pytest.raises(UserError, match="has no effect on networks without memory"):
        PPOTrainer(probes.LongRecall(), sequence_length=4, **SMALL)


# Acting


@pytest.mark.slow
def test_an_agent_remembers_from_call_to_call_until_it_is_reset() -> None:
    config = settings.build({"network.memory": "gru", "network.memory_size": 8})
    agent = PPOAgent(BOX, FOUR, config)
    obs = np.asarray(random((5, 2, 3)))
    policy, carry, expected = agent.policy, agent.policy.initial_carry(2), []
    for t in range(5):
        if t == 3:
            carry = forget(carry, jnp.array([False, True]))
        carry, _, value = policy.act_and_value(agent.params, None, carry, obs[t])
        expected.append(value)
    found = []
    for t in range(5):
        if t == 3:
            agent.reset([False, True])
        found.append(agent.value(obs[t]))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    agent.reset()
    np.testing.assert_allclose(agent.value(obs[0]), expected[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match="each of the 2 rows of the batch, not for 3"):
        agent.reset([True, False, True])
    single = agent.value(obs[0, 0])
    assert single == pytest.approx(float(expected[0][0]), abs=1e-5)


@pytest.mark.slow
@MEMORIES_AND_TORSOS
def test_saved_agents_remember_alike(tmp_path: Path, memory: str, torso: str) -> None:
    config = settings.build({"network.memory": memory, "network.memory_size": 8, "network.torso": torso})
    agent = PPOAgent(BOX, FOUR, config)
    loaded = PPOAgent.load(agent.save(tmp_path / "agent"))
    actor = PPOAgent.load(agent.save_policy_net(tmp_path / "actor"))
    for obs in np.asarray(random((4, 2, 3))):
        assert agent.act(obs).tolist() == loaded.act(obs).tolist() == actor.act(obs).tolist()
        np.testing.assert_array_equal(agent.value(obs), loaded.value(obs))


# Learning


FAST = probes.PLAIN | dict(
    num_envs=16,
    rollout_length=20,
    minibatch_size=160,
    epochs_per_update=4,
    learning_rate=3e-3,
    gamma=0.9,
    hidden_sizes=[32],
    memory_size=32,
    eval_frequency=0,
    eval_episodes=100,
    total_timesteps=60_000,
    preset=False,
)


class HostRecall(gymnasium.Env[Any, Any]):
    """`LongRecall` as a Gymnasium environment."""

    observation_space, action_space = probes.UNIT, spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.clock, self.cue = 0, float(self.np_random.choice([-1.0, 1.0]))
        return np.array([self.cue], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.clock += 1
        last = self.clock == probes.LongRecall.length
        return np.zeros(1, np.float32), float(last and (action == 1) == (self.cue > 0)), last, False, {}


def score(env: Any, tmp_path: Path, **given: Any) -> float:
    return float(PPOTrainer(env, out=tmp_path / "run", **(FAST | given)).train()["final_eval"]["return_mean"])


# In `make test`, `test_recall.py` has what is recalled in a compiled environment.


@pytest.mark.learning
@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_what_was_seen_is_recalled_in_a_compiled_environment(tmp_path: Path, memory: str) -> None:
    assert score(probes.LongRecall(), tmp_path, memory=memory) == 1.0


@pytest.mark.learning
@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_what_was_seen_is_recalled_in_a_host_environment(tmp_path: Path, memory: str) -> None:
    assert score(HostRecall, tmp_path, memory=memory, workers=0) == 1.0


@pytest.mark.learning
def test_without_memory_it_cannot_be(tmp_path: Path) -> None:
    assert score(probes.LongRecall(), tmp_path) < 0.7


@pytest.mark.learning
@pytest.mark.parametrize("torso", ["separate", "shared"])
def test_memory_masks_dictionaries_and_hybrid_actions_together(tmp_path: Path, torso: str) -> None:
    """3 is the best, 1.75 what is possible without memory: the switch, the better half of choices, half the dial."""
    given = {"memory": "gru", "torso": torso, "embed": 4, "total_timesteps": 150_000, "entropy_coef": 0.001}
    assert score(probes.Everything(), tmp_path, **given) > 2.6


@pytest.mark.slow
@pytest.mark.parametrize("make_env", [probes.LongRecall, HostRecall], ids=["compiled", "host"])
def test_a_run_with_memory_resumes_to_the_same_bits(tmp_path: Path, make_env: Callable[[], Any]) -> None:
    given = FAST | {"memory": "lstm", "total_timesteps": 80 * 12, "every_steps": 80, "eval_frequency": 5}
    given |= {"num_envs": 8, "rollout_length": 10, "minibatch_size": 40, "hidden_sizes": [8], "memory_size": 8}
    given |= {"eval_episodes": 5, "groups": 1, "workers": 0}
    whole = PPOTrainer(make_env(), out=tmp_path / "whole", **given)
    whole.train()
    part = PPOTrainer(make_env(), out=tmp_path / "part", **given)
    part.train(lambda metrics: metrics["update"] < 7)
    assert PPOTrainer.resume(tmp_path / "part", make_env(), steps=80 * 5).train()["updates"] == 12
    files = [tmp_path / name / "models" / "final_actor.safetensors" for name in ("whole", "part")]
    saved = [PPOAgent.load(file) for file in files]
    for one, other in zip(*(jax.tree.leaves(agent.params) for agent in saved), strict=True):
        np.testing.assert_array_equal(one, other)


class WithoutVelocities(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole that shows where the cart and the pole are, and not how fast they move."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        whole = self.env.observation_space
        assert isinstance(whole, spaces.Box)
        self.observation_space = spaces.Box(whole.low[[0, 2]], whole.high[[0, 2]], dtype=np.float32)

    def observation(self, obs: Any) -> Any:
        return obs[[0, 2]]


class CompiledWithoutVelocities:
    """The same in JAX."""

    def __init__(self) -> None:
        self.env = jax_env("gymnax/CartPole-v1")
        self.spec = dataclasses.replace(
            self.env.spec, id="CartPole without velocities", observation_space=WithoutVelocities().observation_space
        )

    def reset(self, key: jax.Array) -> tuple[Any, Transition]:
        state, first = self.env.reset(key)
        return state, dataclasses.replace(first, obs=first.obs[jnp.array([0, 2])])

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        state, moved = self.env.step(key, state, action)
        final = None if moved.final_obs is None else moved.final_obs[jnp.array([0, 2])]
        return state, dataclasses.replace(moved, obs=moved.obs[jnp.array([0, 2])], final_obs=final)


CARTPOLE = dict(
    num_envs=16,
    rollout_length=64,
    minibatch_size=256,
    epochs_per_update=10,
    learning_rate=1e-3,
    learning_rate_schedule="linear",
    gamma=0.98,
    gae_lambda=0.9,
    entropy_coef=0.0,
    hidden_sizes=[64],
    normalize_observations=True,
    normalize_rewards=False,
    eval_frequency=0,
    eval_episodes=50,
    total_timesteps=300_000,
    preset=False,
)


@pytest.mark.learning
@pytest.mark.parametrize("make_env", [CompiledWithoutVelocities, WithoutVelocities], ids=["compiled", "host"])
@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_cartpole_without_velocities(tmp_path: Path, make_env: Callable[[], Any], memory: str) -> None:
    assert score(make_env(), tmp_path, **CARTPOLE, memory=memory) >= 400


@pytest.mark.learning
def test_cartpole_without_velocities_needs_memory(tmp_path: Path) -> None:
    assert score(CompiledWithoutVelocities(), tmp_path, **CARTPOLE) < 200
