"""Critics that see more than their actors: `critic_state`, of an environment with one agent. And teams of one."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import probes
import proximo.compile
from proximo import PPOAgent, PPOTrainer, evaluate_agent
from proximo.compile import EMITTERS
from proximo.envs import EnvSpec, Roster, TeamTransition, Transition
from proximo.errors import EnvError, UserError
from proximo.policy.networks import Network
from proximo.policy.policy import Policy

TOLD = spaces.Box(-1.0, 1.0, (1,), np.float32)
SMALL: dict[str, Any] = dict(
    num_envs=16, rollout_length=16, minibatch_size=64, hidden_sizes=[32], gamma=0.9, eval_frequency=0
)
SMALL |= probes.PLAIN | dict(epochs_per_update=4, learning_rate=3e-3, eval_episodes=3, preset=False, workers=0)


class HostWeather(gymnasium.Env[Any, Any]):
    """`probes.Weather` as a Gymnasium environment."""

    observation_space = spaces.Discrete(probes.Weather.SIGNS)
    action_space = spaces.Discrete(2)
    critic_state_space: spaces.Space[Any] | None = TOLD

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.sign = int(self.np_random.integers(probes.Weather.SIGNS))
        self.weather = float(self.np_random.choice([-1.0, 1.0]))
        return self.sign, self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = 10 * self.weather + 0.02 * float(action == self.sign % 2)
        return self.sign, reward, True, False, self.info()

    def info(self) -> dict[str, Any]:
        return {"critic_state": np.array([self.weather], np.float32)}


class HostSilentWeather(HostWeather):
    critic_state_space = None

    def info(self) -> dict[str, Any]:
        return {}


class HostFinalState(gymnasium.Env[Any, Any]):
    """`probes.FinalState` as a Gymnasium environment."""

    observation_space, action_space, critic_state_space = TOLD, spaces.Discrete(2), TOLD

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cue = float(self.np_random.choice([-1.0, 1.0]))
        return self.told(self.cue)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, info = self.told(1.0)
        return obs, float(self.cue < 0), self.cue > 0, self.cue < 0, info

    def told(self, cue: float) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(1, np.float32), {"critic_state": np.array([cue], np.float32)}


WEATHER: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "compiled": (probes.Weather, lambda: probes.Weather(told=False)),
    "host": (lambda: HostWeather, lambda: HostSilentWeather),
}


def trained(env: Any, path: Path, **given: Any) -> PPOAgent:
    trainer = PPOTrainer(env, out=path, console=probes.Notes(), **(SMALL | given))
    trainer.train()
    agent: PPOAgent = trainer.agent
    return agent


def rows(path: Path) -> list[dict[str, Any]]:
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if "time" not in name} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("kind", WEATHER)
def test_only_a_critic_that_is_told_the_weather_explains_what_is_paid(kind: str, tmp_path: Path) -> None:
    told, silent = WEATHER[kind]
    agent = trained(told(), tmp_path / "told", total_timesteps=10_000)
    trained(silent(), tmp_path / "silent", total_timesteps=10_000)
    assert rows(tmp_path / "told")[-1]["ppo/explained_variance"] > 0.9
    assert rows(tmp_path / "silent")[-1]["ppo/explained_variance"] < 0.2
    signs = np.arange(probes.Weather.SIGNS)
    for weather in (-1.0, 1.0):
        known = np.full((len(signs), 1), weather, np.float32)
        assert agent.value(signs, critic_state=known) == pytest.approx(np.full(len(signs), 10 * weather), abs=1.5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compiled", "host"])
def test_a_cut_episode_is_worth_what_its_true_last_state_is(kind: str, tmp_path: Path) -> None:
    env = probes.FinalState() if kind == "compiled" else HostFinalState
    agent = trained(env, tmp_path / "run", total_timesteps=25_000, learning_rate_schedule="linear")
    values = agent.value(np.zeros((2, 1)), critic_state=np.array([[-1.0], [1.0]]))
    assert values == pytest.approx(np.array([1, 0]), abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "memory"), [("compiled", "gru"), ("host", "none")])
def test_a_run_goes_on_from_what_its_critic_was_told(kind: str, memory: str, tmp_path: Path) -> None:
    """The state that is seen next is part of a checkpoint."""
    make = WEATHER[kind][0]
    given = SMALL | {"memory": memory, "total_timesteps": 256 * 6, "every_steps": 256, "console": probes.Notes()}
    whole = PPOTrainer(make(), out=tmp_path / "whole", **given)
    whole.train()
    PPOTrainer(make(), out=tmp_path / "cut", **given).train(lambda metrics: metrics["update"] < 3)
    again = PPOTrainer.resume(tmp_path / "cut", make(), steps=256 * 3, console=probes.Notes())
    assert again.train()["resumed"] == [{"step": 768, "exact": True}]
    assert rows(tmp_path / "whole") == rows(tmp_path / "cut")
    for one, other in zip(*(jax.tree.leaves(made.agent.params) for made in (whole, again)), strict=True):
        np.testing.assert_array_equal(one, other)


# ---- agents


SEEN = spaces.Box(-100.0, 100.0, (2,), np.float32)


def sums(policy: Policy) -> dict[str, Network]:
    """An actor that prefers action 1 where the first number is positive; a critic that expects the sum of all."""
    act = lambda params, carry, x: (carry, jnp.stack([jnp.zeros(len(x.vector)), x.vector[:, 0]], axis=1))  # noqa: E731
    judge = lambda params, carry, x: (carry, x.vector.sum(-1, keepdims=True))  # noqa: E731
    return {name: Network(lambda key, x: ({}, ()), apply) for name, apply in (("actor", act), ("critic", judge))}


def test_values_take_what_the_critic_is_told() -> None:
    agent = PPOAgent(SEEN, spaces.Discrete(2), network=sums, critic_space=TOLD)
    assert agent.value([1.0, 2.0], critic_state=[0.5]) == 3.5
    found = agent.value([[1.0, 2.0], [3.0, 4.0]], critic_state=[[0.5], [-0.5]])
    np.testing.assert_array_equal(found, [3.5, 6.5])
    assert agent.act([5.0, 0.0]) == 1
    assert agent.act([-5.0, 0.0]) == 0


def test_values_are_refused_without_what_the_critic_is_told_and_with_what_it_is_not() -> None:
    told = PPOAgent(SEEN, spaces.Discrete(2), critic_space=TOLD)
    with pytest.raises(UserError, match=r"this critic sees more than that, its `critic_state`"):
        told.value([1.0, 2.0])
    plain = PPOAgent(SEEN, spaces.Discrete(2))
    with pytest.raises(UserError, match="this critic sees nothing besides"):
        plain.value([1.0, 2.0], critic_state=[0.5])


@pytest.mark.slow
def test_the_file_of_an_actor_needs_nothing_of_what_its_critic_was_told(tmp_path: Path) -> None:
    class Told(probes.Aim):
        """`Aim` with a critic that is told the cue once more; statistics are kept of both."""

        def __init__(self) -> None:
            self.spec = EnvSpec("told", self.observation_space, self.action_space, critic_state_space=TOLD)

        def reset(self, key: jax.Array) -> tuple[Any, Transition]:
            state, first = super().reset(key)
            return state, replace(first, critic_state=state[1][None])

        def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
            state, moved = super().step(key, state, action)
            return state, replace(moved, critic_state=state[1][None])

    agent = trained(Told(), tmp_path / "run", total_timesteps=512, normalize_observations=True)
    assert isinstance(agent.obs_stats, dict)
    assert {name: float(stats.count) for name, stats in agent.obs_stats.items()} == {"actor": 512, "critic": 512}
    assert {name: stats.mean.shape for name, stats in agent.obs_stats.items()} == {"actor": (1,), "critic": (2,)}
    obs, told = np.linspace(-1, 1, 9)[:, None], np.linspace(1, -1, 9)[:, None]
    actor = PPOAgent.load(tmp_path / "run" / "models" / "final_actor.safetensors")
    np.testing.assert_array_equal(actor.act(obs), agent.act(obs))
    with pytest.raises(UserError, match="saved with its actor only; `value` needs the critic"):
        actor.value(obs, critic_state=told)
    critic = PPOAgent.load(tmp_path / "run" / "models" / "final_critic.safetensors")
    np.testing.assert_array_equal(critic.value(obs, critic_state=told), agent.value(obs, critic_state=told))
    # Handed to an environment that tells its critic nothing, or something else, it is refused.
    with pytest.raises(UserError, match="The agent's critic_state_space is Box"):
        PPOTrainer(probes.Aim(), agent=agent, out=tmp_path / "other", **SMALL | {"normalize_observations": True})


# ---- teams of one


class Drift:
    """A number that drifts, by chance and as it is pushed. It pays for being pushed towards 0, terminates far from it,
    and is cut after nine steps."""

    spec = EnvSpec("drift", spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(2))

    def reset(self, key: jax.Array) -> tuple[Any, Transition]:
        place = jax.random.uniform(key, (), minval=-1.0)
        return (jnp.int32(0), place), Transition(obs=self.seen(jnp.int32(0), place))

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        clock, place = state[0] + 1, state[1]
        push = 2.0 * action.astype(jnp.float32) - 1
        reward = -push * jnp.sign(place)
        place = place + 0.5 * push + jax.random.normal(key)
        ended = jnp.abs(place) > 3
        moved = Transition(obs=self.seen(clock, place), reward=reward, terminated=ended, truncated=clock == 9)
        return (clock, place), moved

    def seen(self, clock: jax.Array, place: jax.Array) -> jax.Array:
        return jnp.stack([clock.astype(jnp.float32), place])


class Alone:
    """`Drift` as an environment of many agents, of which there is one."""

    id, max_steps = "drift", None
    roster = Roster({"agent": Drift.spec.observation_space}, {"agent": Drift.spec.action_space})

    def __init__(self) -> None:
        self.env = Drift()

    def reset(self, key: jax.Array) -> tuple[Any, TeamTransition]:
        state, first = self.env.reset(key)
        return state, self._report(first)

    def step(self, key: jax.Array, state: Any, actions: dict[str, Any]) -> tuple[Any, TeamTransition]:
        state, moved = self.env.step(key, state, actions["agent"])
        return state, self._report(moved)

    def _report(self, told: Transition) -> TeamTransition:
        ended = jnp.asarray(told.terminated) | jnp.asarray(told.truncated)
        each = {name: {"agent": getattr(told, name)} for name in ("obs", "reward", "terminated", "truncated")}
        return TeamTransition(**each, alive={"agent": ~ended})


@pytest.fixture
def compiled_as_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With emitters for fusions, as Proximo compiles. What tests compile quickly multiplies and adds in one step in
    loops alone, and the advantages of agents that may be absent are made in one."""
    monkeypatch.setattr(proximo.compile, "_kept", OrderedDict())
    monkeypatch.setattr(proximo.compile, "CPU_OPTIONS", {"xla_backend_optimization_level": 0} | EMITTERS)
    monkeypatch.setenv("XLA_FLAGS", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"normalize_observations": True, "normalize_rewards": True},
        {"memory": "gru", "memory_size": 4, "frame_stack": 2, "max_steps_per_episode": 7, "target_kl": 0.01},
    ],
    ids=["normalized", "memory"],
)
@pytest.mark.usefixtures("compiled_as_in_runs")
def test_one_agent_and_a_team_of_one_train_to_the_same_bits(given: dict[str, Any], tmp_path: Path) -> None:
    size: dict[str, Any] = dict(num_envs=4, minibatch_size=32, epochs_per_update=2, hidden_sizes=[8], eval_frequency=3)
    given = SMALL | size | given | {"total_timesteps": 64 * 6, "seed": 5, "console": probes.Notes()}
    paths = [tmp_path / "one", tmp_path / "team"]
    for path, env in zip(paths, (Drift(), Alone()), strict=True):
        PPOTrainer(env, out=path, **given).train()
    for alone, among in zip(*map(rows, paths), strict=True):
        assert alone == {name: among[name] for name in alone}
    for file in ("final_actor.safetensors", "final_critic.safetensors"):
        one, team = (PPOAgent.load(path / "models" / file) for path in paths)
        for name in ("params", "obs_stats", "reward_stats"):
            leaves = (jax.tree.leaves(getattr(agent, name)) for agent in (one, team))
            for own, other in zip(*leaves, strict=True):
                np.testing.assert_array_equal(own, other)
    alone, among = (json.loads((path / "result.json").read_text())["final_eval"] for path in paths)
    assert alone == {name: among[name] for name in alone}


# What does not go together, and what is said of it


def test_a_torso_cannot_be_shared_with_a_critic_that_sees_more() -> None:
    with pytest.raises(UserError, match="share a torso, and the critic sees more"):
        PPOTrainer(probes.Weather(), preset=False, torso="shared")


@pytest.mark.slow
def test_an_actor_is_evaluated_where_nobody_is_told(tmp_path: Path) -> None:
    agent = PPOAgent(spaces.Discrete(16), spaces.Discrete(2), critic_space=TOLD)
    file = agent.save_policy_net(tmp_path / "actor")
    assert evaluate_agent(PPOAgent.load(file), HostSilentWeather, 2)["avg_length"] == 1
    assert evaluate_agent(PPOAgent(spaces.Discrete(16), spaces.Discrete(2)), HostWeather, 2)["avg_length"] == 1


class Outside(HostWeather):
    critic_state_space = spaces.Discrete(3)

    def info(self) -> dict[str, Any]:
        return {"critic_state": 7}


@pytest.mark.slow
def test_a_state_outside_its_space_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match=r"gave a critic_state outside its space: critic_state is 7"):
        PPOTrainer(Outside, out=tmp_path / "run", **SMALL).collect()


class Mute(probes.Weather):
    def _report(self, sign: jax.Array, weather: jax.Array) -> Transition:
        return Transition(obs=sign)


@pytest.mark.slow
def test_a_state_that_was_promised_must_come() -> None:
    with pytest.raises(UserError, match="has a critic_state_space, and its Transition has no critic_state"):
        PPOTrainer(Mute(), preset=False)
