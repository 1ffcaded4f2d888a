"""The PettingZoo adapter: the contract of many agents, ends and masks by hand, both runners, faults, a run."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from pettingzoo.utils.conversions import parallel_to_aec

import faulty
import probes
import team_probes
import zoo_probes
from contracts.host import exchange, received, same
from contracts.team import agents_of, check_contract, check_restoring, one_step, play
from made import jax_env, pettingzoo_source
from proximo import PPOTrainer, settings
from proximo.config import AgentsConfig, EnvConfig
from proximo.envs import FAMILIES
from proximo.envs.api import HostEnv, Timestep, with_info
from proximo.envs.compiled.vectorize import VectorizedEnv
from proximo.envs.groups import Groups
from proximo.envs.host.pool import AsyncEnvPool
from proximo.envs.host.snapshot import decode, encode
from proximo.envs.host.workers import ProcessBackend
from proximo.errors import EnvError, UserError
from proximo.multi_agent.team_agent import TeamAgent, make_agents
from proximo.policy.behaviour import Learners, actors, draw_noise
from proximo.rollout.compiled import CompiledRunner, collect
from proximo.rollout.host import HostRunner, make_experience
from proximo.rollout.host_actor import packed
from proximo.rollout.video import episode_frames
from zoo_probes import Faulty, Lifetimes, Moved, changed, lacking

SPREAD, TAG = "pettingzoo/mpe2.simple_spread_v3", "pettingzoo/mpe2.simple_tag_v3"
RPS, TICTACTOE = "pettingzoo/classic.rps_v2", "pettingzoo/classic.tictactoe_v3"
BOTH = pytest.mark.parametrize("workers", [0, 2])
YES, NO = True, False


@pytest.mark.slow
@pytest.mark.parametrize("env", [SPREAD, TAG, RPS, TICTACTOE, Lifetimes, zoo_probes.Leaving, zoo_probes.Kinds])
def test_contract(env: Any) -> None:
    config = EnvConfig(workers=0, max_steps_per_episode=7)
    check_contract(pettingzoo_source(env), config, steps=40, seeded=env in (SPREAD, TAG), turns=env == TICTACTOE)


@pytest.mark.parametrize("env", [TAG, TICTACTOE, zoo_probes.Kinds])
def test_the_same_bits_with_any_number_of_workers(env: Any) -> None:
    source = pettingzoo_source(env).with_groups(AgentsConfig(critic="central"))
    alone = play(source, EnvConfig(workers=0), steps=40)
    for workers in (1, 2):
        assert same(alone, play(source, EnvConfig(workers=workers), steps=40)), workers


@pytest.mark.slow
@pytest.mark.parametrize(("env", "workers"), [(TAG, 1), (RPS, 0), (TICTACTOE, 0), (zoo_probes.Leaving, 0)])
def test_restoring(env: Any, workers: int) -> None:
    check_restoring(pettingzoo_source(env), EnvConfig(workers=0), EnvConfig(workers=workers))


def other_shapes(held: dict[str, Any]) -> dict[str, Any]:
    return held | {"shown": [*held["shown"][:-1], np.zeros(2)]}


def somebody_else(held: dict[str, Any]) -> dict[str, Any]:
    return held | {"shown": [*held["shown"][:-1], ~held["shown"][-1]]}


@pytest.mark.parametrize("forge", [other_shapes, somebody_else])
def test_a_state_of_something_else_is_refused(forge: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    env, _ = one_env(Lifetimes)
    state: Any = env.get_states()[0]
    held = decode(state)
    assert not env.set_states([encode(forge(held))])
    (notice,) = env.notices
    assert notice.startswith("The environment lifetimes cannot be restored: ")
    alive: Any = env.recv(0).groups["all"].alive
    assert alive.tolist() == [YES, YES, NO], "it was reset"


class Speaking(zoo_probes.Leaving):
    """Speaks for itself."""

    def get_state(self) -> dict[str, Any]:
        return {"agents": self.agents, "now": self.now}

    def set_state(self, state: dict[str, Any]) -> None:
        self.agents, self.now = state["agents"], state["now"]


def test_restoring_by_a_hook() -> None:
    """Also whoever is gone without a word in the next step is known then."""
    check_restoring(pettingzoo_source(Speaking), EnvConfig(workers=0), EnvConfig(workers=1))


def test_environments_are_seeded_one_by_one() -> None:
    first, _ = play(pettingzoo_source(Faulty), EnvConfig(workers=0), steps=1, seed=0)
    # lane = env * 2 + member: the two agents of an environment stand side by side.
    np.testing.assert_array_equal(first.groups["all"].obs[:, 0], [0, 0, 1, 1, 2, 2, 3, 3])
    expected = [np.float32(np.random.default_rng(10_000 + env).random()) for env in range(4)]
    np.testing.assert_array_equal(first.groups["all"].obs[::2, 2], expected)


class Payday(Faulty):
    """Pays 100 for the environment's number, 10 for the agent's, and what it did."""

    def __init__(self) -> None:
        super().__init__()
        self.action = spaces.Discrete(4)

    def step(self, actions: dict[str, Any]) -> Moved:
        obs, _, *rest = super().step(actions)
        paid = {agent: 100.0 * self.number + 10 * i + actions[agent] for i, agent in enumerate(self.possible_agents)}
        return obs, paid, *rest


@BOTH
def test_each_lane_is_one_agent_of_one_environment(workers: int) -> None:
    """Lanes 0 and 1 are of environment 0, and do 0 and 1; lanes 2 and 3 are of environment 1, and do 2 and 3."""
    with pettingzoo_source(Payday).open_envs(2, EnvConfig(workers=workers)) as pool:
        pool.reset(0)
        moved = one_step(pool, {"all": np.arange(4)})
        assert moved.groups["all"].reward.tolist() == [0, 11, 102, 113]
        assert moved.groups["all"].obs[:, 0].tolist() == [0, 0, 1, 1]
        assert moved.reset.shape == moved.success.shape == (2,)


class Optional(Faulty):
    """Shows the number that the options of its last reset had, and -1 where there were none."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.option = -1 if options is None else options["number"]
        told: tuple[Any, dict[str, Any]] = super().reset(seed, options)
        return told

    def look(self) -> dict[str, Any]:
        return {agent: np.array([self.option, 0, 0], np.float32) for agent in self.agents}


@BOTH
def test_options_reach_every_reset(workers: int) -> None:
    with pettingzoo_source(Optional).open_envs(2, EnvConfig(workers=workers)) as pool:
        assert pool.reset(0).groups["all"].obs[:, 0].tolist() == [-1] * 4
        assert pool.reset(0, {"number": 5}).groups["all"].obs[:, 0].tolist() == [5] * 4
        for _ in range(6):  # beyond the end of an episode
            moved = one_step(pool, {"all": np.zeros(4, int)})
        assert moved.groups["all"].obs[:, 0].tolist() == [5] * 4
        assert pool.reset(0, None).groups["all"].obs[:, 0].tolist() == [-1] * 4


# Who is there, by hand: a_0 from step 0 to 3, a_1 from 0 to 6, a_2 from 2 to 5.


class Seen:
    """What one environment reports: `seen.reward` and such of all its agents, group by group."""

    def __init__(self, timestep: Timestep, groups: Groups) -> None:
        self.timestep, self.all_groups = timestep, groups
        self.groups, self.over = timestep.groups, bool(timestep.reset[0])
        self.success, self.critic_state = timestep.success[0], timestep.critic_state
        self.final_critic_state = timestep.final_critic_state

    def __getattr__(self, name: str) -> Any:
        return agents_of(self.timestep, name, self.all_groups)[0]


def steps_of(env: HostEnv, number: int, action: dict[str, Any] | None = None) -> list[Seen]:
    """What one environment reports, step by step."""
    groups = env.spec.groups
    action = action or {name: np.zeros(group.size, int) for name, group in groups.items()}
    return [Seen(one_step(env, action), groups) for _ in range(number)]


def one_env(env: Any, agents: AgentsConfig | None = None, **config: Any) -> tuple[HostEnv, Seen]:
    source = pettingzoo_source(env)
    pool = (source if agents is None else source.with_groups(agents)).open_envs(1, EnvConfig(workers=0, **config))
    return pool, Seen(jax.tree.map(np.copy, pool.reset(0)), pool.spec.groups)


def members_of(groups: Groups) -> dict[str, tuple[str, ...]]:
    return {name: group.members for name, group in groups.items()}


def test_agents_join_and_die() -> None:
    env, first = one_env(Lifetimes)
    assert members_of(env.spec.groups) == {"all": ("a_0", "a_1", "a_2")}
    assert first.alive.tolist() == first.present.tolist() == first.acts.tolist() == [YES, YES, NO]
    seen = steps_of(env, 7)
    rewards = [[0, 10, 0], [1, 11, 0], [2, 12, 22], [0, 13, 23], [0, 14, 24], [0, 15, 0], [0, 10, 0]]
    assert [step.reward.tolist() for step in seen] == rewards
    valid = [[YES, YES, NO]] * 2 + [[YES] * 3] + [[NO, YES, YES]] * 2 + [[NO, YES, NO], [YES, YES, NO]]
    assert [step.valid.tolist() for step in seen] == valid
    dies = {2: [YES, NO, NO], 4: [NO, NO, YES], 5: [NO, YES, NO]}
    assert [step.terminated.tolist() for step in seen] == [dies.get(t, [NO] * 3) for t in range(7)]
    assert not any(step.truncated.any() for step in seen)
    assert [step.over for step in seen] == [NO] * 5 + [YES, NO]
    # After the sixth step the next episode has begun.
    alive = [[YES, YES, NO], [YES] * 3] + [[NO, YES, YES]] * 2 + [[NO, YES, NO]] + [[YES, YES, NO]] * 2
    assert [step.alive.tolist() for step in seen] == alive
    assert [step.acts.tolist() for step in seen] == alive
    assert [step.present.tolist() for step in seen] == [[YES, YES, NO], *alive[:-1]]
    anew = [[NO, NO, YES], [NO, NO, YES], [YES, NO, NO], [YES, NO, NO], [YES, NO, YES], [YES] * 3, [NO, NO, YES]]
    assert [step.reset_mask.tolist() for step in seen] == anew
    shown = [[1, 1, 0], [2, 2, 2], [0, 3, 3], [0, 4, 4], [0, 5, 0], [0, 0, 0], [1, 1, 0]]
    assert [step.groups["all"].obs[:, 0].tolist() for step in seen] == shown


def test_a_limit_cuts_those_who_are_left() -> None:
    env, _ = one_env(Lifetimes, max_steps_per_episode=4)
    last = steps_of(env, 4)[-1]
    assert last.over
    assert last.truncated.tolist() == [NO, YES, YES]
    assert last.reward.tolist() == [0, 13, 23]
    assert last.groups["all"].final_obs[:, 0].tolist() == [0, 4, 4]
    assert last.groups["all"].obs[:, 0].tolist() == [0, 0, 0]
    assert last.alive.tolist() == [YES, YES, NO], "in the next episode"


def test_whoever_leaves_is_cut_with_what_it_saw_last() -> None:
    env, _ = one_env(zoo_probes.Leaving)
    seen = steps_of(env, 6)
    cut = {2: [YES, NO, NO], 4: [NO, NO, YES]}
    assert [step.truncated.tolist() for step in seen] == [cut.get(t, [NO] * 3) for t in range(6)]
    assert [step.terminated.tolist() for step in seen] == [[NO] * 3] * 5 + [[NO, YES, NO]]
    assert not seen[2].over
    assert seen[2].groups["all"].final_obs[:, 0].tolist() == [3, 3, 3]
    # a_2 was shown a 4, and is told nothing any more.
    assert seen[4].groups["all"].final_obs[:, 0].tolist() == [0, 5, 4]
    assert seen[4].reward.tolist() == [0, 14, 0]
    assert seen[4].valid.tolist() == [NO, YES, YES]


class Staying(Lifetimes):
    """Does not take those from its list who have died."""

    def step(self, actions: dict[str, Any]) -> Moved:
        report = super().step(actions)
        self.agents = [agent for agent in self.possible_agents if agent in actions or agent in self.agents]
        return report


def test_whoever_has_died_is_gone_whatever_the_list_says() -> None:
    for one, other in zip(steps_of(one_env(Lifetimes)[0], 3), steps_of(one_env(Staying)[0], 3), strict=True):
        assert same(one.timestep, other.timestep)


def test_groups_are_rearranged() -> None:
    members = {"odd": ("a_1",), "even": ("a_2", "a_0")}
    env, _ = one_env(Lifetimes, AgentsConfig(members=members))
    assert env.spec.groups.agents == ("a_1", "a_2", "a_0")
    assert [step.reward.tolist() for step in steps_of(env, 3)] == [[10, 0, 0], [11, 0, 1], [12, 22, 2]]


def test_success_is_what_all_say_who_say_something() -> None:
    class Telling(Lifetimes):
        said: tuple[dict[str, Any], ...] = ({}, {"is_success": True}, {"is_success": False})

        def step(self, actions: dict[str, Any]) -> Moved:
            obs, reward, terminated, truncated, _ = super().step(actions)
            infos = dict(zip(self.possible_agents, self.said, strict=True))
            return obs, reward, terminated, truncated, infos

    assert steps_of(one_env(Telling, max_steps_per_episode=1)[0], 1)[0].success == 0
    Telling.said = ({}, {"is_success": True}, {"is_success": True})
    assert steps_of(one_env(Telling, max_steps_per_episode=1)[0], 1)[0].success == 1
    assert steps_of(one_env(Lifetimes, max_steps_per_episode=1)[0], 1)[0].success == -1


# What they see and may do.

ACTIONS = {
    "dog": np.array([1]),
    "cat": np.array([[0, 1]]),
    "owl": {"wing": np.zeros((1, 2)), "hoot": np.array([2])},
}


def test_masks_are_read_where_they_are_and_are_no_observation() -> None:
    env, first = one_env(zoo_probes.Kinds)
    groups = env.spec.groups
    assert members_of(groups) == {"dog": ("dog",), "cat": ("cat",), "owl": ("owl",)}
    assert groups["dog"].observation_space == spaces.Box(1.0, 9.0, (2,))
    cat: Any = groups["cat"].observation_space
    assert list(cat) == ["code"]
    assert env.notices == ["Left out of the observation, being text: ['cat']['word']."]
    assert {name: group.mask_shape for name, group in groups.items()} == {"dog": (3,), "cat": (4,), "owl": (2,)}
    assert {name: group.has_mask for name, group in groups.items()} == {"dog": YES, "cat": YES, "owl": NO}
    np.testing.assert_array_equal(first.groups["dog"].action_mask, [[0, 1, 1]])
    np.testing.assert_array_equal(first.groups["cat"].action_mask, [[1, 0, 1, 1]])
    assert first.groups["owl"].action_mask is None
    moved = steps_of(env, 1, ACTIONS)[0]
    assert moved.terminated.tolist() == [NO, YES, NO]
    # The dog may do something else now; the cat is gone.
    np.testing.assert_array_equal(moved.groups["dog"].action_mask, [[1, 0, 1]])
    np.testing.assert_array_equal(moved.groups["cat"].action_mask, [[1, 1, 1, 1]])
    np.testing.assert_array_equal(moved.groups["dog"].obs, [[2, 2]])
    np.testing.assert_array_equal(moved.groups["owl"].obs[0], [[0.5]])


def test_nothing_is_shown_as_something_that_can_be() -> None:
    """The cat's code starts at 5; a 0 would be no code at all."""
    env, first = one_env(zoo_probes.Kinds)
    assert first.groups["cat"].obs["code"].tolist() == [7]
    assert steps_of(env, 1, ACTIONS)[0].groups["cat"].obs["code"].tolist() == [5]


def test_only_the_agent_on_turn_acts() -> None:
    """X has 0, 1 and 2 after five moves, O has 3 and 4."""
    env, first = one_env(TICTACTOE)
    assert first.groups["all"].action_mask.all()
    masks, valid = [], []
    for square in (0, 3, 1, 4):
        moved = steps_of(env, 1, {"all": np.full(2, square)})[0]
        masks.append(moved.groups["all"].action_mask)
        valid.append(moved.valid.tolist())
        assert moved.alive.all()
        assert moved.acts.tolist() == moved.valid.tolist()[::-1]
        assert not moved.reward.any()
    assert valid == [[YES, NO], [NO, YES]] * 2
    assert masks[0][0].all(), "all zero, and not on turn"
    np.testing.assert_array_equal(masks[0][1], [0, 1, 1, 1, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(masks[3][0], [0, 0, 1, 0, 0, 1, 1, 1, 1])
    assert moved.groups["all"].obs.shape == (2, 3, 3, 2)
    assert moved.groups["all"].obs.sum(axis=(1, 2)).tolist() == [[2, 2], [2, 2]]
    last = steps_of(env, 1, {"all": np.full(2, 2)})[0]
    assert last.reward.tolist() == [1, -1]
    assert last.valid.tolist() == [YES, NO]
    assert last.terminated.tolist() == [YES, YES]
    assert last.over
    assert last.groups["all"].final_obs[..., 0].sum() == 5
    assert not last.groups["all"].obs.any()
    assert last.groups["all"].action_mask.all()


@pytest.mark.slow
def test_what_the_loser_did_counts() -> None:
    """It is not on turn when the game ends; a step in which nobody acted is one that failed."""
    source = pettingzoo_source(TICTACTOE)
    with source.open_envs(1, EnvConfig(workers=0)) as env:
        agents = make_agents(source.spec.groups, settings.build({}), None)
        runner = HostRunner(env, Learners(agents.policies), 5, actors(agents.groups))
        played = runner.rollout(runner.start(0))
        valid = played.groups["all"].valid
        valid[:] = [[YES, NO], [NO, YES], [YES, NO], [NO, YES], [NO, NO]]
        played.reset[:, 0] = [NO, NO, YES, NO, YES]
        runner.leave_out_voided()
        assert valid.tolist() == [[YES, NO], [NO, YES], [YES, NO], [NO, NO], [NO, NO]]


def test_the_central_critic_sees_the_environments_state() -> None:
    env, first = one_env(SPREAD, AgentsConfig(critic="central"))
    for seen in (first, *steps_of(env, 2)):
        np.testing.assert_array_equal(seen.critic_state[0], seen.groups["all"].obs.reshape(-1))
    last = steps_of(env, 23)[-1]
    assert last.truncated.all()
    np.testing.assert_array_equal(last.final_critic_state[0], last.groups["all"].final_obs.reshape(-1))
    assert one_env(SPREAD)[1].critic_state is None
    assert one_env(RPS, AgentsConfig(critic="central"))[1].critic_state is None


# Both runners.


@pytest.mark.slow
def test_compiled_and_host_collection_give_the_same_rollout() -> None:
    """The same agents in JAX and in Python, the same policy, the same noise: the same record of those who are there."""
    assert (Lifetimes.JOINS, Lifetimes.ENDS) == (team_probes.Lifetimes.JOINS, team_probes.Lifetimes.ENDS)
    steps, num_envs = 11, 4
    small = dict(rollout_length=steps, num_envs=num_envs, minibatch_size=steps * num_envs, hidden_sizes=[8], workers=0)
    chosen = settings.build(settings.from_keywords(small | dict(max_steps_per_episode=4)))
    compiled_env, source = jax_env(team_probes.Lifetimes()), pettingzoo_source(Lifetimes)
    assert compiled_env.spec.groups == source.spec.groups
    agents = make_agents(source.spec.groups, chosen, None)
    behaviour, acting = Learners(agents.policies), actors(agents.groups)
    env = source.open_envs(num_envs, chosen.env)
    runner = HostRunner(env, behaviour, steps, acting)
    state = runner.start(chosen.seed)
    inside = CompiledRunner(VectorizedEnv(compiled_env, num_envs, 4), behaviour)
    compiled_state = inside.start(jax.random.key(0))
    step = jax.jit(lambda state, noise, keys: collect(inside, acting, state, noise, keys, None))
    for number in range(2):
        key = jax.random.key(number)
        noise = draw_noise(agents.policies, key, num_envs, (steps,))
        assert runner.run(packed(acting), state, noise, bool) == steps
        played = runner.rollout(state)
        state, experience = make_experience(state, played, None)
        compiled_state, theirs = step(compiled_state, noise, jax.random.split(key, steps))
        host, compiled, over = experience.groups["all"], theirs.groups["all"], played.reset
        for name in ("reward", "terminated", "truncated", "valid", "present", "alive", "acts"):
            np.testing.assert_array_equal(getattr(host, name), getattr(compiled, name), err_msg=name)
        for name in ("obs", "action"):
            before = host.present
            np.testing.assert_array_equal(getattr(host, name)[before], getattr(compiled, name)[before], err_msg=name)
        cut = host.truncated
        assert cut.any()
        np.testing.assert_array_equal(host.final_obs[cut], compiled.final_obs[cut])
        np.testing.assert_array_equal(experience.episodes.length, theirs.episodes.length)
        for part in (experience, theirs):
            assert part.episodes.members["all"].shape == (steps, num_envs, 3)
        ours_paid, theirs_paid = (part.episodes.members["all"][over] for part in (experience, theirs))
        np.testing.assert_array_equal(ours_paid, theirs_paid)
        assert over.any()
    env.close()


# What goes wrong.


@pytest.fixture
def pids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that a test starts."""
    started, start = [], ProcessBackend._start

    def recorded(self: ProcessBackend, worker: int) -> None:
        start(self, worker)
        started.append(self._processes[worker].pid)

    monkeypatch.setattr(ProcessBackend, "_start", recorded)
    return started


def pool_of(env: Any, workers: int, **config: Any) -> AsyncEnvPool:
    return pettingzoo_source(env).open_envs(4, EnvConfig(workers=workers, timeout=1.0, **config))


def played(pool: AsyncEnvPool, steps: int) -> Timestep:
    """Step all four environments, of two agents each; what the last step led to."""
    for _ in range(steps):
        exchange(pool, {"all": np.ones(8, int)})
        moved = received(pool)
    return moved


def failure(pool: AsyncEnvPool, steps: int = 8) -> EnvError:
    with pool, pytest.raises(EnvError) as caught:
        pool.reset(0), played(pool, steps)
    return caught.value


SPOILT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "raises": (faulty.raises, "ValueError: the wheel came off"),
    "nan obs": (
        changed(0, "right", np.array([0, np.nan, 0], np.float32)),
        "observation['right'] is nan at the index [1]",
    ),
    "shape": (changed(0, "left", np.zeros(4)), "observation['left'] must have the shape (3,), not (4,)"),
    "no obs": (lacking(0, "right"), "the observation has no entry ['right']"),
    "obs alone": (
        faulty.Replaced(0, np.zeros(3)),
        "step must return a dictionary by agent as observations, not",
    ),
    "inf reward": (changed(1, "left", float("inf")), "the reward of left is inf"),
    "words": (changed(1, "left", "much"), "the reward of left must be a number, not str much"),
    "text": (changed(1, "left", "1.0"), "the reward of left must be a number, not str 1.0"),
    "no reward": (lacking(1, "right"), "there is no reward for right"),
    "end": (changed(2, "left", "False"), "the termination of left must be True or False, not str False"),
    "no cut": (changed(3, "right", None), "the truncation of right must be True or False, not NoneType None"),
    "four values": (lambda result: result[:4], "step must return five values (observations, rewards,"),
}


@BOTH
@pytest.mark.parametrize("name", SPOILT)
def test_spoilt_step(workers: int, name: str) -> None:
    fault, words = SPOILT[name]
    error = failure(pool_of(partial(Faulty, fault, number=2), workers))
    assert error.sentence.startswith("The environment faulty (number 2, at step 3 (step 3 of its episode)) failed: ")
    assert words in error.sentence


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda result: None, "reset must return two values (obs, info), not NoneType"),
        (faulty.Replaced(0, np.zeros(3)), "reset must return a dictionary by agent as observations, not ndarray"),
        (lacking(0, "left"), "the observation has no entry ['left']"),
        (changed(0, "left", np.array([0, 0, np.inf], np.float32)), "observation['left'] is inf at the index [2]"),
    ],
)
def test_spoilt_reset(fault: Callable[[Any], Any], words: str) -> None:
    error = failure(pool_of(partial(Faulty, in_reset=fault, number=2, at=5), 0))
    assert error.sentence.startswith("The environment faulty (number 2, at a reset after 5 steps) failed: ")
    assert words in error.sentence


def test_agents_that_nobody_knows_or_that_are_not_there() -> None:
    class Crowded(Faulty):
        def step(self, actions: dict[str, Any]) -> Moved:
            report: Moved = super().step(actions)
            self.agents = [*self.agents, "stranger"]
            return report

    class Empty(Faulty):
        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
            report: tuple[Any, dict[str, Any]] = super().reset(seed, options)
            self.agents = self.agents if seed == 0 else []
            return report

    assert "it has agents that are not among its possible_agents: stranger" in str(failure(pool_of(Crowded, 0)))
    assert "after a reset there is nobody in its list of agents" in str(failure(pool_of(Empty, 0)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda seen: seen["dog"].pop("action_mask"),
            "the action mask of dog is missing, which was there",
        ),
        (lambda seen: seen["dog"]["action_mask"].fill(0), "the action mask of dog allows no action"),
        (
            lambda seen: seen["dog"].update(action_mask=np.ones(4)),
            "the action mask of dog must have 3 flags for Discrete(3), not the shape (4,)",
        ),
    ],
)
def test_spoilt_mask(change: Callable[..., Any], words: str) -> None:
    class Spoilt(zoo_probes.Kinds):
        def look(self) -> dict[str, Any]:
            seen = super().look()
            if self.now == 1:
                change(seen)
            return seen

    env, _ = one_env(Spoilt)
    with pytest.raises(EnvError, match=re.escape(words)):
        steps_of(env, 1, ACTIONS)


@BOTH
def test_hang(workers: int) -> None:
    started = time.monotonic()
    error = failure(pool_of(partial(Faulty, faulty.hangs, number=2), workers))
    assert time.monotonic() - started < 5
    assert "(number 2, at step 3" in error.sentence
    assert "it did not answer within 1 s (env.timeout)" in error.sentence


def test_killed_worker(pids: list[int]) -> None:
    pool = pool_of(Faulty, 2)
    with pool:
        pool.reset(0), played(pool, 2)
        os.kill(pids[-1], signal.SIGKILL)
        with pytest.raises(EnvError, match=r"faulty \(number \d, at step 3\) failed: its worker process.*SIGKILL"):
            played(pool, 1)


@BOTH
def test_restart_voids_the_step_for_all(workers: int) -> None:
    with pool_of(partial(Faulty, faulty.raises, number=2), workers, on_error="restart") as pool:
        first = pool.reset(0)
        assert not first.reset.any()
        assert played(pool, 2).groups["all"].valid.all()
        timestep = played(pool, 1)
        moved = timestep.groups["all"]
        assert moved.valid.tolist() == [YES, YES, YES, YES, NO, NO, YES, YES]
        assert moved.truncated.tolist() == [NO, NO, NO, NO, YES, YES, NO, NO]
        assert not moved.terminated.any()
        assert timestep.reset.tolist() == [NO, NO, YES, NO]
        assert moved.reward.tolist() == [1, 1, 1, 1, 0, 0, 1, 1]
        assert moved.alive is not None
        assert moved.alive.all(), "in the next episode, too"
        assert moved.reset_mask.tolist() == moved.truncated.tolist()
        np.testing.assert_array_equal(moved.obs[4:6], moved.final_obs[4:6])
        assert len(pool.notices) == 1
        again = played(pool, 1)
        after = again.groups["all"]
        assert after.valid.all()
        assert after.present is not None
        assert after.present.all()
        assert not again.reset.any()


@BOTH
def test_restart_at_the_first_reset_loses_nothing(workers: int) -> None:
    with pool_of(partial(Faulty, in_reset=faulty.raises, number=2, at=0), workers, on_error="restart") as pool:
        first = pool.reset(0)
        own = first.groups["all"]
        assert own.valid.all()
        assert own.alive is not None
        assert own.present is not None
        assert own.alive.all()
        assert own.present.all()
        assert not first.reset.any()
        assert not own.truncated.any()
        assert len(pool.notices) == 1


# Ids, objects, factories.


def test_names() -> None:
    names = FAMILIES["pettingzoo"].ids()
    assert {SPREAD, TAG, RPS, TICTACTOE, "pettingzoo/sisl.pursuit_v5"} <= set(names)
    playable = importlib.util.find_spec("multi_agent_ale_py") is not None
    assert any(name.startswith("pettingzoo/atari") for name in names) == playable


def aec() -> Any:
    return parallel_to_aec(Lifetimes())


def test_objects_factories_and_classes() -> None:
    for env in (Lifetimes, Lifetimes(), lambda: Lifetimes(), aec, aec()):
        source = pettingzoo_source(env)
        assert source.spec.id == "lifetimes"
        assert source.spec.groups.agents == ("a_0", "a_1", "a_2")
    game = pettingzoo_source(lambda: pettingzoo.make("aec", "classic/connect_four_v3"))
    assert game.spec.groups.agents == ("player_0", "player_1")
    assert game.spec.max_steps is None
    assert pettingzoo_source(SPREAD).spec.max_steps == 25


def test_environments_of_an_object_are_copies() -> None:
    given = Lifetimes()
    given.reset()
    play(pettingzoo_source(given), EnvConfig(workers=0), steps=3)
    assert given.now == 0


class Uncopyable(Lifetimes):
    def __deepcopy__(self, memo: Any) -> None:
        raise TypeError("a handle")


class Texts(Lifetimes):
    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Text(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset()
        return dict.fromkeys(self.agents, "no"), {}


class Nameless(Lifetimes):
    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = []


class Broken(Lifetimes):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        raise ValueError("the wheel came off")


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ("pettingzoo/mpe2.simple_spread_v2", "did you mean pettingzoo/mpe2.simple_spread_v3?"),
        ("pettingzoo/simple_spread_v3", "did you mean pettingzoo/mpe2.simple_spread_v3?"),
        ("pettingzoo/classic.rps_v1", "did you mean pettingzoo/classic.rps_v2?"),
        ("pettingzoo/nothing.like_it", "`proximo envs pettingzoo` lists them"),
        (Uncopyable(), "This Uncopyable cannot be copied.*hand in a factory instead"),
        (Texts, "what a_0 sees is Text.*which has no fixed shape to feed a network"),
        (Nameless, "possible_agents must name all agents"),
    ],
)
def test_what_is_no_environment(env: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        pettingzoo_source(env)


def test_an_environment_that_fails_at_once() -> None:
    with pytest.raises(EnvError, match="The environment lifetimes cannot be reset: ValueError: the wheel came off"):
        pettingzoo_source(Broken)


@pytest.mark.skipif(importlib.util.find_spec("chess") is not None, reason="it is there")
def test_a_missing_package_names_its_command() -> None:
    with pytest.raises(UserError, match=r'needs a package.*chess.*pip install "pettingzoo\[classic\]"'):
        pettingzoo_source("pettingzoo/classic.chess_v6")


def test_a_missing_extra_names_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "mpe2" else found(name, *rest))
    with pytest.raises(UserError, match=r'pip install "proximo\[pettingzoo\]"'):
        pettingzoo_source(SPREAD)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "pettingzoo" else found(name, *rest)
    )
    with pytest.raises(UserError, match=r'need the package pettingzoo; pip install "proximo\[pettingzoo\]"'):
        pettingzoo_source(SPREAD)


def test_jax_stays_out_of_worker_processes() -> None:
    import subprocess
    import sys

    code = "import proximo.envs.host.worker_main, proximo.envs.host.zoo, sys; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


# A run.


def trainer(path: Path, env: Any = SPREAD, **keywords: Any) -> PPOTrainer:
    small: dict[str, Any] = dict(
        num_envs=4, rollout_length=25, minibatch_size=50, epochs_per_update=2, hidden_sizes=[16], workers=0
    )
    rest: dict[str, Any] = dict(
        eval_frequency=2, eval_episodes=4, total_timesteps=400, console=probes.Notes(), preset=False
    )
    return PPOTrainer(env, out=path, **(small | rest | keywords))


@pytest.mark.slow
def test_a_run_is_kept_and_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole").train()
    stop = lambda metrics: os.kill(os.getpid(), signal.SIGINT) if metrics["update"] == 3 else None  # noqa: E731
    stopped = trainer(tmp_path / "run").train(callback=probes.EachUpdate(stop))
    assert stopped["stop_reason"] == "interrupted"
    result = PPOTrainer.resume(tmp_path / "run", console=probes.Notes()).train()
    assert result["resumed"] == [{"step": 300, "exact": True}]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["final_eval"] == result["final_eval"]
    assert result["final_eval"] == whole["final_eval"]
    each = [result["final_eval"][f"agent/agent_{number}/return_mean"] for number in range(3)]
    assert np.mean(each) == pytest.approx(result["final_eval"]["return_mean"])
    one, other = (TeamAgent.load(tmp_path / name / "models") for name in ("whole", "run"))
    assert same(one.params, other.params)
    env = pettingzoo_source(SPREAD).factory()
    obs, _ = env.reset(seed=0)
    assert all(env.action_space(agent).contains(action) for agent, action in one.act(obs).items())


@pytest.mark.slow
def test_a_game_with_turns_is_learned_from(tmp_path: Path) -> None:
    result = trainer(tmp_path / "run", TICTACTOE, total_timesteps=200, num_envs=2, minibatch_size=50).train()
    assert result["episodes"] > 10
    final = result["final_eval"]
    assert final["agent/player_1/return_mean"] == -final["agent/player_2/return_mean"]


@pytest.mark.slow
@pytest.mark.parametrize("env", [SPREAD, TICTACTOE])
def test_an_episode_is_filmed(env: Any) -> None:
    source = pettingzoo_source(env)
    agents = make_agents(source.spec.groups, settings.build({}), None)
    frames, fps = episode_frames(source, agents, EnvConfig(), seed=0)
    pictures = list(frames)
    if env == SPREAD:
        assert fps == 10
        assert len(pictures) == 26
    assert all(picture.dtype == np.uint8 and picture.shape == pictures[0].shape for picture in pictures)
    assert any((one != other).any() for one, other in itertools.pairwise(pictures))
    assert (pictures[-1] != pictures[0]).any(), "the last one is of the end, not of the next beginning"


class Lying(zoo_probes.Lifetimes):
    """Says that agents see dictionaries, and shows them arrays."""

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict({"place": super().observation_space(agent)})


def test_an_observation_of_another_structure_is_named_with_its_agent() -> None:
    with pytest.raises(
        EnvError, match=r"lifetimes \(agent \w+\) does not keep .*which should be a dictionary with \['place'\]"
    ):
        pettingzoo_source(Lying)


class Telling(Faulty):
    """Tells of agent 0 the number 10, of the other 20, and something of its own of the first."""

    def step(self, actions: dict[str, Any]) -> Moved:
        obs, rewards, terminations, truncations, _ = super().step(actions)
        told = {agent: {"paid": 10.0 * (i + 1)} for i, agent in enumerate(self.possible_agents)}
        told[self.possible_agents[0]]["first"] = 5
        return obs, rewards, terminations, truncations, told


def test_numbers_of_infos_are_means_over_the_agents_who_have_them() -> None:
    with with_info(pettingzoo_source(Telling), ("paid", "first", "nothing")).open_envs(2, EnvConfig(workers=0)) as pool:
        pool.reset(0)
        for _ in range(6):  # beyond the end of an episode
            moved = one_step(pool, {"all": np.zeros(4, int)})
        np.testing.assert_array_equal(moved.info, [[15, 5, np.nan]] * 2)
        assert pool.info_names == ["first", "paid"]
