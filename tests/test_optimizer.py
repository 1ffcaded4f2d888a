"""Schedules, clipping and Adam in closed form."""

import jax.numpy as jnp
import numpy as np
import pytest

from proximo.ppo.optimizer import adam_direction, adam_init, adapted_rate, clip_by_global_norm, descend, scheduled


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("constant", [3, 3, 3, 3]),
        ("linear", [3, 2.5, 2, 1]),
        # 1 + 2 (1 + cos(pi p)) / 2, and cos(pi / 4) is the root of a half
        ("cosine", [3, 2 + np.sqrt(0.5), 2, 1]),
    ],
)
def test_schedules(schedule, values):
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
def test_adapted_rate(rate, kl, expected):
    assert adapted_rate(jnp.float32(rate), jnp.float32(kl), 0.01) == pytest.approx(expected, rel=1e-6)


GRADIENTS = {"a": jnp.array([3.0]), "b": {"c": jnp.array([[4.0]])}}


def test_gradients_are_clipped_by_their_norm_together():
    # 3, 4: norm 5, halved to 2.5.
    clipped, norm = clip_by_global_norm(GRADIENTS, 2.5)
    assert norm == pytest.approx(5)
    assert clipped["a"][0] == pytest.approx(1.5)
    assert clipped["b"]["c"][0, 0] == pytest.approx(2)


@pytest.mark.parametrize("max_norm", [5.1, None])
def test_gradients_within_the_norm_stay(max_norm):
    clipped, norm = clip_by_global_norm(GRADIENTS, max_norm)
    assert norm == pytest.approx(5)
    assert (clipped["a"][0], clipped["b"]["c"][0, 0]) == (3, 4)


def test_no_gradient_stays_none():
    clipped, norm = clip_by_global_norm({"a": jnp.zeros(2)}, 0.5)
    assert norm == 0
    assert clipped["a"].tolist() == [0, 0]


def test_first_adam_step_is_the_sign_of_the_gradient():
    # Corrected for their start at zero, the moments are g and g^2: the direction is g / (|g| + epsilon).
    gradient = jnp.array([1.0, -1e-3, 1e-5, 0.0])
    direction, _ = adam_direction(gradient, adam_init(gradient), 1e-5)
    np.testing.assert_allclose(direction, [1 / (1 + 1e-5), -1e-3 / 1.01e-3, 0.5, 0], rtol=1e-4)


def test_second_adam_step():
    # Gradients 1 and then -1: m = 0.9 * 0.1 - 0.1 = -0.01, over 1 - 0.81; v is 1 after correction.
    one = jnp.array([1.0])
    _, moments = adam_direction(one, adam_init(one), 1e-5)
    direction, _ = adam_direction(-one, moments, 1e-5)
    np.testing.assert_allclose(direction, [-0.01 / 0.19], rtol=1e-4)


def test_descend():
    params = descend({"a": jnp.array([1.0, 2.0])}, {"a": jnp.array([10.0, -10.0])}, jnp.float32(0.05))
    np.testing.assert_allclose(params["a"], [0.5, 2.5], rtol=1e-6)
