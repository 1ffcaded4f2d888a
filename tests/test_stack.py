"""Stacked observations: right at the start, at the end and across resets, for both kinds of environment."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import host_probes
import probes
import team_probes
import zoo_probes
from killed import SETTINGS, assert_same_run
from made import gymnasium_source
from proximo import FrameStacker, PPOAgent, PPOTrainer, settings
from proximo.config import Config, EnvConfig
from proximo.envs import make
from proximo.envs.api import EnvSpec, LaneStep, Timestep, Transition
from proximo.envs.compiled.vectorize import VectorizedEnv
from proximo.envs.groups import ONE
from proximo.errors import UserError
from proximo.multi_agent.team_agent import make_agents
from proximo.policy.agents import Agents
from proximo.policy.behaviour import Learners, actors, draw_noise
from proximo.rollout.compiled import CompiledRunner, collect
from proximo.rollout.episode_log import episode_log
from proximo.rollout.frame_stack import FrameStack, stacked_space
from proximo.rollout.host import HostRunner, after
from proximo.rollout.host_actor import packed
from proximo.rollout.video import episode_frames
from proximo.spaces import leaves, pick
from proximo.train.checkpoint import load_newest

NUM = 3
STEPS, ENVS = 24, 6

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
def test_stacks_are_members_of_the_stacked_space(one: spaces.Space[Any], three: spaces.Space[Any]) -> None:
    found = stacked_space(one, NUM)
    assert found == three
    assert [path for path, _ in leaves(found)] == [path for path, _ in leaves(one)]
    one.seed(0)
    frames = FrameStacker(one, NUM)
    for stack in (frames.reset(one.sample()), frames.step(one.sample()), frames.step(one.sample())):
        assert three.contains(stack)


def test_frames_are_in_order_and_begin_with_the_first() -> None:
    image = FrameStacker(spaces.Box(0, 255, (2, 20, 20), np.uint8), NUM)

    def frame(number: int) -> np.ndarray:
        return np.full((2, 20, 20), number, np.uint8)

    assert image.reset(frame(1))[:, 0, 0].tolist() == [1] * 6
    assert image.step(frame(2))[:, 0, 0].tolist() == [1, 1, 1, 1, 2, 2]
    assert image.step(frame(3))[:, 0, 0].tolist() == [1, 1, 2, 2, 3, 3]
    assert image.step(frame(4))[:, 0, 0].tolist() == [2, 2, 3, 3, 4, 4]
    assert image.reset(frame(9))[:, 0, 0].tolist() == [9] * 6
    pair = FrameStacker(spaces.Box(-9, 9, (2,)), 2)
    pair.reset(np.array([1, -1]))
    assert pair.step(np.array([2, -2])).tolist() == [1, -1, 2, -2]


@pytest.mark.parametrize(("shape", "num"), [((3, 20, 20), 8), ((16, 20, 3), 7), ((2, 20, 1), 20)])
def test_stacks_whose_channels_could_not_be_found_are_refused(shape: tuple[int, int, int], num: int) -> None:
    with pytest.raises(UserError, match="stack fewer, or in a wrapper of your own"):
        stacked_space(spaces.Box(0, 1, shape), num)


def test_one_observation_is_no_stack() -> None:
    groups = make(host_probes.Walk).spec.groups
    frames = FrameStack(groups, 1)
    assert frames.groups is groups
    obs, final = np.zeros((1, 2)), np.ones((1, 2))
    no = np.zeros(1, bool)
    step = LaneStep(obs, None, np.zeros(1), no, ~no, final, ~no)
    assert frames.first(ONE, obs) is obs
    assert frames.following(ONE, obs, step) == (obs, final)


# Collection: the second number of a walk's observation is its clock, so that what a stack must hold is known.


def config(**keywords: Any) -> Config:
    small = dict(rollout_length=STEPS, num_envs=ENVS, minibatch_size=STEPS * ENVS, hidden_sizes=[8], workers=0)
    return settings.build(settings.from_keywords(small | {"frame_stack": NUM, "torso": "shared"} | keywords))


def assert_clocks(obs: Any) -> np.ndarray:
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

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        state, moved = super().step(key, state, action)
        ended = moved.terminated | moved.truncated
        fresh, first = self.reset(key)
        pick_ = lambda new, old: jnp.where(ended, new, old)  # noqa: E731
        shown = jax.tree.map(pick_, (first.obs, first.action_mask), (moved.obs, moved.action_mask))
        state = jax.tree.map(pick_, fresh, state)
        return state, replace(moved, obs=shown[0], action_mask=shown[1], final_obs=moved.obs)


def noise_of(agents: Agents, num_envs: int, steps: int) -> Any:
    return draw_noise(agents.policies, jax.random.key(5), num_envs, (steps,))


def on_host(source: Any, agents: Agents, env: EnvConfig, num_envs: int, steps: int) -> Any:
    """A rollout of the only group, on the host."""
    acting = actors(agents.groups)
    with closing(source.open_envs(num_envs, env)) as pool:
        runner = HostRunner(pool, Learners(agents.policies), steps, acting, NUM)
        state = runner.start(0)
        runner.run(packed(acting), state, noise_of(agents, num_envs, steps), bool)
        (rollout,) = jax.tree.map(np.copy, runner.rollout(state).groups).values()
    return rollout


def inside(env: Any, agents: Agents, num_envs: int, steps: int, max_steps: int | None = None) -> Any:
    """The same of a compiled environment."""
    runner = CompiledRunner(VectorizedEnv(env, num_envs, max_steps), Learners(agents.policies), NUM)
    keys, noise = jax.random.split(jax.random.key(0), steps), noise_of(agents, num_envs, steps)

    @jax.jit
    def run(acting: Any) -> Any:
        return collect(runner, acting, runner.start(jax.random.key(0)), noise, keys, None)[1]

    (rollout,) = run(actors(agents.groups)).groups.values()
    return rollout


@pytest.mark.slow
def test_compiled_and_host_environments_are_stacked_alike() -> None:
    chosen = config(groups=2)
    source = make(host_probes.Walk)
    agents = make_agents(FrameStack(source.spec.groups, NUM).groups, chosen)
    host = on_host(source, agents, chosen.env, ENVS, STEPS)
    assert host.truncated.any()
    assert host.terminated.any()
    for walk in (host_probes.CompiledWalk(), ResettingWalk()):
        compiled = inside(walk, agents, ENVS, STEPS)
        for name in ("obs", "action_mask", "action", "reward", "terminated", "truncated", "last_obs"):
            np.testing.assert_array_equal(getattr(host, name), getattr(compiled, name), err_msg=name)
        np.testing.assert_array_equal(host.final_obs[host.truncated], compiled.final_obs[host.truncated])
    assert host.action_mask.shape == (STEPS, ENVS, 2)
    clocks = assert_clocks(host.obs)
    assert set(clocks.reshape(-1).tolist()) == set(range(host_probes.LIMIT))
    assert (assert_clocks(host.final_obs[host.truncated]) == host_probes.LIMIT).all()
    assert_clocks(host.last_obs)


# Many agents: a_0 is there from step 0 to 3, a_1 from 0 to 6, a_2 from 2 to 5; all see the clock, and 0 while absent.

STACKS = [
    # a_0,      a_1,       a_2
    [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
    [[0, 0, 1], [0, 0, 1], [0, 0, 0]],
    [[0, 1, 2], [0, 1, 2], [2, 2, 2]],  # a_2 has joined, and saw nothing before
    [[0, 0, 0], [1, 2, 3], [2, 2, 3]],  # a_0 has died
    [[0, 0, 0], [2, 3, 4], [2, 3, 4]],
    [[0, 0, 0], [3, 4, 5], [0, 0, 0]],
    [[0, 0, 0], [0, 0, 0], [0, 0, 0]],  # the next episode
    [[0, 0, 1], [0, 0, 1], [0, 0, 0]],
    [[0, 1, 2], [0, 1, 2], [2, 2, 2]],
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compiled", "host"])
def test_each_of_many_agents_sees_its_own_last_observations(kind: str) -> None:
    source = make(team_probes.Lifetimes() if kind == "compiled" else zoo_probes.Lifetimes)
    agents = make_agents(FrameStack(source.spec.groups, NUM).groups, Config())
    assert agents.policies.groups["all"].observation_space == spaces.Box(-1, 100, (3,), np.float32)

    def rollout(limit: int | None) -> Any:
        if kind == "compiled":
            return inside(source, agents, 2, 8, limit)
        return on_host(source, agents, EnvConfig(workers=0, max_steps_per_episode=limit), 2, 8)

    found = rollout(None)
    assert np.asarray(found.obs).reshape(8, 2, 3, 3).tolist() == [[stacks] * 2 for stacks in STACKS[:8]]
    assert np.asarray(found.last_obs).reshape(2, 3, 3).tolist() == [STACKS[8]] * 2
    cut = rollout(4)
    assert np.asarray(cut.obs).reshape(8, 2, 3, 3)[:, 1].tolist() == STACKS[:4] + STACKS[:4]
    # Whoever is there is cut with what it saw last, after the fourth step and the eighth.
    assert np.argwhere(cut.truncated).tolist() == [[t, lane] for t in (3, 7) for lane in (1, 2, 4, 5)]
    assert np.asarray(cut.final_obs)[cut.truncated].tolist() == [[2, 3, 4]] * 8


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compiled", "host"])
def test_whoever_is_not_on_turn_sees_on(kind: str) -> None:
    """Three players see the clock of a game of four moves, of which each makes one or two."""
    source = make(team_probes.Rotation(4) if kind == "compiled" else lambda: zoo_probes.Rotation(4))
    agents = make_agents(FrameStack(source.spec.groups, NUM).groups, Config())
    found = inside(source, agents, 2, 6) if kind == "compiled" else on_host(source, agents, EnvConfig(workers=0), 2, 6)
    assert np.asarray(found.valid)[:, :3].sum(1).tolist() == [1] * 6
    clocks = [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 0], [0, 0, 1]]
    assert np.asarray(found.obs).tolist() == [[stack] * 6 for stack in clocks]
    assert np.asarray(found.last_obs).tolist() == [[0, 1, 2]] * 6


@pytest.mark.slow
@pytest.mark.parametrize("env", [team_probes.Clocks, zoo_probes.Clocks], ids=["compiled", "host"])
def test_many_agents_train_with_stacks(env: Any, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "num_envs": 2,
        "rollout_length": 12,
        "minibatch_size": 12,
        "epochs_per_update": 1,
        "hidden_sizes": [8],
    }
    given |= {"total_timesteps": 48, "eval_episodes": 2, "workers": 0, "frame_stack": NUM, "critic": "central"}
    made = env() if env is team_probes.Clocks else env
    trainer = PPOTrainer(made, out=tmp_path / "run", preset=False, console=probes.Notes(), **given)
    result = trainer.train()
    assert (result["total_steps"], result["final_eval"]["length_mean"]) == (48, 6)


class Scripted:
    """A `HostEnv` of one environment that reports what it is told to."""

    spec = EnvSpec("Scripted", spaces.Box(-np.inf, np.inf, (1,), np.float32), spaces.Discrete(2))
    num_envs, parts = 1, ((slice(0, 1),),)
    info_names: list[str] = []  # noqa: RUF012

    def __init__(self, *reports: Any) -> None:
        self.notices: list[str] = []
        self.reports = iter(reports)

    def reset(self, seed: int, options: dict[str, Any] | None = None) -> Timestep:
        return self.report(0.0)

    def send(self, part: int, action: dict[str, Any]) -> None:
        assert action[ONE].shape == (1,)

    def recv(self, part: int) -> Timestep:
        return self.report(*next(self.reports))

    def get_states(self) -> list[bytes | None]:
        return [None]

    def set_states(self, states: list[bytes]) -> bool:
        return False

    def close(self) -> None:
        """Nothing is held open."""

    def report(
        self, obs: Any, terminated: bool = False, truncated: bool = False, valid: bool = True, final: Any = None
    ) -> Timestep:
        seen, last = (np.array([[value]], np.float32) for value in (obs, obs if final is None else final))
        ended, cut, counted = (np.array([flag]) for flag in (terminated, truncated, valid))
        step = LaneStep(seen, None, np.zeros(1, np.float32), ended, cut, last, counted)
        return Timestep({ONE: step}, ended | cut, np.full(1, -1, np.int8))


@pytest.mark.slow
def test_episodes_that_follow_another_in_a_filler_step_start_anew() -> None:
    """EnvPool resets in the step after an end; an environment that failed is started anew."""
    env: Any = Scripted(
        (1.0,), (2.0, False, True), (5.0, False, False, False), (6.0,), (9.0, False, True, False, 9.0), (10.0,)
    )
    agents = make_agents(FrameStack(env.spec.groups, NUM).groups, Config())
    acting = actors(agents.groups)
    runner = HostRunner(env, Learners(agents.policies), 6, acting, NUM)
    state = runner.start(0)
    assert state.obs[ONE].tolist() == [[0, 0, 0]]
    runner.run(packed(acting), state, None, bool)
    own = runner.rollout(state).groups[ONE]
    assert own.obs[0].tolist() == [[0, 0, 0]]
    seen = [*own.obs[1:, 0].tolist(), own.last_obs[0].tolist()]
    cut = zip(own.final_obs[:, 0].tolist(), own.truncated[:, 0].tolist(), strict=True)
    found = [(obs, final if truncated else None) for obs, (final, truncated) in zip(seen, cut, strict=True)]
    assert found == [
        ([0, 0, 1], None),
        ([2, 2, 2], [0, 1, 2]),  # what is shown here is not acted on
        ([5, 5, 5], None),
        ([5, 5, 6], None),
        ([9, 9, 9], [5, 6, 9]),
        ([9, 9, 10], None),
    ]


# Nothing of it is lost


@pytest.mark.slow
def test_environments_are_put_back_with_what_was_seen() -> None:
    """Where the environments stand, and the state of the runner, are all there is to go on from: the stack is in it."""
    source = gymnasium_source("CartPole-v1")
    agents = make_agents(FrameStack(source.spec.groups, NUM).groups, Config())
    acting, chosen = actors(agents.groups), EnvConfig(num_envs=2, workers=0)

    def played(runner: HostRunner, state: Any) -> Any:
        runner.run(packed(acting), state, None, bool)
        return jax.tree.map(np.copy, runner.rollout(state))

    with source.open_envs(2, chosen) as one, source.open_envs(2, chosen) as other:
        first, second = (HostRunner(pool, Learners(agents.policies), 2, acting, NUM) for pool in (one, other))
        state = first.start(0)
        state = after(state, played(first, state))
        before = np.copy(state.obs[ONE])
        second.start(7)
        states: Any = one.get_states()
        assert other.set_states(states)
        on, again = played(first, state), played(second, state)
    for name in ("obs", "action", "reward", "last_obs"):
        np.testing.assert_array_equal(getattr(on.groups[ONE], name), getattr(again.groups[ONE], name))
    np.testing.assert_array_equal(on.groups[ONE].obs[0], before)
    np.testing.assert_array_equal(on.groups[ONE].obs[1][:, :8], before[:, 4:])
    assert len(np.unique(before[:, 0::4])) == 6, "three observations of either environment, none like another"


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", pytest.param("gymnax/CartPole-v1", marks=pytest.mark.learning)])
def test_an_interrupted_run_with_stacks_ends_with_the_same_bits(env: str, tmp_path: Path) -> None:
    small: dict[str, Any] = SETTINGS | {
        "total_timesteps": 64 * 8,
        "eval_frequency": 5,
        "frame_stack": NUM,
        "torso": "shared",
        "workers": 0,
    }

    def trainer(path: Path) -> PPOTrainer:
        return PPOTrainer(env, out=path, preset=False, console=probes.Notes(), **small)

    def interrupt(metrics: dict[str, Any]) -> None:
        if metrics["update"] == 4:
            os.kill(os.getpid(), signal.SIGINT)

    trainer(tmp_path / "whole").train()
    assert trainer(tmp_path / "cut").train(callback=probes.EachUpdate(interrupt))["updates"] == 4
    saved, trouble = load_newest(tmp_path / "cut")
    assert saved is not None
    assert saved.program["runner/obs/agent"].shape == (4, 12)
    assert not trouble
    resumed = PPOTrainer.resume(tmp_path / "cut", console=probes.Notes()).train()
    assert resumed["resumed"] == [{"step": 256, "exact": True}]
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


# What else plays episodes


@pytest.mark.slow
@pytest.mark.parametrize("walk", [host_probes.Walk, host_probes.CompiledWalk()], ids=["host", "compiled"])
def test_logs_and_policies_outside_see_the_same(walk: Any) -> None:
    """A deterministic walk, made once by the library and once by hand: the same actions, the same rewards."""
    source, chosen = make(walk), config(seed=3)
    agent = PPOAgent(stacked_space(source.spec.observation_space, NUM), source.spec.action_space, chosen)
    agent.params = jax.tree.map(lambda leaf: 30 * leaf, agent.params)  # so that the stack matters
    made: Any = episode_log(source, Agents.of_one(agent), chosen.env, 0)
    env = host_probes.Walk()
    frames = FrameStacker(env.observation_space, agent.config.env.frame_stack)
    obs, info = env.reset()
    seen, rewards, ended = frames.reset(obs), [], False
    while not ended:
        obs, reward, terminated, truncated, info = env.step(agent.act(seen, action_mask=info["action_mask"]))
        seen, ended = frames.step(obs), terminated or truncated
        rewards.append(reward)
    assert made["reward"] == rewards


class DrawnHybrid(host_probes.Hybrid):
    """Refuses actions that its mask forbids, which is in what it shows."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def render(self) -> np.ndarray:
        return np.zeros((4, 4, 3), np.uint8)


@pytest.mark.slow
def test_a_filmed_environment_keeps_its_mask() -> None:
    source, chosen = gymnasium_source(DrawnHybrid), config()
    groups = FrameStack(source.spec.groups, NUM).groups
    agents = make_agents(groups, chosen)
    env, camera = source.filmed(chosen.env)
    with env:
        state = HostRunner(env, Learners(agents.policies), 1, actors(agents.groups), NUM).start(0)
    assert state.action_mask[ONE].tolist() == [[True, False, True, True, True]]
    obs, space = state.obs[ONE], groups[ONE].observation_space
    assert obs["grid"].shape == (1, 5, 5, 9)
    assert obs["inner"]["count"].shape == (1, 3)
    assert {path for path, _ in leaves(space)} == {("grid",), ("inner", "count"), ("pair", 0), ("pair", 1)}
    assert all(pick(obs, path).shape == (1, *(leaf.shape or ())) for path, leaf in leaves(space))
    assert len(camera.pictures) == 1
    for seed in range(5):
        assert len(list(episode_frames(source, agents, chosen.env, seed, deterministic=False)[0])) == 2


class Drawn(host_probes.Walk):
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def render(self) -> np.ndarray:
        return np.full((4, 4, 3), self.clock, np.uint8)


class CompiledDrawn(host_probes.CompiledWalk):
    def render(self, state: Any) -> jax.Array:
        return jnp.full((4, 4, 3), state[1], jnp.uint8)


@pytest.mark.parametrize("walk", [Drawn, CompiledDrawn()], ids=["host", "compiled"])
def test_what_is_filmed_is_stacked_too(walk: Any) -> None:
    """A picture shows the clock: of all moments of the episode that the log is of, from its start to its end."""
    source, chosen = make(walk), config(seed=3)
    agents = make_agents(FrameStack(source.spec.groups, NUM).groups, chosen)
    logged: Any = episode_log(source, agents, chosen.env, 0)
    pictures = list(episode_frames(source, agents, chosen.env, 0)[0])
    assert [int(picture.max()) for picture in pictures] == list(range(logged["length"] + 1))
    with pytest.raises(UserError, match="cannot be drawn"):
        episode_frames(make(host_probes.CompiledWalk()), agents, chosen.env, 0)


def test_nonsense_in_a_file_stacks_nothing() -> None:
    with pytest.raises(UserError, match=r"env\.frame_stack must be at most 64"):
        settings.build(settings.from_mapping({"env": {"frame_stack": 10**9}}, "it"))


@pytest.mark.slow
def test_the_stack_is_a_setting_of_the_trainer(tmp_path: Path) -> None:
    trainer = PPOTrainer(gymnasium.make("CartPole-v1"), frame_stack=2, out=tmp_path / "run", preset=False)
    assert trainer.agent.policy.observation_space.shape == (8,)
    trainer.close()
