"""Stacked observations: right at the start, at the end and across resets, for both kinds of environment."""

import os
import signal

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import host_probes
import probes
from killed import SETTINGS, assert_same_run
from proximo import FrameStacker, PPOAgent, PPOTrainer, settings
from proximo.collect.compiled import collect, initial_collect_state
from proximo.collect.host import HostCollector
from proximo.config import EnvConfig
from proximo.envs import make, stacked
from proximo.envs.api import EnvSpec, Timestep
from proximo.envs.compiled.lanes import Lanes
from proximo.envs.host.codec import encode
from proximo.envs.stack import StackedDrawing, StackedLanes, Stacking
from proximo.errors import UserError
from proximo.ppo.update import initial_train_state
from proximo.spaces import leaves, pick
from proximo.trace import trace

NUM = 3
STEPS, LANES = 24, 6

SPACES = [
    (spaces.Box(-1.0, 2.0, (2,)), spaces.Box(-1.0, 2.0, (6,))),
    (spaces.Box(-1.0, 2.0, (), np.float64), spaces.Box(-1.0, 2.0, (3,), np.float64)),
    (spaces.Box(0, 9, (4, 2), np.int16), spaces.Box(0, 9, (4, 6), np.int16)),
    (spaces.Box(0, 255, (20, 30, 1), np.uint8), spaces.Box(0, 255, (20, 30, 3), np.uint8)),
    (spaces.Box(0, 255, (1, 20, 30), np.uint8), spaces.Box(0, 255, (3, 20, 30), np.uint8)),
    (spaces.Discrete(4, start=-1), spaces.MultiDiscrete([4, 4, 4], start=[-1, -1, -1])),
    (spaces.MultiDiscrete([2, 5], start=[1, 0]), spaces.MultiDiscrete([2, 5] * 3, start=[1, 0] * 3)),
    (spaces.MultiBinary([2, 2]), spaces.MultiBinary([2, 6])),
    (
        spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Tuple([spaces.Box(0.0, 1.0, (1,))]))]),
        spaces.Dict([("b", spaces.MultiDiscrete([2, 2, 2])), ("a", spaces.Tuple([spaces.Box(0.0, 1.0, (3,))]))]),
    ),
]


@pytest.mark.parametrize(("one", "three"), SPACES, ids=str)
def test_stacks_are_members_of_the_stacked_space(one, three):
    found = Stacking(one, NUM).stacked_space()
    assert found == three
    assert [path for path, _ in leaves(found)] == [path for path, _ in leaves(one)]
    one.seed(0)
    frames = FrameStacker(one, NUM)
    for stack in (frames.reset(one.sample()), frames.step(one.sample()), frames.step(one.sample())):
        assert three.contains(stack)


def test_frames_are_in_order_and_begin_with_the_first():
    image = FrameStacker(spaces.Box(0, 255, (2, 20, 20), np.uint8), NUM)
    frame = lambda number: np.full((2, 20, 20), number, np.uint8)  # noqa: E731
    assert image.reset(frame(1))[:, 0, 0].tolist() == [1] * 6
    assert image.step(frame(2))[:, 0, 0].tolist() == [1, 1, 1, 1, 2, 2]
    assert image.step(frame(3))[:, 0, 0].tolist() == [1, 1, 2, 2, 3, 3]
    assert image.step(frame(4))[:, 0, 0].tolist() == [2, 2, 3, 3, 4, 4]
    assert image.reset(frame(9))[:, 0, 0].tolist() == [9] * 6
    pair = FrameStacker(spaces.Box(-9, 9, (2,)), 2)
    pair.reset(np.array([1, -1]))
    assert pair.step(np.array([2, -2])).tolist() == [1, -1, 2, -2]


@pytest.mark.parametrize(("shape", "num"), [((3, 20, 20), 8), ((16, 20, 3), 7), ((2, 20, 1), 20)])
def test_stacks_whose_channels_could_not_be_found_are_refused(shape, num):
    with pytest.raises(UserError, match="stack fewer, or in a wrapper of your own"):
        Stacking(spaces.Box(0, 1, shape), num).stacked_space()


def test_one_observation_is_no_stack():
    source = make(host_probes.Walk)
    assert stacked(source, 1) is source


# Collection: the second number of a walk's observation is its clock, so that what a stack must hold is known.


def config(**keywords):
    small = dict(rollout_length=STEPS, num_envs=LANES, minibatch_size=STEPS * LANES, hidden_sizes=[8], workers=0)
    return settings.build(settings.from_keywords(small | {"frame_stack": NUM, "torso": "shared"} | keywords))


def assert_clocks(obs):
    """Three walks' clocks: the newest last, never from before the start."""
    clocks = np.asarray(obs)[..., 1::2]
    expected = np.maximum(clocks[..., -1:] - np.array([2, 1, 0]), 0)
    np.testing.assert_array_equal(clocks, expected)
    # Positions at the start are known, and those of two equal clocks are equal.
    positions = np.asarray(obs)[..., ::2]
    assert (positions[clocks == 0] == host_probes.START).all()
    return clocks[..., -1]


class ResettingWalk(host_probes.CompiledWalk):
    """Resets itself in the step that ends an episode, and says what it saw last."""

    def step(self, key, state, action):
        state, moved = super().step(key, state, action)
        ended = moved.terminated | moved.truncated
        fresh, first = self.reset(key)
        pick_ = lambda new, old: jnp.where(ended, new, old)  # noqa: E731
        shown = jax.tree.map(pick_, (first.obs, first.action_mask), (moved.obs, moved.action_mask))
        state = jax.tree.map(pick_, fresh, state)
        return state, moved.replace(obs=shown[0], action_mask=shown[1], final_obs=moved.obs)


@pytest.mark.slow
def test_compiled_and_host_environments_are_stacked_alike():
    chosen = config(groups=2)
    source = stacked(make(host_probes.Walk), NUM)
    agent = PPOAgent(source.spec.observation_space, source.spec.action_space, chosen)
    train = initial_train_state(agent.params, agent.obs_stats, chosen)
    env = source.lanes(LANES, chosen.env)
    collector = HostCollector(env, agent.policy, chosen)
    host = collector.collect(train, collector.start(0), bool).rollout
    env.close()
    assert host.truncated.any()
    assert host.terminated.any()
    for walk in (host_probes.CompiledWalk(), ResettingWalk()):
        lanes = Lanes(stacked(walk, NUM), LANES)
        start = initial_collect_state(lanes, agent.policy, chosen)
        step = jax.jit(lambda train, start, lanes=lanes: collect(train, start, lanes, agent.policy, chosen)[1])
        compiled = step(train, start)
        for name in ("obs", "action_mask", "action", "reward", "terminated", "truncated", "last_obs"):
            np.testing.assert_array_equal(getattr(host, name), getattr(compiled, name), err_msg=name)
        np.testing.assert_array_equal(host.final_obs[host.truncated], compiled.final_obs[host.truncated])
    assert host.action_mask.shape == (STEPS, LANES, 2)
    clocks = assert_clocks(host.obs)
    assert set(clocks.reshape(-1).tolist()) == set(range(host_probes.LIMIT))
    assert (assert_clocks(host.final_obs[host.truncated]) == host_probes.LIMIT).all()
    assert_clocks(host.last_obs)


class Scripted:
    """A `HostEnv` of one lane that reports what it is told to."""

    spec = EnvSpec("Scripted", spaces.Box(-np.inf, np.inf, (1,), np.float32), spaces.Discrete(2))
    num_lanes, batches = 1, ((slice(0, 1),),)

    def __init__(self, *reports):
        self.notices, self.reports = [], iter(reports)

    def reset(self, seed):
        return self.report(0.0)

    def recv(self, batch):
        return self.report(*next(self.reports))

    def report(self, obs, terminated=False, truncated=False, valid=True, final=None):
        array = lambda value: np.array([[value]], np.float32)  # noqa: E731
        flags = (np.array([flag]) for flag in (terminated, truncated, valid))
        terminated, truncated, valid = flags
        final_obs = array(obs if final is None else final)
        return Timestep(array(obs), None, np.zeros(1, np.float32), terminated, truncated, final_obs, valid, None)


def test_episodes_that_follow_another_in_a_filler_step_start_anew():
    """EnvPool resets in the step after an end; an environment that failed is started anew."""
    env = StackedLanes(
        Scripted(
            (1.0,), (2.0, False, True), (5.0, False, False, False), (6.0,), (9.0, False, True, False, 9.0), (10.0,)
        ),
        Stacking(Scripted.spec.observation_space, NUM),
    )
    assert env.reset(0).obs.tolist() == [[0, 0, 0]]
    found = []
    for _ in range(6):
        moved = env.recv(0)
        found.append((moved.obs[0].tolist(), moved.final_obs[0].tolist() if moved.truncated[0] else None))
    assert found == [
        ([0, 0, 1], None),
        ([2, 2, 2], [0, 1, 2]),  # what is shown here is not acted on
        ([5, 5, 5], None),
        ([5, 5, 6], None),
        ([9, 9, 9], [5, 6, 9]),
        ([9, 9, 10], None),
    ]


# Nothing of it is lost


def test_lanes_are_put_back_with_what_they_saw():
    source = stacked(make("CartPole-v1"), NUM)
    chosen = EnvConfig(num_envs=2, workers=0)
    one, other = source.lanes(2, chosen), source.lanes(2, chosen)
    one.reset(0)
    other.reset(7)
    for _ in range(2):
        one.send(0, np.array([1, 0]))
        before = np.copy(one.recv(0).obs)
    states = one.get_states()
    assert other.set_states(states)
    for env in (one, other):
        env.send(0, np.array([1, 1]))
    after, again = one.recv(0).obs, other.recv(0).obs
    np.testing.assert_array_equal(after, again)
    np.testing.assert_array_equal(after[:, :8], before[:, 4:])
    bad = [b"", states[0][:-1], encode("teapot"), encode([b"", b""]), encode([b"", b"1", b"2"]), encode({"a": 1})]
    for state in bad:
        assert not other.set_states([states[0], state])
    assert "cannot be restored" in other.notices[-1]
    one.close()
    other.close()


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", pytest.param("gymnax/CartPole-v1", marks=pytest.mark.learning)])
def test_an_interrupted_run_with_stacks_ends_with_the_same_bits(env, tmp_path):
    small = SETTINGS | {
        "total_timesteps": 64 * 8,
        "eval_frequency": 5,
        "frame_stack": NUM,
        "torso": "shared",
        "workers": 0,
    }

    def trainer(path):
        return PPOTrainer(env, out=path, preset=False, console=probes.Notes(), **small)

    def interrupt(metrics):
        if metrics["update"] == 4:
            os.kill(os.getpid(), signal.SIGINT)

    trainer(tmp_path / "whole").train()
    assert trainer(tmp_path / "cut").train(callback=probes.EachUpdate(interrupt))["updates"] == 4
    resumed = PPOTrainer.resume(tmp_path / "cut", console=probes.Notes()).train()
    assert resumed["resumed"] == [{"step": 256, "exact": True}]
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


# What else plays episodes


@pytest.mark.parametrize("walk", [host_probes.Walk, host_probes.CompiledWalk()], ids=["host", "compiled"])
def test_traces_and_policies_outside_see_the_same(walk):
    """A deterministic walk, made once by the library and once by hand: the same actions, the same rewards."""
    source = stacked(make(walk), NUM)
    chosen = config(seed=3)
    agent = PPOAgent(source.spec.observation_space, source.spec.action_space, chosen)
    agent.params = jax.tree.map(lambda leaf: 30 * leaf, agent.params)  # so that the stack matters
    made = trace(source, agent, chosen.env, 0)
    env = host_probes.Walk()
    frames = FrameStacker(env.observation_space, agent.config.env.frame_stack)
    obs, info = env.reset()
    seen, rewards, ended = frames.reset(obs), [], False
    while not ended:
        obs, reward, terminated, truncated, info = env.step(agent.act(seen, action_mask=info["action_mask"]))
        seen, ended = frames.step(obs), terminated or truncated
        rewards.append(reward)
    assert made["reward"] == rewards


def test_a_filmed_environment_keeps_its_mask():
    source = stacked(make(host_probes.Hybrid), NUM)
    env = StackedDrawing(host_probes.Hybrid(), FrameStacker(make(host_probes.Hybrid).spec.observation_space, NUM))
    obs, _ = env.reset(seed=0)
    assert obs["action_mask"].tolist() == [1, 0, 1, 1, 1]
    assert obs["grid"].shape == (5, 5, 9)
    assert obs["inner"]["count"].shape == (3,)
    known = {path for path, _ in leaves(source.spec.observation_space)}
    assert known == {("grid",), ("inner", "count"), ("pair", 0), ("pair", 1)}
    assert all(pick(obs, path).shape == leaf.shape for path, leaf in leaves(source.spec.observation_space))
    assert env.step({"move": 1, "push": np.zeros(2), "talk": 1})[2]


class Drawn(host_probes.Walk):
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def render(self):
        return np.full((4, 4, 3), self.clock, np.uint8)


def test_what_draws_is_stacked_too():
    source = stacked(make(Drawn), NUM)
    env = source.rendering()
    assert env.reset(seed=0)[0].shape == (6,)
    assert env.step(1)[0][1::2].tolist() == [0, 0, 1]
    assert env.render().max() == 1
    compiled = host_probes.CompiledWalk()
    assert not hasattr(stacked(compiled, NUM), "render")
    compiled.render = lambda state: state[1]
    drawn = stacked(compiled, NUM)
    assert drawn.render(drawn.reset(jax.random.key(0))[0]) == 0


def test_nonsense_in_a_file_stacks_nothing():
    with pytest.raises(UserError, match=r"env\.frame_stack must be at most 64"):
        settings.build(settings.from_mapping({"env": {"frame_stack": 10**9}}, "it"))


def test_the_stack_is_a_setting_of_the_trainer(tmp_path):
    trainer = PPOTrainer(gymnasium.make("CartPole-v1"), frame_stack=2, out=tmp_path / "run", preset=False)
    assert trainer.agent.policy.observation_space.shape == (8,)
    trainer.close()
