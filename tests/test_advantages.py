"""Advantages worked out by hand.

Everywhere: rewards 1, 2, 3, values 4, 2, 6, then 8 after the cut; gamma = lambda = 1/2 unless said otherwise.

    delta_0 = 1 + 2/2 - 4 = -2     delta_1 = 2 + 6/2 - 2 = 3     delta_2 = 3 + 8/2 - 6 = 1

`final_value` is 100 wherever it must not be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proximo.ppo.advantages import advantages

REWARD, VALUE, LAST = [1, 2, 3], [4, 2, 6], 8
gae = jax.jit(advantages, static_argnums=(6, 7))


def column(values: Any, dtype: Any = np.float32) -> jax.Array:
    return jnp.asarray(np.array(values, dtype))[:, None]


def one_lane(
    terminated: Sequence[int] = (),
    truncated: Sequence[int] = (),
    final_value: Sequence[float] = (100, 100, 100),
    gamma: float = 0.5,
    gae_lambda: float = 0.5,
) -> tuple[list[float], list[float]]:
    """Advantages and targets; `terminated` and `truncated` are the steps at which it happened."""
    advantage, target = gae(
        column(REWARD),
        column(VALUE),
        column([t in terminated for t in range(3)], bool),
        column([t in truncated for t in range(3)], bool),
        column(final_value),
        jnp.array([LAST], jnp.float32),
        gamma,
        gae_lambda,
    )
    return advantage[:, 0].tolist(), target[:, 0].tolist()


def test_an_episode_that_goes_on() -> None:
    # A_2 = 1;  A_1 = 3 + 1/4 = 3.25;  A_0 = -2 + 3.25/4 = -1.1875; targets are those plus 4, 2, 6.
    advantage, target = one_lane()
    assert advantage == [-1.1875, 3.25, 1]
    assert target == [2.8125, 5.25, 7]


def test_nothing_follows_a_termination() -> None:
    # delta_1 = 2 - 2 = 0 and A_1 = 0;  A_0 = -2;  the next episode's A_2 stays 1.
    advantage, target = one_lane(terminated=[1])
    assert advantage == [-2, 0, 1]
    assert target == [2, 2, 7]


def test_a_truncation_bootstraps_from_the_observation_it_cut() -> None:
    # delta_1 = 2 + 10/2 - 2 = 5, not with the 6 after the reset; A_1 = 5;  A_0 = -2 + 5/4 = -0.75.
    advantage, target = one_lane(truncated=[1], final_value=[100, 10, 100])
    assert advantage == [-0.75, 5, 1]
    assert target == [3.25, 7, 7]


def test_termination_wins_over_truncation() -> None:
    assert one_lane(terminated=[1], truncated=[1]) == one_lane(terminated=[1])


def test_termination_at_the_last_step() -> None:
    # delta_2 = 3 - 6 = -3;  A_1 = 3 - 3/4 = 2.25;  A_0 = -2 + 2.25/4 = -1.4375.
    assert one_lane(terminated=[2])[0] == [-1.4375, 2.25, -3]


def test_truncation_at_the_last_step() -> None:
    # delta_2 = 3 + 20/2 - 6 = 7;  A_1 = 3 + 7/4 = 4.75;  A_0 = -2 + 4.75/4 = -0.8125.
    assert one_lane(truncated=[2], final_value=[100, 100, 20])[0] == [-0.8125, 4.75, 7]


def test_lambda_zero_gives_the_td_errors() -> None:
    assert one_lane(gae_lambda=0.0)[0] == [-2, 3, 1]


def test_lambda_one_gives_the_discounted_return_as_target() -> None:
    # G_2 = 3 + 8/2 = 7;  G_1 = 2 + 7/2 = 5.5;  G_0 = 1 + 5.5/2 = 3.75.
    advantage, target = one_lane(gae_lambda=1.0)
    assert target == [3.75, 5.5, 7]
    assert advantage == [-0.25, 3.5, 1]


def test_gamma_zero_looks_no_step_ahead() -> None:
    assert one_lane(gamma=0.0)[1] == [1, 2, 3]


def test_lanes_do_not_mix() -> None:
    def two(values: Sequence[float], other: Sequence[float], dtype: Any = np.float32) -> jax.Array:
        return jnp.asarray(np.array([values, other], dtype).T)

    advantage, _ = gae(
        two(REWARD, [0, 0, 8]),
        two(VALUE, [1, 1, 1]),
        two([False, True, False], [False, False, True], bool),
        two([False, False, False], [True, False, False], bool),
        two([100, 100, 100], [3, 100, 100]),
        jnp.array([LAST, 50], jnp.float32),
        0.5,
        0.5,
    )
    # Lane 1: delta_0 = 3/2 - 1 = 0.5 and cut;  delta_2 = 8 - 1 = 7;  A_1 = 1/2 - 1 + 7/4 = 1.25.
    assert advantage.T.tolist() == [[-2, 0, 1], [0.5, 1.25, 7]]


@pytest.mark.parametrize("cuts", [[], [0], [1, 3], [0, 1, 2, 3]])
def test_a_true_critic_of_episodes_cut_for_ever_has_no_advantages(cuts: list[Any]) -> None:
    # Reward 1 for ever is worth 1 / (1 - 0.75) = 4, and cutting an episode changes nothing of that.
    fours, none = column([4] * 4), column([False] * 4, bool)
    truncated = column([t in cuts for t in range(4)], bool)
    advantage, target = gae(column([1] * 4), fours, none, truncated, fours, jnp.array([4.0]), 0.75, 0.95)
    assert not advantage.any()
    assert (target == 4).all()
