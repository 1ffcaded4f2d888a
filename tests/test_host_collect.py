"""Collection from host environments: the same rollout as the compiled one, the same bits with any workers."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import host_probes
from made import gymnasium_source
from proximo import PPOTrainer, settings
from proximo.config import Config, EnvConfig
from proximo.envs.api import HostSource
from proximo.envs.compiled.vectorize import VectorizedEnv
from proximo.envs.groups import ONE
from proximo.envs.host.bounds import _bounds, outside
from proximo.multi_agent.team_agent import make_agents
from proximo.policy.agents import Agents
from proximo.policy.behaviour import Learners, actors, draw_noise
from proximo.rollout.compiled import CompiledRunner, collect
from proximo.rollout.host import HostRollout, HostRunner, make_experience
from proximo.rollout.host_actor import aligned_zeros, packed, same_memory
from proximo.rollout.types import Rollout
from proximo.train import host_program

STEPS, ENVS = 24, 6


def config(**keywords: Any) -> Config:
    small = dict(rollout_length=STEPS, num_envs=ENVS, minibatch_size=STEPS * ENVS, hidden_sizes=[8], workers=0)
    return settings.build(settings.from_keywords(small | keywords))


def noise_of(agents: Agents, number: int) -> Any:
    return draw_noise(agents.policies, jax.random.key(number), ENVS, (STEPS,))


def collected_by_host(source: HostSource, settings_: Config, agents: Agents, rollouts: int = 1) -> Any:
    env = source.open_envs(ENVS, settings_.env)
    chosen = actors(agents.groups)
    runner = HostRunner(env, Learners(agents.policies), STEPS, chosen)
    state = runner.start(settings_.seed)
    found = []
    for number in range(rollouts):
        assert runner.run(packed(chosen), state, noise_of(agents, number), bool) == STEPS
        state, experience = make_experience(state, runner.rollout(state), None)
        rollout = jax.tree.map(np.copy, experience.groups[ONE])
        # Final observations are only promised where an episode was cut.
        jax.tree.map(lambda leaf, cut=rollout.truncated: leaf.__setitem__(~cut, 0), rollout.final_obs)
        found.append((rollout, *jax.tree.map(np.copy, (experience.episodes, state))))
    env.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "groups", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
def test_compiled_and_host_collection_give_the_same_rollout(groups: int) -> None:
    """The same walk in JAX and in Python, the same policy, the same noise: the same record, ends and masks included."""
    chosen = config(groups=groups)
    source = gymnasium_source(host_probes.Walk)
    agents = make_agents(source.spec.groups, chosen)
    acting = actors(agents.groups)
    runner = CompiledRunner(VectorizedEnv(host_probes.CompiledWalk(), ENVS), Learners(agents.policies))
    state = runner.start(jax.random.key(0))
    step = jax.jit(lambda state, noise, keys: collect(runner, acting, state, noise, keys, None))
    on_host = collected_by_host(source, chosen, agents, rollouts=2)
    for number, (host, host_episodes, _) in enumerate(on_host):
        keys = jax.random.split(jax.random.key(number), STEPS)
        state, experience = step(state, noise_of(agents, number), keys)
        compiled, episodes = experience.groups[ONE], experience.episodes
        assert experience.critic_state is None
        for name in ("obs", "action_mask", "action", "reward", "terminated", "truncated", "valid", "last_obs"):
            np.testing.assert_array_equal(getattr(host, name), getattr(compiled, name), err_msg=name)
        assert host.truncated.any()
        assert host.terminated.any()
        np.testing.assert_array_equal(host.final_obs[host.truncated], compiled.final_obs[host.truncated])
        np.testing.assert_array_equal(host_episodes.length, episodes.length)
        finished = host_episodes.length > 0
        np.testing.assert_array_equal(host_episodes.episode_return[finished], episodes.episode_return[finished])
        ours, theirs = (one.members[ONE][finished][:, 0] for one in (host_episodes, episodes))
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(ours, episodes.episode_return[finished])
        np.testing.assert_array_equal(host_episodes.success[finished], episodes.success[finished])


@pytest.mark.slow
@pytest.mark.parametrize("env", [host_probes.Noisy, host_probes.Hybrid])
def test_the_same_bits_with_any_number_of_workers(env: Any) -> None:
    """The actions are the policy's: continuous ones would show a single bit of difference in a matrix product."""
    source = gymnasium_source(env)
    chosen = config()
    agents = make_agents(source.spec.groups, chosen)
    alone = collected_by_host(source, chosen, agents, rollouts=2)
    for workers in (1, 2, 5):
        others = collected_by_host(source, config(workers=workers), agents, rollouts=2)
        for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(others), strict=True):
            np.testing.assert_array_equal(one, other)


def small_run(path: Path, env: Any, **keywords: Any) -> PPOTrainer:
    given: dict[str, Any] = dict(
        num_envs=4, rollout_length=16, minibatch_size=32, epochs_per_update=2, hidden_sizes=[16], total_timesteps=64 * 5
    )
    return PPOTrainer(
        env, preset=False, out=path, **(given | dict(eval_frequency=0, eval_episodes=2, workers=0) | keywords)
    )


@pytest.mark.slow
def test_a_run_is_the_same_with_workers_and_when_repeated(tmp_path: Path) -> None:
    results = []
    for name, workers in (("one", 0), ("again", 0), ("two", 2)):
        trainer = small_run(tmp_path / name, host_probes.Noisy, workers=workers, eval_frequency=2)
        result = trainer.train()
        results.append((result["final_eval"], result["episodes"], jax.device_get(trainer.agent.params)))
    for other in results[1:]:
        assert other[:2] == results[0][:2]
        for a, b in zip(jax.tree.leaves(results[0][2]), jax.tree.leaves(other[2]), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_nothing_is_compiled_after_the_first_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import jax._src.compiler as compiler

    trainer = small_run(tmp_path / "run", host_probes.Walk)
    state = trainer.program.init(trainer._given())
    trainer.program.compile(state)
    state, _ = trainer.program.run(state, 1)
    count = []
    compile_ = compiler.backend_compile_and_load

    def counted(*args: Any, **options: Any) -> Any:
        count.append(1)
        return compile_(*args, **options)

    monkeypatch.setattr(compiler, "backend_compile_and_load", counted)
    for _ in range(3):
        state, reports = trainer.program.run(state, 1)
        assert len(reports) == 1
    new = time.monotonic()  # a program that no earlier run of the tests has left on disk
    jax.jit(lambda x: x * new)(jnp.float32(2))  # the counter counts
    assert len(count) == 1
    trainer.close()


@pytest.mark.slow
def test_an_interrupt_waits_for_the_rollout_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a rollout cannot be resumed from, so that one that is soon over is taken to its end."""
    trainer = small_run(tmp_path / "run", host_probes.Walk, rollout_length=250, minibatch_size=1000)
    before = trainer.program.init(trainer._given())
    assert len(trainer.program.envs(before) or []) == 4
    whole, reports = trainer.program.run(before, 1, lambda: True)
    assert len(reports) == 1
    assert trainer.program.envs(before) is None
    assert len(trainer.program.envs(whole) or []) == 4
    monkeypatch.setattr(host_program, "GRACE_SECONDS", 0)
    asked = []

    def third_time() -> bool:
        asked.append(1)
        return len(asked) == 3

    after, reports = trainer.program.run(whole, 1, third_time)
    assert (len(asked), reports) == (3, [])
    assert after is whole
    assert trainer.program.envs(after) is None  # the environments have moved on
    trainer.close()


@pytest.mark.slow
def test_a_hybrid_environment_trains(tmp_path: Path) -> None:
    """Dict observation with image, discrete, tuple and text; Dict action; mask in the observation: Hybrid itself
    refuses actions that are forbidden or outside the space. Success is whether it talked, which is rewarded."""
    trainer = small_run(tmp_path / "run", host_probes.Hybrid, total_timesteps=64 * 40, learning_rate=0.01)
    result = trainer.train()
    assert result["final_eval"]["return_mean"] == 1.0
    obs, _ = host_probes.Hybrid().reset(seed=0)
    action = trainer.agent.act(obs)
    assert host_probes.Hybrid.action_space.contains(action)
    assert (action["talk"], action["move"] != 2) == (1, True)


def test_episodes_are_counted_by_hand() -> None:
    """Two environments, five steps. The first ends at step 1 (terminated) and step 4 (cut, said to be a success). The
    second has a filler at step 2, a void end at step 3 that must not count."""
    reward = np.array([[1, 1], [2, 2], [4, 0], [8, 8], [16, 16]], np.float32)
    rollout = Rollout(
        obs=None,
        action_mask=None,
        action=None,
        reward=reward,
        terminated=np.array([[0, 0], [1, 1], [0, 0], [0, 0], [0, 0]], bool),
        truncated=np.array([[0, 0], [0, 0], [0, 0], [0, 1], [1, 0]], bool),
        valid=np.array([[1, 1], [1, 1], [1, 0], [1, 0], [1, 1]], bool),
        final_obs=None,
        last_obs=None,
        carry=None,
    )
    said = np.array([[-1, -1], [-1, 0], [-1, -1], [-1, -1], [1, -1]], np.int8)
    state = walks(2, STEPS)[0].start(0)
    running = dict(episode_length=jnp.array([10, 0]), episode_return={ONE: jnp.array([[100.0], [0.0]])})
    played = HostRollout({ONE: rollout}, None, rollout.ended, said, {ONE: None}, {ONE: ()})
    after, experience = make_experience(dataclasses.replace(state, **running), played, None)
    episodes = experience.episodes
    np.testing.assert_array_equal(episodes.length, [[0, 0], [12, 2], [0, 0], [0, 0], [3, 0]])
    assert episodes.episode_return[1, 0] == 103
    assert episodes.episode_return[1, 1] == 3
    assert episodes.episode_return[4, 0] == 28
    np.testing.assert_array_equal(episodes.members[ONE][..., 0], episodes.episode_return)
    # Terminated counts as success where nothing is said; what is said comes first.
    assert episodes.success[1].tolist() == [True, False]
    assert bool(episodes.success[4, 0])
    assert after.episode_length.tolist() == [0, 1]
    assert after.episode_return[ONE].tolist() == [[0], [16]]


def walks(num_envs: int, steps: int) -> tuple[Any, Any]:
    """A runner of walks, and what it chooses."""
    env = gymnasium_source(host_probes.Walk).open_envs(num_envs, EnvConfig(workers=0))
    agents = make_agents(env.spec.groups, config())
    chosen = actors(agents.groups)
    return HostRunner(env, Learners(agents.policies), steps, chosen), chosen


def test_an_episode_that_failed_is_left_out_whole() -> None:
    runner, _ = walks(2, 5)
    played = runner.rollout(runner.start(0))
    valid = played.groups[ONE].valid
    played.reset[...] = np.array([[0, 0], [1, 0], [0, 0], [1, 1], [0, 0]], bool)
    valid[...] = np.array([[1, 1], [1, 1], [1, 1], [0, 0], [1, 1]], bool)
    runner.leave_out_voided()
    np.testing.assert_array_equal(valid, np.array([[1, 0], [1, 0], [0, 0], [0, 0], [1, 1]], bool))


def test_the_actor_reads_what_is_written_after_it_was_compiled() -> None:
    """The record is handed over once, and written to between the calls."""
    record = aligned_zeros((3, 2), np.float32)
    shown, read = same_memory(record), jax.jit(lambda rows, t: rows[t] * 2)
    assert read(shown, 1).tolist() == [0, 0]
    record[1] = [3, 4]
    assert read(shown, 1).tolist() == [6, 8]
    assert read(shown, 2).tolist() == [0, 0]
    assert same_memory(aligned_zeros((3, 0), np.float32)).shape == (3, 0)


def test_a_fence_held_by_a_thread_does_not_stop_a_forked_process() -> None:
    code = """
import os
from proximo.envs.host import shared_memory
with shared_memory._atomic:
    pid = os.fork()
    if pid == 0:
        shared_memory.fence()
        os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "7\n"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_commands_arrive_however_many_there_are_and_whoever_sleeps(workers: int) -> None:
    """300 groups, all told before any is waited for; the last first; at once, and after workers fell asleep."""
    env = gymnasium_source(host_probes.Walk).open_envs(300, EnvConfig(num_envs=300, groups=300, workers=workers))
    alone = gymnasium_source(host_probes.Walk).open_envs(300, EnvConfig(num_envs=300, groups=300, workers=0))
    with env, alone:
        env.reset(0), alone.reset(0)
        for pause in (0.0, 0.02, 0.0):
            time.sleep(pause)
            for part in range(300):
                env.send(part, {ONE: np.zeros(1, np.int32)})
            alone.send(0, {ONE: np.zeros(300, np.int32)})
            expected = alone.recv(0).groups[ONE]
            for part in reversed(range(300)):
                moved = env.recv(part).groups[ONE]
                assert moved.obs.tolist() == expected.obs[part : part + 1].tolist()
                assert moved.reward.tolist() == expected.reward[part : part + 1].tolist()


@pytest.mark.parametrize(
    ("space", "value", "index"),
    [
        (spaces.Box(-1.0, 1.0, (2,), np.float32), [[[0.5, -1.0]], [[1.0, 1.5]]], (1, 0, 1)),
        (spaces.Box(-1.0, np.inf, (1,), np.float32), [[[1e30]], [[-2.0]]], (1, 0, 0)),
        (spaces.Box(0, 9, (1,), np.uint8), [[[9]], [[10]]], (1, 0, 0)),
        (spaces.Discrete(3, start=5), [[5], [8]], (1, 0)),
        (spaces.MultiDiscrete([2, 3]), [[[1, 2]], [[0, 3]]], (1, 0, 1)),
        (spaces.MultiBinary(2), [[[1, 0]], [[2, 0]]], (1, 0, 0)),
    ],
)
def test_what_lies_outside_is_found(space: spaces.Space[Any], value: Any, index: tuple[Any, ...]) -> None:
    values = np.array(value, space.dtype)
    assert outside(space, values) == index
    assert outside(space, values[:1]) is None


def test_whole_types_are_not_looked_at() -> None:
    assert outside(spaces.Box(0, 255, (1,), np.uint8), np.array([[[255]]], np.uint8)) is None
    assert outside(spaces.Box(-np.inf, np.inf, (1,), np.float32), np.array([[[1e38]]], np.float32)) is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_bounds_at_the_largest_float_are_not_looked_at(dtype: Any) -> None:
    largest = np.finfo(dtype).max
    assert _bounds(spaces.Box(-largest, largest, (2,), dtype)) is None
    assert _bounds(spaces.Box(np.array([-largest, 0], dtype), largest, dtype=dtype)) is not None


@pytest.mark.slow
def test_the_default_environment_is_gymnasiums() -> None:
    assert Config().env.id == "CartPole-v1"
