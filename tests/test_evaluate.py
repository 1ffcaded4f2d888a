"""The evaluator: quotas, determinism, successes, frozen training."""

from __future__ import annotations

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
from proximo import PPOAgent, PPOTrainer
from proximo.config import EnvConfig
from proximo.envs import make
from proximo.envs.api import Transition
from proximo.envs.groups import ONE
from proximo.policy.agents import Agents
from proximo.policy.behaviour import Learners, actors
from proximo.rollout.evaluate import MAX_ENVS, make_evaluator


def evaluator_of(agent: PPOAgent, source: Any, *given: Any, **options: Any) -> Any:
    """The evaluator of an agent, which takes what `acting` gives."""
    return make_evaluator(source, Learners(Agents.of_one(agent).policies), *given, **options)


def acting(agent: PPOAgent) -> Any:
    return actors({ONE: agent})


class Lengths(probes.Counter):
    """Each episode lasts as long as its cue says (2 or 6 steps), 1 a step: short and long ones mix."""

    name = "lengths"

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        clock, cue = state[0] + 1, state[1]
        done = clock >= jnp.where(cue > 0, 6, 2)
        return (clock, cue), Transition(obs=self.observe(clock, cue), reward=1.0, terminated=done)


def evaluate(
    env: Any, episodes: int, seed: int = 0, max_steps: int | None = None, eval_max_steps: int = 10_000, **options: Any
) -> Any:
    options |= {"max_steps": eval_max_steps}
    agent = PPOAgent(env.spec.observation_space, env.spec.action_space)
    config = EnvConfig(max_steps_per_episode=max_steps)
    return evaluator_of(agent, env, episodes, config, seed, **options)(acting(agent))


@pytest.mark.slow
def test_every_environment_plays_its_quota() -> None:
    played = evaluate(Lengths(), 150)
    assert len(played.returns) == 150
    assert set(played.lengths.tolist()) == {2, 6}
    np.testing.assert_array_equal(played.returns, played.lengths)
    # A fair coin decides each episode: 150 of them average 4, with a deviation of 2 / sqrt(150) = 0.16. Taking the
    # first 150 that finish would favour the short ones.
    assert played.lengths.mean() == pytest.approx(4, abs=0.7)


@pytest.mark.slow
@pytest.mark.parametrize("episodes", [1, 3, MAX_ENVS + 1])
def test_any_number_of_episodes(episodes: int) -> None:
    assert evaluate(Lengths(), episodes).summary()["episodes"] == episodes


@pytest.mark.slow
def test_the_same_seed_gives_the_same_episodes() -> None:
    first, again, other = (evaluate(Lengths(), 40, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.lengths, again.lengths)
    assert not np.array_equal(first.lengths, other.lengths)


def test_an_environment_that_never_ends_is_cut() -> None:
    played = evaluate(probes.Counter(), 2, max_steps=30)
    assert played.lengths.tolist() == [30, 30]
    assert played.returns.tolist() == [465.0, 465.0]  # 1 + 2 + ... + 30


NOTICE = "{} of {} episodes were cut after {} steps: the environment names no limit, and eval.max_steps sets one."


class Endless(gymnasium.Env[Any, Any]):
    """Never ends; 1 a step."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 1.0, False, False, {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compiled", "host"])
def test_how_many_episodes_were_cut_for_want_of_a_limit_is_said_once(kind: str) -> None:
    source = probes.Counter() if kind == "compiled" else make(Endless)
    agent = PPOAgent(source.spec.observation_space, source.spec.action_space)
    env = EnvConfig(num_envs=2, workers=0)
    evaluator = evaluator_of(agent, source, 3, env, 0, max_steps=12)
    for said in ([NOTICE.format(3, 3, 12)], []):
        played = evaluator(acting(agent))
        assert played.lengths.tolist() == [12, 12, 12]
        assert (played.cut, played.summary()["episodes_cut"]) == (3, 3)
        assert evaluator.notices == said
        evaluator.notices.clear()
    evaluator.close()


@pytest.mark.slow
def test_only_episodes_that_were_cut_count_as_cut() -> None:
    """Of 2 or 6 steps: at 6 none is cut, since the long ones end there by themselves, at 5 all long ones are. A limit
    that was set for training too is the user's own."""
    assert evaluate(Lengths(), 20, max_steps=6).cut == 0
    assert evaluate(Divided(), 20, eval_max_steps=7).cut == 0
    ends = evaluate(Lengths(), 20, eval_max_steps=6)
    assert (ends.cut, set(ends.lengths)) == (0, {2, 6})
    cut = evaluate(Lengths(), 20, eval_max_steps=5)
    assert cut.cut == (cut.lengths == 5).sum() == (ends.lengths == 6).sum()
    assert evaluate(Lengths(), 20, max_steps=5).cut == 0


@pytest.mark.slow
def test_a_run_says_how_many_evaluated_episodes_were_cut(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "num_envs": 2,
        "rollout_length": 8,
        "minibatch_size": 8,
        "epochs_per_update": 1,
        "hidden_sizes": [4],
    }
    given |= {"total_timesteps": 32, "eval_frequency": 1, "eval_episodes": 2, "eval_max_steps": 20}
    console = probes.Notes()
    one = PPOTrainer(probes.Counter(), preset=False, out=tmp_path / "run", console=console, **given)
    result = one.train()
    assert (result["final_eval"]["length_mean"], result["final_eval"]["episodes_cut"]) == (20, 2)
    assert [said for said in console.said if "cut" in said] == [f"In an evaluation: {NOTICE.format(2, 2, 20)}"]


@pytest.mark.slow
def test_summary_numbers() -> None:
    """Four equal episodes, all of them successes: Wilson's interval goes from 1 / (1 + 1.96^2 / 4) = 0.5101 to 1."""
    played = evaluate(probes.OneStep(), 4).summary()
    assert (played.pop("episodes"), played.pop("episodes_cut")) == (4, 0)
    assert played.pop("success_low") == pytest.approx(0.5101, abs=1e-4)
    of = {"mean": 1.0, "std": 0.0, "min": 1.0, "max": 1.0, "low": 1.0, "high": 1.0}
    expected = {f"{name}_{part}": value for name in ("return", "length") for part, value in of.items()}
    assert played == expected | {"success_rate": 1.0, "success_high": 1.0}


class Divided(Lengths):
    """Short episodes (2 steps) terminate, long ones (6 steps) are cut; it may say itself which are successes."""

    def __init__(self, says: bool = False) -> None:
        super().__init__()
        self.says = says

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        state, moved = super().step(key, state, action)
        long = state[1] > 0
        moved = replace(moved, terminated=moved.terminated & ~long, truncated=moved.terminated & long)
        return state, replace(moved, success=long) if self.says else moved


class HostDivided(gymnasium.Env[Any, Any]):
    """The same on the host: the seeds 10,999 + i decide, odd ones are short. `says` is for short ones only."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, says: bool = False) -> None:
        self.says = says

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.long = seed % 2 == 0
        self.clock = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.clock += 1
        info = {"is_success": False} if self.says and not self.long else {}
        return np.zeros(1, np.float32), 1.0, not self.long and self.clock == 2, self.long and self.clock == 6, info


@pytest.mark.slow
@pytest.mark.parametrize(
    ("says", "success_return", "successful"),
    [(False, None, 2), (False, 6.0, 6), (False, 7.0, None), (True, None, 6), (True, 1.0, 6)],
)
def test_success(says: bool, success_return: float | None, successful: int | None) -> None:
    """What the environment says, else the return, else terminated: `successful` is the length of the successes."""
    played = evaluate(Divided(says), 30, success_return=success_return)
    assert played.successes.tolist() == (played.lengths == (successful or -1)).tolist()
    assert set(played.lengths) == {2, 6}


@pytest.mark.parametrize(
    ("says", "success_return", "successes"),
    [
        (False, None, [1, 0, 1, 0]),
        (False, 6.0, [0, 1, 0, 1]),
        (True, None, [0, 0, 0, 0]),
        (True, 1.0, [0, 1, 0, 1]),
    ],
)
def test_success_on_the_host(says: bool, success_return: float | None, successes: list[int]) -> None:
    """Short, long, short, long. Where the environment says nothing of the long ones, the return decides."""
    evaluator, agent = on_host(lambda: HostDivided(says), 4, num_envs=4, success_return=success_return)
    played = evaluator(acting(agent))
    assert played.lengths.tolist() == [2, 6, 2, 6]
    assert played.successes.tolist() == [bool(flag) for flag in successes]


@pytest.mark.slow
def test_sampled_actions_have_a_stream_of_their_own() -> None:
    """One-step episodes whose reward tells the action: one action for either cue, or many."""
    greedy = evaluate(probes.Aim(), 40)
    first, again, other = (evaluate(probes.Aim(), 40, seed, deterministic=False) for seed in (0, 0, 1))
    assert len(set(greedy.returns)) == 2
    assert len(set(first.returns)) > 20  # some are clipped at the bounds
    np.testing.assert_array_equal(first.returns, again.returns)
    assert not np.array_equal(first.returns, other.returns)


@pytest.mark.slow
def test_sampled_actions_on_the_host_do_not_depend_on_parts() -> None:
    def played(deterministic: bool, groups: int = 1, seed: int = 0, episodes: int = 6) -> Any:
        evaluator, agent = on_host(
            host_probes.Noisy, episodes, seed, num_envs=3, groups=groups, deterministic=deterministic
        )
        first, again = evaluator(acting(agent)), evaluator(acting(agent))
        np.testing.assert_array_equal(first.returns, again.returns)
        return first.returns

    drawn = played(False)
    assert not np.array_equal(drawn, played(True))
    assert not np.array_equal(drawn, played(False, seed=1))
    np.testing.assert_allclose(drawn, played(False, groups=3), rtol=1e-5)


@pytest.mark.slow
def test_evaluating_does_not_change_training(tmp_path: Path) -> None:
    settings: dict[str, Any] = dict(
        num_envs=4, rollout_length=16, minibatch_size=32, epochs_per_update=2, total_timesteps=64 * 6
    )

    def params(frequency: int) -> Any:
        trainer = PPOTrainer(
            env="gymnax/CartPole-v1", preset=False, out=tmp_path / str(frequency), eval_frequency=frequency, **settings
        )
        trainer.train()
        return trainer.agent.params

    for with_it, without in zip(jax.tree.leaves(params(2)), jax.tree.leaves(params(0)), strict=True):
        np.testing.assert_array_equal(with_it, without)


class Counting(host_probes.Walk):
    """Ends after as many steps as its seed says (3 + seed modulo 4), and the reward is always 1."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.wanted = 3 + seed % 4
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, _, _, info = super().step(action)
        return obs, 1.0, self.clock == self.wanted, False, info


def on_host(
    env: Any,
    episodes: int,
    seed: int = 0,
    success_return: float | None = None,
    deterministic: bool = True,
    **keywords: Any,
) -> tuple[Any, PPOAgent]:
    source = make(env)
    agent = PPOAgent(source.spec.observation_space, source.spec.action_space)
    config = EnvConfig(workers=0, **keywords)
    evaluator = evaluator_of(agent, source, episodes, config, seed, success_return, deterministic)
    return evaluator, agent


@pytest.mark.slow
def test_host_environments_play_their_quotas() -> None:
    """Seven episodes on four environments: 2, 2, 2 and 1. Their seeds are 999 + 10,000 + i, the lengths 6, 3, 4, 5."""
    evaluator, agent = on_host(Counting, 7, num_envs=4)
    assert [3 + (999 + 10_000 + env) % 4 for env in range(4)] == [6, 3, 4, 5]
    played = evaluator(acting(agent))
    assert played.lengths.tolist() == [6, 6, 3, 3, 4, 4, 5]
    assert played.returns.tolist() == played.lengths.tolist()


@pytest.mark.slow
def test_an_evaluation_that_is_stopped_has_what_was_finished() -> None:
    """Lengths are 6, 3, 4, 5. When two episodes are over, 4 steps are known and the fifth is on its way, which ends
    that of the last environment."""
    evaluator, agent = on_host(Counting, 7, num_envs=4)
    played = evaluator(acting(agent), lambda: evaluator.played >= 2)
    assert played.lengths.tolist() == [3, 4, 5]
    assert not played.complete
    assert played.summary()["interrupted"] is True
    assert "interrupted" not in evaluator(acting(agent)).summary()


@pytest.mark.slow
def test_host_evaluation_repeats_itself_and_stops_when_told() -> None:
    evaluator, agent = on_host(host_probes.Noisy, 6, num_envs=3)
    first, again = evaluator(acting(agent)), evaluator(acting(agent))
    np.testing.assert_array_equal(first.returns, again.returns)
    np.testing.assert_array_equal(first.lengths, again.lengths)
    assert evaluator(acting(agent), lambda: True) is None
    other, _ = on_host(host_probes.Noisy, 6, seed=1, num_envs=3)
    assert not np.array_equal(other(acting(agent)).returns, first.returns)
    evaluator.close()
    evaluator.close()


@pytest.mark.slow
def test_a_host_environment_that_never_ends_is_cut() -> None:
    class Endless(host_probes.Walk):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return *super().step(action)[:2], False, False, {"action_mask": [True, True]}

    evaluator, agent = on_host(Endless, 2, max_steps_per_episode=30)
    assert evaluator(acting(agent)).lengths.tolist() == [30, 30]


@pytest.mark.slow
def test_both_kinds_of_environment_are_evaluated_alike() -> None:
    """The same walk in JAX and in Python, and the same deterministic policy: the same episodes."""
    evaluator, agent = on_host(host_probes.Walk, 5)
    compiled = evaluator_of(agent, host_probes.CompiledWalk(), 5, EnvConfig(max_steps_per_episode=50), 0)
    host, other = evaluator(acting(agent)), compiled(acting(agent))
    assert host.lengths.tolist() == other.lengths.tolist()
    assert host.returns.tolist() == other.returns.tolist()
