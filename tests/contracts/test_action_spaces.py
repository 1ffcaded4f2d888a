"""Whatever the action space and whatever the network says: actions are members of the space, and never forbidden."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from proximo.config import NetworkConfig
from proximo.policy.distributions import Distribution
from proximo.policy.distributions.composite import build_distribution
from proximo.spaces import build, leaves, mask_shape, pick

NUM_ROWS = 4
SHAPES = st.sampled_from([(), (3,), (3, 1), (1, 3, 1)])  # few: every new shape is compiled
NVECS = st.sampled_from([np.array([1, 2]), np.array([[1], [2]]), np.array([[2, 1], [4, 3]])])

WHOLE = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"]


@st.composite
def float_boxes(draw: st.DrawFn) -> spaces.Box:
    dtype: Any = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    shape = draw(SHAPES)
    reach = 1e3 if dtype == np.float16 else 1e6
    low = [draw(st.floats(-reach, reach)) for _ in range(int(np.prod(shape)))]
    # As far apart as half precision tells numbers of this size apart.
    high = [draw(st.floats(start + 1e-2 * max(1, abs(start)), 2 * reach)) for start in low]
    most = float(np.finfo(dtype).max)
    ends = [
        draw(st.sampled_from([(l, h), (l, h), (-np.inf, h), (l, np.inf), (-np.inf, np.inf), (-most, most)]))
        for l, h in zip(low, high, strict=True)
    ]
    bounds = np.array(ends, dtype).reshape(*shape, 2)
    return spaces.Box(bounds[..., 0], bounds[..., 1], shape, dtype)


@st.composite
def whole_boxes(draw: st.DrawFn) -> spaces.Box:
    dtype: Any = np.dtype(draw(st.sampled_from(WHOLE)))
    shape = draw(SHAPES)
    least, most = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    representable = {8: (max(least, -(2**31)), min(most, 2**31 - 1 if dtype.kind == "i" else 2**32 - 1))}
    first, last = representable.get(dtype.itemsize, (least, most))
    pairs = []
    for _ in range(int(np.prod(shape))):
        one, two = sorted(draw(st.tuples(*[st.integers(first, last)] * 2)))
        pairs.append(draw(st.sampled_from([(one, two), (one, one), (least, two), (one, most), (least, most)])))
    low, high = (np.array([pair[end] for pair in pairs], dtype).reshape(shape) for end in (0, 1))
    return spaces.Box(low, high, shape, dtype.type)


@st.composite
def discretes(draw: st.DrawFn) -> spaces.Discrete[Any]:
    dtype: Any = draw(st.sampled_from([np.int8, np.int32, np.int64]))
    start = draw(st.integers(-9, 9) if dtype == np.int8 else st.integers(-(2**31), 2**31 - 7))
    return spaces.Discrete(draw(st.sampled_from([1, 3])), start=start, dtype=dtype)


@st.composite
def multi_discretes(draw: st.DrawFn) -> spaces.MultiDiscrete:
    nvec = draw(NVECS)
    start = [draw(st.integers(-9, 9)) for _ in range(nvec.size)]
    dtype: Any = draw(st.sampled_from([np.int32, np.int64]))
    return spaces.MultiDiscrete(nvec, start=np.array(start).reshape(nvec.shape), dtype=dtype)


LEAVES: st.SearchStrategy[Any] = (
    float_boxes()
    | whole_boxes()
    | discretes()
    | multi_discretes()
    | st.sampled_from([spaces.MultiBinary(3), spaces.MultiBinary((3, 1))])
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    entries = st.lists(inner, min_size=1, max_size=3)
    named = st.tuples(st.permutations("abc"), entries)
    return entries.map(spaces.Tuple) | named.map(lambda both: spaces.Dict(list(zip(*both, strict=False))))


SPACES = LEAVES | nested(LEAVES) | nested(LEAVES | nested(LEAVES))


def random_params(distribution: Distribution, rng: np.random.Generator, scale: float) -> jax.Array:
    """[B, P] of both signs; the large ones make nearly sure actions, and deviations of zero and of infinity."""
    size = (NUM_ROWS, distribution.num_params)
    return jnp.asarray(scale * rng.choice([-1, 1], size) * rng.uniform(0.1, 1, size), jnp.float32)


def members(space: spaces.Space[Any], actions: Any) -> list[Any]:
    """The rows of a batch, in the dtypes of the space."""

    def member(row: int, path: Any, leaf: spaces.Space[Any]) -> Any:
        value = np.asarray(pick(actions, path))[row, ...].astype(leaf.dtype)
        return int(value) if isinstance(leaf, spaces.Discrete) else value

    return [build(space, partial(member, row)) for row in range(NUM_ROWS)]


def choices(leaf: spaces.Space[Any]) -> list[int]:
    """How many actions each choice has that a leaf's mask speaks of, in order."""
    if isinstance(leaf, spaces.Discrete):
        return [int(leaf.n)]
    if isinstance(leaf, spaces.MultiDiscrete):
        return leaf.nvec.reshape(-1).tolist()
    return [2] * int(np.prod(leaf.shape)) if isinstance(leaf, spaces.MultiBinary) else []


def random_mask(num: int, rng: np.random.Generator) -> np.ndarray:
    mask = rng.random(num) < 0.4
    mask[rng.integers(num)] = True
    return mask


def chosen(leaf: spaces.Space[Any], action: Any) -> list[int]:
    """The number of the action taken at each choice."""
    return np.reshape(np.asarray(action, np.int64) - getattr(leaf, "start", 0), -1).tolist()


def check_members(space: spaces.Space[Any], seed: int, scale: float) -> None:
    rng, distribution = np.random.default_rng(seed), build_distribution(space, NetworkConfig())
    params, noise = random_params(distribution, rng, scale), distribution.noise(jax.random.key(seed), (NUM_ROWS,))
    action = distribution.sample(params, noise)
    for taken in (action, distribution.mode(params)):
        for member in members(space, distribution.to_env(taken)):
            assert space.contains(member), (member, scale)
    if scale == 1:
        assert np.isfinite(distribution.log_prob(params, action)).all()
        assert np.isfinite(distribution.entropy(params)).all()
        assert distribution.log_prob(params, action).shape == distribution.entropy(params).shape == (NUM_ROWS,)


def check_masks(space: spaces.Space[Any], seed: int, scale: float) -> None:
    if not mask_shape(space)[0]:
        return
    rng, distribution = np.random.default_rng(seed), build_distribution(space, NetworkConfig())
    params, noise = random_params(distribution, rng, scale), distribution.noise(jax.random.key(seed), (NUM_ROWS,))
    allowed = [[[random_mask(num, rng) for num in choices(leaf)] for _, leaf in leaves(space)] for _ in range(NUM_ROWS)]
    flat = np.stack([np.concatenate([flags for part in row for flags in part]) for row in allowed])
    mask = jnp.asarray(flat.reshape(NUM_ROWS, *mask_shape(space)))
    for taken in (distribution.sample(params, noise, mask), distribution.mode(params, mask)):
        assert scale > 1 or np.isfinite(distribution.log_prob(params, taken, mask)).all()
        for row, member in zip(allowed, members(space, distribution.to_env(taken)), strict=True):
            for (path, leaf), flags in zip(leaves(space), row, strict=True):
                numbers = chosen(leaf, pick(member, path)) if flags else []
                assert all(may[number] for may, number in zip(flags, numbers, strict=True))


SEEDS, SCALES = st.integers(0, 2**31 - 1), st.sampled_from([1, 1e3, 1e6])
PLAIN: dict[str, Any] = dict(deadline=None, derandomize=True, database=None)


@pytest.mark.slow
@settings(max_examples=150, **PLAIN)
@given(SPACES, SEEDS, SCALES)
def test_actions_are_members_of_the_space_and_never_forbidden(
    space: spaces.Space[Any], seed: int, scale: float
) -> None:
    check_members(space, seed, scale)
    check_masks(space, seed, scale)
