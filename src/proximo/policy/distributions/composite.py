"""The distribution of an action space: of one of its leaves, or of several at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Key

from proximo.config import NetworkConfig
from proximo.errors import UserError
from proximo.policy.distributions.api import Distribution
from proximo.policy.distributions.beta import Beta
from proximo.policy.distributions.discrete import Bernoulli, Categorical, MultiCategorical
from proximo.policy.distributions.gaussian import WIDEST, Bounds, Gaussian, TanhGaussian
from proximo.spaces import Path, build, leaves, mask_shape, shown
from proximo.types import PyTree


@dataclass(frozen=True)
class Composite:
    """Independent parts, one per leaf of a Dict or Tuple space, in the space's own order:

        log p(a) = sum_i log p_i(a_i),    H(p) = sum_i H(p_i)

    Actions and noise are tuples with an entry per part. The parameters are those of all parts that depend on the
    state, then the log standard deviations of all parts. A mask is [..., M], the discrete parts' flags one after
    the other (`proximo.spaces.mask_shape`).
    """

    parts: tuple[Distribution, ...]
    mask_shapes: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]  # the part that each leaf of `tree` is
    tree: Any  # the space's nesting, as JAX knows it

    @property
    def num_params(self) -> int:
        return sum(part.num_params for part in self.parts)

    @property
    def num_log_std(self) -> int:
        return sum(part.num_log_std for part in self.parts)

    def _params(self, params: Float[Array, "*B P"]) -> list[Array]:
        """Each part's own parameters: what the state decides, then its log-stds."""
        sizes = [part.num_params - part.num_log_std for part in self.parts]
        sizes += [part.num_log_std for part in self.parts]
        pieces = jnp.split(params, np.cumsum(sizes)[:-1], axis=-1)
        heads, log_stds = pieces[: len(self.parts)], pieces[len(self.parts) :]
        return [jnp.concatenate(both, axis=-1) for both in zip(heads, log_stds, strict=True)]

    def _masks(self, mask: Bool[Array, "*B M"] | None) -> list[Array | None]:
        """Each part's own mask; None for parts without choices."""
        if mask is None:
            return [None] * len(self.parts)
        sizes = [int(np.prod(shape)) for shape in self.mask_shapes]
        flags = jnp.split(mask, np.cumsum(sizes)[:-1], axis=-1)
        return [
            piece.reshape(mask.shape[:-1] + shape) if size else None
            for piece, shape, size in zip(flags, self.mask_shapes, sizes, strict=True)
        ]

    def noise(self, key: Key[Array, ""], shape: tuple[int, ...]) -> tuple[Any, ...]:
        keys = jax.random.split(key, len(self.parts))
        return tuple(part.noise(own, shape) for part, own in zip(self.parts, keys, strict=True))

    def sample(
        self, params: Float[Array, "*B P"], noise: tuple[Any, ...], mask: Bool[Array, "*B M"] | None = None
    ) -> tuple[Array, ...]:
        each = zip(self.parts, self._params(params), noise, self._masks(mask), strict=True)
        return tuple(part.sample(params, noise, mask) for part, params, noise, mask in each)

    def mode(self, params: Float[Array, "*B P"], mask: Bool[Array, "*B M"] | None = None) -> tuple[Array, ...]:
        each = zip(self.parts, self._params(params), self._masks(mask), strict=True)
        return tuple(part.mode(params, mask) for part, params, mask in each)

    def log_prob(
        self, params: Float[Array, "*B P"], action: tuple[Array, ...], mask: Bool[Array, "*B M"] | None = None
    ) -> Float[Array, "*B"]:
        each = zip(self.parts, self._params(params), action, self._masks(mask), strict=True)
        return reduce(add, (part.log_prob(params, action, mask) for part, params, action, mask in each))

    def entropy(self, params: Float[Array, "*B P"], mask: Bool[Array, "*B M"] | None = None) -> Float[Array, "*B"]:
        each = zip(self.parts, self._params(params), self._masks(mask), strict=True)
        return reduce(add, (part.entropy(params, mask) for part, params, mask in each))

    def to_env(self, action: tuple[Array, ...]) -> PyTree:
        """Dictionaries and tuples nested like the space."""
        members = [part.to_env(own) for part, own in zip(self.parts, action, strict=True)]
        return jax.tree.unflatten(self.tree, [members[number] for number in self.order])


def build_distribution(space: spaces.Space[Any], network: NetworkConfig) -> Distribution:
    """The distribution for an action space."""
    found = list(leaves(space))
    parts = tuple(_of_leaf(leaf, network, path) for path, leaf in found)
    if not sum(part.num_params for part in parts):
        raise UserError(f"The action space {space} is empty: there is nothing to decide.")
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return parts[0]
    numbers = {path: number for number, (path, _) in enumerate(found)}
    order, tree = jax.tree.flatten(build(space, lambda path, _: numbers[path]))
    return Composite(parts, tuple(mask_shape(leaf) for _, leaf in found), tuple(order), tree)


def _of_leaf(space: spaces.Space[Any], network: NetworkConfig, path: Path) -> Distribution:
    if isinstance(space, spaces.Discrete):
        _check_range(space, space.start, space.n)
        return Categorical(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        _check_range(space, space.start, space.nvec)
        sizes, starts = tuple(map(int, space.nvec.reshape(-1))), tuple(map(int, space.start.reshape(-1)))
        return MultiCategorical(sizes, starts, tuple(space.shape))
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(tuple(space.shape))
    if isinstance(space, spaces.Box):
        return _of_box(space, network)
    raise UserError(
        f"Actions{shown(path)} of the space {space} cannot be trained; "
        f"Discrete, MultiDiscrete, MultiBinary and Box action spaces can, and Dict and Tuple of these."
    )


def _of_box(space: spaces.Box, network: NetworkConfig) -> Distribution:
    bounds, kind = Bounds.of(space), network.continuous
    if kind != "gaussian" and not bounds.bounded:
        does = "squashes actions into bounds" if kind == "tanh_gaussian" else "is a distribution between two bounds"
        raise UserError(
            f"network.continuous={kind} {does}, and {space} has none in some entry (bounds more than {WIDEST:.0e} "
            f"apart count as none); use network.continuous=gaussian."
        )
    if kind == "beta":
        return Beta(bounds)
    gaussian = Gaussian if kind == "gaussian" else TanhGaussian
    return gaussian(bounds, network.initial_std if network.std == "state" else None)


def _check_range(space: spaces.Space[Any], start: Any, num: Any) -> None:
    limits = np.iinfo(np.int32)
    first, last = np.asarray(start, object), np.asarray(start, object) + np.asarray(num, object) - 1
    if np.min(first) < limits.min or np.max(last) > limits.max:
        raise UserError(f"Actions of the space {space} cannot be trained: they lie beyond the range of int32.")
