"""Many agents: groups, lifetimes, what critics see, self-play, and what is saved of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import probes
import zoo_probes
from killed import assert_same_run, kill_at_random_moments, run_to_end
from made import jax_env, jax_team
from proximo import PPOAgent, PPOTrainer, TeamAgent, envs
from proximo.config import AgentsConfig, Config, EnvConfig, NetworkConfig, NormalizeConfig
from proximo.envs import Roster
from proximo.envs.api import TeamTransition
from proximo.envs.compiled.vectorize import VectorizedEnv
from proximo.envs.grouping import in_groups, named_groups
from proximo.envs.groups import Groups
from proximo.errors import UserError
from proximo.multi_agent.matches import Matches
from proximo.multi_agent.prepare import prepare
from proximo.multi_agent.self_play import SelfPlay, make_behaviour
from proximo.multi_agent.team_agent import agents_from
from proximo.policy.behaviour import Behaviour, Learners
from proximo.policy.networks import Network
from proximo.policy.normalize import RunningStats
from proximo.policy.policies import Policies
from proximo.policy.policy import Policy
from proximo.ppo.advantages import advantages
from proximo.ppo.recipe import BUILT_IN
from proximo.ppo.samples import Samples
from proximo.ppo.types import LearnerLanes, TrainState
from proximo.ppo.update import initial_lanes, initial_train_state, training_samples
from proximo.rollout.episode_log import episode_log
from proximo.rollout.host import HostRunner, make_experience
from proximo.rollout.host_actor import packed
from proximo.rollout.types import Episodes, Experience, Rollout
from proximo.rollout.video import episode_frames
from proximo.run_dir import tensors
from proximo.settings import build
from proximo.train.program import CompiledProgram, ProgramState, first_train_state, rollout, rollout_noise
from team_probes import Clocks, Ghosts, HighestWins, Lifetimes, RockPaperScissors, Rotation, TwoKinds, Weather

QUICK: dict[str, Any] = dict(
    num_envs=4, rollout_length=8, minibatch_size=16, epochs_per_update=2, hidden_sizes=[8], eval_episodes=3
)
QUICK |= probes.PLAIN


def train(env: Any, path: Path, **keywords: Any) -> tuple[PPOTrainer, dict[str, Any]]:
    trainer = PPOTrainer(env, out=path, preset=False, console=probes.Notes(), **(QUICK | keywords))
    return trainer, trainer.train()


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def timeless(path: Path) -> list[dict[str, Any]]:
    """The rows of a run without what differs from run to run."""
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows(path)]


# ---- advantages


def policies_of(env: Any, agents: AgentsConfig | None = None, own: Any = None) -> Policies:
    return Policies(env.spec.groups, NetworkConfig(), NormalizeConfig(), agents or AgentsConfig(), own)


def fresh(policies: Policies) -> tuple[Any, Any, Any]:
    return policies.init(jax.random.key(0)), policies.initial_stats(), {}


def begun(env: Any, behaviour: Behaviour, config: Config) -> tuple[CompiledProgram, ProgramState]:
    """A program on a compiled environment, and its state before the first update."""
    program = CompiledProgram(VectorizedEnv(env, config.env.num_envs), behaviour, config)
    return program, program.init(fresh(behaviour.policies))


def sees_time(policy: Policy) -> dict[str, Any]:
    """An actor without preferences, and a critic that takes what it sees for the value."""
    actor = Network(lambda key, seen: ({}, ()), lambda params, carry, seen: (carry, jnp.zeros((len(seen.vector), 2))))
    critic = Network(lambda key, seen: ({}, ()), lambda params, carry, seen: (carry, seen.vector[:, :1]))
    return {"actor": actor, "critic": critic}


def learned_from(
    train: TrainState, lanes: dict[str, LearnerLanes], experience: Experience, behaviour: Behaviour, config: Config
) -> tuple[Rollout, Samples]:
    """What the only group learns from, as a rollout and as samples."""
    rollouts, critic_state = prepare(experience, behaviour)
    part, policy = rollouts["all"], behaviour.policies["all"]
    given = (train.groups["all"], lanes["all"], part, critic_state, part.reward, policy, config)
    return part, training_samples(*given)[0]


@pytest.mark.slow
def test_agents_with_different_lifetimes_have_the_advantages_worked_out_by_hand() -> None:
    """gamma = lambda = 1/2; in step t of an episode V = t, and agent i is paid 10 i + t. delta = r + V(t+1) / 2 - V(t),
    without V(t+1) at a death; A = delta + A(t+1) / 4. Two steps of the next episode are cut, where V = 2 follows."""
    config = build({"env.num_envs": 1, "ppo.rollout_length": 8, "ppo.minibatch_size": 8, "ppo.gamma": 0.5})
    config = build({"ppo.gae_lambda": 0.5, "ppo.normalize_advantages": "none"}, base=config)
    env = envs.make(Lifetimes())
    behaviour = Learners(policies_of(env, own=sees_time))
    program, state = begun(env, behaviour, config)
    experience = program.collect(state)
    part, samples = learned_from(state.train, state.lanes, experience, behaviour, config)
    episodes = experience.episodes

    nan = np.nan
    by_hand = np.array(
        [
            [0.75, 1.0, 0.0, nan, nan, nan, 0.75, 1.0],
            [14.21484375, 14.859375, 15.4375, 15.75, 15.0, 10.0, 13.25, 11.0],
            [nan, nan, 28.25, 27.0, 20.0, nan, nan, nan],
        ]
    ).T
    np.testing.assert_array_equal(part.valid, ~np.isnan(by_hand))
    np.testing.assert_array_equal(np.where(part.valid, samples.advantage.reshape(8, 3), nan), by_hand)
    np.testing.assert_array_equal(episodes.length[:, 0], [0, 0, 0, 0, 0, 6, 0, 0])
    np.testing.assert_array_equal(episodes.members["all"][5, 0], [0 + 1 + 2, 10 + 11 + 12 + 13 + 14 + 15, 22 + 23 + 24])
    assert episodes.episode_return[5, 0] == (3 + 75 + 69) / 3


def test_the_turns_of_others_take_no_time() -> None:
    """Valid at t = 0 and 2. A(2) = 0 - 1 - 7, since the end at t = 3 is its end too; A(0) = 3 + 7/2 - 5 + A(2)/4."""

    def column(*numbers: float) -> jax.Array:
        return jnp.array(numbers, jnp.float32)[:, None]

    def flags(*numbers: int) -> jax.Array:
        return jnp.array(numbers, bool)[:, None]

    advantage, target = advantages(
        column(0, 3, 0, -1),
        column(5, 100, 7, 100),
        flags(0, 0, 0, 1),
        flags(0, 0, 0, 0),
        column(0, 0, 0, 0),
        jnp.array([50.0]),
        0.5,
        0.5,
        flags(1, 0, 1, 0),
    )
    np.testing.assert_array_equal(advantage[np.array([0, 2]), 0], [-0.5, -8.0])
    np.testing.assert_array_equal(target[np.array([0, 2]), 0], [4.5, -1.0])


def samples_of(kind: str, env: Any, num_rollouts: int, **settings: Any) -> Any:
    """Of rollouts one after the other, in one environment, by players that are judged by what they see: whose actions
    are learned from [T, A], and the advantages."""
    config = build({"env.num_envs": 1, "ppo.normalize_advantages": "none", "env.workers": 0, **settings})
    source = envs.make(env)
    behaviour = Learners(policies_of(source, own=sees_time))
    collected = compiled_rollouts if kind == "compiled" else host_rollouts
    train = first_train_state(fresh(behaviour.policies), behaviour, config, BUILT_IN)
    lanes = initial_lanes(behaviour.policies, 1)
    for experience in collected(source, behaviour, config, num_rollouts):
        _, samples = learned_from(train, lanes, experience, behaviour, config)
        shape = (config.ppo.rollout_length, len(source.spec.groups.agents))
        yield np.asarray(samples.valid.reshape(shape)), np.asarray(samples.advantage.reshape(shape))


def compiled_rollouts(source: Any, behaviour: Behaviour, config: Config, num_rollouts: int) -> Iterator[Experience]:
    program, state = begun(source, behaviour, config)
    for _ in range(num_rollouts):
        standing, experience = rollout(state, program.runner, config)
        state = replace(state, runner=standing)
        yield experience


def host_rollouts(source: Any, behaviour: Behaviour, config: Config, num_rollouts: int) -> Iterator[Experience]:
    steps = config.ppo.rollout_length
    train = first_train_state(fresh(behaviour.policies), behaviour, config, BUILT_IN)
    chosen, noise = behaviour.choose(train), rollout_noise(train, behaviour, 1, steps)
    with closing(source.open_envs(1, config.env)) as env:
        runner = HostRunner(env, behaviour, steps, chosen)
        at = runner.start(0)
        for _ in range(num_rollouts):
            assert runner.run(packed(chosen), at, noise, bool) == steps
            at, experience = make_experience(at, runner.rollout(at), None)
            yield jax.tree.map(jnp.array, experience)


ROTATION: dict[str, Callable[[int], Any]] = {
    "compiled": Rotation,
    "host": lambda moves: partial(zoo_probes.Rotation, moves),
}
NONE = np.nan


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROTATION)
@pytest.mark.parametrize(
    ("moves", "by_hand"),
    [
        # p_0 acts at 0, is paid 0 + 1 + 2 until its next turn, where V = 3: 3 + 3/2 - 0. What comes of its action at 3,
        # and of that of p_2 at 2, is not known at the cut. p_1 is on turn again at the cut: 11 + 12 + 13 + 4/2 - 1.
        (99, [[4.5, NONE, NONE], [NONE, 37, NONE], [NONE] * 3, [NONE] * 3]),
        # p_1 from 4 to 7: 14 + 15 + 16 + 7/2 - 4. p_2 from 5 to the cut at 8: 25 + 26 + 27 + 8/2 - 5.
        (99, [[NONE, 44.5, NONE], [NONE, NONE, 77], [NONE] * 3, [NONE] * 3]),
        # The game ends with the move at 6. p_1: 14 + 15 + 16 - 4; p_2: 25 + 26 - 5; p_0: 6 - 6. Another one begins.
        (7, [[NONE, 41, NONE], [NONE, NONE, 46], [0, NONE, NONE], [NONE] * 3]),
    ],
)
def test_what_is_paid_after_a_cut_is_lost_to_no_action_that_is_learned_from(
    kind: str, moves: int, by_hand: list[Any]
) -> None:
    """gamma = lambda = 1/2, rollouts of four steps: the second one of them, but for the first row above."""
    settings = {"ppo.rollout_length": 4, "ppo.minibatch_size": 4, "ppo.gamma": 0.5, "ppo.gae_lambda": 0.5}
    first, second = samples_of(kind, ROTATION[kind](moves), 2, **settings)
    valid, advantage = first if by_hand[0][0] == 4.5 else second
    np.testing.assert_array_equal(np.where(valid, advantage, NONE), by_hand)


@pytest.mark.parametrize("gae_lambda", [0.0, 0.7, 1.0])
def test_nothing_is_skipped_where_all_is_valid(gae_lambda: float) -> None:
    rng = np.random.default_rng(0)
    reward, value, final = rng.normal(size=(3, 6, 4)).astype(np.float32)
    terminated, truncated = rng.random((2, 6, 4)) < 0.2
    arrays = map(jnp.asarray, (reward, value, terminated, truncated & ~terminated, final, value[0]))
    given: Any = (*arrays, 0.9, gae_lambda)
    all_valid: Any = (*given, jnp.ones((6, 4), bool))
    for one, other in zip(advantages(*given), advantages(*all_valid), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def paid_to_learn(env: Any, agents: AgentsConfig) -> Any:
    """The rewards [T, A] that agents of `env` learn from, in six steps of one environment."""
    config = build({"env.num_envs": 1, "ppo.rollout_length": 6, "ppo.minibatch_size": 6})
    env = jax_team(env).with_groups(agents)
    behaviour = make_behaviour(policies_of(env, agents), 1)
    program, state = begun(env, behaviour, config)
    return prepare(program.collect(state), behaviour)[0]["all"].reward


@pytest.mark.slow
def test_the_team_is_paid_the_mean_of_those_who_are_there() -> None:
    """In step 1, after which a_2 joins, two are there, (1 + 11) / 2; in step 2 all three, (2 + 12 + 22) / 3; in step 3
    a_0 is dead, (13 + 23) / 2; in step 5 only a_1 is there."""
    paid = paid_to_learn(Lifetimes(), AgentsConfig(reward="team"))
    np.testing.assert_array_equal(paid[1], [6, 6, 0])
    np.testing.assert_array_equal(paid[2], [12, 12, 12])
    np.testing.assert_array_equal(paid[3], [0, 18, 18])
    np.testing.assert_array_equal(paid[5], [0, 15, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sides", "paid"),
    [
        ({"odd": ("a_1",), "even": ("a_0", "a_2")}, [[0, 10, 0], [1, 11, 0], [12, 12, 12], [0, 13, 23], [0, 15, 0]]),
        ({"low": ("a_0", "a_1"), "high": ("a_2",)}, [[5, 5, 0], [6, 6, 0], [7, 7, 22], [0, 13, 23], [0, 15, 0]]),
    ],
)
def test_with_self_play_a_side_is_paid_the_mean_of_those_of_it_who_are_there(
    sides: dict[str, Any], paid: list[list[int]]
) -> None:
    """Agent i is paid 10 i + t in step t: in step 2 the even ones (2 + 22) / 2. Over all, what one side wins the other
    loses would leave nothing to learn."""
    found = paid_to_learn(Lifetimes(), AgentsConfig(reward="team", selfplay=1.0, sides=sides))
    np.testing.assert_array_equal(found[np.array([0, 1, 2, 3, 5])], paid)


# ---- memory


def counts_steps(policy: Policy) -> dict[str, Any]:
    """Networks that remember how often they were asked: the actor does that number, the critic expects it."""

    def network(head: Callable[[jax.Array], jax.Array]) -> Network:
        init = lambda key, seen: ({"unused": jnp.zeros(1)}, jnp.zeros((1, 1)))  # noqa: E731
        apply = lambda params, carry, seen: (carry + 1, head(carry) + 0 * params["unused"][None])  # noqa: E731
        return Network(init, apply)

    return {
        "actor": network(lambda carry: 100 * jax.nn.one_hot(carry[:, 0].astype(jnp.int32), 8)),
        "critic": network(lambda carry: carry),
    }


CLOCKS: dict[str, Callable[[], Any]] = {"compiled": Clocks, "host": lambda: zoo_probes.Clocks}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "length"), [("compiled", 5), ("host", 12)])
def test_whoever_joins_remembers_nothing(kind: str, length: int, tmp_path: Path) -> None:
    """In training and in evaluation, wherever a rollout is cut. An action that the update took for another one would
    have a log-probability of -100."""
    size: dict[str, Any] = dict(
        num_envs=4, rollout_length=length, sequence_length=length, minibatch_size=length, workers=0
    )
    trainer = PPOTrainer(
        CLOCKS[kind](),
        network=counts_steps,
        out=tmp_path / "run",
        preset=False,
        total_timesteps=4 * 12 * 5,
        eval_frequency=3,
        eval_episodes=3,
        **size,
    )
    result = trainer.train()
    for row in rows(tmp_path / "run"):
        for agent, paid in zip(trainer.agent.policies.groups.agents, Clocks.PAID, strict=True):
            assert row.get(f"recent/agent/{agent}/return_mean") in (paid, None)
            assert row.get(f"eval/agent/{agent}/return_mean", paid) == paid
        assert row["ppo/approx_kl"] == pytest.approx(0, abs=1e-6)
        assert row["loss/entropy"] == pytest.approx(0, abs=1e-6)
    assert result["final_eval"]["return_mean"] == sum(Clocks.PAID) / 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLOCKS)
def test_who_is_logged_and_filmed_remembers_as_in_training(kind: str) -> None:
    source = envs.make(CLOCKS[kind]())
    team = TeamAgent(source.spec.groups, Config(), network=counts_steps)
    told: Any = episode_log(source, team, EnvConfig(), 0)
    assert told["return"] == pytest.approx(sum(Clocks.PAID) / 3)
    frames, _ = episode_frames(source, team, EnvConfig(), 0)
    assert [frame[0, 0, 0] for frame in frames] == [0, 2, 4, 7, 9, 11, 12]


def test_a_team_in_use_remembers_as_in_training() -> None:
    env = zoo_probes.Clocks()
    team = TeamAgent(envs.make(zoo_probes.Clocks).spec.groups, Config(), network=counts_steps)
    for _ in range(2):
        team.reset()
        (obs, _), paid = env.reset(), dict.fromkeys(env.possible_agents, 0.0)
        while env.agents:
            obs, rewards, *_ = env.step(team.act({agent: obs[agent] for agent in env.agents}))
            paid = {agent: paid[agent] + rewards.get(agent, 0) for agent in paid}
        assert tuple(paid.values()) == Clocks.PAID


# ---- whoever is not there


GHOSTS: dict[str, Callable[[float], Any]] = {"compiled": Ghosts, "host": lambda fill: partial(zoo_probes.Ghosts, fill)}
SEEN_BY = {
    "central": {"critic": "central", "normalize_observations": True, "max_steps_per_episode": 4},
    "memory": {"memory": "gru", "memory_size": 4, "normalize_observations": True, "reward": "team"},
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seen_by"), [("compiled", "central"), ("host", "memory")])
def test_what_the_dead_see_changes_nothing(kind: str, seen_by: str, tmp_path: Path) -> None:
    """Not a bit of a run. With a limit of 4 steps a_0 is dead when the others are cut, without one all die."""
    runs = []
    for fill in (np.nan, 50.0):
        path = tmp_path / str(fill)
        settings = SEEN_BY[seen_by] | dict(total_timesteps=3 * 32, eval_frequency=2, workers=0)
        trainer, result = train(GHOSTS[kind](fill), path, **settings)
        told: Any = episode_log(trainer.env, trainer.agent, EnvConfig(), 0)
        runs.append((timeless(path), result["final_eval"], told["value"]))
    assert np.isfinite(runs[0][2]).all()
    assert runs[0] == runs[1]


# ---- groups


def roster(**agents: spaces.Space[Any]) -> Roster:
    return Roster(agents, dict.fromkeys(agents, spaces.Discrete(2)))


def test_groups_by_name() -> None:
    assert named_groups(("wolf_0", "wolf_1", "hare")) == {"wolf": ("wolf_0", "wolf_1"), "hare": ("hare",)}
    assert named_groups(("0", "1")) == {"all": ("0", "1")}


ALIKE = roster(wolf_0=spaces.Discrete(3), wolf_1=spaces.Discrete(3), hare_0=spaces.Discrete(3))
UNLIKE = roster(wolf_0=spaces.Discrete(3), wolf_1=spaces.Discrete(3), hare_0=spaces.Discrete(4))
MIXED = {"a": ("hare_0", "wolf_1"), "b": ("wolf_0",)}
ODD = roster(wolf_0=spaces.Discrete(3), wolf_1=spaces.Discrete(4))


@pytest.mark.parametrize(
    ("who", "settings", "groups"),
    [
        (ALIKE, {}, {"all": ("wolf_0", "wolf_1", "hare_0")}),
        (UNLIKE, {}, {"wolf": ("wolf_0", "wolf_1"), "hare": ("hare_0",)}),
        (ODD, {}, {"wolf_0": ("wolf_0",), "wolf_1": ("wolf_1",)}),
        (ALIKE, {"policy": "independent"}, {name: (name,) for name in ALIKE.agents}),
        (ALIKE, {"policy": "groups"}, {"wolf": ("wolf_0", "wolf_1"), "hare": ("hare_0",)}),
        (
            ALIKE,
            {"members": {"a": ("hare_0", "wolf_1"), "b": ("wolf_0",)}},
            {"a": ("hare_0", "wolf_1"), "b": ("wolf_0",)},
        ),
    ],
)
def test_groups_as_the_settings_want_them(
    who: Roster, settings: dict[str, Any], groups: dict[str, tuple[str, ...]]
) -> None:
    found = in_groups("field", who, AgentsConfig(**settings))
    assert {name: group.members for name, group in found.items()} == groups
    for name, members in groups.items():
        assert found[name].observation_space == who.observation_spaces[members[0]]


@pytest.mark.parametrize(
    ("who", "settings", "sentence"),
    [
        (UNLIKE, {"policy": "shared"}, "wolf_0 and hare_0 see or do different things"),
        (ODD, {"policy": "groups"}, r"\(group wolf\); use other agents.members"),
        (ALIKE, {"members": {"a": ("wolf_0", "wolf_1")}}, "also has hare_0"),
        (ALIKE, {"members": {"a": ("wolf_0", "wolf_1", "hare_0", "fox")}}, "does not have fox"),
        (ALIKE, {"members": {"a": ("wolf_0", "wolf_1", "hare_0"), "b": ("hare_0",)}}, "has only once hare_0"),
        (ALIKE, {"members": {"a": ALIKE.agents, "b": ()}}, "the group b has no agent"),
    ],
)
def test_groups_that_cannot_be(who: Roster, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        in_groups("field", who, AgentsConfig(**settings))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"agents.members": {"a": ["x"]}, "agents.policy": "shared"}, "has no effect with agents.policy=shared"),
        ({"agents.critic": "central", "network.torso": "shared"}, "use network.torso=separate"),
        ({"agents.selfplay_pool": 3}, "has no effect with agents.selfplay=0"),
        ({"agents.members": ["a"]}, r"must be names with lists of agents, such as .* or null, not \['a'\]"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], sentence: str) -> None:
    from proximo.settings import convert, find_setting

    with pytest.raises(UserError, match=sentence):
        build({path: convert(find_setting(path), value) for path, value in settings.items()})


def test_settings_for_many_are_refused_where_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"agents.critic=central is for environments with many agents, and gymnax/Cart"):
        PPOTrainer("gymnax/CartPole-v1", critic="central", out=tmp_path / "run")


# ---- what is seen


class Choosy(TwoKinds):
    """`TwoKinds` whose second sorter may only say 1; the first has no mask."""

    def _report(self, *told: Any) -> TeamTransition:
        return replace(super()._report(*told), action_mask={"sorter_1": jnp.array([False, True])})


@pytest.mark.slow
def test_masks_are_those_of_each_agent() -> None:
    """Two sorters with two flags each, of two environments; aimers have none."""
    env = VectorizedEnv(jax_env(Choosy()), 2)
    state, first = env.reset(jax.random.key(0))
    actions = {"sorter": jnp.zeros(4, jnp.int32), "aimer": jnp.zeros((4, 1))}
    for step in (first, env.step(jax.random.key(1), state, actions)[1]):
        assert step.groups["aimer"].action_mask is None
        np.testing.assert_array_equal(step.groups["sorter"].action_mask, [[True, True], [False, True]] * 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compiled", "host"])
def test_stacked_frames_of_many_agents_begin_when_they_join(kind: str) -> None:
    """All see the time. a_0 dies after step 2, a_2 joins before step 2 and dies after step 4."""
    source = envs.make(Lifetimes() if kind == "compiled" else zoo_probes.Lifetimes)
    config = {"env.num_envs": 1, "ppo.rollout_length": 8, "ppo.minibatch_size": 8, "env.frame_stack": 2}
    trainer = PPOTrainer(source, config=build(config | {"env.workers": 0}))
    with trainer:
        rollout = trainer.program.collect(trainer.program.init(trainer._given())).groups["all"]
    seen = {number: np.asarray(rollout.obs)[rollout.valid[:, number], number].tolist() for number in range(3)}
    assert seen[0] == [[0, 0], [0, 1], [1, 2], [0, 0], [0, 1]]
    assert seen[1] == [[0, 0], [0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [0, 0], [0, 1]]
    assert seen[2] == [[2, 2], [2, 3], [3, 4]]
    np.testing.assert_array_equal(np.asarray(rollout.last_obs), [[1, 2], [1, 2], [2, 2]])


# ---- self-play


def rps_play(**settings: Any) -> SelfPlay:
    agents = AgentsConfig(selfplay=0.5, **settings)
    return SelfPlay(policies_of(envs.make(RockPaperScissors()), agents), 4)


def with_params(train: TrainState, params: Any, **changes: Any) -> TrainState:
    """A state of training with other parameters of the only group."""
    return replace(train, groups={"all": replace(train.groups["all"], params=params["all"])}, **changes)


def test_sides_learn_in_turn() -> None:
    np.testing.assert_array_equal(rps_play().learns, [[True, False], [False, True], [True, True], [True, True]])


def test_scores_of_the_learning_side() -> None:
    """Environment 0: "one" learns; 1: "other" does; 2 and 3 have no opponents."""
    returned = jnp.array([[[1, -1], [1, -1], [1, -1], [0, 0]], [[0, 0], [-1, 1], [0, 0], [0, 0]]], jnp.float32)
    none = jnp.zeros((2, 4), bool)
    episodes = Episodes(jnp.ones((2, 4), jnp.int32), returned.mean(-1), none, {"all": returned})
    np.testing.assert_array_equal(rps_play().scored(episodes).score, [[1, 0, -1, -1], [0.5, 1, -1, -1]])


@pytest.mark.slow
def test_the_pool_keeps_policies_of_the_whole_run() -> None:
    """Every second update is kept; when four are, chance decides, and what is kept is spread over 400 updates."""
    play = rps_play(selfplay_every=2, selfplay_pool=4)
    given = fresh(play.policies)
    params, state = given[0], first_train_state(given, play, Config(), BUILT_IN)

    def constant(number: int) -> Any:
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, number), params)

    after = jax.jit(lambda state: replace(state, opponents=play.updated_opponents(state)))

    def kept(state: Any) -> np.ndarray:
        return np.asarray(jax.tree.leaves(state.opponents["kept"]["params"])[0])[:, 0]

    for number in range(1, 401):
        state = after(with_params(state, constant(number), update=jnp.int32(number)))
        if number == 6:
            np.testing.assert_array_equal(kept(state)[1:], [2, 4, 6])
    assert int(state.opponents["count"]) == 201
    assert len(set(kept(state))) == 4
    assert all(number % 2 == 0 for number in kept(state))
    assert min(kept(state)) < 200 < max(kept(state))


@pytest.mark.slow
def test_opponents_act_by_their_own_policy_and_teach_nothing() -> None:
    """The policy that learns always shows rock, the one before always paper: environment 0 has rock against paper."""
    play = rps_play()
    config = build({"env.num_envs": 4, "ppo.rollout_length": 3, "ppo.minibatch_size": 12})
    program, state = begun(envs.make(RockPaperScissors()), play, config)
    params = state.train.of("params")

    def always(tree: Any, action: int) -> Any:
        head = tree["all"]["actor"]["Dense_2"]
        head["bias"] = head["bias"] * 0 + 100 * jax.nn.one_hot(action, 3)
        return tree

    def copy(tree: Any) -> Any:
        return jax.tree.map(jnp.array, tree)

    pool = copy(state.train.opponents)
    then = {"all": {"actor": always(copy(params), 1)["all"]["actor"]}}
    pool["kept"]["params"] = jax.tree.map(lambda leaf: leaf[None].repeat(10, 0), then)
    state = replace(state, train=with_params(state.train, always(copy(params), 0), opponents=pool))
    experience = program.collect(state)
    played = experience.groups["all"]
    np.testing.assert_array_equal(played.action[0].reshape(4, 2), [[0, 1], [1, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal(played.reward[0].reshape(4, 2)[:, 0], [-1, 1, 0, 0])
    part = prepare(experience, play)[0]["all"]
    np.testing.assert_array_equal(part.valid[0].reshape(4, 2), play.learns)
    assert played.valid.all()


ROCK, PAPER, SCISSORS = range(3)
RPS: dict[str, Callable[[], Any]] = {"compiled": RockPaperScissors, "host": lambda: zoo_probes.RockPaperScissors}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RPS)
def test_matches_against_the_first_policy_and_the_pool(kind: str) -> None:
    """Ours shows rock, and beats the first policy, which shows scissors. Of the pool one shows paper, and wins, one
    scissors, and one rock: 1/2 of the games. Of places that nothing was put into, nobody plays."""
    source = envs.make(RPS[kind]())
    play = SelfPlay(policies_of(source, AgentsConfig(selfplay=0.5)), 4)
    given = fresh(play.policies)
    params = given[0]
    config = build({"env.num_envs": 4, "eval.episodes": 10, "env.workers": 0})
    state = first_train_state(given, play, config, BUILT_IN)

    def always(action: int) -> Any:
        shown = jax.tree.map(jnp.array, params)
        head = shown["all"]["actor"]["Dense_2"]
        head["bias"] = head["bias"] * 0 + 100 * jax.nn.one_hot(action, 3)
        return shown

    def kept(action: int) -> Any:
        return {"params": {"all": {"actor": always(action)["all"]["actor"]}}, "stats": {"all": None}}

    pool = [kept(action) for action in (PAPER, SCISSORS, ROCK, PAPER, PAPER)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *pool)
    opponents = {"kept": stacked, "count": jnp.int32(3), "first": kept(SCISSORS)}
    state = with_params(state, always(ROCK), opponents=opponents)
    matches = Matches(source, play, config)
    assert matches(state) == {"win_rate": 0.75, "win_rate_first": 1.0, "win_rate_pool": 0.5}
    assert matches(state, lambda: True) is None
    worse = with_params(state, always(PAPER))
    found = matches(worse)
    assert found is not None
    assert found["win_rate_first"] == 0.0
    matches.close()


QUICK_PLAY = dict(num_envs=16, selfplay=0.5, selfplay_every=2, learning_rate=3e-3, minibatch_size=64, eval_episodes=40)


@pytest.mark.slow
@pytest.mark.parametrize("frequency", [2, 0])
def test_the_best_policy_of_self_play_is_the_one_that_wins(frequency: int, tmp_path: Path) -> None:
    """What one side wins the other loses: all policies have the same return, 0."""
    settings = QUICK_PLAY | dict(total_timesteps=20 * 128, eval_frequency=frequency)
    _, result = train(HighestWins(), tmp_path / "run", **settings)
    found, best, last = rows(tmp_path / "run"), result["best_policy"], result["final_eval"]
    assert last["return_mean"] == 0
    assert last["win_rate_first"] > 0.75
    assert last["win_rate"] == pytest.approx((last["win_rate_first"] + last["win_rate_pool"]) / 2)
    name, by = ("eval/win_rate", "evaluation") if frequency else ("selfplay/win_rate", "training")
    assert best["by"] == f"win rate in {by}"
    judged = {row["step"]: row[name] for row in found if name in row} | (
        {20 * 128: last["win_rate"]} if frequency else {}
    )
    assert best["step"] > min(judged)
    assert best["score"] == judged[best["step"]] > judged[min(judged)]
    if frequency:
        assert best["score"] == max(judged.values())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"selfplay": 0.1}, "agents.selfplay=0.1 of 4 environments is less than one"),
        ({"selfplay": 0.5, "sides": {"all": ("one", "other")}}, "needs two sides"),
        ({"selfplay": 0.5, "sides": {"a": ("one",)}}, "must name each agent once"),
    ],
)
def test_self_play_that_cannot_be(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        SelfPlay(policies_of(envs.make(RockPaperScissors()), AgentsConfig(**settings)), 4)


# ---- runs

Run = tuple[PPOTrainer, dict[str, Any], Path]


LEARNS: dict[str, Any] = dict(
    num_envs=16, rollout_length=16, minibatch_size=64, learning_rate=3e-3, epochs_per_update=4, hidden_sizes=[32]
)


@pytest.fixture(scope="module")
def two_kinds(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("teams") / "run"
    given = LEARNS | dict(total_timesteps=60 * 256, eval_frequency=30, eval_episodes=50)
    with probes.without_pictures():
        return (*train(TwoKinds(), path, **given), path)


@pytest.mark.slow
def test_metrics_by_agent_and_group(two_kinds: Run) -> None:
    _, result, path = two_kinds
    names = [f"agent/{agent}" for agent in TwoKinds.roster.agents] + ["group/sorter", "group/aimer"]
    last, evaluated = rows(path)[-1], rows(path)[29]
    for name in names:
        assert -1 <= last[f"recent/{name}/return_mean"] <= 1
        assert -1 <= evaluated[f"eval/{name}/return_mean"] <= 1
        assert f"{name}/return_mean" in result["final_eval"]
    each = [result["final_eval"][f"agent/{agent}/return_mean"] for agent in TwoKinds.roster.agents]
    assert result["final_eval"]["return_mean"] == pytest.approx(np.mean(each), abs=1e-6)
    assert last["loss/entropy"] == pytest.approx(
        (last["group/sorter/loss/entropy"] + last["group/aimer/loss/entropy"]) / 2, abs=1e-6
    )
    assert result["total_steps"] == 60 * 256


@pytest.mark.slow
def test_a_file_for_each_group(two_kinds: Run) -> None:
    trainer, _, path = two_kinds
    for name, group in trainer.agent.groups.items():
        agent = PPOAgent.load(path / "models" / f"final_actor.{name}.safetensors")
        obs = agent.policy.observation_space.sample()
        np.testing.assert_array_equal(agent.act(obs), group.act(obs))
    team = TeamAgent.load(path / "models")
    seen = {agent: space.sample() for agent, space in TwoKinds.roster.observation_spaces.items()}
    for member, action in team.act(seen).items():
        np.testing.assert_array_equal(action, trainer.agent.act(seen)[member])
        assert TwoKinds.roster.action_spaces[member].contains(action)


def var_of(stats: dict[str, RunningStats]) -> dict[str, float]:
    return {name: float(own.var) for name, own in stats.items()}


@pytest.mark.slow
def test_values_of_each_group_are_in_the_units_of_its_rewards(tmp_path: Path) -> None:
    """Sorters learned from a fifth, aimers from a tenth of their rewards; their critics all say 3. The mean of four
    agents is (15 + 15 + 30 + 30) / 4."""

    def network(policy: Policy) -> dict[str, Any]:
        actor = Network(
            lambda key, x: ({}, ()), lambda p, c, x: (c, jnp.zeros((len(x.vector), policy.distribution.num_params)))
        )
        critic = Network(lambda key, x: ({}, ()), lambda p, c, x: (c, jnp.full((len(x.vector), 1), 3.0)))
        return {"actor": actor, "critic": critic}

    env = envs.make(TwoKinds())
    config = build({"normalize.rewards": True})
    team = TeamAgent(env.spec.groups, config, network=network)
    assert var_of(team.part("reward_stats")) == {"sorter": 1, "aimer": 1}
    variances = {"sorter": 25.0, "aimer": 100.0}
    for name, var in variances.items():
        team.groups[name].reward_stats = RunningStats(*map(jnp.float32, (1, 0, var)))
    obs = {name: group.policy.observation_space.sample() for name, group in team.groups.items()}
    assert {name: group.value(obs[name]) for name, group in team.groups.items()} == {"sorter": 15, "aimer": 30}
    told: Any = episode_log(env, team, config.env, 0)
    assert told["value"] == [22.5]
    team.save(tmp_path / "team")
    again = TeamAgent.load(tmp_path, "team", network)
    assert var_of(again.part("reward_stats")) == variances
    names = ("params", "obs_stats", "reward_stats")
    held = tensors.named({group: {name: getattr(own, name) for name in names} for group, own in team.groups.items()})
    from_checkpoint = agents_from(held, team.describe(), tmp_path, network)
    assert var_of(from_checkpoint.part("reward_stats")) == variances
    state = initial_train_state(team.part("params"), team.part("obs_stats"), config, team.part("reward_stats"))
    assert var_of(state.of("reward_stats")) == variances


@pytest.mark.slow
def test_a_team_that_is_not_whole(two_kinds: Run, tmp_path: Path) -> None:
    (tmp_path / "final_actor.aimer.safetensors").write_bytes(
        (two_kinds[2] / "models" / "final_actor.aimer.safetensors").read_bytes()
    )
    with pytest.raises(UserError, match="has no final_actor of the group sorter"):
        TeamAgent.load(tmp_path)
    with pytest.raises(UserError, match="has no pi"):
        TeamAgent.load(tmp_path, "pi")


@pytest.mark.slow
def test_agents_that_are_not_there_do_not_act(two_kinds: Run) -> None:
    team = two_kinds[0].agent
    assert set(team.act({"sorter_1": 1})) == {"sorter_1"}
    with pytest.raises(UserError, match="There is no agent hare"):
        team.act({"hare": 1})


@pytest.mark.slow
def test_an_agent_of_another_team_is_refused(two_kinds: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="The agent's groups are"):
        PPOTrainer(RockPaperScissors(), agent=two_kinds[0].agent, out=tmp_path / "run", **QUICK | LEARNS)


@pytest.mark.slow
def test_a_team_that_is_handed_in_brings_its_settings(tmp_path: Path) -> None:
    first, _ = train(RockPaperScissors(), tmp_path / "first", identity=True, selfplay=0.5, total_timesteps=32)
    again = PPOTrainer(RockPaperScissors(), agent=first.agent, out=tmp_path / "again", preset=False, **QUICK)
    assert again.config.agents == first.config.agents
    more = PPOTrainer(RockPaperScissors(), agent=first.agent, out=tmp_path / "more", **QUICK | {"num_envs": 8})
    assert more.train(lambda metrics: False)["updates"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(
            {"memory": "gru", "critic": "central", "identity": True, "normalize_observations": True},
            marks=pytest.mark.learning,
        ),
        pytest.param(
            {"memory": "lstm", "normalize_rewards": True, "policy": "independent", "reward": "team"},
            marks=pytest.mark.learning,
        ),
        {"selfplay": 0.5, "selfplay_every": 2, "memory": "gru", "normalize_observations": True},
        pytest.param(
            {"torso": "shared", "on_nonfinite": "skip", "normalize_advantages": "batch", "target_kl": 0.5},
            marks=pytest.mark.learning,
        ),
    ],
)
def test_a_resumed_team_ends_with_the_same_bits(settings: dict[str, Any], tmp_path: Path) -> None:
    keywords = dict(total_timesteps=10 * 32, eval_frequency=3, every_steps=64, keep=20)
    whole, _ = train(Lifetimes(), tmp_path / "whole", **keywords, **settings)
    given = QUICK | keywords | settings
    cut = PPOTrainer(Lifetimes(), out=tmp_path / "cut", preset=False, console=probes.Notes(), **given)
    cut.train(lambda metrics: metrics["update"] != 5)
    again = PPOTrainer.resume(tmp_path / "cut", Lifetimes(), steps=5 * 32, console=probes.Notes())
    assert again.train()["resumed"] == [{"step": 160, "exact": True}]
    for one, other in zip(*(jax.tree.leaves(made.agent.part("params")) for made in (whole, again)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "cut")
    assert ("eval/win_rate" in rows(tmp_path / "cut")[5]) == ("selfplay" in settings)


def rps() -> RockPaperScissors:
    return RockPaperScissors()


@pytest.mark.slow
def test_a_killed_team_ends_with_the_same_bits(tmp_path: Path) -> None:
    settings = {"total_timesteps": 64 * 60, "selfplay": 0.5, "selfplay_every": 5}
    run_to_end(rps, tmp_path / "whole", settings)
    kill_at_random_moments(rps, tmp_path / "killed", settings, 3)
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_groups_with_different_spaces_learn(two_kinds: Run) -> None:
    """Each of the four gets at most 1; random ones get 1/2 and about 1/3."""
    result = two_kinds[1]
    for agent in TwoKinds.roster.agents:
        assert result["final_eval"][f"agent/{agent}/return_mean"] > 0.95


def right_answers(team: TeamAgent) -> float:
    answers = [team.act({"left": sign, "right": sign}) for sign in range(Weather.SIGNS)]
    return float(np.mean([action == sign % 2 for sign, answer in enumerate(answers) for action in answer.values()]))


@pytest.mark.slow
@pytest.mark.parametrize(("critic", "solved"), [("own", False), ("central", True)])
def test_weather_needs_a_central_critic(critic: str, solved: bool, tmp_path: Path) -> None:
    trainer, _ = train(
        Weather(),
        tmp_path / "run",
        critic=critic,
        total_timesteps=40_000,
        num_envs=64,
        rollout_length=16,
        minibatch_size=256,
        learning_rate=3e-3,
        epochs_per_update=4,
        hidden_sizes=[32],
        entropy_coef=0.0,
        eval_frequency=0,
    )
    right = right_answers(trainer.agent)
    assert right > 0.95 if solved else right < 0.85


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.learning)])
def test_self_play_does_not_collapse_to_one_action(seed: int, tmp_path: Path) -> None:
    """The only policy that nothing beats plays each action a third of the time."""
    trainer, _ = train(
        RockPaperScissors(),
        tmp_path / "run",
        seed=seed,
        total_timesteps=40_000,
        num_envs=32,
        minibatch_size=64,
        learning_rate=1e-3,
        epochs_per_update=4,
        entropy_coef=0.1,
        normalize_advantages="none",
        selfplay=0.5,
        selfplay_every=2,
        hidden_sizes=[64, 64],
        eval_frequency=0,
    )
    agent = trainer.agent.groups["all"]
    actions = agent.act(np.ones((2000, 1), np.float32), deterministic=False)
    shares = np.bincount(actions, minlength=3) / 2000
    assert shares.min() > 0.08
    assert shares.max() < 0.7
    played = [row["selfplay/win_rate"] for row in rows(tmp_path / "run") if row["selfplay/win_rate"] is not None]
    assert 0.35 < np.mean(played[len(played) // 2 :]) < 0.65


@pytest.mark.slow
def test_nothing_is_compiled_after_the_first_chunk(two_kinds: Run) -> None:
    trainer = PPOTrainer(TwoKinds(), config=two_kinds[0].config)
    state = trainer.program.init(trainer._given())
    state, _ = trainer.program.run(state, 1)
    events = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: events.append(event))
    try:
        state, _ = trainer.program.run(state, 3)
        assert not [event for event in events if "backend_compile" in event]
    finally:
        jax.monitoring.clear_event_listeners()


@pytest.mark.slow
def test_a_team_is_a_team() -> None:
    groups = envs.make(TwoKinds()).spec.groups
    assert isinstance(groups, Groups)
    assert groups.agents == ("sorter_0", "sorter_1", "aimer_0", "aimer_1")
    assert groups.columns["aimer"] == slice(2, 4)
