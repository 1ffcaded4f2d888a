"""Schedules, clipping and Adam in closed form."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from proximo.ppo.optimizer import (
    adam,
    adapted_rate,
    clip_by_norm,
    clip_each_by_norm,
    descended,
    scale_by_rates,
    scheduled,
)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("constant", [3, 3, 3, 3]),
        ("linear", [3, 2.5, 2, 1]),
        # 1 + 2 (1 + cos(pi p)) / 2, and cos(pi / 4) is the root of a half
        ("cosine", [3, 2 + np.sqrt(0.5), 2, 1]),
    ],
)
def test_schedules(schedule: str, values: list[float]) -> None:
    result = [scheduled(schedule, 3.0, 1.0, jnp.float32(progress)) for progress in (0, 0.25, 0.5, 1)]
    np.testing.assert_allclose(result, values, rtol=1e-6)


@pytest.mark.parametrize(
    ("rate", "kl", "expected"),
    [
        (3e-4, 0.021, 2e-4),  # over twice the target of 0.01
        (3e-4, 0.019, 3e-4),
        (3e-4, 0.006, 3e-4),
        (3e-4, 0.004, 4.5e-4),  # under half of it
        (1.2e-6, 1.0, 1e-6),  # never lower
        (9e-3, 0.0, 1e-2),  # never higher
    ],
)
def test_adapted_rate(rate: float, kl: float, expected: float) -> None:
    assert adapted_rate(jnp.float32(rate), jnp.float32(kl), 0.01) == pytest.approx(expected, rel=1e-6)


def transformed(transformation: Any, gradients: Any, **rates: Any) -> Any:
    """What becomes of gradients in one step."""
    return transformation.update(gradients, transformation.init(gradients), gradients, **rates)[0]


GRADIENTS = {"a": jnp.array([3.0]), "b": {"c": jnp.array([[4.0]])}}


def test_gradients_are_clipped_by_their_norm_together() -> None:
    # 3, 4: norm 5, halved to 2.5.
    clipped = transformed(clip_by_norm(2.5), GRADIENTS)
    assert clipped["a"][0] == pytest.approx(1.5)
    assert clipped["b"]["c"][0, 0] == pytest.approx(2)


def test_gradients_are_clipped_each_network_on_its_own() -> None:
    # Norms 5, within the limit, and 50, which is five times as much.
    gradients = {"actor": jnp.array([3.0, 4.0]), "critic": {"kernel": jnp.array([30.0]), "bias": jnp.array([40.0])}}
    clipped = transformed(clip_each_by_norm(10.0), gradients)
    assert clipped["actor"].tolist() == [3, 4]
    np.testing.assert_allclose([clipped["critic"]["kernel"][0], clipped["critic"]["bias"][0]], [6, 8], rtol=1e-6)


def test_gradients_within_the_norm_stay() -> None:
    clipped = transformed(clip_by_norm(5.1), GRADIENTS)
    assert (clipped["a"][0], clipped["b"]["c"][0, 0]) == (3, 4)


def test_no_gradient_stays_none() -> None:
    assert transformed(clip_by_norm(0.5), {"a": jnp.zeros(2)})["a"].tolist() == [0, 0]


def test_each_network_moves_against_its_gradient_at_its_own_rate() -> None:
    direction = {"actor": jnp.array([10.0]), "critic": {"bias": jnp.array([-10.0])}, "torso": jnp.array([1.0])}
    moves = transformed(
        scale_by_rates(), direction, learning_rate=jnp.float32(0.5), critic_learning_rate=jnp.float32(2)
    )
    assert (moves["actor"][0], moves["critic"]["bias"][0], moves["torso"][0]) == (-5, 20, -0.5)


STEP = jnp.float32(0.125)


def steps(optimizer: Any, *gradients: jax.Array) -> list[np.ndarray]:
    """Parameters that start at 0, after each step at a rate of 1/8."""
    params = {"actor": jnp.zeros_like(gradients[0])}
    state, seen = optimizer.init(params), []
    for gradient in gradients:
        params, state = descended(optimizer, {"actor": gradient}, state, params, STEP, STEP)
        seen.append(np.asarray(params["actor"]))
    return seen


def test_first_adam_step_is_the_sign_of_the_gradient() -> None:
    # Corrected for their start at zero, the moments are g and g^2: the direction is g / (|g| + epsilon).
    moved = steps(adam(None, 1e-5, False), jnp.array([1.0, -1e-3, 1e-5, 0.0]))[0]
    np.testing.assert_allclose(moved, -np.array([1 / (1 + 1e-5), -1e-3 / 1.01e-3, 0.5, 0]) / 8, rtol=1e-4)


def test_second_adam_step() -> None:
    # Gradients 1 and then -1: m = 0.9 * 0.1 - 0.1 = -0.01, over 1 - 0.81; v is 1 after correction.
    first, second = steps(adam(None, 1e-5, False), jnp.array([1.0]), jnp.array([-1.0]))
    np.testing.assert_allclose(second - first, [0.01 / 0.19 / 8], rtol=1e-4)


def test_adam_sees_clipped_gradients() -> None:
    # With an epsilon far above the gradients the direction is the gradient / epsilon: (3, 4) / 5 / 1000.
    moved = steps(adam(1.0, 1000.0, False), jnp.array([3.0, 4.0]))[0]
    np.testing.assert_allclose(moved, np.array([-0.6, -0.8]) / 8 / 1000, rtol=1e-3)


def test_networks_that_share_an_optimizer_share_the_norm() -> None:
    # Norms 5 and 50, together sqrt(2525), of which 5 is left; apart, the actor's 5 stays. Times 1e6 / 1000, as above.
    gradients = {"actor": jnp.array([3.0, 4.0]), "critic": jnp.array([30.0, 40.0])}
    start = jax.tree.map(jnp.zeros_like, gradients)
    for separate, moved in ((False, 25_000 / np.sqrt(2525)), (True, 5000.0)):
        optimizer = adam(5.0, 1000.0, separate)
        after, _ = descended(optimizer, gradients, optimizer.init(start), start, jnp.float32(1e6), jnp.float32(1e6))
        assert np.linalg.norm(after["actor"]) == pytest.approx(moved, rel=1e-2)


def test_transformations_with_rates_of_their_own_go_through_the_same_door() -> None:
    # Plain gradient descent at 0.1, whatever the settings say.
    moved = steps(optax.with_extra_args_support(optax.sgd(0.1)), jnp.array([2.0]), jnp.array([3.0]))
    np.testing.assert_allclose(moved, [[-0.2], [-0.5]], rtol=1e-6)
