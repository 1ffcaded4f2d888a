"""The PettingZoo adapter: the contract of many agents, ends and masks by hand, both collectors, faults, a run."""

import dataclasses
import importlib.util
import itertools
import json
import os
import re
import signal
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from pettingzoo.utils.conversions import parallel_to_aec

import faulty
import probes
import team_probes
import zoo_probes
from contracts.host import exchange, same
from contracts.team import check_contract, check_restoring, one_step, play
from proximo import PPOTrainer, settings
from proximo.collect.compiled import collect, initial_collect_state
from proximo.collect.host import HostCollector, leave_out_voided, tally
from proximo.config import AgentsConfig, EnvConfig
from proximo.envs import FAMILIES, make
from proximo.envs.compiled.lanes import Lanes
from proximo.envs.host.state import decode, encode
from proximo.envs.host.workers import Workers
from proximo.errors import EnvError, UserError
from proximo.policy.team_agent import TeamAgent
from proximo.ppo.team import initial_state
from proximo.record import record
from zoo_probes import Faulty, Lifetimes, changed, lacking

SPREAD, TAG = "pettingzoo/mpe2.simple_spread_v3", "pettingzoo/mpe2.simple_tag_v3"
RPS, TICTACTOE = "pettingzoo/classic.rps_v2", "pettingzoo/classic.tictactoe_v3"
BOTH = pytest.mark.parametrize("workers", [0, 2])
YES, NO = True, False


@pytest.mark.parametrize("env", [SPREAD, TAG, RPS, TICTACTOE, Lifetimes, zoo_probes.Leaving, zoo_probes.Kinds])
def test_contract(env):
    config = EnvConfig(workers=0, max_steps_per_episode=7)
    check_contract(make(env), config, steps=40, seeded=env in (SPREAD, TAG), turns=env == TICTACTOE)


@pytest.mark.parametrize("env", [TAG, TICTACTOE, zoo_probes.Kinds])
def test_the_same_bits_with_any_number_of_workers(env):
    source = make(env).arranged(AgentsConfig(critic="central"))
    alone = play(source, EnvConfig(workers=0), steps=40)
    for workers in (1, 2):
        assert same(alone, play(source, EnvConfig(workers=workers), steps=40)), workers


@pytest.mark.parametrize(("env", "workers"), [(TAG, 1), (RPS, 0), (TICTACTOE, 0), (zoo_probes.Leaving, 0)])
def test_restoring(env, workers):
    check_restoring(make(env), EnvConfig(workers=0), EnvConfig(workers=workers))


@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("wrong", [5, [], [True], ["a", "b", "c"], [np.zeros(2)] * 3])
def test_a_state_of_something_else_is_refused(place, wrong):
    env, _ = lane_of(Lifetimes)
    outer = decode(env.get_states()[0])
    inner = decode(outer[0])
    inner[place] = wrong
    assert not env.set_states([encode([encode(inner), *outer[1:]])])
    assert env.notices == ["The environment lifetimes cannot be restored: it does not take back its state."]
    assert env.recv(0).absent.tolist() == [[NO, NO, YES]], "it was reset"


def test_lanes_are_seeded_one_by_one():
    first, _ = play(make(Faulty), EnvConfig(workers=0), steps=1, seed=0)
    np.testing.assert_array_equal(first.obs["agents"]["all"][:, 0, 0], [0, 1, 2, 3])
    expected = [np.float32(np.random.default_rng(10_000 + lane).random()) for lane in range(4)]
    np.testing.assert_array_equal(first.obs["agents"]["all"][:, 0, 2], expected)


# Who is there, by hand: a_0 from step 0 to 3, a_1 from 0 to 6, a_2 from 2 to 5.


def steps_of(env, number, action=None):
    """What one lane reports, step by step."""
    action = action or {name: np.zeros((1, len(names)), int) for name, names in env.spec.team.groups.items()}
    return [jax.tree.map(lambda leaf: leaf[0], one_step(env, action)) for _ in range(number)]


def lane_of(env, agents=None, **config):
    source = make(env)
    pool = (source if agents is None else source.arranged(agents)).lanes(1, EnvConfig(workers=0, **config))
    return pool, jax.tree.map(lambda leaf: np.copy(leaf[0]), pool.reset(0))


def test_agents_join_and_die():
    env, first = lane_of(Lifetimes)
    assert env.spec.team.groups == {"all": ("a_0", "a_1", "a_2")}
    assert first.absent.tolist() == [NO, NO, YES]
    seen = steps_of(env, 7)
    rewards = [[0, 10, 0], [1, 11, 0], [2, 12, 22], [0, 13, 23], [0, 14, 24], [0, 15, 0], [0, 10, 0]]
    assert [step.reward.tolist() for step in seen] == rewards
    valid = [[YES, YES, NO]] * 2 + [[YES] * 3] + [[NO, YES, YES]] * 2 + [[NO, YES, NO], [YES, YES, NO]]
    assert [step.valid.tolist() for step in seen] == valid
    dies = {2: [YES, NO, NO], 4: [NO, NO, YES], 5: [NO, YES, NO]}
    assert [step.terminated.tolist() for step in seen] == [dies.get(t, [NO] * 3) for t in range(7)]
    assert not any(step.truncated.any() for step in seen)
    assert [bool(step.over) for step in seen] == [NO] * 5 + [YES, NO]
    absent = [[NO, NO, YES], [NO] * 3] + [[YES, NO, NO]] * 2 + [[YES, NO, YES], [YES] * 3, [NO, NO, YES]]
    assert [step.absent.tolist() for step in seen] == absent
    shown = [[1, 1, 0], [2, 2, 2], [0, 3, 3], [0, 4, 4], [0, 5, 0], [0, 0, 0], [1, 1, 0]]
    assert [step.obs["agents"]["all"][:, 0].tolist() for step in seen] == shown


def test_a_limit_cuts_those_who_are_left():
    env, _ = lane_of(Lifetimes, max_steps_per_episode=4)
    last = steps_of(env, 4)[-1]
    assert bool(last.over)
    assert last.truncated.tolist() == [NO, YES, YES]
    assert last.reward.tolist() == [0, 13, 23]
    assert last.final_obs["agents"]["all"][:, 0].tolist() == [0, 4, 4]
    assert last.obs["agents"]["all"][:, 0].tolist() == [0, 0, 0]
    assert last.absent.all()


def test_whoever_leaves_is_cut_with_what_it_saw_last():
    env, _ = lane_of(zoo_probes.Leaving)
    seen = steps_of(env, 6)
    cut = {2: [YES, NO, NO], 4: [NO, NO, YES]}
    assert [step.truncated.tolist() for step in seen] == [cut.get(t, [NO] * 3) for t in range(6)]
    assert [step.terminated.tolist() for step in seen] == [[NO] * 3] * 5 + [[NO, YES, NO]]
    assert not bool(seen[2].over)
    assert seen[2].final_obs["agents"]["all"][:, 0].tolist() == [3, 3, 3]
    # a_2 was shown a 4, and is told nothing any more.
    assert seen[4].final_obs["agents"]["all"][:, 0].tolist() == [0, 5, 4]
    assert seen[4].reward.tolist() == [0, 14, 0]
    assert seen[4].valid.tolist() == [NO, YES, YES]


class Staying(Lifetimes):
    """Does not take those from its list who have died."""

    def step(self, actions):
        report = super().step(actions)
        self.agents = [agent for agent in self.possible_agents if agent in actions or agent in self.agents]
        return report


def test_whoever_has_died_is_gone_whatever_the_list_says():
    for one, other in zip(steps_of(lane_of(Lifetimes)[0], 3), steps_of(lane_of(Staying)[0], 3), strict=True):
        assert same(one, other)


def test_groups_are_rearranged():
    members = {"odd": ("a_1",), "even": ("a_2", "a_0")}
    env, _ = lane_of(Lifetimes, AgentsConfig(members=members))
    assert env.spec.team.agents == ("a_1", "a_2", "a_0")
    assert [step.reward.tolist() for step in steps_of(env, 3)] == [[10, 0, 0], [11, 0, 1], [12, 22, 2]]


def test_success_is_what_all_say_who_say_something():
    class Telling(Lifetimes):
        said = ({}, {"is_success": True}, {"is_success": False})

        def step(self, actions):
            *report, _ = super().step(actions)
            return *report, dict(zip(self.possible_agents, self.said, strict=True))

    assert steps_of(lane_of(Telling, max_steps_per_episode=1)[0], 1)[0].success == 0
    Telling.said = ({}, {"is_success": True}, {"is_success": True})
    assert steps_of(lane_of(Telling, max_steps_per_episode=1)[0], 1)[0].success == 1
    assert steps_of(lane_of(Lifetimes, max_steps_per_episode=1)[0], 1)[0].success == -1


# What they see and may do.

ACTIONS = {
    "dog": np.array([[1]]),
    "cat": np.array([[[0, 1]]]),
    "owl": {"wing": np.zeros((1, 1, 2)), "hoot": np.array([[2]])},
}


def test_masks_are_read_where_they_are_and_are_no_observation():
    env, first = lane_of(zoo_probes.Kinds)
    team = env.spec.team
    assert team.groups == {"dog": ("dog",), "cat": ("cat",), "owl": ("owl",)}
    assert team.observation_spaces["dog"] == spaces.Box(1.0, 9.0, (2,))
    assert list(team.observation_spaces["cat"]) == ["code"]
    assert env.notices == ["Left out of the observation, being text: ['cat']['word']."]
    assert env.spec.mask_shape == (9,)
    np.testing.assert_array_equal(first.action_mask, [0, 1, 1, 1, 0, 1, 1, 1, 1])
    moved = steps_of(env, 1, ACTIONS)[0]
    assert moved.terminated.tolist() == [NO, YES, NO]
    # The dog may do something else now; the cat is gone.
    np.testing.assert_array_equal(moved.action_mask, [1, 0, 1, 1, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(moved.obs["agents"]["dog"], [[2, 2]])
    np.testing.assert_array_equal(moved.obs["agents"]["owl"][0], [[0.5]])


def test_nothing_is_shown_as_something_that_can_be():
    """The cat's code starts at 5; a 0 would be no code at all."""
    env, first = lane_of(zoo_probes.Kinds)
    assert first.obs["agents"]["cat"]["code"].tolist() == [7]
    assert steps_of(env, 1, ACTIONS)[0].obs["agents"]["cat"]["code"].tolist() == [5]


def test_only_the_agent_on_turn_acts():
    """X has 0, 1 and 2 after five moves, O has 3 and 4."""
    env, first = lane_of(TICTACTOE)
    assert first.action_mask.all()
    masks, valid = [], []
    for square in (0, 3, 1, 4):
        moved = steps_of(env, 1, {"all": np.full((1, 2), square)})[0]
        masks.append(moved.action_mask.reshape(2, 9))
        valid.append(moved.valid.tolist())
        assert not moved.absent.any()
        assert not moved.reward.any()
    assert valid == [[YES, NO], [NO, YES]] * 2
    assert masks[0][0].all(), "all zero, and not on turn"
    np.testing.assert_array_equal(masks[0][1], [0, 1, 1, 1, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(masks[3][0], [0, 0, 1, 0, 0, 1, 1, 1, 1])
    assert moved.obs["agents"]["all"].shape == (2, 3, 3, 2)
    assert moved.obs["agents"]["all"].sum(axis=(1, 2)).tolist() == [[2, 2], [2, 2]]
    last = steps_of(env, 1, {"all": np.full((1, 2), 2)})[0]
    assert last.reward.tolist() == [1, -1]
    assert last.valid.tolist() == [YES, NO]
    assert last.terminated.tolist() == [YES, YES]
    assert bool(last.over)
    assert last.final_obs["agents"]["all"][..., 0].sum() == 5
    assert not last.obs["agents"]["all"].any()
    assert last.action_mask.all()


def test_what_the_loser_did_counts():
    """It is not on turn when the game ends; a step in which nobody acted is one that failed."""
    valid = np.array([[[YES, NO]], [[NO, YES]], [[YES, NO]], [[NO, YES]], [[NO, NO]]])
    over = np.array([[NO], [NO], [YES], [NO], [YES]])
    leave_out_voided(valid, over)
    assert valid[:, 0].tolist() == [[YES, NO], [NO, YES], [YES, NO], [NO, NO], [NO, NO]]


def test_the_central_critic_sees_the_environments_state():
    env, first = lane_of(SPREAD, AgentsConfig(critic="central"))
    for seen in (first, *steps_of(env, 2)):
        np.testing.assert_array_equal(seen.obs["state"], seen.obs["agents"]["all"].reshape(-1))
    last = steps_of(env, 23)[-1]
    assert last.truncated.all()
    np.testing.assert_array_equal(last.final_obs["state"], last.final_obs["agents"]["all"].reshape(-1))
    assert "state" not in lane_of(SPREAD)[1].obs
    assert "state" not in lane_of(RPS, AgentsConfig(critic="central"))[1].obs


# Both collectors.


@pytest.mark.slow
def test_compiled_and_host_collection_give_the_same_rollout():
    """The same agents in JAX and in Python, the same policy, the same noise: the same record of those who are there."""
    assert (Lifetimes.JOINS, Lifetimes.ENDS) == (team_probes.Lifetimes.JOINS, team_probes.Lifetimes.ENDS)
    steps, lanes = 11, 4
    small = dict(rollout_length=steps, num_envs=lanes, minibatch_size=steps * lanes, hidden_sizes=[8], workers=0)
    chosen = settings.build(settings.from_keywords(small | dict(max_steps_per_episode=4)))
    compiled_env, source = make(team_probes.Lifetimes()), make(Lifetimes)
    assert compiled_env.spec.team == source.spec.team
    agent = TeamAgent(source.spec.team, chosen)
    train = initial_state(agent.policy, agent.params, agent.obs_stats, chosen)
    env = source.lanes(lanes, chosen.env)
    collector = HostCollector(env, agent.policy, chosen)
    state = collector.start(chosen.seed)
    inside = Lanes(compiled_env, lanes, 4)
    compiled_state = initial_collect_state(inside, agent.policy, chosen)
    step = jax.jit(lambda now, state: collect(now, state, inside, agent.policy, chosen))
    there = start = np.broadcast_to([YES, YES, NO], (lanes, 3))
    for number in range(2):
        now = dataclasses.replace(train, update=jnp.int32(number))
        collected = collector.collect(now, state, bool)
        host, over = collected.rollout, collected.over
        state, host_episodes = tally(state, collected, None)
        compiled_state, compiled, episodes = step(now, compiled_state)
        for name in ("reward", "terminated", "truncated", "valid", "absent"):
            np.testing.assert_array_equal(getattr(host, name), getattr(compiled, name), err_msg=name)
        after = np.where(over[..., None], start, ~host.absent)
        before, there = np.concatenate([there[None], after[:-1]]), after[-1]
        for name in ("obs", "action"):
            ours, theirs = getattr(host, name), getattr(compiled, name)
            ours, theirs = (tree.get("agents", tree)["all"] for tree in (ours, theirs))
            np.testing.assert_array_equal(ours[before], theirs[before], err_msg=name)
        cut = host.truncated
        assert cut.any()
        ours, theirs = (rollout.final_obs["agents"]["all"] for rollout in (host, compiled))
        np.testing.assert_array_equal(ours[cut], theirs[cut])
        np.testing.assert_array_equal(host_episodes.length, episodes.length)
        np.testing.assert_array_equal(host_episodes.agents[over], episodes.agents[over])
        assert over.any()
    env.close()


# What goes wrong.


@pytest.fixture
def pids(monkeypatch):
    """The processes that a test starts."""
    started, start = [], Workers._start

    def recorded(self, worker):
        start(self, worker)
        started.append(self._processes[worker].pid)

    monkeypatch.setattr(Workers, "_start", recorded)
    return started


def lanes(env, workers, **config):
    return make(env).lanes(4, EnvConfig(workers=workers, timeout=1.0, **config))


def played(pool, steps):
    """Step all four lanes, of two agents each; what the last step led to."""
    for _ in range(steps):
        exchange(pool, {"all": np.ones((4, 2), int)})
        moved = [pool.recv(batch) for batch in range(len(pool.batches))]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *moved)


def failure(pool, steps=8):
    with pool, pytest.raises(EnvError) as caught:
        pool.reset(0), played(pool, steps)
    return caught.value


SPOILT = {
    "raises": (faulty.raises, "ValueError: the wheel came off"),
    "nan obs": (changed(0, "right", np.float32([0, np.nan, 0])), "observation['right'] is nan at the index [1]"),
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
def test_spoilt_step(workers, name):
    fault, words = SPOILT[name]
    error = failure(lanes(partial(Faulty, fault, lane=2), workers))
    assert error.sentence.startswith("The environment faulty (lane 2, at step 3 (step 3 of its episode)) failed: ")
    assert words in error.sentence


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda result: None, "reset must return two values (obs, info), not NoneType"),
        (faulty.Replaced(0, np.zeros(3)), "reset must return a dictionary by agent as observations, not ndarray"),
        (lacking(0, "left"), "the observation has no entry ['left']"),
        (changed(0, "left", np.float32([0, 0, np.inf])), "observation['left'] is inf at the index [2]"),
    ],
)
def test_spoilt_reset(fault, words):
    error = failure(lanes(partial(Faulty, in_reset=fault, lane=2, at=5), 0))
    assert error.sentence.startswith("The environment faulty (lane 2, at a reset after 5 steps) failed: ")
    assert words in error.sentence


def test_agents_that_nobody_knows_or_that_are_not_there():
    class Crowded(Faulty):
        def step(self, actions):
            report = super().step(actions)
            self.agents = [*self.agents, "stranger"]
            return report

    class Empty(Faulty):
        def reset(self, seed=None, options=None):
            report = super().reset(seed, options)
            self.agents = self.agents if seed == 0 else []
            return report

    assert "it has agents that are not among its possible_agents: stranger" in str(failure(lanes(Crowded, 0)))
    assert "after a reset there is nobody in its list of agents" in str(failure(lanes(Empty, 0)))


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
def test_spoilt_mask(change, words):
    class Spoilt(zoo_probes.Kinds):
        def look(self):
            seen = super().look()
            if self.now == 1:
                change(seen)
            return seen

    env, _ = lane_of(Spoilt)
    with pytest.raises(EnvError, match=re.escape(words)):
        steps_of(env, 1, ACTIONS)


@BOTH
def test_hang(workers):
    started = time.monotonic()
    error = failure(lanes(partial(Faulty, faulty.hangs, lane=2), workers))
    assert time.monotonic() - started < 5
    assert "(lane 2, at step 3" in error.sentence
    assert "it did not answer within 1 s (env.timeout)" in error.sentence


def test_killed_worker(pids):
    pool = lanes(Faulty, 2)
    with pool:
        pool.reset(0), played(pool, 2)
        os.kill(pids[-1], signal.SIGKILL)
        with pytest.raises(EnvError, match=r"faulty \(lane \d, at step 3\) failed: its worker process.*SIGKILL"):
            played(pool, 1)


@BOTH
def test_restart_voids_the_step_for_all(workers):
    with lanes(partial(Faulty, faulty.raises, lane=2), workers, on_error="restart") as pool:
        first = pool.reset(0)
        assert not first.over.any()
        assert played(pool, 2).valid.all()
        moved = played(pool, 1)
        assert moved.valid.tolist() == [[YES, YES], [YES, YES], [NO, NO], [YES, YES]]
        assert moved.truncated.tolist() == [[NO, NO], [NO, NO], [YES, YES], [NO, NO]]
        assert not moved.terminated.any()
        assert moved.over.tolist() == [NO, NO, YES, NO]
        assert moved.reward.tolist() == [[1, 1], [1, 1], [0, 0], [1, 1]]
        assert moved.absent.tolist() == moved.truncated.tolist()
        assert same(jax.tree.map(lambda leaf: leaf[2], moved.obs), jax.tree.map(lambda leaf: leaf[2], moved.final_obs))
        assert len(pool.notices) == 1
        again = played(pool, 1)
        assert again.valid.all()
        assert not again.over.any()


@BOTH
def test_restart_at_the_first_reset_loses_nothing(workers):
    with lanes(partial(Faulty, in_reset=faulty.raises, lane=2, at=0), workers, on_error="restart") as pool:
        first = pool.reset(0)
        assert first.valid.all()
        assert not any(flags.any() for flags in (first.absent, first.over, first.truncated))
        assert len(pool.notices) == 1


# Ids, objects, factories.


def test_names():
    names = FAMILIES["pettingzoo"].ids()
    assert {SPREAD, TAG, RPS, TICTACTOE, "pettingzoo/sisl.pursuit_v5"} <= set(names)
    playable = importlib.util.find_spec("multi_agent_ale_py") is not None
    assert any(name.startswith("pettingzoo/atari") for name in names) == playable


def aec():
    return parallel_to_aec(Lifetimes())


def test_objects_factories_and_classes():
    for env in (Lifetimes, Lifetimes(), lambda: Lifetimes(), aec, aec()):
        source = make(env)
        assert source.spec.id == "lifetimes"
        assert source.spec.team.agents == ("a_0", "a_1", "a_2")
    game = make(lambda: pettingzoo.make("aec", "classic/connect_four_v3"))
    assert game.spec.team.agents == ("player_0", "player_1")
    assert game.spec.max_steps is None
    assert make(SPREAD).spec.max_steps == 25


def test_lanes_of_an_object_are_copies():
    given = Lifetimes()
    given.reset()
    play(make(given), EnvConfig(workers=0), steps=3)
    assert given.now == 0


class Uncopyable(Lifetimes):
    def __deepcopy__(self, memo):
        raise TypeError("a handle")


class Texts(Lifetimes):
    def observation_space(self, agent):
        return spaces.Text(3)

    def reset(self, seed=None, options=None):
        super().reset()
        return dict.fromkeys(self.agents, "no"), {}


class Nameless(Lifetimes):
    def __init__(self):
        super().__init__()
        self.possible_agents = []


class Broken(Lifetimes):
    def reset(self, seed=None, options=None):
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
def test_what_is_no_environment(env, sentence):
    with pytest.raises(UserError, match=sentence):
        make(env)


def test_an_environment_that_fails_at_once():
    with pytest.raises(EnvError, match="The environment lifetimes cannot be reset: ValueError: the wheel came off"):
        make(Broken)


@pytest.mark.skipif(importlib.util.find_spec("chess") is not None, reason="it is there")
def test_a_missing_package_names_its_command():
    with pytest.raises(UserError, match=r'needs a package.*chess.*pip install "pettingzoo\[classic\]"'):
        make("pettingzoo/classic.chess_v6")


def test_a_missing_extra_names_its_command(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "mpe2" else found(name, *rest))
    with pytest.raises(UserError, match=r'pip install "proximo\[pettingzoo\]"'):
        make(SPREAD)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "pettingzoo" else found(name, *rest)
    )
    with pytest.raises(UserError, match=r'need the package pettingzoo; pip install "proximo\[pettingzoo\]"'):
        make(SPREAD)


def test_jax_stays_out_of_worker_processes():
    import subprocess
    import sys

    code = "import proximo.envs.host.worker, proximo.envs.host.zoo, sys; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


# A run.


def trainer(path, env=SPREAD, **keywords):
    small = dict(num_envs=4, rollout_length=25, minibatch_size=50, epochs_per_update=2, hidden_sizes=[16], workers=0)
    rest = dict(eval_frequency=2, eval_episodes=4, total_timesteps=400, console=probes.Notes(), preset=False)
    return PPOTrainer(env, out=path, **(small | rest | keywords))


@pytest.mark.slow
def test_a_run_is_kept_and_goes_on_with_the_same_bits(tmp_path):
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
    env = make(SPREAD).factory()
    obs, _ = env.reset(seed=0)
    assert all(env.action_space(agent).contains(action) for agent, action in one.act(obs).items())


@pytest.mark.slow
def test_a_game_with_turns_is_learned_from(tmp_path):
    result = trainer(tmp_path / "run", TICTACTOE, total_timesteps=200, num_envs=2, minibatch_size=50).train()
    assert result["episodes"] > 10
    final = result["final_eval"]
    assert final["agent/player_1/return_mean"] == -final["agent/player_2/return_mean"]


@pytest.mark.slow
@pytest.mark.parametrize("env", [SPREAD, TICTACTOE])
def test_an_episode_is_filmed(env):
    source = make(env)
    agent = TeamAgent(source.spec.team)
    frames, fps = record(source, agent, EnvConfig(), seed=0)
    pictures = list(frames)
    if env == SPREAD:
        assert fps == 10
        assert len(pictures) == 26
    assert all(picture.dtype == np.uint8 and picture.shape == pictures[0].shape for picture in pictures)
    assert any((one != other).any() for one, other in itertools.pairwise(pictures))
    assert (pictures[-1] != pictures[0]).any(), "the last one is of the end, not of the next beginning"
