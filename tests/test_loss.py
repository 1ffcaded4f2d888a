"""The parts of the PPO loss by hand, and that invalid samples take no part in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from proximo.config import NetworkConfig, NormalizeConfig
from proximo.errors import UserError
from proximo.policy.policy import Policy
from proximo.ppo.loss import (
    Hyper,
    Outputs,
    approximate_kl,
    check_terms,
    clip_loss,
    clipped_surrogate,
    explained_variance,
    masked_mean,
    minibatch_loss,
    standardize_advantages,
    value_loss,
    weighted_sum,
)
from proximo.ppo.samples import Samples

EPS = jnp.float32(0.2)


def floats(*values: Any) -> jax.Array:
    return jnp.asarray(np.array(values, np.float32))


def flags(*values: Any) -> jax.Array:
    return jnp.array(values, bool)


ALL = flags(1, 1, 1, 1)


# Means


@pytest.mark.parametrize("garbage", [0.0, 1e38, np.inf, np.nan])
def test_masked_mean_ignores_invalid_entries(garbage: float) -> None:
    assert masked_mean(floats(1, garbage, 5, garbage), flags(1, 0, 1, 0)) == 3


def test_masked_mean_of_nothing_is_zero() -> None:
    assert masked_mean(floats(1, 2), flags(0, 0)) == 0


def test_standardized_advantages() -> None:
    # Valid are 1 and 5: mean 3, deviation 2.
    result = standardize_advantages(floats(1, 99, 5, -99), flags(1, 0, 1, 0))
    np.testing.assert_allclose(result[jnp.array([0, 2])], [-1, 1], rtol=1e-6)


def test_equal_advantages_become_zero() -> None:
    assert not standardize_advantages(floats(3, 3, 3, 3), ALL).any()


# The clipped objective


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "slope"),
    [
        (1.1, 2, 2.2, 2.2),  # inside: r A, whose slope in log r is r A
        (1.1, -2, -2.2, -2.2),
        (0.9, 2, 1.8, 1.8),
        (0.9, -2, -1.8, -1.8),
        (1.5, 2, 2.4, 0),  # above and better: held at 1.2 A
        (0.5, -2, -1.6, 0),  # below and better: held at 0.8 A
        (1.5, -2, -3, -3),  # above and worse: the way back is open
        (0.5, 2, 1, 1),  # below and worse: likewise
    ],
)
def test_clipped_surrogate(ratio: float, advantage: int, objective: float, slope: float) -> None:
    surrogate = lambda log_ratio: clipped_surrogate(log_ratio, floats(advantage), EPS)[0]  # noqa: E731
    value, gradient = jax.value_and_grad(surrogate)(jnp.log(floats(ratio)))
    assert value == pytest.approx(objective, rel=1e-6)
    assert gradient[0] == pytest.approx(slope, rel=1e-6)


# The value loss


def test_value_loss_is_the_squared_error() -> None:
    assert value_loss(floats(1, 5), floats(9, 9), floats(3, 2), None).tolist() == [4, 9]


@pytest.mark.parametrize(
    ("value", "old", "target", "loss"),
    [
        (1.25, 1, 2, 0.5625),  # moved by less than 0.5: (1.25 - 2)^2
        (3, 1, 4, 6.25),  # moved up by more: as if at 1.5, (1.5 - 4)^2 > (3 - 4)^2
        (-2, 1, -3, 12.25),  # moved down by more: as if at 0.5, (0.5 + 3)^2 > (-2 + 3)^2
        (3, 1, 0, 9),  # moved away from the target: (3 - 0)^2 > (1.5 - 0)^2
    ],
)
def test_clipped_value_loss_is_the_larger_of_two(value: float, old: int, target: int, loss: float) -> None:
    assert value_loss(floats(value), floats(old), floats(target), 0.5).tolist() == [loss]


# The estimate of the KL divergence


def test_approximate_kl() -> None:
    # ((2 - 1) - log 2 + (1/2 - 1) + log 2) / 2 = 1/4
    log_ratio = jnp.log(floats(2, 0.5, 7, 7))
    assert approximate_kl(log_ratio, flags(1, 1, 0, 0)) == pytest.approx(0.25, rel=1e-6)


def test_approximate_kl_of_no_change_is_zero() -> None:
    assert approximate_kl(floats(0, 0, 0, 0), ALL) == 0


def test_approximate_kl_is_never_negative() -> None:
    # Sizes from 1e-12 to 80, each alone: rounding must not take the smallest below zero.
    sizes = np.logspace(-12, np.log10(80), 20_000)
    log_ratios = jnp.asarray(np.array([sizes, -sizes], np.float32).reshape(-1, 1))
    each = jax.jit(jax.vmap(approximate_kl))(log_ratios, jnp.ones((40_000, 1), bool))
    assert (each >= 0).all()


# Explained variance

TARGET = floats(1, 2, 3, 4)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1, 2, 3, 4], 1),
        ([11, 12, 13, 14], 1),  # a constant error is no variance
        ([7, 7, 7, 7], 0),  # knows no more than a mean
        ([4, 3, 2, 1], -3),  # errors -3, -1, 1, 3: variance 5 against 1.25
    ],
)
def test_explained_variance(value: list[int], expected: int) -> None:
    assert explained_variance(floats(*value), TARGET, ALL) == pytest.approx(expected, abs=1e-6)


def test_explained_variance_ignores_invalid_entries() -> None:
    assert explained_variance(floats(1, 2, 99, 4), floats(1, 2, -99, 4), flags(1, 1, 0, 1)) == 1


@pytest.mark.parametrize("value", [[1, 1, 1, 1], [1, 2, 3, 4]])
@pytest.mark.parametrize("target", [1.0, 0.1])
def test_explained_variance_of_equal_targets_is_not_a_number(value: list[int], target: float) -> None:
    # Six times 0.1 do not add up to 0.6 in single precision: the mean is off, and so is the variance from 0.
    values = floats(*value, 0, 0)
    assert jnp.isnan(explained_variance(values, jnp.full(6, target), jnp.ones(6, bool)))
    assert jnp.isnan(explained_variance(values, floats(*[target] * 5, 9), flags(1, 1, 1, 1, 1, 0)))


# Terms, their means and their sum


def test_the_terms_of_the_loss() -> None:
    # Ratios 1.5 and 0.5, held at 1.2 for A = 2 and open for A = 1; errors of 1 and 3; weights as set, entropy and
    # objective to be raised.
    outputs = Outputs(
        distribution=jnp.zeros((2, 3)),
        log_prob=floats(-1, -1),
        log_ratio=jnp.log(floats(1.5, 0.5)),
        entropy=floats(0.25, 0.75),
        value=floats(2, 5),
    )
    samples = Samples(
        obs=None,
        action_mask=None,
        action=None,
        log_prob=floats(-1, -1),
        value=floats(0, 0),
        advantage=floats(2, 1),
        target=floats(3, 2),
        valid=flags(1, 1),
    )
    terms = clip_loss(outputs, samples, Hyper(0.2, 0.01, 0.5, None))
    assert {name: weight for name, (weight, _) in terms.items()} == {"objective": -1, "critic": 0.5, "entropy": -0.01}
    np.testing.assert_allclose(outputs.ratio, [1.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(terms["objective"][1], [2.4, 0.5], rtol=1e-6)
    np.testing.assert_allclose(terms["critic"][1], [1, 9], rtol=1e-6)
    np.testing.assert_allclose(terms["entropy"][1], [0.25, 0.75], rtol=1e-6)


def test_the_loss_is_the_sum_of_weighted_means_over_valid_samples() -> None:
    # Means of the first and third: 2 and 30; 0.5 * 2 - 3 * 30 = -89. What has no weight is logged alone.
    terms: dict[str, tuple[float | jax.Array, jax.Array]] = {
        "one": (0.5, floats(1, 99, 3)),
        "other": (-3.0, floats(20, np.nan, 40)),
        "seen": (0, flags(1, 1, 0)),
    }
    total, metrics = weighted_sum(terms, flags(1, 0, 1))
    assert total == pytest.approx(-89)
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(
        {"loss/one": 2, "loss/other": 30, "loss/seen": 0.5, "loss/total": -89}
    )


def test_what_has_no_weight_cannot_spoil_the_loss() -> None:
    def total(x: jax.Array) -> jax.Array:
        return weighted_sum({"learned": (2.0, x), "seen": (0.0, jnp.log(x - 3))}, flags(1, 1))[0]

    value, gradient = jax.value_and_grad(total)(floats(1, 3))  # the logarithm of -2, and of 0
    assert value == 4
    assert gradient.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [
        (floats(1, 2), "A loss returns a dictionary: the name of each term, and its weight"),
        ({"a": floats(1, 2)}, "A loss returns a dictionary: the name of each term, and its weight"),
        ({"total": (1.0, floats(1, 2))}, "A term of a loss cannot be called 'total'"),
        ({"a b": (1.0, floats(1, 2))}, "A term of a loss cannot be called 'a b': a name has letters"),
        ({"a": (floats(1, 2), floats(1, 2))}, r"The weight of the loss's a has the shape \(2,\); it is one number"),
        ({"a": (1.0, jnp.float32(3))}, r"The loss's a has the shape \(\); it has one number for each sample, \(2,\)"),
        ({"a": (1.0, jnp.ones((2, 1)))}, r"The loss's a has the shape \(2, 1\)"),
        ({"a": (0.0, floats(1, 2))}, "A loss needs a term whose weight is not 0"),
        ({}, "A loss needs a term whose weight is not 0"),
    ],
)
def test_what_is_no_loss_is_refused(terms: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check_terms(terms, 2)


# The whole loss, on a policy of two inputs and three actions

NUM = 6
POLICY = Policy(spaces.Box(-1, 1, (2,)), spaces.Discrete(3), NetworkConfig(hidden_sizes=(4,)), NormalizeConfig())
PLAIN, CLIPPED = None, 0.5
"""How far values may move. With a limit, advantages are standardised too."""


@pytest.fixture(scope="module")
def params() -> Any:
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(POLICY.init, jax.random.key(0))
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape).astype(np.float32)), shapes)


@pytest.fixture(scope="module")
def samples(params: Any) -> Samples:
    """Six samples that the policy itself took."""
    rng = np.random.default_rng(1)
    obs, carry = jnp.asarray(rng.normal(size=(NUM, 2)).astype(np.float32)), POLICY.initial_carry(NUM)
    action = jnp.asarray(rng.integers(3, size=NUM).astype(np.int32))
    outputs = jax.jit(POLICY.act)(params, None, carry["actor"], obs)[1]
    return Samples(
        obs=obs,
        action_mask=None,
        action=action,
        log_prob=POLICY.distribution.log_prob(outputs, action),
        value=jax.jit(POLICY.value)(params, None, carry["critic"], obs)[1],
        advantage=jnp.asarray(rng.normal(1, 2, NUM).astype(np.float32)),
        target=jnp.asarray(rng.normal(1, 2, NUM).astype(np.float32)),
        valid=jnp.ones(NUM, bool),
    )


differentiate = jax.jit(jax.grad(minibatch_loss, has_aux=True), static_argnums=(3, 4, 6))


def loss_and_gradients(params: Any, samples: Samples, clip_value: float | None = PLAIN) -> tuple[Any, dict[str, float]]:
    hyper = Hyper(EPS, jnp.float32(0.3), 0.7, clip_value)
    gradients, metrics = differentiate(params, None, samples, POLICY, clip_loss, hyper, clip_value is not None)
    return gradients, {name: float(value) for name, value in metrics.items()}


@pytest.mark.slow
def test_before_the_first_step_nothing_has_moved(params: Any, samples: Samples) -> None:
    _, metrics = loss_and_gradients(params, samples)
    assert metrics["loss/objective"] == pytest.approx(np.asarray(samples.advantage).mean(), rel=1e-5)
    assert metrics["ppo/approx_kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["ppo/clip_fraction"] == 0
    expected = np.mean(np.square(np.asarray(samples.value) - np.asarray(samples.target)))
    assert metrics["loss/critic"] == pytest.approx(expected, rel=1e-5)


def test_total_is_the_weighted_sum_of_the_parts(params: Any, samples: Samples) -> None:
    _, metrics = loss_and_gradients(params, samples)
    assert 0 < metrics["loss/entropy"] < np.log(3)
    total = -metrics["loss/objective"] + 0.7 * metrics["loss/critic"] - 0.3 * metrics["loss/entropy"]
    assert metrics["loss/total"] == pytest.approx(total, rel=1e-5)


def test_ratios_are_of_new_to_old_probabilities(params: Any, samples: Samples) -> None:
    # The old policy was as likely (ratio 1), or less so by 1.5: r = 1.5 is held at 1.2 where A = 1, not where A = -1.
    samples = replace(
        samples,
        log_prob=samples.log_prob - jnp.log(floats(1, 1, 1.5, 1.5, 1.5, 1.5)),
        advantage=floats(1, -1, 1, -1, 1, -1),
    )
    _, metrics = loss_and_gradients(params, samples)
    assert metrics["loss/objective"] == pytest.approx((0 + 2 * (1.2 - 1.5)) / 6, rel=1e-5)
    assert metrics["ppo/clip_fraction"] == pytest.approx(4 / 6)
    assert metrics["ppo/approx_kl"] == pytest.approx((0.5 - np.log(1.5)) * 4 / 6, rel=1e-4)


def test_clip_fraction_counts_ratios_on_both_sides(params: Any, samples: Samples) -> None:
    samples = replace(samples, log_prob=samples.log_prob - jnp.log(floats(0.75, 0.85, 0.95, 1.15, 1.25, 3)))
    assert loss_and_gradients(params, samples)[1]["ppo/clip_fraction"] == pytest.approx(3 / 6)


def test_clip_value_reaches_the_loss(params: Any, samples: Samples) -> None:
    # Every value has moved up by 2 since the rollout, to within 1 of its target: as if by 0.5, it is 2.5 away.
    samples = replace(samples, value=samples.value - 2, target=samples.value + 1)
    for clip_value, loss in ((PLAIN, 1), (CLIPPED, 2.5**2)):
        assert loss_and_gradients(params, samples, clip_value)[1]["loss/critic"] == pytest.approx(loss, rel=1e-5)


def test_masked_actions_have_no_entropy(params: Any, samples: Samples) -> None:
    only = jax.nn.one_hot(samples.action, 3, dtype=bool)
    _, metrics = loss_and_gradients(params, replace(samples, action_mask=only, log_prob=jnp.zeros(NUM)))
    assert metrics["loss/entropy"] == 0
    assert metrics["ppo/approx_kl"] == 0


@pytest.mark.parametrize("clip_value", [PLAIN, CLIPPED], ids=["plain", "clipped"])
def test_invalid_samples_change_neither_loss_nor_gradients(
    params: Any, samples: Samples, clip_value: float | None
) -> None:
    # Three samples twice have the means of the same three and three invalid ones, whatever those hold.
    twice = jax.tree.map(lambda leaf: jnp.concatenate([leaf[:3], leaf[:3]]), samples)
    garbage = Samples(
        obs=jnp.full((3, 2), 1e3),
        action_mask=None,
        action=jnp.zeros(3, jnp.int32),
        log_prob=jnp.full(3, -1e3),
        value=jnp.full(3, 1e6),
        advantage=jnp.full(3, -1e6),
        target=jnp.full(3, 1e6),
        valid=jnp.zeros(3, bool),
    )
    spoiled = jax.tree.map(lambda leaf, bad: jnp.concatenate([bad, leaf[:3]]), samples, garbage)
    gradients, metrics = loss_and_gradients(params, twice, clip_value)
    spoiled_gradients, spoiled_metrics = loss_and_gradients(params, spoiled, clip_value)
    assert spoiled_metrics == pytest.approx(metrics, rel=1e-5, abs=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-6), gradients, spoiled_gradients)


@pytest.mark.slow
def test_advantages_of_a_minibatch_are_standardised_where_asked(params: Any, samples: Samples) -> None:
    # 1 and 3 have the mean 2 and the deviation 1. The old policy was less likely by 1.1 where A = 3:
    # (1.1 * 1 - 1) / 2 is left, where plain advantages give (1.1 * 3 + 1) / 2.
    advantage, ratio = floats(1, 3, 1, 3, 1, 3), floats(1, 1.1, 1, 1.1, 1, 1.1)
    samples = replace(samples, advantage=advantage, log_prob=samples.log_prob - jnp.log(ratio))
    for clip_value, objective in ((PLAIN, 2.15), (CLIPPED, 0.05)):
        assert loss_and_gradients(params, samples, clip_value)[1]["loss/objective"] == pytest.approx(
            objective, rel=1e-4
        )
