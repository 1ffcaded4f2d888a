"""Two runs in one process: each gets the programs of its own environment, agents, spaces and networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from made import jax_env
from probes import PLAIN, Notes
from proximo import PPOTrainer, envs
from proximo.config import AgentsConfig, NetworkConfig, NormalizeConfig
from proximo.envs import EnvSpec, Roster, TeamTransition, Transition
from proximo.envs.compiled.gymnax import GymnaxEnv
from proximo.envs.compiled.vectorize import VectorizedEnv
from proximo.envs.groups import Group, Groups
from proximo.envs.keys import env_key, same_for_all
from proximo.errors import UserError
from proximo.policy.behaviour import Learners
from proximo.policy.networks import Network
from proximo.policy.observation import Features
from proximo.policy.policies import shared_policies
from proximo.policy.policy import shared_policy
from proximo.rollout.compiled import CompiledRunner
from proximo.rollout.episode_log import episode_log

SMALL = {"num_envs": 4, "rollout_length": 16, "minibatch_size": 64, "epochs_per_update": 2, "preset": False}
SEEN = spaces.Box(0, 1, (1,))


class Pays:
    """One step an episode, paid `goal`."""

    spec = EnvSpec("pays", SEEN, spaces.Discrete(2), max_steps=1)

    def __init__(self, goal: float) -> None:
        self.goal = goal

    def reset(self, key: jax.Array) -> tuple[Any, Transition]:
        return (), Transition(obs=jnp.ones(1))

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        return state, Transition(obs=jnp.ones(1), reward=self.goal, terminated=True)


class Echo(Pays):
    """One step an episode, paid the action."""

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        return state, Transition(obs=jnp.ones(1), reward=jnp.asarray(action, jnp.float32), terminated=True)


def always(action: Callable[[], int]) -> dict[str, Network]:
    """Networks whose actor takes whatever action `action()` is."""

    def act(params: Any, carry: Any, features: Features) -> tuple[Any, jax.Array]:
        preferred = jnp.eye(2)[action()] + 0 * params["w"]
        return carry, jnp.broadcast_to(preferred, (features.vector.shape[0], 2))

    def judge(params: Any, carry: Any, features: Features) -> tuple[Any, jax.Array]:
        return carry, jnp.broadcast_to(params["w"], (features.vector.shape[0], 1))

    init = lambda key, features: ({"w": jnp.zeros(())}, ())  # noqa: E731
    return {"actor": Network(init, act), "critic": Network(init, judge)}


def trainer_of(env: Any, tmp_path: Path, name: str = "run", **settings: Any) -> PPOTrainer:
    return PPOTrainer(env, out=tmp_path / name, console=Notes(), **(SMALL | settings))


def logged(trainer: PPOTrainer) -> Any:
    return episode_log(trainer.env, trainer._agents, trainer.config.env, 0)


@pytest.mark.slow
def test_a_changed_environment_is_trained_on_as_it_is_now(tmp_path: Path) -> None:
    """An update, an evaluation and the record of an episode say what it pays."""
    env, found = Pays(2.0), []
    for env.goal in (2.0, 3.0):
        trainer = trainer_of(env, tmp_path)
        program = trainer.program
        _, (report,) = program.run(program.init(trainer._given()), 1)
        played = logged(trainer)
        found.append([float(report.mean_reward), trainer.evaluate(2)["avg_reward"], played["return"]])
    assert found == [[2.0, 2.0, 2.0], [3.0, 3.0, 3.0]]


@pytest.mark.slow
def test_a_changed_environment_has_the_shapes_that_it_has_now(tmp_path: Path) -> None:
    """Here `reset` says more than before: JAX remembers what it traced of a method."""

    class Wide(Pays):
        def reset(self, key: jax.Array) -> tuple[Any, Transition]:
            return jnp.zeros(self.goal), Transition(obs=jnp.ones(1))

        def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
            return state, Transition(obs=jnp.ones(1), reward=state.size * 1.0, terminated=True)

    env = Wide(2)
    first = trainer_of(env, tmp_path)
    assert (first.evaluate(2)["avg_reward"], logged(first)["return"]) == (2.0, 2.0)
    env.goal = 5
    second = trainer_of(env, tmp_path)
    assert (second.evaluate(2)["avg_reward"], logged(second)["return"]) == (5.0, 5.0)


@pytest.mark.slow
def test_networks_whose_closure_changed_are_used_as_they_are_now(tmp_path: Path) -> None:
    action = 1
    env, networks = Echo(0), always(lambda: action)
    assert trainer_of(env, tmp_path, network=networks).evaluate(2)["avg_reward"] == 1.0
    action = 0
    assert trainer_of(env, tmp_path, network=networks).evaluate(2)["avg_reward"] == 0.0


# Policies


def test_the_order_of_entries_makes_another_policy() -> None:
    """The mask follows the space's own order: first a may only be 1 and b only 0, then the same the other way round."""
    entries: list[tuple[str, spaces.Space[Any]]] = [("a", spaces.Discrete(2)), ("b", spaces.Discrete(3))]
    given = (NetworkConfig(), NormalizeConfig())
    for order, flags in ((entries, [0, 1, 1, 0, 0]), (entries[::-1], [1, 0, 0, 0, 1])):
        policy = shared_policy(SEEN, spaces.Dict(order), *given)
        action = policy.distribution.mode(jnp.zeros((1, 5)), jnp.array([flags], bool))
        assert {name: int(value[0]) for name, value in policy.distribution.to_env(action).items()} == {"a": 1, "b": 0}


def test_bounds_that_are_nearly_the_same_make_another_policy() -> None:
    for high in (1e-9, 5e-9):
        policy = shared_policy(SEEN, spaces.Box(0, high, (1,)), NetworkConfig(), NormalizeConfig())
        outputs = jnp.concatenate([jnp.full((1, 1), 100.0), jnp.zeros((1, policy.distribution.num_params - 1))], 1)
        action = policy.distribution.to_env(policy.distribution.mode(outputs))
        assert float(action[0, 0]) == pytest.approx(high, rel=1e-6)


def test_what_becomes_of_a_space_does_not_become_of_a_policy_that_is_kept() -> None:
    given = (NetworkConfig(), NormalizeConfig())
    space = spaces.Box(0, 7, (1,))
    policy = shared_policy(SEEN, space, *given)
    space.high[:] = 8
    kept: Any = policy.action_space
    changed: Any = shared_policy(SEEN, space, *given).action_space
    assert shared_policy(SEEN, spaces.Box(0, 7, (1,)), *given) is policy
    assert kept.high[0] == 7
    assert changed.high[0] == 8


def test_the_order_of_agents_makes_another_team() -> None:
    def group(*members: str) -> Group:
        return Group(members, SEEN, spaces.Discrete(2))

    settings = (NetworkConfig(), NormalizeConfig(), AgentsConfig())
    given = [
        {"a": group("a"), "b": group("b")},
        {"b": group("b"), "a": group("a")},
        {"all": group("a", "b")},
        {"all": group("b", "a")},
    ]
    teams = [Groups(groups, many=True) for groups in given]
    made = [shared_policies(team, *settings) for team in teams]
    assert [policies.groups.agents for policies in made] == [("a", "b"), ("b", "a"), ("a", "b"), ("b", "a")]
    assert [list(policies) for policies in made] == [["a", "b"], ["b", "a"], ["all"], ["all"]]
    assert shared_policies(Groups(dict(given[0]), many=True), *settings) is made[0]


class Opposites:
    """Two agents, of which `one` is paid for the action 0 and `other` for 1; one step an episode."""

    id = "opposites"
    max_steps = 1

    def __init__(self, agents: tuple[str, ...]) -> None:
        self.agents = agents
        self.roster = Roster(dict.fromkeys(agents, SEEN), dict.fromkeys(agents, spaces.Discrete(2)))

    def reset(self, key: jax.Array) -> tuple[Any, TeamTransition]:
        return (), self._report({"one": 1, "other": 0}, False)

    def step(self, key: jax.Array, state: Any, actions: dict[str, Any]) -> tuple[Any, TeamTransition]:
        return state, self._report(actions, True)

    def _report(self, actions: dict[str, Any], ended: bool) -> TeamTransition:
        pays = {"one": jnp.asarray(actions["one"]) == 0, "other": jnp.asarray(actions["other"]) == 1}
        return TeamTransition(
            obs={agent: jnp.ones(1) for agent in self.agents},
            reward={agent: pays[agent].astype(jnp.float32) for agent in self.agents},
            terminated=dict.fromkeys(self.agents, ended),
            truncated=dict.fromkeys(self.agents, False),
            alive=dict.fromkeys(self.agents, not ended),
        )


FAST = PLAIN | {"num_envs": 8, "rollout_length": 16, "minibatch_size": 64, "hidden_sizes": [8], "eval_frequency": 0}
FAST |= {"learning_rate": 0.03, "entropy_coef": 0.0}


@pytest.mark.slow
def test_agents_in_another_order_are_paid_their_own_rewards(tmp_path: Path) -> None:
    """In the order of the environment, in another one of it, and in another one of the settings."""
    first, second = ("one", "other"), ("other", "one")
    own: dict[str, Any] = {"agents_policy": "independent"}
    ways = ((first, own), (second, own), (first, {"agents_members": {name: [name] for name in second}}))
    for number, (order, groups) in enumerate(ways):
        given = FAST | groups | {"total_timesteps": 128 * 20, "seed": number}
        result = trainer_of(Opposites(order), tmp_path, str(number), **given).train()
        assert result["final_eval"]["return_mean"] == 1.0


class Ordered:
    """Of `a` only 1 is allowed, of `b` only 0, which pays 1; one step an episode."""

    def __init__(self, names: Iterable[str]) -> None:
        sizes = {"a": 2, "b": 3}
        allowed = {"a": [0, 1], "b": [1, 0, 0]}
        action_space = spaces.Dict([(name, spaces.Discrete(sizes[name])) for name in names])
        self.spec = EnvSpec("ordered", SEEN, action_space, max_steps=1)
        self.mask = np.array([flag for name in names for flag in allowed[name]], bool)

    def reset(self, key: jax.Array) -> tuple[Any, Transition]:
        return (), Transition(obs=jnp.ones(1), action_mask=jnp.asarray(self.mask))

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        legal = (action["a"] == 1) & (action["b"] == 0)
        mask = jnp.asarray(self.mask)
        return state, Transition(obs=jnp.ones(1), reward=jnp.where(legal, 1.0, 0.0), terminated=True, action_mask=mask)


@pytest.mark.slow
def test_entries_of_actions_in_another_order_keep_to_their_masks(tmp_path: Path) -> None:
    for names in ("ab", "ba"):
        assert trainer_of(Ordered(names), tmp_path).evaluate(3)["min_reward"] == 1.0


def test_an_agent_for_entries_or_groups_in_another_order_is_refused(tmp_path: Path) -> None:
    agent = trainer_of(Ordered("ab"), tmp_path).agent
    with pytest.raises(UserError, match=r"The agent's action_space is Dict.*'a'.*'b'.*ordered has Dict.*'b'.*'a'"):
        trainer_of(Ordered("ba"), tmp_path, agent=agent)
    trainer_of(Ordered("ab"), tmp_path, agent=agent)
    team = trainer_of(Opposites(("one", "other")), tmp_path, agents_policy="independent").agent
    with pytest.raises(UserError, match=r"groups are \{'one'.*'other'.*opposites has \{'other'.*'one'"):
        trainer_of(Opposites(("other", "one")), tmp_path, agent=team)


def test_an_agent_for_slightly_other_bounds_is_refused(tmp_path: Path) -> None:
    class Slight(Pays):
        def __init__(self, high: float) -> None:
            super().__init__(1.0)
            self.spec = EnvSpec("slight", spaces.Box(0, high, (1,)), spaces.Discrete(2), max_steps=1)

    agent = trainer_of(Slight(1e-9), tmp_path).agent
    with pytest.raises(UserError, match="The agent's observation_space is"):
        trainer_of(Slight(5e-9), tmp_path, agent=agent)


def test_agents_whose_entries_are_in_another_order_do_not_share_a_policy() -> None:
    entries: list[tuple[str, spaces.Space[Any]]] = [("a", spaces.Discrete(2)), ("b", spaces.Discrete(3))]
    env = Opposites(("one", "other"))
    does = {"one": spaces.Dict(entries), "other": spaces.Dict(entries[::-1])}
    env.roster = Roster(env.roster.observation_spaces, does)
    assert list(envs.make(env).spec.groups) == ["one", "other"]


# Environments


def stacked_key(env: Any, num: int) -> Any:
    """The key of a program's steps with `num` frames stacked."""
    policies = shared_policies(env.spec.groups, NetworkConfig(), NormalizeConfig(), AgentsConfig())
    return CompiledRunner(VectorizedEnv(env, 2), Learners(policies), num).key


def test_environments_of_one_id_are_alike_and_not_the_same() -> None:
    one, other = (jax_env("gymnax/CartPole-v1") for _ in range(2))
    assert one is not other
    assert env_key(one) == env_key(other) is not None
    assert env_key(one) != env_key(envs.make("gymnax/Acrobot-v1"))
    around = [env_key(VectorizedEnv(env, num)) for env, num in ((one, 2), (other, 2), (other, 3))]
    assert around[0] == around[1] is not None
    assert len({*around, env_key(one)}) == 3
    stacked = [stacked_key(env, num) for env, num in ((one, 2), (other, 2), (other, 3))]
    assert stacked[0] == stacked[1] is not None
    assert stacked[1] != stacked[2]


def test_an_environment_of_an_id_that_was_changed_is_like_no_other() -> None:
    untouched = env_key(envs.make("gymnax/CartPole-v1"))
    changes: list[Callable[[Any], None]] = [
        lambda env: setattr(env, "params", env.params.replace(gravity=1.0)),
        lambda env: setattr(env, "step", env.step),
        lambda env: setattr(env.env, "step_env", env.env.step_env),
        lambda env: setattr(env.env, "obs_shape", (9,)),
    ]
    for change in changes:
        env = jax_env("gymnax/CartPole-v1")
        around = VectorizedEnv(env, 2)
        change(env)
        assert env_key(env) is None
        assert env_key(around) is None
        assert stacked_key(env, 2) is None
    assert env_key(envs.make("gymnax/CartPole-v1")) == untouched


def test_what_users_make_has_no_key() -> None:
    class Handing:
        """A wrapper that hands on what it does not have."""

        def __init__(self, env: Any) -> None:
            self.env = env

        def __getattr__(self, name: str) -> Any:
            return getattr(self.env, name)

    class Other(GymnaxEnv):
        def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
            raise NotImplementedError

    by_id = jax_env("gymnax/CartPole-v1")
    assert isinstance(by_id, GymnaxEnv)
    copied = Other(by_id.env, by_id.params, by_id.spec.id)
    copied.__dict__.update(vars(by_id))
    team = envs.make(Opposites(("one", "other")))
    for env in (Pays(1.0), Handing(by_id), copied, envs.make(by_id.env), team):
        assert env_key(env) is None


def test_an_object_has_a_key_while_it_is_the_same_for_all_runs() -> None:
    env, team = Pays(1.0), Opposites(("one", "other"))
    with same_for_all(env), same_for_all(team):
        first = env_key(env)
        assert first == env_key(env) is not None
        assert env_key(Pays(1.0)) is None
        assert stacked_key(env, 2) == stacked_key(env, 2) is not None
        assert env_key(envs.make(team)) == env_key(envs.make(team)) is not None
        env.goal = 2.0
        assert env_key(env) is None
    assert env_key(env) is None
    with same_for_all(env):
        assert env_key(env) not in (None, first)


@pytest.mark.slow
def test_a_second_run_of_an_id_compiles_nothing(tmp_path: Path) -> None:
    compilations = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if "backend_compile" in event:
            compilations.append(event)

    given = {"total_timesteps": 128, "eval_episodes": 2}
    trainer_of("gymnax/CartPole-v1", tmp_path, "one", **given).train()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        trainer_of("gymnax/CartPole-v1", tmp_path, "other", seed=1, gamma=0.5, **given).train()
        assert not compilations
        trainer_of("gymnax/CartPole-v1", tmp_path, "third", frame_stack=2, **given).evaluate(2)
        assert compilations
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
