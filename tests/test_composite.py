"""Several spaces' actions at once: sums of their parts, against SciPy."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from scipy import special, stats

from proximo.config import NetworkConfig
from proximo.errors import UserError
from proximo.policy.distributions import Distribution
from proximo.policy.distributions.beta import Beta
from proximo.policy.distributions.composite import Composite, build_distribution
from proximo.policy.distributions.gaussian import Gaussian, TanhGaussian

# "move" comes first, although JAX sorts it behind "arm".
SPACE = spaces.Dict(
    [
        ("move", spaces.Discrete(3, start=-1)),
        ("arm", spaces.Tuple([spaces.Box(-1, 3, (2,)), spaces.MultiBinary(2)])),
        ("gear", spaces.Dict({"ratio": spaces.Box(-1, 1, ()), "lever": spaces.MultiDiscrete([2, 3], start=[5, 0])})),
    ]
)
# In the space's own order; Gymnasium sorts the keys of a plain mapping: lever, ratio.
MOVE, MEAN, BITS, LEVERS, RATIO = [1.0, -0.5, 0.25], [0.5, -1.0], [-2.0, 0.5], ([0.3, -0.7], [1.5, 0.0, -1.5]), 0.25
STD, RATIO_STD = np.array([0.3, 2.5]), 0.5
HEADS = [*MOVE, *MEAN, *BITS, *LEVERS[0], *LEVERS[1], RATIO]
PARAMS = jnp.array([[*HEADS, *np.log(STD), np.log(RATIO_STD)]], jnp.float32)
ACTION = (
    jnp.array([2]),
    jnp.array([[0.1, 1.5]]),
    jnp.array([[1, 0]]),
    jnp.array([[1, 2]]),
    jnp.array([[0.75]]),
)
LOG_PROBS = [
    special.log_softmax(MOVE)[2],
    stats.norm.logpdf([0.1, 1.5], MEAN, STD).sum(),
    stats.bernoulli.logpmf([1, 0], special.expit(BITS)).sum(),
    special.log_softmax(LEVERS[0])[1] + special.log_softmax(LEVERS[1])[2],
    stats.norm.logpdf(0.75, RATIO, RATIO_STD),
]
ENTROPIES = [
    stats.entropy(special.softmax(MOVE)),
    stats.norm.entropy(MEAN, STD).sum(),
    stats.bernoulli.entropy(special.expit(BITS)).sum(),
    sum(stats.entropy(special.softmax(lever)) for lever in LEVERS),
    stats.norm.entropy(RATIO, RATIO_STD),
]
# Move: the first two. Bits: the first only 1, the second free. Levers: all of the first, 0 and 2 of the second.
MASK = jnp.array([[*[1, 1, 0], *[0, 1, 1, 1], *[1, 1], *[1, 0, 1]]], bool)


def build(space: spaces.Space[Any], **network: Any) -> Any:
    return build_distribution(space, NetworkConfig(**network))


COMPOSITE = build(SPACE)


def test_parameters_end_with_all_deviations() -> None:
    assert isinstance(COMPOSITE, Distribution)
    assert (COMPOSITE.num_params, COMPOSITE.num_log_std) == (len(HEADS) + 3, 3)


@pytest.mark.slow
def test_log_prob_is_the_sum_over_parts() -> None:
    np.testing.assert_allclose(COMPOSITE.log_prob(PARAMS, ACTION), [sum(LOG_PROBS)], rtol=1e-5)


def test_entropy_is_the_sum_over_parts() -> None:
    np.testing.assert_allclose(COMPOSITE.entropy(PARAMS), [sum(ENTROPIES)], rtol=1e-5)


def test_mode_is_that_of_every_part() -> None:
    assert [part.tolist() for part in COMPOSITE.mode(PARAMS)] == [[0], [MEAN], [[0, 1]], [[0, 0]], [[RATIO]]]


def test_masks_affect_only_their_part() -> None:
    masked = {
        0: special.log_softmax(MOVE[:2])[1],
        2: np.log(special.expit(-0.5)),  # the first bit is sure, the second 0
        3: special.log_softmax(LEVERS[0])[1] + special.log_softmax([1.5, -1.5])[1],
    }
    expected = sum(masked.get(part, own) for part, own in enumerate(LOG_PROBS))
    action = (jnp.array([1]), *ACTION[1:])
    np.testing.assert_allclose(COMPOSITE.log_prob(PARAMS, action, MASK), [expected], rtol=1e-5)
    entropies = {
        0: stats.entropy(special.softmax(MOVE[:2])),
        2: stats.bernoulli.entropy(special.expit(0.5)),
        3: stats.entropy(special.softmax(LEVERS[0])) + stats.entropy(special.softmax([1.5, -1.5])),
    }
    expected = sum(entropies.get(part, own) for part, own in enumerate(ENTROPIES))
    np.testing.assert_allclose(COMPOSITE.entropy(PARAMS, MASK), [expected], rtol=1e-5)
    assert [part.tolist() for part in COMPOSITE.mode(PARAMS, MASK)] == [[0], [MEAN], [[1, 1]], [[0, 0]], [[RATIO]]]


@pytest.mark.slow
def test_sampled_parts_are_distributed_as_they_should() -> None:
    num = 20_000
    params, mask = jnp.broadcast_to(PARAMS, (num, PARAMS.shape[1])), jnp.broadcast_to(MASK, (num, MASK.shape[1]))
    noise = COMPOSITE.noise(jax.random.key(0), (num,))
    move, arm, bits, levers, ratio = map(np.asarray, jax.jit(COMPOSITE.sample)(params, noise, mask))
    # Six deviations of a frequency among 20,000 are at most 0.021.
    np.testing.assert_allclose(np.bincount(move, minlength=3) / num, [*special.softmax(MOVE[:2]), 0], atol=0.021)
    np.testing.assert_allclose(bits.mean(0), [1, special.expit(0.5)], atol=0.021)
    assert set(levers[:, 1].tolist()) == {0, 2}
    for column, mean, std in [(arm[:, 0], MEAN[0], STD[0]), (arm[:, 1], MEAN[1], STD[1]), (ratio[:, 0], RATIO, 0.5)]:
        assert stats.kstest(column, stats.norm(mean, std).cdf).pvalue > 0.01


def test_parts_have_noise_of_their_own() -> None:
    composite = build(spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2), spaces.Box(-1, 1, (1,))]))
    first, second, third = composite.noise(jax.random.key(0), (100, 500))
    assert first.shape == second.shape == (100, 500)
    columns = [np.asarray(noise).reshape(-1) for noise in (first, second, third)]
    assert np.abs(np.corrcoef(columns) - np.eye(3)).max() < 0.02  # 4.5 deviations of 1/sqrt(50,000)


def test_actions_are_nested_like_the_space() -> None:
    action = COMPOSITE.to_env(ACTION)
    plain = jax.tree.map(lambda leaf: leaf.tolist(), action)
    # -1..1 onto -1..3: 0.1 is 1.2, and 1.5 clipped.
    assert plain["arm"][0] == [pytest.approx([1.2, 3.0])]
    assert plain["arm"][1] == [[1, 0]]
    assert (plain["move"], plain["gear"]) == ([1], {"lever": [[6, 2]], "ratio": [0.75]})
    single = jax.tree.map(lambda leaf: np.asarray(leaf)[0, ...], action)
    single["gear"]["lever"] = single["gear"]["lever"].astype(np.int64)
    assert SPACE.contains(single)


def test_a_composite_can_be_compared_and_hashed() -> None:
    assert build(SPACE) == COMPOSITE
    assert hash(COMPOSITE) == hash(build(SPACE))
    numbered: dict[Any, spaces.Space[Any]] = {0: spaces.Discrete(2)}
    assert build(spaces.Dict(numbered)) != build(spaces.Tuple([spaces.Discrete(2)]))


def test_leading_axes_are_kept() -> None:
    def shapes(params: Any, mask: Any) -> tuple[Any, Any, Any]:
        action = COMPOSITE.sample(params, COMPOSITE.noise(jax.random.key(0), (2, 5)), mask)
        log_prob, entropy = COMPOSITE.log_prob(params, action, mask), COMPOSITE.entropy(params, mask)
        return log_prob, entropy, COMPOSITE.to_env(action)["arm"][0]

    found = jax.eval_shape(shapes, jnp.zeros((2, 5, COMPOSITE.num_params)), jnp.ones((2, 5, 12), bool))
    assert [leaf.shape for leaf in found] == [(2, 5), (2, 5), (2, 5, 2)]


def test_squashing_applies_to_every_box() -> None:
    space = spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(2)])
    assert isinstance(build(space), Composite)
    kinds = {"gaussian": Gaussian, "tanh_gaussian": TanhGaussian, "beta": Beta}
    assert {kind: type(build(space, continuous=kind).parts[0]) for kind in kinds} == kinds


@pytest.mark.slow
@pytest.mark.parametrize("network", [{"continuous": "beta"}, {"std": "state"}], ids=str)
def test_parts_without_free_deviations(network: dict[str, Any]) -> None:
    """Then all parameters are the heads', part by part."""
    aim: spaces.Space[Any] = spaces.Box(-1, 3, (2,))
    choice: spaces.Space[Any] = spaces.Discrete(2)
    composite, alone = build(spaces.Tuple([aim, choice]), **network), build(aim, **network)
    assert (composite.num_params, composite.num_log_std) == (6, 0)
    params = jnp.array([[0.5, -1.0, 0.25, 2.0, 0.3, -0.7]])
    noise = composite.noise(jax.random.key(0), (1,))
    drawn, chosen = composite.sample(params, noise)
    np.testing.assert_array_equal(drawn, alone.sample(params[:, :4], noise[0]))
    expected = alone.log_prob(params[:, :4], drawn) + special.log_softmax([0.3, -0.7])[int(chosen[0])]
    np.testing.assert_allclose(composite.log_prob(params, (drawn, chosen)), expected, rtol=1e-5)
    expected = alone.entropy(params[:, :4]) + np.float32(stats.entropy(special.softmax([0.3, -0.7])))
    np.testing.assert_allclose(composite.entropy(params), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "inner", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2)), spaces.Graph(spaces.Discrete(2), None)], ids=str
)
def test_a_part_that_cannot_be_trained_is_named(inner: spaces.Space[Any]) -> None:
    with pytest.raises(UserError, match=re.escape(f"['a'][1] of the space {inner}")):
        build(spaces.Dict(a=spaces.Tuple([spaces.Discrete(2), inner])))


@pytest.mark.slow
@pytest.mark.parametrize("space", [spaces.Dict(), spaces.Tuple([]), spaces.Box(-1, 1, (0,))], ids=str)
def test_an_empty_space_is_refused(space: spaces.Space[Any]) -> None:
    with pytest.raises(UserError, match="nothing to decide"):
        build(space)
