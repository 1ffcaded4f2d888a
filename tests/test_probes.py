"""PPO on environments whose answers are known."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from proximo import PPOAgent, PPOTrainer
from proximo.envs.api import JaxEnv, Transition

FAST = probes.PLAIN | dict(
    num_envs=16,
    rollout_length=16,
    minibatch_size=64,
    epochs_per_update=4,
    learning_rate=3e-3,
    learning_rate_schedule="linear",
    gamma=0.9,
    hidden_sizes=[32],
    eval_frequency=0,
    eval_episodes=2,
    total_timesteps=60 * 256,
)


def trained(probe: JaxEnv, tmp_path: Path, **settings: Any) -> PPOAgent:
    trainer = PPOTrainer(env=probe, out=tmp_path / "run", **(FAST | settings))
    trainer.train()
    agent: PPOAgent = trainer.agent
    return agent


@pytest.mark.slow
def test_value_of_a_single_state(tmp_path: Path) -> None:
    assert trained(probes.OneStep(), tmp_path).value(np.zeros(1)) == pytest.approx(1, abs=0.02)


class Forty(probes.CuedValue):
    """One step that pays 40 or -40, as the cue says, and is worth as much. The deviation of that is 40."""

    name = "forty"

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        state, moved = super().step(key, state, action)
        return state, dataclasses.replace(moved, reward=40 * moved.reward)


@pytest.mark.slow
def test_values_are_in_the_units_of_the_environment_also_with_normalised_rewards(tmp_path: Path) -> None:
    cues, worth = np.array([[1.0], [-1.0]]), np.array([40, -40])
    agent = trained(Forty(), tmp_path, normalize_rewards=True)
    assert agent.value(cues) == pytest.approx(worth, abs=4)
    shown = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert shown["buffer/return_max"] == pytest.approx(40, rel=1e-2)
    values = agent.value(cues).tolist()
    assert PPOAgent.load(tmp_path / "run" / "models" / "final_critic.safetensors").value(cues).tolist() == values
    assert PPOTrainer.resume(tmp_path / "run", Forty(), steps=256).agent.value(cues).tolist() == values
    # Handed to another run, the critic goes on in its unit: 60 updates of 256 samples, and one more.
    again = PPOTrainer(
        Forty(), agent=agent, out=tmp_path / "again", **FAST | {"normalize_rewards": True, "total_timesteps": 256}
    )
    again.train()
    assert again.agent.reward_stats.count == 61 * 256
    assert again.agent.value(cues) == pytest.approx(worth, abs=4)


@pytest.mark.slow
def test_critic_reads_its_input(tmp_path: Path) -> None:
    agent = trained(probes.CuedValue(), tmp_path)
    assert agent.value(np.array([[1.0], [-1.0]])) == pytest.approx(np.array([1, -1]), abs=0.1)


@pytest.mark.slow
def test_delayed_reward_is_discounted(tmp_path: Path) -> None:
    agent = trained(probes.Delayed(), tmp_path)
    assert agent.value(np.array([[0.0], [1.0]])) == pytest.approx(np.array([0.9, 1]), abs=0.05)


@pytest.mark.slow
def test_policy_reads_its_input(tmp_path: Path) -> None:
    agent = trained(probes.MatchTheCue(), tmp_path)
    assert agent.act(np.array([[1.0], [-1.0]])).tolist() == [1, 0]


@pytest.mark.slow
def test_truncation_is_not_an_end(tmp_path: Path) -> None:
    """r / (1 - gamma) = 1 / 0.1."""
    agent = trained(probes.TruncatedForever(), tmp_path, total_timesteps=100_000)
    assert agent.value(np.zeros(1)) == pytest.approx(10, abs=0.5)


@pytest.mark.slow
def test_a_cut_episode_is_worth_what_its_true_last_observation_is(tmp_path: Path) -> None:
    agent = trained(probes.FinalObservation(), tmp_path)
    assert agent.value(np.array([[-1.0], [1.0]])) == pytest.approx(np.array([1, 0]), abs=0.1)


@pytest.mark.slow
def test_forbidden_actions_are_never_taken(tmp_path: Path) -> None:
    probe = probes.Masked()
    trainer = PPOTrainer(env=probe, out=tmp_path / "run", **FAST)
    worst = []
    note = lambda metrics: worst.append(metrics["step_metrics"]["rollout/reward_mean"])  # noqa: E731
    trainer.train(callback=probes.EachUpdate(note))
    assert min(worst) >= 0
    assert trainer.agent.act(np.zeros(1), action_mask=np.array(probe.mask)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"continuous": "gaussian", "initial_std": 0.5, "total_timesteps": 30_000},
        {"continuous": "tanh_gaussian", "initial_std": 0.5, "total_timesteps": 30_000},
        {"continuous": "beta", "learning_rate_schedule": "constant", "total_timesteps": 60_000},
    ],
    ids=["gaussian", "tanh_gaussian", "beta"],
)
def test_continuous_actions_reach_their_targets(settings: dict[str, Any], tmp_path: Path) -> None:
    agent = trained(probes.Aim(), tmp_path, entropy_coef=0, **settings)
    assert agent.act(np.array([[1.0], [-1.0]])) == pytest.approx(np.array([[3.0], [-1.0]]), abs=0.35)


@pytest.mark.slow
@pytest.mark.parametrize(
    "probe", [probes.MultiDiscreteSwitches, pytest.param(probes.BinarySwitches, marks=pytest.mark.learning)]
)
def test_every_component_of_an_action_is_learnt(probe: Callable[[], JaxEnv], tmp_path: Path) -> None:
    agent = trained(probe(), tmp_path)
    assert agent.act(np.array([[1.0], [-1.0]])).tolist() == [[1, 1, 1], [0, 0, 0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"optimizers": "separate", "critic_learning_rate": 1e-2},
        {"normalize_observations": True, "normalize_rewards": True},
        pytest.param(
            {"learning_rate_schedule": "adaptive", "clip_value": 0.2, "normalize_advantages": "batch"},
            marks=pytest.mark.learning,
        ),
        pytest.param(
            {
                "target_kl": 0.05,
                "clip_epsilon_schedule": "cosine",
                "entropy_coef_schedule": "linear",
                "max_grad_norm": None,
            },
            marks=pytest.mark.learning,
        ),
        {"torso": "shared", "layer_norm": True},
    ],
    ids=["separate", "normalized", "adaptive", "target-kl", "torso"],
)
def test_every_variant_learns(settings: dict[str, Any], tmp_path: Path) -> None:
    agent = trained(probes.MatchTheCue(), tmp_path, **settings)
    assert agent.act(np.array([[1.0], [-1.0]])).tolist() == [1, 0]


@pytest.mark.slow
def test_what_was_seen_before_is_in_the_stack(tmp_path: Path) -> None:
    agent = trained(probes.Recall(), tmp_path, frame_stack=2, embed=3)
    assert agent.act(np.array([[1, 0], [2, 0]])).tolist() == [0, 1]


def test_probe_rewards_are_what_they_say() -> None:
    """The probes themselves, so that a passing test above means something."""
    state = (jnp.int32(0), jnp.float32(1))
    assert probes.MatchTheCue().step(jax.random.key(0), state, jnp.int32(1))[1].reward == 1
    assert probes.MatchTheCue().step(jax.random.key(0), state, jnp.int32(0))[1].reward == 0
    assert probes.Aim().step(jax.random.key(0), state, jnp.array([2.0]))[1].reward == -1
