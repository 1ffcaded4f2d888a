"""Many agents: groups, lifetimes, what critics see, self-play, and what is saved of them."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import probes
import zoo_probes
from killed import assert_same_run, kill_at_random_moments, run_to_end
from proximo import PPOAgent, PPOTrainer, TeamAgent, envs, tensors
from proximo.collect.compiled import collect, initial_collect_state
from proximo.collect.host import HostCollector, tally
from proximo.config import AgentsConfig, Config, EnvConfig, NetworkConfig, NormalizeConfig
from proximo.envs.compiled.lanes import Lanes
from proximo.envs.team import arranged, named_groups
from proximo.errors import UserError
from proximo.matches import Matches
from proximo.policy.networks import Network
from proximo.policy.normalize import RunningStats
from proximo.policy.team import TeamPolicy, self_play
from proximo.ppo.advantages import advantages
from proximo.ppo.rollout import Episodes
from proximo.ppo.team import group_state, initial_state, rewards, rollout_of, updated_pool, with_scores
from proximo.ppo.update import training_samples
from proximo.record import record
from proximo.settings import build
from proximo.teams import Roster, Team
from proximo.trace import trace
from team_probes import Clocks, Ghosts, HighestWins, Lifetimes, RockPaperScissors, Rotation, TwoKinds, Weather

QUICK = dict(num_envs=4, rollout_length=8, minibatch_size=16, epochs_per_update=2, hidden_sizes=[8], eval_episodes=3)


def train(env, path, **keywords):
    trainer = PPOTrainer(env, out=path, preset=False, console=probes.Notes(), **(QUICK | keywords))
    return trainer, trainer.train()


def rows(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def timeless(path):
    """The rows of a run without what differs from run to run."""
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows(path)]


# ---- advantages


def sees_time(policy):
    """An actor without preferences, and a critic that takes what it sees for the value."""
    actor = Network(lambda key, seen: ({}, ()), lambda params, carry, seen: (carry, jnp.zeros((len(seen.vector), 2))))
    critic = Network(lambda key, seen: ({}, ()), lambda params, carry, seen: (carry, seen.vector[:, :1]))
    return {"actor": actor, "critic": critic}


def test_agents_with_different_lifetimes_have_the_advantages_worked_out_by_hand():
    """gamma = lambda = 1/2; in step t of an episode V = t, and agent i is paid 10 i + t. delta = r + V(t+1) / 2 - V(t),
    without V(t+1) at a death; A = delta + A(t+1) / 4. Two steps of the next episode are cut, where V = 2 follows."""
    config = build({"env.num_envs": 1, "ppo.rollout_length": 8, "ppo.minibatch_size": 8, "ppo.gamma": 0.5})
    config = build({"ppo.gae_lambda": 0.5, "ppo.normalize_advantages": "none"}, base=config)
    env = envs.make(Lifetimes())
    policy = TeamPolicy(env.spec.team, NetworkConfig(), NormalizeConfig(), AgentsConfig(), 1, sees_time)
    state = initial_state(policy, policy.init(jax.random.key(0)), policy.initial_stats(), config)
    lanes = Lanes(env, 1)
    _, rollout, episodes = collect(state, initial_collect_state(lanes, policy, config), lanes, policy, config)
    part = rollout_of(policy, "all", rollout)
    samples, _ = training_samples(group_state(state, "all"), part, part.reward, policy.groups["all"], config)

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
    np.testing.assert_array_equal(episodes.agents[5, 0], [0 + 1 + 2, 10 + 11 + 12 + 13 + 14 + 15, 22 + 23 + 24])
    assert episodes.returned[5, 0] == (3 + 75 + 69) / 3


def test_the_turns_of_others_take_no_time():
    """Valid at t = 0 and 2. A(2) = 0 - 1 - 7, since the end at t = 3 is its end too; A(0) = 3 + 7/2 - 5 + A(2)/4."""
    column = lambda *numbers: jnp.array(numbers, jnp.float32)[:, None]  # noqa: E731
    flags = lambda *numbers: jnp.array(numbers, bool)[:, None]  # noqa: E731
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


def samples_of(kind, env, num_rollouts, **settings):
    """Of rollouts one after the other, in one environment, by players that are judged by what they see: whose actions
    are learned from [T, A], and the advantages."""
    config = build({"env.num_envs": 1, "ppo.normalize_advantages": "none", "env.workers": 0, **settings})
    source = envs.make(env)
    policy = TeamPolicy(source.spec.team, NetworkConfig(), NormalizeConfig(), AgentsConfig(), 1, sees_time)
    state = initial_state(policy, policy.init(jax.random.key(0)), policy.initial_stats(), config)
    if kind == "compiled":
        lanes = Lanes(source, 1)
        at = initial_collect_state(lanes, policy, config)
    else:
        collector = HostCollector(source.lanes(1, config.env), policy, config)
        at = collector.start(0)
    for _ in range(num_rollouts):
        if kind == "compiled":
            at, rollout, _ = collect(state, at, lanes, policy, config)
        else:
            collected = collector.collect(state, at, bool)
            at, _ = tally(at, collected, None)
            rollout = jax.tree.map(jnp.array, collected.rollout)
        part = rollout_of(policy, "all", rollout)
        samples, _ = training_samples(group_state(state, "all"), part, part.reward, policy.groups["all"], config)
        shape = (config.ppo.rollout_length, len(source.spec.team.agents))
        yield np.asarray(samples.valid.reshape(shape)), np.asarray(samples.advantage.reshape(shape))


ROTATION = {"compiled": Rotation, "host": lambda moves: partial(zoo_probes.Rotation, moves)}
NONE = np.nan


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
def test_what_is_paid_after_a_cut_is_lost_to_no_action_that_is_learned_from(kind, moves, by_hand):
    """gamma = lambda = 1/2, rollouts of four steps: the second one of them, but for the first row above."""
    settings = {"ppo.rollout_length": 4, "ppo.minibatch_size": 4, "ppo.gamma": 0.5, "ppo.gae_lambda": 0.5}
    first, second = samples_of(kind, ROTATION[kind](moves), 2, **settings)
    valid, advantage = first if by_hand[0][0] == 4.5 else second
    np.testing.assert_array_equal(np.where(valid, advantage, NONE), by_hand)


@pytest.mark.parametrize("gae_lambda", [0.0, 0.7, 1.0])
def test_nothing_is_skipped_where_all_is_valid(gae_lambda):
    rng = np.random.default_rng(0)
    reward, value, final = rng.normal(size=(3, 6, 4)).astype(np.float32)
    terminated, truncated = rng.random((2, 6, 4)) < 0.2
    arrays = map(jnp.asarray, (reward, value, terminated, truncated & ~terminated, final, value[0]))
    given = (*arrays, 0.9, gae_lambda)
    for one, other in zip(advantages(*given), advantages(*given, jnp.ones((6, 4), bool)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_the_team_is_paid_the_mean_of_those_who_are_there():
    """In step 1, after which a_2 joins, two are there, (1 + 11) / 2; in step 2 all three, (2 + 12 + 22) / 3; in step 3
    a_0 is dead, (13 + 23) / 2; in step 5 only a_1 is there."""
    env = envs.make(Lifetimes()).arranged(AgentsConfig(reward="team"))
    config = build({"env.num_envs": 1, "ppo.rollout_length": 6, "ppo.minibatch_size": 6})
    policy = TeamPolicy(env.spec.team, NetworkConfig(), NormalizeConfig(), AgentsConfig(reward="team"), 1)
    state = initial_state(policy, policy.init(jax.random.key(0)), policy.initial_stats(), config)
    lanes = Lanes(env, 1)
    _, rollout, _ = collect(state, initial_collect_state(lanes, policy, config), lanes, policy, config)
    paid = rewards(policy, rollout)[:, 0]
    np.testing.assert_array_equal(paid[1], [6, 6, 0])
    np.testing.assert_array_equal(paid[2], [12, 12, 12])
    np.testing.assert_array_equal(paid[3], [0, 18, 18])
    np.testing.assert_array_equal(paid[5], [0, 15, 0])


@pytest.mark.parametrize(
    ("sides", "paid"),
    [
        ({"odd": ("a_1",), "even": ("a_0", "a_2")}, [[0, 10, 0], [1, 11, 0], [12, 12, 12], [0, 13, 23], [0, 15, 0]]),
        ({"low": ("a_0", "a_1"), "high": ("a_2",)}, [[5, 5, 0], [6, 6, 0], [7, 7, 22], [0, 13, 23], [0, 15, 0]]),
    ],
)
def test_with_self_play_a_side_is_paid_the_mean_of_those_of_it_who_are_there(sides, paid):
    """Agent i is paid 10 i + t in step t: in step 2 the even ones (2 + 22) / 2. Over all, what one side wins the other
    loses would leave nothing to learn."""
    agents = AgentsConfig(reward="team", selfplay=1.0, sides=sides)
    env = envs.make(Lifetimes()).arranged(agents)
    config = build({"env.num_envs": 1, "ppo.rollout_length": 6, "ppo.minibatch_size": 6})
    policy = TeamPolicy(env.spec.team, NetworkConfig(), NormalizeConfig(), agents, 1)
    state = initial_state(policy, policy.init(jax.random.key(0)), policy.initial_stats(), config)
    lanes = Lanes(env, 1)
    _, rollout, _ = collect(state, initial_collect_state(lanes, policy, config), lanes, policy, config)
    np.testing.assert_array_equal(rewards(policy, rollout)[np.array([0, 1, 2, 3, 5]), 0], paid)


# ---- memory


def counts_steps(policy):
    """Networks that remember how often they were asked: the actor does that number, the critic expects it."""

    def network(head):
        init = lambda key, seen: ({"unused": jnp.zeros(1)}, jnp.zeros((1, 1)))  # noqa: E731
        apply = lambda params, carry, seen: (carry + 1, head(carry) + 0 * params["unused"][None])  # noqa: E731
        return Network(init, apply)

    return {
        "actor": network(lambda carry: 100 * jax.nn.one_hot(carry[:, 0].astype(jnp.int32), 8)),
        "critic": network(lambda carry: carry),
    }


CLOCKS = {"compiled": Clocks, "host": lambda: zoo_probes.Clocks}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLOCKS)
@pytest.mark.parametrize("length", [12, 5])
def test_whoever_joins_remembers_nothing(kind, length, tmp_path):
    """In training and in evaluation, wherever a rollout is cut. An action that the update took for another one would
    have a log-probability of -100."""
    size = dict(num_envs=4, rollout_length=length, sequence_length=length, minibatch_size=length, workers=0)
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
        for agent, paid in zip(trainer.agent.policy.team.agents, Clocks.PAID, strict=True):
            assert row.get(f"recent/agent/{agent}/return_mean") in (paid, None)
            assert row.get(f"eval/agent/{agent}/return_mean", paid) == paid
        assert row["ppo/approx_kl"] == pytest.approx(0, abs=1e-6)
        assert row["loss/entropy"] == pytest.approx(0, abs=1e-6)
    assert result["final_eval"]["return_mean"] == sum(Clocks.PAID) / 3


@pytest.mark.parametrize("kind", CLOCKS)
def test_who_is_traced_and_filmed_remembers_as_in_training(kind):
    source = envs.make(CLOCKS[kind]())
    team = TeamAgent(source.spec.team, Config(), network=counts_steps)
    assert trace(source, team, EnvConfig(), 0)["return"] == pytest.approx(sum(Clocks.PAID) / 3)
    frames, _ = record(source, team, EnvConfig(), 0)
    assert [frame[0, 0, 0] for frame in frames] == [0, 2, 4, 7, 9, 11, 12]


def test_a_team_in_use_remembers_as_in_training():
    env = zoo_probes.Clocks()
    team = TeamAgent(envs.make(zoo_probes.Clocks).spec.team, Config(), network=counts_steps)
    for _ in range(2):
        team.reset()
        (obs, _), paid = env.reset(), dict.fromkeys(env.possible_agents, 0)
        while env.agents:
            obs, rewards, *_ = env.step(team.act({agent: obs[agent] for agent in env.agents}))
            paid = {agent: paid[agent] + rewards.get(agent, 0) for agent in paid}
        assert tuple(paid.values()) == Clocks.PAID


# ---- whoever is not there


GHOSTS = {"compiled": Ghosts, "host": lambda fill: partial(zoo_probes.Ghosts, fill)}
SEEN_BY = {
    "central": {"critic": "central", "normalize_observations": True, "max_steps_per_episode": 4},
    "memory": {"memory": "gru", "normalize_observations": True, "reward": "team"},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", GHOSTS)
@pytest.mark.parametrize("seen_by", SEEN_BY)
def test_what_the_dead_see_changes_nothing(kind, seen_by, tmp_path):
    """Not a bit of a run. With a limit of 4 steps a_0 is dead when the others are cut, without one all die."""
    runs = []
    for fill in (np.nan, 50.0):
        path = tmp_path / str(fill)
        settings = SEEN_BY[seen_by] | dict(total_timesteps=3 * 32, eval_frequency=2, workers=0)
        trainer, result = train(GHOSTS[kind](fill), path, **settings)
        told = trace(trainer.env, trainer.agent, EnvConfig(), 0)
        runs.append((timeless(path), result["final_eval"], told["value"]))
    assert np.isfinite(runs[0][2]).all()
    assert runs[0] == runs[1]


# ---- groups


def roster(**agents):
    return Roster(agents, dict.fromkeys(agents, spaces.Discrete(2)))


def test_groups_by_name():
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
def test_groups_as_the_settings_want_them(who, settings, groups):
    assert arranged("field", who, AgentsConfig(**settings)).groups == groups


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
def test_groups_that_cannot_be(who, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        arranged("field", who, AgentsConfig(**settings))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"agents.members": {"a": ["x"]}, "agents.policy": "shared"}, "has no effect with agents.policy=shared"),
        ({"agents.critic": "central", "network.torso": "shared"}, "use network.torso=separate"),
        ({"agents.selfplay_pool": 3}, "has no effect with agents.selfplay=0"),
        ({"agents.members": ["a"]}, r"must be names with lists of agents, such as .* or null, not \['a'\]"),
    ],
)
def test_settings_that_do_not_fit(settings, sentence):
    from proximo.settings import convert, find_setting

    with pytest.raises(UserError, match=sentence):
        build({path: convert(find_setting(path), value) for path, value in settings.items()})


def test_settings_for_many_are_refused_where_there_is_one(tmp_path):
    with pytest.raises(UserError, match=r"agents.critic=central is for environments with many agents, and gymnax/Cart"):
        PPOTrainer("gymnax/CartPole-v1", critic="central", out=tmp_path / "run")
    with pytest.raises(UserError, match=r"env.frame_stack=2 is for one agent"):
        PPOTrainer(TwoKinds(), frame_stack=2, out=tmp_path / "run")


# ---- what is seen


def test_what_a_central_critic_sees():
    team = envs.make(Weather()).arranged(AgentsConfig(critic="central")).spec.team
    policy = TeamPolicy(team, NetworkConfig(), NormalizeConfig(), AgentsConfig(critic="central", identity=True), 2)
    obs = {"agents": {"all": jnp.array([[3, 5], [7, 2]])}, "state": jnp.array([[1.0], [-1.0]])}
    seen = policy.seen("all", obs, 1)
    np.testing.assert_array_equal(seen["own"]["observation"], [[3, 5], [7, 2]])
    np.testing.assert_array_equal(seen["own"]["agent"], [[0, 1], [0, 1]])
    np.testing.assert_array_equal(seen["all"][..., 0], [[1, 1], [-1, -1]])


def test_without_a_state_a_central_critic_sees_what_all_see():
    team = envs.make(TwoKinds()).arranged(AgentsConfig(critic="central")).spec.team
    policy = TeamPolicy(team, NetworkConfig(), NormalizeConfig(), AgentsConfig(critic="central"), 1)
    obs = {"agents": {"sorter": jnp.array([[0, 1]]), "aimer": jnp.arange(6.0).reshape(1, 2, 3)}}
    seen = policy.seen("sorter", obs, 1)
    for row in range(2):
        np.testing.assert_array_equal(seen["all"]["sorter_1"][0, row], 1)
        np.testing.assert_array_equal(seen["all"]["aimer_0"][0, row], [0, 1, 2])
        np.testing.assert_array_equal(seen["all"]["aimer_1"][0, row], [3, 4, 5])


def test_masks_are_taken_apart_agent_by_agent():
    """Two sorters with two flags each; aimers have none."""
    policy = TeamPolicy(envs.make(TwoKinds()).spec.team, NetworkConfig(), NormalizeConfig(), AgentsConfig(), 1)
    masks = policy.distribution.masks(jnp.array([[True, False, False, True]]))
    assert masks["aimer"] is None
    np.testing.assert_array_equal(masks["sorter"][0], [[True, False], [False, True]])


# ---- self-play


def rps_policy(**settings):
    agents = AgentsConfig(selfplay=0.5, **settings)
    return TeamPolicy(envs.make(RockPaperScissors()).spec.team, NetworkConfig(), NormalizeConfig(), agents, 4)


def test_sides_learn_in_turn():
    play = rps_policy().selfplay
    np.testing.assert_array_equal(play.learns, [[True, False], [False, True], [True, True], [True, True]])


def test_scores_of_the_learning_side():
    """Environment 0: "one" learns; 1: "other" does; 2 and 3 have no opponents."""
    returned = jnp.array([[[1, -1], [1, -1], [1, -1], [0, 0]], [[0, 0], [-1, 1], [0, 0], [0, 0]]], jnp.float32)
    episodes = Episodes(jnp.ones((2, 4), jnp.int32), returned.mean(-1), None, returned)
    np.testing.assert_array_equal(with_scores(rps_policy(), episodes).score, [[1, 0, -1, -1], [0.5, 1, -1, -1]])


def test_the_pool_keeps_policies_of_the_whole_run():
    """Every second update is kept; when four are, chance decides, and what is kept is spread over 400 updates."""
    policy = rps_policy(selfplay_every=2, selfplay_pool=4)
    params = policy.init(jax.random.key(0))
    state = initial_state(policy, params, policy.initial_stats(), Config())
    constant = lambda number: jax.tree.map(lambda leaf: jnp.full_like(leaf, number), params)  # noqa: E731
    after = jax.jit(lambda state: state.replace(pool=updated_pool(policy, state)))

    def kept(state):
        return np.asarray(jax.tree.leaves(state.pool["kept"]["params"])[0])[:, 0]

    for number in range(1, 401):
        state = after(state.replace(params=constant(number), update=jnp.int32(number)))
        if number == 6:
            np.testing.assert_array_equal(kept(state)[1:], [2, 4, 6])
    assert int(state.pool["count"]) == 201
    assert len(set(kept(state))) == 4
    assert all(number % 2 == 0 for number in kept(state))
    assert min(kept(state)) < 200 < max(kept(state))


@pytest.mark.slow
def test_opponents_act_by_their_own_policy_and_teach_nothing():
    """The policy that learns always shows rock, the one before always paper: environment 0 has rock against paper."""
    policy = rps_policy()
    config = build({"env.num_envs": 4, "ppo.rollout_length": 3, "ppo.minibatch_size": 12})
    params = policy.init(jax.random.key(0))
    state = initial_state(policy, params, policy.initial_stats(), config)

    def always(tree, action):
        head = tree["all"]["actor"]["Dense_2"]
        head["bias"] = head["bias"] * 0 + 100 * jax.nn.one_hot(action, 3)
        return tree

    copy = lambda tree: jax.tree.map(jnp.array, tree)  # noqa: E731
    pool = copy(state.pool)
    then = {"all": {"actor": always(copy(params), 1)["all"]["actor"]}}
    pool["kept"]["params"] = jax.tree.map(lambda leaf: leaf[None].repeat(10, 0), then)
    state = state.replace(params=always(copy(params), 0), pool=pool)
    lanes = Lanes(envs.make(RockPaperScissors()), 4)
    _, rollout, _ = collect(state, initial_collect_state(lanes, policy, config), lanes, policy, config)
    np.testing.assert_array_equal(rollout.action["all"][0], [[0, 1], [1, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal(rollout.reward[0, :, 0], [-1, 1, 0, 0])
    part = rollout_of(policy, "all", rollout)
    np.testing.assert_array_equal(part.valid[0].reshape(4, 2), policy.selfplay.learns)
    assert rollout.valid.all()


ROCK, PAPER, SCISSORS = range(3)
RPS = {"compiled": RockPaperScissors, "host": lambda: zoo_probes.RockPaperScissors}


@pytest.mark.parametrize("kind", RPS)
def test_matches_against_the_first_policy_and_the_pool(kind):
    """Ours shows rock, and beats the first policy, which shows scissors. Of the pool one shows paper, and wins, one
    scissors, and one rock: 1/2 of the games. Of places that nothing was put into, nobody plays."""
    source = envs.make(RPS[kind]())
    policy = TeamPolicy(source.spec.team, NetworkConfig(), NormalizeConfig(), AgentsConfig(selfplay=0.5), 4)
    params = policy.init(jax.random.key(0))
    config = build({"env.num_envs": 4, "eval.episodes": 10, "env.workers": 0})
    state = initial_state(policy, params, policy.initial_stats(), config)

    def always(action):
        shown = jax.tree.map(jnp.array, params)
        head = shown["all"]["actor"]["Dense_2"]
        head["bias"] = head["bias"] * 0 + 100 * jax.nn.one_hot(action, 3)
        return shown

    def kept(action):
        return {"params": {"all": {"actor": always(action)["all"]["actor"]}}, "stats": {"all": None}}

    pool = [kept(action) for action in (PAPER, SCISSORS, ROCK, PAPER, PAPER)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *pool)
    state = state.replace(params=always(ROCK), pool={"kept": stacked, "count": jnp.int32(3), "first": kept(SCISSORS)})
    matches = Matches(source, policy, config)
    assert matches(state) == {"win_rate": 0.75, "win_rate_first": 1.0, "win_rate_pool": 0.5}
    assert matches(state, lambda: True) is None
    worse = state.replace(params=always(PAPER))
    assert matches(worse)["win_rate_first"] == 0.0
    matches.close()


QUICK_PLAY = dict(num_envs=16, selfplay=0.5, selfplay_every=2, learning_rate=3e-3, minibatch_size=64, eval_episodes=40)


@pytest.mark.slow
@pytest.mark.parametrize("frequency", [2, 0])
def test_the_best_policy_of_self_play_is_the_one_that_wins(frequency, tmp_path):
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
        ({"selfplay": 0.1}, "agents.selfplay=0.1 of 4 environments is none"),
        ({"selfplay": 0.5, "sides": {"all": ("one", "other")}}, "needs two sides"),
        ({"selfplay": 0.5, "sides": {"a": ("one",)}}, "must name each agent once"),
    ],
)
def test_self_play_that_cannot_be(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        self_play(envs.make(RockPaperScissors()).spec.team, AgentsConfig(**settings), 4)


# ---- runs


@pytest.fixture(scope="module")
def two_kinds(tmp_path_factory):
    path = tmp_path_factory.mktemp("teams") / "run"
    return (*train(TwoKinds(), path, total_timesteps=8 * 32, eval_frequency=4), path)


@pytest.mark.slow
def test_metrics_by_agent_and_group(two_kinds):
    _, result, path = two_kinds
    names = [f"agent/{agent}" for agent in TwoKinds.roster.agents] + ["group/sorter", "group/aimer"]
    last, evaluated = rows(path)[-1], rows(path)[3]
    for name in names:
        assert -1 <= last[f"recent/{name}/return_mean"] <= 1
        assert -1 <= evaluated[f"eval/{name}/return_mean"] <= 1
        assert f"{name}/return_mean" in result["final_eval"]
    each = [result["final_eval"][f"agent/{agent}/return_mean"] for agent in TwoKinds.roster.agents]
    assert result["final_eval"]["return_mean"] == pytest.approx(np.mean(each), abs=1e-6)
    assert last["loss/entropy"] == pytest.approx(
        (last["group/sorter/loss/entropy"] + last["group/aimer/loss/entropy"]) / 2, abs=1e-6
    )
    assert result["total_steps"] == 256


@pytest.mark.slow
def test_a_file_for_each_group(two_kinds):
    trainer, _, path = two_kinds
    for name, group in trainer.agent.groups.items():
        agent = PPOAgent.load(path / "models" / f"final_actor.{name}.safetensors")
        obs = agent.policy.observation_space.sample()
        np.testing.assert_array_equal(agent.act(obs), group.act(obs))
    team = TeamAgent.load(path / "models")
    seen = {agent: space.sample() for agent, space in TwoKinds.roster.observation_spaces.items()}
    for agent, action in team.act(seen).items():
        np.testing.assert_array_equal(action, trainer.agent.act(seen)[agent])
        assert TwoKinds.roster.action_spaces[agent].contains(action)


def test_values_of_each_group_are_in_the_units_of_its_rewards(tmp_path):
    """Sorters learned from a fifth, aimers from a tenth of their rewards; their critics all say 3. The mean of four
    agents is (15 + 15 + 30 + 30) / 4."""

    def network(policy):
        actor = Network(
            lambda key, x: ({}, ()), lambda p, c, x: (c, jnp.zeros((len(x.vector), policy.distribution.num_params)))
        )
        critic = Network(lambda key, x: ({}, ()), lambda p, c, x: (c, jnp.full((len(x.vector), 1), 3.0)))
        return {"actor": actor, "critic": critic}

    env = envs.make(TwoKinds())
    config = build({"normalize.rewards": True})
    team = TeamAgent(env.spec.team, config, network=network)
    assert [float(stats.var) for stats in team.reward_stats.values()] == [1, 1]
    variances = {"sorter": 25.0, "aimer": 100.0}
    team.reward_stats = {name: RunningStats(*map(jnp.float32, (1, 0, var))) for name, var in variances.items()}
    obs = {name: group.policy.observation_space.sample() for name, group in team.groups.items()}
    assert {name: group.value(obs[name]) for name, group in team.groups.items()} == {"sorter": 15, "aimer": 30}
    assert trace(env, team, config.env, 0)["value"] == [22.5]
    team.save(tmp_path / "team")
    again = TeamAgent.load(tmp_path, "team", network)
    assert {name: float(stats.var) for name, stats in again.reward_stats.items()} == variances
    held = tensors.named({"params": team.params, "obs_stats": team.obs_stats, "reward_stats": team.reward_stats})
    from_checkpoint = TeamAgent.from_tensors(held, team.describe(), tmp_path, network)
    assert {name: float(stats.var) for name, stats in from_checkpoint.reward_stats.items()} == variances
    state = initial_state(team.policy, team.params, team.obs_stats, config, team.reward_stats)
    assert {name: float(stats.var) for name, stats in state.reward_stats.items()} == variances


@pytest.mark.slow
def test_a_team_that_is_not_whole(two_kinds, tmp_path):
    (tmp_path / "final_actor.aimer.safetensors").write_bytes(
        (two_kinds[2] / "models" / "final_actor.aimer.safetensors").read_bytes()
    )
    with pytest.raises(UserError, match="has no final_actor of the group sorter"):
        TeamAgent.load(tmp_path)
    with pytest.raises(UserError, match="has no pi"):
        TeamAgent.load(tmp_path, "pi")


@pytest.mark.slow
def test_agents_that_are_not_there_do_not_act(two_kinds):
    team = two_kinds[0].agent
    assert set(team.act({"sorter_1": 1})) == {"sorter_1"}
    with pytest.raises(UserError, match="There is no agent hare"):
        team.act({"hare": 1})


@pytest.mark.slow
def test_an_agent_of_another_team_is_refused(two_kinds, tmp_path):
    with pytest.raises(UserError, match="The agent's groups are"):
        PPOTrainer(RockPaperScissors(), agent=two_kinds[0].agent, out=tmp_path / "run", **QUICK)


@pytest.mark.slow
def test_a_team_that_is_handed_in_brings_its_settings(tmp_path):
    first, _ = train(RockPaperScissors(), tmp_path / "first", identity=True, selfplay=0.5, total_timesteps=32)
    again = PPOTrainer(RockPaperScissors(), agent=first.agent, out=tmp_path / "again", preset=False, **QUICK)
    assert again.config.agents == first.config.agents
    with pytest.raises(UserError, match=r"set up for 4 environments; env.num_envs=4"):
        PPOTrainer(RockPaperScissors(), agent=first.agent, out=tmp_path / "other", **QUICK | {"num_envs": 8})


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
def test_a_resumed_team_ends_with_the_same_bits(settings, tmp_path):
    keywords = dict(total_timesteps=10 * 32, eval_frequency=3, every_steps=64, keep=20)
    whole, _ = train(Lifetimes(), tmp_path / "whole", **keywords, **settings)
    given = QUICK | keywords | settings
    cut = PPOTrainer(Lifetimes(), out=tmp_path / "cut", preset=False, console=probes.Notes(), **given)
    cut.train(lambda metrics: metrics["update"] != 5)
    again = PPOTrainer.resume(tmp_path / "cut", Lifetimes(), steps=5 * 32, console=probes.Notes())
    assert again.train()["resumed"] == [{"step": 160, "exact": True}]
    for one, other in zip(jax.tree.leaves(whole.agent.params), jax.tree.leaves(again.agent.params), strict=True):
        np.testing.assert_array_equal(one, other)
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "cut")
    assert ("eval/win_rate" in rows(tmp_path / "cut")[5]) == ("selfplay" in settings)


def rps():
    return RockPaperScissors()


@pytest.mark.slow
def test_a_killed_team_ends_with_the_same_bits(tmp_path):
    settings = {"total_timesteps": 64 * 60, "selfplay": 0.5, "selfplay_every": 5}
    run_to_end(rps, tmp_path / "whole", settings)
    kill_at_random_moments(rps, tmp_path / "killed", settings, 3)
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_groups_with_different_spaces_learn(tmp_path):
    """Each of the four gets at most 1; random ones get 1/2 and about 1/3."""
    _, result = train(
        TwoKinds(),
        tmp_path / "run",
        total_timesteps=30_000,
        num_envs=16,
        rollout_length=16,
        minibatch_size=64,
        learning_rate=1e-3,
        epochs_per_update=4,
        hidden_sizes=[64, 64],
        eval_frequency=0,
        eval_episodes=50,
    )
    for agent in TwoKinds.roster.agents:
        assert result["final_eval"][f"agent/{agent}/return_mean"] > 0.95


def right_answers(team):
    answers = [team.act({"left": sign, "right": sign}) for sign in range(Weather.SIGNS)]
    return np.mean([action == sign % 2 for sign, answer in enumerate(answers) for action in answer.values()])


@pytest.mark.slow
@pytest.mark.parametrize(("critic", "solved"), [("own", False), ("central", True)])
def test_weather_needs_a_central_critic(critic, solved, tmp_path):
    trainer, _ = train(
        Weather(),
        tmp_path / "run",
        critic=critic,
        total_timesteps=80_000,
        num_envs=64,
        rollout_length=16,
        minibatch_size=256,
        learning_rate=3e-3,
        epochs_per_update=4,
        hidden_sizes=[64, 64],
        entropy_coef=0.0,
        eval_frequency=0,
    )
    right = right_answers(trainer.agent)
    assert right > 0.95 if solved else right < 0.85


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.learning)])
def test_self_play_does_not_collapse_to_one_action(seed, tmp_path):
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
def test_nothing_is_compiled_after_the_first_chunk():
    config = build({"env.num_envs": 4, "ppo.rollout_length": 8, "ppo.minibatch_size": 16, "network.hidden_sizes": (8,)})
    trainer = PPOTrainer(TwoKinds(), config=config)
    state = trainer.program.init(trainer.agent.params, trainer.agent.obs_stats)
    state, _ = trainer.program.run(state, 1)
    events = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: events.append(event))
    try:
        state, _ = trainer.program.run(state, 3)
        assert not [event for event in events if "backend_compile" in event]
    finally:
        jax.monitoring.clear_event_listeners()


def test_a_team_is_a_team():
    team = envs.make(TwoKinds()).spec.team
    assert isinstance(team, Team)
    assert team.agents == ("sorter_0", "sorter_1", "aimer_0", "aimer_1")
    assert team.members("aimer") == slice(2, 4)
