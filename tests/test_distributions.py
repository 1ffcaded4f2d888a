"""Every distribution against SciPy, its masks, and its way into the action space."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from proximo.config import NetworkConfig
from proximo.errors import UserError
from proximo.policy.distributions import Bernoulli, Categorical, Distribution, MultiCategorical
from proximo.policy.distributions.beta import ATTEMPTS, gamma_sample
from proximo.policy.distributions.composite import build_distribution
from proximo.policy.distributions.gaussian import Bounds, Gaussian, TanhGaussian

BOOL: Any = bool  # a dtype that Gymnasium takes, and its annotations do not

LARGEST_BELOW_1 = np.nextafter(np.float32(1), np.float32(0))
LOGITS = np.array([1.0, -0.5, 0.25, 2.0], np.float32)
MULTI_SPACE = spaces.MultiDiscrete(np.array([[2, 4], [3, 1]]), start=np.array([[0, 1], [5, -2]]))
MULTI_LOGITS = np.array([0.3, -0.7, *LOGITS, 1.5, 0.0, -1.5, 7.0], np.float32)
MULTI_PARTS = np.split(MULTI_LOGITS, [2, 6, 9])


def build(space: spaces.Space[Any], **network: Any) -> Any:
    return build_distribution(space, NetworkConfig(**network))


def method(name: str) -> Callable[..., Any]:
    """A distribution's method compiled whole, as training runs it."""
    return jax.jit(lambda distribution, *args: getattr(distribution, name)(*args), static_argnums=0)


sample, mode, log_prob, entropy, to_env = map(method, ("sample", "mode", "log_prob", "entropy", "to_env"))


def unit_box(size: int) -> spaces.Box:
    return spaces.Box(-1, 1, (size,))


def row(values: Any) -> np.ndarray:
    """A batch of one."""
    return np.asarray(values, np.float32)[None]


def repeat(values: Any, num_rows: int) -> np.ndarray:
    return np.broadcast_to(values, (num_rows, *np.shape(values)))


def even_noise(num: int) -> np.ndarray:
    """The midpoints of `num` equal parts of 0..1: frequencies come out exact to within one count per action."""
    return ((np.arange(num) + 0.5) / num).astype(np.float32)


# Categorical


@pytest.mark.parametrize("action", range(4))
def test_categorical_log_prob(action: int) -> None:
    np.testing.assert_allclose(
        log_prob(Categorical(4), row(LOGITS), jnp.array([action])), [special.log_softmax(LOGITS)[action]], rtol=1e-6
    )


def test_categorical_entropy_and_mode() -> None:
    np.testing.assert_allclose(
        entropy(Categorical(4), row(LOGITS)), [stats.entropy(special.softmax(LOGITS))], rtol=1e-6
    )
    assert mode(Categorical(4), row(LOGITS)).tolist() == [3]


def test_categorical_frequencies() -> None:
    actions = sample(Categorical(4), repeat(LOGITS, 10_000), even_noise(10_000))
    counts = np.bincount(actions, minlength=4)
    np.testing.assert_allclose(counts, 10_000 * special.softmax(LOGITS), atol=2)


@pytest.mark.parametrize(
    "distribution",
    [Categorical(3), MultiCategorical((2, 3), (0, 0), (2,)), Bernoulli((2,))],
    ids=lambda d: type(d).__name__,
)
def test_discrete_noise_is_uniform_and_independent(distribution: Distribution) -> None:
    noise = np.asarray(distribution.noise(jax.random.key(0), (500, 100))).reshape(50_000, -1)
    assert noise.min() >= 0
    assert noise.max() < 1
    for column in noise.T:
        assert stats.kstest(column, "uniform").pvalue > 0.01
    if noise.shape[1] > 1:
        assert abs(np.corrcoef(noise.T)[0, 1]) < 0.02  # 4.5 deviations of 1/sqrt(50,000)


def test_discrete_starts_where_the_space_does() -> None:
    distribution = build(spaces.Discrete(3, start=-1))
    assert to_env(distribution, jnp.array([0, 1, 2])).tolist() == [-1, 0, 1]


# MultiCategorical: components of 2, 4, 3 and 1 actions in a 2 x 2 arrangement


def test_multi_categorical_log_prob_is_the_sum_over_components() -> None:
    distribution = build(MULTI_SPACE)
    assert distribution.num_params == 10
    for action in itertools.product(range(2), range(4), range(3), range(1)):
        expected = sum(special.log_softmax(part)[a] for part, a in zip(MULTI_PARTS, action, strict=True))
        np.testing.assert_allclose(
            log_prob(distribution, row(MULTI_LOGITS), jnp.array([action])), [expected], rtol=1e-5
        )


def test_multi_categorical_entropy_and_mode() -> None:
    distribution = build(MULTI_SPACE)
    expected = sum(stats.entropy(special.softmax(part)) for part in MULTI_PARTS)
    np.testing.assert_allclose(entropy(distribution, row(MULTI_LOGITS)), [expected], rtol=1e-6)
    assert mode(distribution, row(MULTI_LOGITS)).tolist() == [[0, 3, 0, 0]]


def test_multi_categorical_frequencies() -> None:
    noise = repeat(np.zeros(4, np.float32), 10_000) + even_noise(10_000)[:, None]
    actions = np.asarray(sample(build(MULTI_SPACE), repeat(MULTI_LOGITS, 10_000), noise))
    for column, part in zip(actions.T, MULTI_PARTS, strict=True):
        np.testing.assert_allclose(
            np.bincount(column, minlength=len(part)), 10_000 * special.softmax(part.astype(float)), atol=2
        )


def test_multi_categorical_to_env_has_the_starts_and_shape_of_the_space() -> None:
    action = to_env(build(MULTI_SPACE), jnp.array([[0, 0, 0, 0], [1, 3, 2, 0]]))
    assert action.tolist() == [[[0, 1], [5, -2]], [[1, 4], [7, -2]]]
    assert all(MULTI_SPACE.contains(np.asarray(a)) for a in action)


def test_multi_categorical_mask_is_the_concatenation_of_the_components() -> None:
    mask = jnp.array([[True, False, False, True, True, False, False, False, True, True]])
    distribution, action = build(MULTI_SPACE), jnp.array([[0, 1, 2, 0]])
    # Only the second component has a choice left: between its actions 1 and 2, with logits -0.5 and 0.25.
    expected = special.log_softmax([-0.5, 0.25])
    np.testing.assert_allclose(log_prob(distribution, row(MULTI_LOGITS), action, mask), [expected[0]], rtol=1e-6)
    np.testing.assert_allclose(
        entropy(distribution, row(MULTI_LOGITS), mask), [stats.entropy(np.exp(expected))], rtol=1e-6
    )
    assert mode(distribution, row(MULTI_LOGITS), mask).tolist() == [[0, 2, 2, 0]]


# Bernoulli


def test_bernoulli_log_prob() -> None:
    logits = np.array([-2.0, 0.5, 3.0], np.float32)
    for bits in itertools.product([0, 1], repeat=3):
        expected = stats.bernoulli.logpmf(bits, special.expit(logits)).sum()
        np.testing.assert_allclose(log_prob(Bernoulli((3,)), row(logits), jnp.array([bits])), [expected], rtol=1e-5)


def test_bernoulli_entropy_and_mode() -> None:
    logits = np.array([-2.0, 0.5, 3.0], np.float32)
    expected = stats.bernoulli.entropy(special.expit(logits)).sum()
    np.testing.assert_allclose(entropy(Bernoulli((3,)), row(logits)), [expected], rtol=1e-5)
    assert mode(Bernoulli((3,)), row(logits)).tolist() == [[0, 1, 1]]


def test_bernoulli_frequencies() -> None:
    logits = np.array([-2.0, 0.5, 3.0], np.float32)
    noise = repeat(np.zeros(3, np.float32), 10_000) + even_noise(10_000)[:, None]
    actions = np.asarray(sample(Bernoulli((3,)), repeat(logits, 10_000), noise))
    np.testing.assert_allclose(actions.sum(0), 10_000 * special.expit(logits), atol=2)


def test_bernoulli_mask_forbids_zeros_or_ones() -> None:
    # The first bit may only be 1, the second only 0, the third is free.
    mask, logits = jnp.array([[[False, True], [True, False], [True, True]]]), np.array([-2.0, 0.5, 3.0], np.float32)
    distribution = Bernoulli((3,))
    assert mode(distribution, row(logits), mask).tolist() == [[1, 0, 1]]
    np.testing.assert_allclose(
        log_prob(distribution, row(logits), jnp.array([[1, 0, 0]]), mask), [np.log(special.expit(-3.0))], rtol=1e-5
    )
    np.testing.assert_allclose(
        entropy(distribution, row(logits), mask), [stats.bernoulli.entropy(special.expit(3.0))], rtol=1e-5
    )


def test_bernoulli_to_env_is_a_member_of_the_space() -> None:
    space = spaces.MultiBinary((2, 2))
    action = np.asarray(to_env(build(space), jnp.array([[1, 0, 1, 1]])))
    assert action.tolist() == [[[1, 0], [1, 1]]]
    assert space.contains(action[0])


# Masks


def gradients(distribution: Distribution, params: Any, action: Any, mask: Any = None) -> np.ndarray:
    """Of the log-probability and of the entropy, [2, P]."""
    both = lambda x: jnp.concatenate([log_prob(distribution, x, action, mask), entropy(distribution, x, mask)])  # noqa: E731
    return np.asarray(jax.jit(jax.jacobian(both))(params))[:, 0]


def test_gradients_leave_masked_actions_alone() -> None:
    # Of softmax p: d log p_a / dx_i = (i = a) - p_i, and dH / dx_i = -p_i (log p_i + H), with p = e^1 : e^2.
    low, high = special.softmax([1.0, 2.0])
    mean_log = stats.entropy([low, high])
    by_log_prob, by_entropy = gradients(
        Categorical(4), row(LOGITS), jnp.array([0]), jnp.array([[True, False, False, True]])
    )
    np.testing.assert_allclose(by_log_prob, [1 - low, 0, 0, -high], rtol=1e-5)
    np.testing.assert_allclose(
        by_entropy, [-low * (np.log(low) + mean_log), 0, 0, -high * (np.log(high) + mean_log)], rtol=1e-5
    )


def test_mask_renormalises() -> None:
    # Left are logits 1 and 2 of the actions 0 and 3.
    mask = jnp.array([[True, False, False, True]])
    distribution, expected = Categorical(4), special.log_softmax([1.0, 2.0])
    np.testing.assert_allclose(log_prob(distribution, row(LOGITS), jnp.array([0]), mask), expected[:1], rtol=1e-6)
    np.testing.assert_allclose(log_prob(distribution, row(LOGITS), jnp.array([3]), mask), expected[1:], rtol=1e-6)
    np.testing.assert_allclose(entropy(distribution, row(LOGITS), mask), [stats.entropy(np.exp(expected))], rtol=1e-6)
    assert log_prob(distribution, row(LOGITS), jnp.array([1]), mask)[0] < -1e8
    assert mode(distribution, row([5.0, 9.0, 9.0, 6.0]), mask).tolist() == [3]


def test_masked_frequencies() -> None:
    mask = repeat([True, False, False, True], 10_000)
    actions = sample(Categorical(4), repeat(LOGITS, 10_000), even_noise(10_000), mask)
    p = special.expit(1.0)  # of action 3: 1 / (1 + e^(1 - 2))
    np.testing.assert_allclose(np.bincount(actions, minlength=4), [10_000 * (1 - p), 0, 0, 10_000 * p], atol=2)


def extreme_noise(*shape: int) -> np.ndarray:
    """Uniform noise with the two ends of its range, the largest number below 1 and 0, in the first two rows."""
    noise = np.random.default_rng(0).random(shape, np.float32)
    noise[0], noise[1] = LARGEST_BELOW_1, 0
    return noise


@pytest.mark.slow
@pytest.mark.parametrize("favour", [0.0, 1e4], ids=["plain", "masked favoured"])
def test_masked_actions_are_never_sampled(favour: float) -> None:
    num, rng = 1_000_000, np.random.default_rng(1)
    mask = rng.random((num, 5), np.float32) < 0.5
    mask[np.arange(num), rng.integers(5, size=num)] = True
    logits = 20 * rng.standard_normal(mask.shape, np.float32) + np.where(mask, -favour, favour).astype(np.float32)
    actions = sample(Categorical(5), logits, extreme_noise(num), mask)
    assert mask[np.arange(num), actions].all()


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.5, LARGEST_BELOW_1])
@pytest.mark.parametrize("allowed", range(5))
def test_the_only_allowed_action_is_sampled_at_any_noise(noise: float, allowed: int) -> None:
    mask = np.arange(5)[None] == allowed
    logits = np.where(mask, -1e4, 1e4).astype(np.float32)
    assert sample(Categorical(5), logits, np.full(1, noise, np.float32), mask).tolist() == [allowed]


@pytest.mark.slow
def test_masked_choices_of_several_are_never_sampled() -> None:
    distribution = MultiCategorical((2, 4, 3), (0, 0, 0), (3,))
    mask = np.array([False, True, True, False, False, True, False, True, False])
    logits = repeat(np.where(mask, -1e4, 1e4).astype(np.float32), 1_000_000)
    noise = extreme_noise(1_000_000, 3)
    actions = np.asarray(sample(distribution, logits, noise, repeat(mask, 1_000_000)))
    assert [np.unique(column).tolist() for column in actions.T] == [[1], [0, 3], [1]]


@pytest.mark.slow
def test_masked_bits_are_never_sampled() -> None:
    mask = jnp.array([[True, False], [False, True], [True, True]])
    logits = repeat(np.array([1e4, -1e4, 0.0], np.float32), 1_000_000)
    noise = extreme_noise(1_000_000, 3)
    actions = np.asarray(sample(Bernoulli((3,)), logits, noise, repeat(mask, 1_000_000)))
    assert [np.unique(column).tolist() for column in actions.T] == [[0], [1], [0, 1]]


def test_padding_of_shorter_components_is_never_sampled() -> None:
    noise = np.full((1, 2), LARGEST_BELOW_1)
    assert sample(MultiCategorical((2, 6), (0, 0), (2,)), np.zeros((1, 8), np.float32), noise).tolist() == [[1, 5]]


def test_a_single_allowed_action_is_certain() -> None:
    mask, logits = jnp.array([[False, False, True, False]]), row(LOGITS)
    distribution, action = Categorical(4), jnp.array([2])
    assert log_prob(distribution, logits, action, mask).tolist() == [0]
    assert entropy(distribution, logits, mask).tolist() == [0]
    assert not gradients(distribution, logits, action, mask).any()


# Extremes


def test_ten_thousand_actions() -> None:
    n, distribution = 10_000, Categorical(10_000)
    # A sum of n numbers in single precision, one after the other, is good to about n * 6e-8.
    np.testing.assert_allclose(entropy(distribution, np.zeros((1, n), np.float32)), [np.log(n)], rtol=6e-4)
    np.testing.assert_allclose(
        log_prob(distribution, np.zeros((1, n), np.float32), jnp.array([n - 1])), [-np.log(n)], rtol=1e-6
    )
    # Noise just inside both ends of an action's n-th part of 0..1 must choose that action, all along the range.
    chosen = np.append(np.arange(0, n, 50), n - 1)
    logits = np.zeros((len(chosen), n), np.float32)
    for inside in (0.02, 0.98):
        actions = sample(distribution, logits, np.float32((chosen + inside) / n))
        np.testing.assert_array_equal(actions, chosen)


@pytest.mark.parametrize(
    ("distribution", "action"),
    [
        (Categorical(5), 1),
        (MultiCategorical((2, 3), (0, 0), (2,)), [1, 1]),
        (Bernoulli((5,)), [0, 1, 0, 1, 1]),
    ],
    ids=lambda case: type(case).__name__,
)
def test_gradients_are_finite_at_extreme_logits(distribution: Distribution, action: Any) -> None:
    assert np.isfinite(gradients(distribution, row([1e4, -1e4, 0.0, -1e4, 1e4]), jnp.array([action]))).all()


def test_gradients_of_masked_actions_are_finite_at_extreme_logits() -> None:
    mask = jnp.array([[True, True, True, False]])
    assert np.isfinite(gradients(Categorical(4), row([1e4, -1e4, 0.0, 1e4]), jnp.array([1]), mask)).all()


# Gaussian

MEAN, STD, POINT = (
    np.array([0.5, -1.0, 2.0], np.float32),
    np.array([0.3, 1.0, 2.5], np.float32),
    np.array([0.1, 1.5, -3.0], np.float32),
)


def gaussian_params(mean: Any, std: Any) -> np.ndarray:
    return row(np.concatenate([mean, np.log(std)]))


def test_gaussian_log_prob() -> None:
    result = log_prob(build(unit_box(3)), gaussian_params(MEAN, STD), row(POINT))
    np.testing.assert_allclose(result, [stats.norm.logpdf(POINT, MEAN, STD).sum()], rtol=1e-5)


def test_gaussian_entropy_and_mode() -> None:
    distribution, params = build(unit_box(3)), gaussian_params(MEAN, STD)
    np.testing.assert_allclose(entropy(distribution, params), [stats.norm.entropy(MEAN, STD).sum()], rtol=1e-5)
    assert mode(distribution, params).tolist() == [MEAN.tolist()]


def test_gaussian_samples() -> None:
    distribution = build(unit_box(3))
    noise = distribution.noise(jax.random.key(0), (50_000,))
    samples = np.asarray(sample(distribution, repeat(gaussian_params(MEAN, STD)[0], 50_000), noise))
    for column, mean, std in zip(samples.T, MEAN, STD, strict=True):
        assert stats.kstest(column, stats.norm(mean, std).cdf).pvalue > 0.01
    assert np.abs(np.corrcoef(samples.T) - np.eye(3)).max() < 0.02


def test_gaussian_has_as_many_deviations_as_entries() -> None:
    distribution = build(spaces.Box(-1, 1, (2, 3)))
    assert (distribution.num_params, distribution.num_log_std) == (12, 6)


# TanhGaussian


def test_tanh_log_prob_is_finite_and_right_far_out() -> None:
    # log(1 - tanh^2) = -2 log cosh, which double precision takes to |x| = 700.
    x = np.array([-50, -20, -9, -1, 0, 0.5, 9, 20, 50], np.float32)
    distribution = build(unit_box(1), continuous="tanh_gaussian")
    result = log_prob(distribution, repeat(np.array([1.0, np.log(4.0)], np.float32), len(x)), x[:, None])
    expected = stats.norm.logpdf(x, 1.0, 4.0) + 2 * np.log(np.cosh(x.astype(float)))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_tanh_gradients_are_finite_far_out() -> None:
    distribution = build(unit_box(1), continuous="tanh_gaussian")
    for x in (-50.0, 50.0):
        assert np.isfinite(gradients(distribution, row([0, 0]), row([x]))).all()


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.3, 0.5), (-1.5, 0.2)])
def test_squashed_density_integrates_to_one(mean: float, std: float) -> None:
    distribution, params = build(unit_box(1), continuous="tanh_gaussian"), gaussian_params([mean], [std])
    density = lambda a: np.exp(log_prob(distribution, params, np.array([[np.arctanh(a)]], np.float32))).item()  # noqa: E731
    total, _ = integrate.quad(density, -1, 1, epsabs=1e-4)
    assert total == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.1), (0.0, 1.0), (0.5, 0.3), (-2.0, 0.7), (3.0, 1.0), (0.0, 2.0)])
def test_tanh_entropy(mean: float, std: float) -> None:
    # Squashing adds the mean log slope of tanh: E[log(1 - tanh^2)] = -2 E[log cosh].
    log_cosh, _ = integrate.quad(
        lambda x: stats.norm.pdf(x, mean, std) * np.log(np.cosh(x)), mean - 12 * std, mean + 12 * std
    )
    result = entropy(build(unit_box(1), continuous="tanh_gaussian"), gaussian_params([mean], [std]))
    np.testing.assert_allclose(result, [stats.norm.entropy(mean, std) - 2 * log_cosh], atol=5e-4)


def test_tanh_entropy_sums_over_entries() -> None:
    one, two = (build(unit_box(size), continuous="tanh_gaussian") for size in (1, 2))
    first, second = entropy(one, gaussian_params([0.5], [0.3])), entropy(one, gaussian_params([-2], [0.7]))
    np.testing.assert_allclose(entropy(two, gaussian_params([0.5, -2], [0.3, 0.7])), first + second, rtol=1e-6)


def test_tanh_squashes_onto_the_bounds() -> None:
    distribution = build(
        spaces.Box(np.array([0, -3], np.float32), np.array([1, 5], np.float32)), continuous="tanh_gaussian"
    )
    actions = to_env(distribution, jnp.array([[-50.0, -50.0], [0.0, 0.0], [50.0, 50.0]]))
    assert actions.tolist() == [[0, -3], [0.5, 1], [1, 5]]
    # 0..1 is half as wide as -1..1: tanh(0.5) lands at (1 + tanh(0.5)) / 2.
    assert to_env(distribution, jnp.array([[0.5, 0.0]]))[0, 0] == pytest.approx((1 + np.tanh(0.5)) / 2, rel=1e-6)


# Bounds

FLOATS = st.floats(width=32, allow_nan=False, allow_subnormal=False, allow_infinity=False)
UNITS = st.floats(width=32, allow_nan=False, allow_subnormal=False, min_value=-100, max_value=100)


@st.composite
def boxes(
    draw: st.DrawFn, low: st.SearchStrategy[float] = FLOATS, high: st.SearchStrategy[float] = FLOATS
) -> spaces.Box:
    """A box of four entries."""
    pairs = [sorted((draw(low), draw(high))) for _ in range(4)]
    lows, highs = np.array(pairs, np.float32).T
    return spaces.Box(lows, highs, dtype=np.float32)


@settings(derandomize=True, deadline=None, database=None, max_examples=100)
@given(boxes(), st.lists(UNITS, min_size=4, max_size=4))
def test_actions_map_onto_bounds_and_never_leave_the_box(box: spaces.Box, units: list[float]) -> None:
    distribution = Gaussian(Bounds.of(box))
    ends_and_units = jnp.asarray(np.array([[-1] * 4, [1] * 4, units], np.float32))
    low, high, action = np.asarray(distribution.to_env(ends_and_units))
    between = box.high.astype(np.float64) - box.low <= 1e18
    np.testing.assert_array_equal(low[between], box.low[between])
    np.testing.assert_array_equal(high[between], box.high[between])
    assert box.contains(action)


@settings(derandomize=True, deadline=None, database=None, max_examples=100)
@given(boxes(high=st.just(np.inf)) | boxes(low=st.just(-np.inf)), st.lists(UNITS, min_size=4, max_size=4))
def test_half_bounded_actions_are_clipped_and_not_stretched(box: spaces.Box, units: list[float]) -> None:
    action = np.asarray(Gaussian(Bounds.of(box)).to_env(jnp.asarray(np.array([units], np.float32))))[0]
    assert box.contains(action)
    wanted = np.array(units, np.float32)
    inside = (wanted >= box.low) & (wanted <= box.high)
    np.testing.assert_array_equal(action[inside], wanted[inside])


def test_unbounded_actions_pass_unchanged() -> None:
    action = to_env(Gaussian(Bounds.of(spaces.Box(-np.inf, np.inf, (2,)))), jnp.array([[-123.5, 1e6]]))
    assert action.tolist() == [[-123.5, 1e6]]


def test_mixed_bounds_are_treated_entry_by_entry() -> None:
    box = spaces.Box(np.array([0, -np.inf, 3], np.float32), np.array([10, np.inf, np.inf], np.float32))
    # Stretched (0.5 is three quarters of the way), unchanged, and clipped from below.
    assert to_env(Gaussian(Bounds.of(box)), jnp.array([[0.5, 0.5, 0.5]])).tolist() == [[7.5, 0.5, 3]]


LARGEST = {dtype: float(np.finfo(dtype).max) for dtype in (np.float16, np.float32, np.float64)}


@pytest.mark.parametrize("dtype", LARGEST)
def test_bounds_at_the_largest_float_are_none(dtype: Any) -> None:
    box = spaces.Box(-LARGEST[dtype], LARGEST[dtype], (2,), dtype)
    assert not Bounds.of(box).bounded
    assert to_env(Gaussian(Bounds.of(box)), jnp.array([[0.125, -3.0]])).tolist() == [[0.125, -3]]


def test_bounds_too_far_apart_are_none_entry_by_entry() -> None:
    """The first two are stretched: 0.5 is three quarters of the way. The others are only clipped."""
    box = spaces.Box(np.array([0, 0, 0, 3, -1e30], np.float32), np.array([10, 8e17, 3e38, 3e38, 1e30], np.float32))
    action = to_env(Gaussian(Bounds.of(box)), jnp.array([[0.5] * 5]))[0]
    np.testing.assert_allclose(action, np.array([7.5, 6e17, 0.5, 3, 0.5], np.float32), rtol=1e-6)


def test_actions_stay_inside_double_precision_bounds() -> None:
    # In single precision 0.1 is 0.10000000149, and -0.1 as much below: both lie outside the box.
    box = spaces.Box(-0.1, 0.1, (1,), np.float64)
    actions = np.asarray(to_env(Gaussian(Bounds.of(box)), jnp.array([[-1.0], [1.0]])))
    assert all(box.contains(action) for action in actions)
    np.testing.assert_allclose(actions, [[-0.1], [0.1]], rtol=1e-6)


def test_double_precision_bounds_beyond_single_precision_are_none() -> None:
    assert not Bounds.of(spaces.Box(-1e300, 1e300, (1,), np.float64)).bounded


def test_actions_take_the_shape_of_the_space() -> None:
    space = spaces.Box(-1, 1, (2, 3))
    assert to_env(build(space), np.zeros((4, 5, 6), np.float32)).shape == (4, 5, 2, 3)


# Whole numbers, bits, and other precisions


def members(space: spaces.Space[Any], units: Sequence[float]) -> np.ndarray:
    """What becomes of units, each in every entry of the box, in the order they are given."""
    assert space.shape is not None
    rows = jnp.broadcast_to(jnp.asarray(units, jnp.float32)[:, None], (len(units), int(np.prod(space.shape))))
    return np.asarray(to_env(build(space), rows))


def test_whole_number_actions_are_rounded_onto_the_bounds() -> None:
    # -1, -0.5, 0, 0.7 and 9 are 0, 1.5, 3, 5.1 and 6 of 0..6; halves go to the even neighbour.
    actions = members(spaces.Box(0, 6, (1,), np.int32), [-1, -0.5, 0, 0.7, 9])
    assert actions.dtype == np.int32
    assert actions.reshape(-1).tolist() == [0, 2, 3, 5, 6]


@pytest.mark.parametrize(
    ("dtype", "as_jax"), [("int64", "int32"), ("uint64", "uint32"), ("uint8", "uint8"), ("int8", "int8")]
)
def test_whole_number_actions_have_the_dtype_that_jax_has(dtype: str, as_jax: str) -> None:
    actions = members(spaces.Box(1, 100, (2, 1), np.dtype(dtype).type), [-np.inf, 0, np.inf])
    assert actions.dtype == as_jax
    assert actions.tolist() == [[[1], [1]], [[50], [50]], [[100], [100]]]


def test_half_bounded_whole_numbers_are_clipped_and_not_stretched() -> None:
    assert members(spaces.Box(3, np.inf, (1,), np.int64), [-1e9, 4.4, 1000]).reshape(-1).tolist() == [3, 4, 1000]
    assert members(spaces.Box(-np.inf, 3, (1,), np.int32), [-1000, 2.6, 1e9]).reshape(-1).tolist() == [-1000, 3, 3]


def test_bounds_that_single_precision_misses_are_kept() -> None:
    for low, high in [(2**24 + 1, 2**24 + 1), (2**31 - 3, 2**31 - 2), (-(2**31) + 1, -(2**31) + 2)]:
        actions = members(spaces.Box(low, high, (1,), np.int32), [-2, 0, 2])
        assert set(actions.reshape(-1).tolist()) <= {low, high}


def test_bounds_beyond_32_bits_are_those_of_32_bits() -> None:
    actions = members(spaces.Box(-(2**40), 2**40, (1,), np.int64), [-1, 0, 0.5, 1]).reshape(-1)
    assert actions[:3].tolist() == [-(2**31), 0, 2**30]
    assert 2**31 - 256 < actions[3] < 2**31


def test_bits_in_a_box_are_true_above_the_middle() -> None:
    actions = members(spaces.Box(0, 1, (1,), BOOL), [-5, -0.1, 0.1, 5])
    assert actions.dtype == bool
    assert actions.reshape(-1).tolist() == [False, False, True, True]
    assert members(spaces.Box(np.array([True]), np.array([True]), dtype=BOOL), [-5, 5]).all()


def test_half_precision_is_never_left() -> None:
    unbounded = members(spaces.Box(-np.inf, np.inf, (), np.float16), [-np.inf, 0.5, 1e6])
    assert unbounded.dtype == np.float16
    assert unbounded.tolist() == [-65504, 0.5, 65504]
    box = spaces.Box(-0.1, 0.3, (1,), np.float16)
    assert all(box.contains(action) for action in members(box, [-9, -0.99999, 0, 0.99999, 9]))


def test_numbers_too_small_to_be_normal_bound_as_well() -> None:
    # XLA takes -1e-45 for zero, which lies outside.
    box = spaces.Box(-1.0, -1e-200, (1,), np.float64)
    assert all(box.contains(action) for action in members(box, [0.99999, 1, 2]).astype(np.float64))


# Which distribution


def test_each_space_gets_its_distribution() -> None:
    assert build(spaces.Discrete(4, start=2)) == Categorical(4, 2)
    assert build(MULTI_SPACE) == MultiCategorical((2, 4, 3, 1), (0, 1, 5, -2), (2, 2))
    assert build(spaces.MultiBinary(3)) == Bernoulli((3,))
    assert type(build(unit_box(2))) is Gaussian
    assert type(build(unit_box(2), continuous="tanh_gaussian")) is TanhGaussian


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.Box(2**40, 2**41, (2,), np.int64),
        spaces.Box(1e300, 1e301, (2,), np.float64),
        spaces.Discrete(3, start=2**31 - 2),
        spaces.MultiDiscrete([2, 2], start=[0, -(2**40)]),
    ],
    ids=str,
)
def test_other_spaces_are_refused_by_name(space: spaces.Space[Any]) -> None:
    with pytest.raises(UserError, match=re.escape(str(space))):
        build(space)


@pytest.mark.parametrize("bounds", [(-np.inf, np.inf), (0, np.inf), (-np.inf, 0), (-3.4e38, 3.4e38), (0, 1e19)])
@pytest.mark.parametrize("kind", ["tanh_gaussian", "beta"])
def test_some_distributions_need_bounds(kind: str, bounds: tuple[float, float]) -> None:
    space = spaces.Box(*bounds, (2,))
    with pytest.raises(UserError, match=f"{kind}.*{re.escape(str(space))}.*network.continuous=gaussian"):
        build(space, continuous=kind)


# Standard deviations that depend on the state


@pytest.mark.parametrize("kind", ["gaussian", "tanh_gaussian"])
def test_the_state_may_decide_the_deviation(kind: str) -> None:
    """The network gives the logarithm of a factor of the initial deviation; otherwise nothing is different."""
    free, state = build(unit_box(3), continuous=kind), build(unit_box(3), continuous=kind, std="state", initial_std=0.5)
    assert (state.num_params, state.num_log_std, free.num_log_std) == (6, 0, 3)
    of_free, of_state = gaussian_params(MEAN, 0.5 * STD), gaussian_params(MEAN, STD)
    noise = free.noise(jax.random.key(0), (1,))
    np.testing.assert_allclose(sample(state, of_state, noise), sample(free, of_free, noise), rtol=1e-5)
    functions: list[Callable[..., Any]] = [lambda *args: log_prob(*args, row(POINT)), entropy, mode]
    for function in functions:
        np.testing.assert_allclose(function(state, of_state), function(free, of_free), rtol=1e-5)


def test_deviations_of_a_state_stay_within_reason() -> None:
    distribution = build(unit_box(1), std="state")
    for output, log_std in ((-1e6, -10), (1e6, 5)):
        np.testing.assert_allclose(
            entropy(distribution, row([0.0, output])), stats.norm.entropy(0, np.exp(log_std)), rtol=1e-5
        )


# Beta

# Outputs z of a network, and the shapes 1 + (z + sqrt(z^2 + 4)) / 2.
BETA_OUTPUTS = np.array([[0.0, -3.0, 5.0, 2.0], [0.0, 4.0, -5.0, 40.0]], np.float32)
SHAPES = 1 + (BETA_OUTPUTS + np.sqrt(np.square(BETA_OUTPUTS.astype(np.float64)) + 4)) / 2
BETA = build(spaces.Box(np.array([-1, -1, 0, 2], np.float32), np.array([1, 3, 5, 2.5], np.float32)), continuous="beta")


def test_beta_log_prob_and_entropy() -> None:
    params, points = row(BETA_OUTPUTS.reshape(-1)), np.array([[0.3, 0.01, 0.999, 0.1]], np.float32)
    assert (BETA.num_params, BETA.num_log_std) == (8, 0)
    expected = stats.beta(*SHAPES).logpdf(points.astype(np.float64)).sum()
    np.testing.assert_allclose(log_prob(BETA, params, points), [expected], rtol=1e-5)
    np.testing.assert_allclose(entropy(BETA, params), [stats.beta(*SHAPES).entropy().sum()], rtol=1e-4)


@pytest.mark.slow
def test_beta_samples() -> None:
    num = 50_000
    noise = BETA.noise(jax.random.key(0), (num,))
    samples = np.asarray(sample(BETA, repeat(BETA_OUTPUTS.reshape(-1), num), noise))
    for column, a, b in zip(samples.T, *SHAPES, strict=True):
        assert stats.kstest(column, stats.beta(a, b).cdf).pvalue > 0.01
    assert np.abs(np.corrcoef(samples.T) - np.eye(4)).max() < 0.02


@pytest.mark.parametrize("shape", [1.0, 1.5, 10.0, 1000.0])
def test_attempts_at_a_gamma_variate_rarely_fail(shape: float) -> None:
    """A single attempt that fails leaves d = shape - 1/3: that share to the power of the attempts is below 1e-9."""
    num = 100_000
    normal, uniform = jax.random.normal(jax.random.key(0), (num, 1)), jax.random.uniform(jax.random.key(1), (num, 1))
    found = jax.jit(gamma_sample)(jnp.full(num, shape), normal, uniform)
    d = np.float32(shape) - np.float32(1 / 3)
    failed = float((np.asarray(found) == d).mean())
    assert failed < 0.055
    assert max(failed, 0.051) ** ATTEMPTS < 1e-9


@pytest.mark.slow
def test_a_gamma_variate_is_the_first_that_is_accepted() -> None:
    # x = -9 makes v negative, u = 1 - 1e-30 is accepted for x = 0: log(1 - u) < 0 = d (1 - 1 + log 1) is true.
    normal, uniform = jnp.array([[-9.0, 0.0, 1.0]]), jnp.array([[0.5, 0.5, 0.5]])
    assert gamma_sample(jnp.array([2.0]), normal, uniform).tolist() == [pytest.approx(5 / 3)]
    assert gamma_sample(jnp.array([2.0]), normal[:, :1], uniform[:, :1]).tolist() == [pytest.approx(5 / 3)]
    # (1 + 1 / (3 sqrt(5/3)))^3 = 1.99171; accepted, because log(1/2) < 1/2 + 5/3 (1 - 1.99171 + log 1.99171).
    accepted = gamma_sample(jnp.array([2.0]), normal[:, 2:], uniform[:, 2:])
    assert accepted.tolist() == [pytest.approx(5 / 3 * (1 + 1 / (3 * np.sqrt(5 / 3))) ** 3, rel=1e-5)]


def test_beta_acts_by_its_mean_where_nothing_is_drawn() -> None:
    np.testing.assert_allclose(mode(BETA, row(BETA_OUTPUTS.reshape(-1)))[0], stats.beta(*SHAPES).mean(), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [(-2e5, -2e5), (200.0, -200.0), (-200.0, 200.0), (2000.0, 2000.0)])
def test_beta_is_finite_far_out(outputs: tuple[float, float]) -> None:
    distribution = build(unit_box(1), continuous="beta")
    noise = distribution.noise(jax.random.key(0), (1000,))
    params = repeat(np.array(outputs, np.float32), 1000)
    actions = sample(distribution, params, noise)
    assert ((actions > 0) & (actions < 1)).all()

    def total(params: Any) -> Any:
        return distribution.log_prob(params, actions).sum() + distribution.entropy(params).sum()

    value, slope = jax.jit(jax.value_and_grad(total))(params)
    assert np.isfinite(value)
    assert np.isfinite(slope).all()


@pytest.mark.slow
def test_beta_is_stretched_onto_the_bounds() -> None:
    ends = to_env(BETA, np.array([[0, 0.5, 1, 0.5], [1, 0.25, 0.2, 0]], np.float32))
    np.testing.assert_allclose(ends, np.array([[-1, 1, 5, 2.25], [1, 0, 1, 2]]), rtol=1e-6)
