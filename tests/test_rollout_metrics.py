"""`buffer/*`: what an update learned from, with numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from proximo.config import NetworkConfig, NormalizeConfig
from proximo.policy.normalize import RunningStats
from proximo.policy.policy import Policy
from proximo.ppo.rollout_metrics import action_metrics, described, rollout_metrics
from proximo.ppo.samples import Samples

VALID = jnp.array([True, True, False, True])


def plain(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def test_invalid_samples_do_not_count() -> None:
    """1, 2 and 6: mean 3, squared deviations 4, 1 and 9, so the deviation is sqrt(14 / 3)."""
    for filler in (1e9, np.nan, -np.inf):
        found = plain(described("x", jnp.array([1.0, 2.0, filler, 6.0]), VALID))
        assert found == pytest.approx({"x_mean": 3.0, "x_std": (14 / 3) ** 0.5, "x_min": 1.0, "x_max": 6.0})


def test_nothing_valid_has_no_extremes() -> None:
    found = plain(described("x", jnp.array([1.0, 2.0]), jnp.zeros(2, bool)))
    assert found == {"x_mean": 0.0, "x_std": 0.0, "x_min": np.inf, "x_max": -np.inf}


def test_of_a_whole_rollout() -> None:
    """Two steps, two lanes; the second step of the first lane is a filler. Targets 5, 7, 9 over values 4, 5, 11:
    advantages 1, 2, -2, however they were standardised."""
    policy = Policy(spaces.Box(-1, 1, (1,)), spaces.Discrete(3), NetworkConfig(hidden_sizes=(2,)), NormalizeConfig())
    reward = jnp.array([0.5, 1.0, jnp.nan, 3.0])
    samples = Samples(
        obs=jnp.zeros((4, 1)),
        action_mask=None,
        action=jnp.array([0, 2, 1, 2], jnp.int32),
        log_prob=jnp.zeros(4),
        value=jnp.array([4.0, 5.0, 99.0, 11.0]),
        advantage=jnp.array([0.1, 0.2, 0.3, 0.4]),
        target=jnp.array([5.0, 7.0, jnp.nan, 9.0]),
        valid=VALID,
    )
    assert plain(jax.jit(lambda a, b: rollout_metrics(a, b, policy))(reward, samples)) == pytest.approx(
        OF_THE_ROLLOUT, rel=1e-5
    )
    # Learned from halves of the rewards: what the critic sees is doubled, and nothing else.
    stats = RunningStats(jnp.float32(3), jnp.float32(0), jnp.float32(4))
    doubled = {name: 2 * value if name in LEARNT else value for name, value in OF_THE_ROLLOUT.items()}
    assert plain(rollout_metrics(reward, samples, policy, stats)) == pytest.approx(doubled, rel=1e-5)


LEARNT = [f"buffer/{name}_{what}" for name in ("advantage", "return") for what in ("mean", "std", "min", "max")]
OF_THE_ROLLOUT = {
    "buffer/reward_mean": 1.5,
    "buffer/reward_std": ((1 + 0.25 + 2.25) / 3) ** 0.5,
    "buffer/reward_min": 0.5,
    "buffer/reward_max": 3.0,
    "buffer/advantage_mean": 1 / 3,
    "buffer/advantage_std": (3 - 1 / 9) ** 0.5,
    "buffer/advantage_min": -2.0,
    "buffer/advantage_max": 2.0,
    "buffer/return_mean": 7.0,
    "buffer/return_std": (8 / 3) ** 0.5,
    "buffer/return_min": 5.0,
    "buffer/return_max": 9.0,
    "buffer/valid_fraction": 0.75,
    "buffer/action_0": 1 / 3,
    "buffer/action_1": 0.0,
    "buffer/action_2": 2 / 3,
}


def test_discrete_actions_go_by_their_own_numbers() -> None:
    found = plain(action_metrics(spaces.Discrete(3, start=-1), jnp.array([-1, 1, 0, 1], jnp.int32), VALID))
    assert found == pytest.approx({"buffer/action_-1": 1 / 3, "buffer/action_0": 0.0, "buffer/action_1": 2 / 3})


def test_continuous_actions() -> None:
    """The first entry is 0, 2, 4 (mean 2, deviation sqrt(8 / 3)); the second is always 5."""
    actions = jnp.array([[[0.0, 5.0]], [[2.0, 5.0]], [[77.0, 77.0]], [[4.0, 5.0]]])
    found = plain(action_metrics(spaces.Box(-99, 99, (1, 2)), actions, VALID))
    means, deviations = ({f"buffer/action_{i}_{part}" for i in range(2)} for part in ("mean", "std"))
    assert found.keys() == means | deviations
    assert found["buffer/action_0_mean"] == pytest.approx(2.0)
    assert found["buffer/action_0_std"] == pytest.approx((8 / 3) ** 0.5)
    assert (found["buffer/action_1_mean"], found["buffer/action_1_std"]) == (5.0, 0.0)


def test_several_actions_at_once() -> None:
    space = spaces.Dict(
        {
            "move": spaces.Discrete(2),
            "arms": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(1)]),
            "push it!": spaces.Box(-1, 1, ()),
        }
    )
    actions = {
        "move": jnp.array([1, 1, 0, 0]),
        "arms": (jnp.array([[0, 2], [1, 2], [0, 0], [1, 0]]), jnp.array([[1], [0], [1], [0]], jnp.int8)),
        "push it!": jnp.array([0.5, 0.5, 9.0, 0.5]),
    }
    third = 1 / 3
    assert plain(action_metrics(space, actions, VALID)) == pytest.approx(
        {
            "buffer/action_move_0": third,
            "buffer/action_move_1": 2 * third,
            "buffer/action_arms_0_0_0": third,
            "buffer/action_arms_0_0_1": 2 * third,
            "buffer/action_arms_0_1_0": third,
            "buffer/action_arms_0_1_1": 0.0,
            "buffer/action_arms_0_1_2": 2 * third,
            "buffer/action_arms_1_0_mean": third,
            "buffer/action_arms_1_0_std": (third - third**2) ** 0.5,
            "buffer/action_push-it-_0_mean": 0.5,
            "buffer/action_push-it-_0_std": 0.0,
        }
    )


@pytest.mark.parametrize(
    ("space", "count"),
    [
        (spaces.Discrete(32), 32),
        (spaces.Discrete(33), 0),
        (spaces.Box(-1, 1, (8,)), 16),
        (spaces.Box(-1, 1, (9,)), 0),
        (spaces.Tuple([spaces.Discrete(30), spaces.Discrete(3), spaces.Discrete(2)]), 32),
    ],
)
def test_what_is_too_large_is_left_out(space: spaces.Space[Any], count: int) -> None:
    actions = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf))[None], space.sample())
    names = jax.eval_shape(lambda: action_metrics(space, actions, jnp.ones(1, bool)))
    assert len(names) == count
