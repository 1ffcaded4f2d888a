"""From what an environment emits to what a network reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float32, Int32, Shaped
from numpy.typing import NDArray

from proximo.errors import UserError
from proximo.spaces import Path, channel_axis, leaves, pick, shown
from proximo.types import AnyArray, PyTree, Struct


class Features(Struct):
    """What a network reads: one vector per lane, any number of images, and with `network.embed` the discrete values.

    Those are numbered through: the first of a component follows the last of the component before, up to `num_codes`.
    """

    vector: Float32[Array, "*B D"]
    """D may be 0."""
    images: tuple[Float32[Array, "*B _ _ _"], ...]
    """Each [B, H, W, C]."""
    codes: Int32[Array, "*B K"] | None = None
    num_codes: int = field(default=0, metadata={"static": True})


class ObservationAdapter:
    """Turns observations of a space into `Features`.

    Numbers become parts of the vector, discrete values one-hot parts of it (or codes, where they are to be embedded),
    arrays of rank 3 images, channels last; whole numbers within bounds are scaled to 0..1. Dictionaries and tuples are
    taken apart, entry by entry.
    """

    def __init__(self, space: spaces.Space[Any], embed: bool = False):
        self.space = space
        self._embed = embed
        self._leaves = list(leaves(space))
        for path, leaf in self._leaves:
            _check_kind(leaf, path)
        if not self._leaves:
            raise UserError(f"The observation space {space} is empty: there is nothing to learn from.")
        entries = [_continuous(leaf) for _, leaf in self._leaves if not _is_image(leaf) and not self._coded(leaf)]
        self.continuous = np.concatenate([np.zeros(0, bool), *entries])
        """[D] which entries of the vector are measurements, for which running statistics make sense."""
        self.vector_size = self.continuous.size

    def __call__(self, obs: PyTree[Shaped[AnyArray, "B ..."]]) -> Features:
        """Features of a batch of observations."""
        vectors, images, codes, num_codes = [], [], [], 0
        for path, leaf in self._leaves:
            value = jnp.asarray(_narrowed(pick(obs, path), leaf))
            if _is_image(leaf):
                images.append(_image(value, leaf))
            elif self._coded(leaf):
                starts, sizes = _choices(leaf)
                codes.append(_codes(value, starts, sizes, num_codes))
                num_codes += int(sizes.sum())
            else:
                vectors.append(_vector(value, leaf))
        batch = (vectors + images + codes)[0].shape[0]
        vector = jnp.concatenate(vectors, axis=-1) if vectors else jnp.zeros((batch, 0), jnp.float32)
        return Features(vector, tuple(images), jnp.concatenate(codes, axis=-1) if codes else None, num_codes)

    def measurements(self) -> list[tuple[Path, tuple[int, ...], slice]]:
        """Of each entry that holds nothing but measurements: its path, its shape, and where it stands in the vector."""
        found, start = [], 0
        for path, leaf in self._leaves:
            if not _is_image(leaf) and not self._coded(leaf):
                measured = _continuous(leaf)
                if measured.size and measured.all():
                    found.append((path, leaf.shape or (), slice(start, start + measured.size)))
                start += measured.size
        return found

    def _coded(self, leaf: spaces.Space[Any]) -> TypeGuard[spaces.Discrete[Any] | spaces.MultiDiscrete]:
        return self._embed and isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete)

    def batch(self, obs: PyTree) -> tuple[PyTree, bool]:
        """`obs` as arrays with a leading axis, and whether it was a single observation without one.

        Entries that the space does not have are left out.
        """
        arrays = _arrays(obs, self.space, ())
        first, leaf = self._leaves[0]
        single = pick(arrays, first).shape == leaf.shape
        num = () if single else pick(arrays, first).shape[:1]
        for path, leaf in self._leaves:
            given = pick(arrays, path).shape
            if given != (*num, *(leaf.shape or ())):
                raise UserError(
                    f"The observation{shown(path)} must have the shape {leaf.shape}, after a batch axis in all entries "
                    f"or in none; not {given}."
                )
        return (jax.tree.map(lambda x: x[None], arrays) if single else arrays), single


def _check_kind(space: spaces.Space[Any], path: Path) -> None:
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise UserError(
            f"The observation space{shown(path)} is {space}, which has no fixed shape to feed a network; wrap the "
            f"environment so that it emits Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these."
        )


def _arrays(obs: PyTree, space: spaces.Space[Any], path: Path) -> PyTree:
    """`obs` with an array in every entry of the space; lists of numbers become arrays, too."""
    where = f"The observation{shown(path)}"
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, Mapping):
            raise UserError(f"{where} must be a dictionary with the entries {list(space.spaces)}; not {_kind(obs)}.")
        for key in space.spaces:
            if key not in obs:
                raise UserError(f"{where} lacks the entry {key!r}; it has {list(obs)}.")
        return {key: _arrays(obs[key], inner, (*path, key)) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(obs, tuple | list | np.ndarray) or len(obs) != len(space.spaces):
            raise UserError(f"{where} must be a tuple of {len(space.spaces)} entries; not {_kind(obs)}.")
        each = enumerate(zip(obs, space.spaces, strict=True))
        return tuple(_arrays(entry, inner, (*path, index)) for index, (entry, inner) in each)
    try:
        array = np.asarray(obs)
    except ValueError:
        raise UserError(f"{where} is ragged: its rows differ in length.") from None
    if array.dtype.kind not in "biuf":
        raise UserError(f"{where} must hold numbers; not {_kind(obs)}.")
    return _narrowed(array, space)


def _kind(obs: PyTree) -> str:
    """What was given instead, in a word or two."""
    return f"{type(obs).__name__} of {len(obs)}" if isinstance(obs, tuple | list) else type(obs).__name__


def _narrowed(value: Any, space: spaces.Space[Any]) -> Any:
    """Whole numbers without bounds, where JAX would cut their upper 32 bits off: rounded to what networks read."""
    wide = isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.dtype.itemsize > 4
    return value.astype(np.float32) if wide and isinstance(space, spaces.Box) and _continuous(space).any() else value


def _is_image(space: spaces.Space[Any]) -> TypeGuard[spaces.Box]:
    return channel_axis(space) is not None


def _within_bounds(space: spaces.Box) -> NDArray[Any]:
    """Which entries are whole numbers that bounds bring to 0..1; wider ranges than 2^24 count as none."""
    if np.issubdtype(space.dtype, np.floating):
        return np.zeros(space.shape, bool)
    return np.asarray(space.high.astype(np.float64) - space.low.astype(np.float64) < 2.0**24)


def _continuous(space: spaces.Space[Any]) -> NDArray[Any]:
    """[D] for each number that a vector holds of `space`: is it a measurement?"""
    if isinstance(space, spaces.Box):
        return ~_within_bounds(space).reshape(-1)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return np.zeros(int(_choices(space)[1].sum()), bool)
    return np.zeros(int(np.prod(space.shape or ())), bool)


def _choices(space: spaces.Discrete[Any] | spaces.MultiDiscrete) -> tuple[NDArray[Any], NDArray[Any]]:
    """[K] the first value of each component, and how many it has."""
    starts, sizes = (space.start, space.n) if isinstance(space, spaces.Discrete) else (space.start, space.nvec)
    return np.reshape(starts, -1), np.reshape(sizes, -1)


def _vector(value: Shaped[Array, "B ..."], space: spaces.Space[Any]) -> Float32[Array, "B D"]:
    flat = value.reshape(value.shape[0], -1)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        columns = zip(flat.T, *_choices(space), strict=True)
        return jnp.concatenate([_one_hot(column, start, int(n)) for column, start, n in columns], axis=-1)
    if isinstance(space, spaces.Box):
        return _scaled(flat, space.low.reshape(-1), space.high.reshape(-1), _within_bounds(space).reshape(-1))
    return flat.astype(jnp.float32)


def _codes(
    value: Shaped[Array, "B ..."], starts: Shaped[NDArray[Any], " K"], sizes: Shaped[NDArray[Any], " K"], first: int
) -> Int32[Array, "B K"]:
    """Values numbered through from `first`; one outside its component is the nearest inside."""
    inside = jnp.clip(_less(value.reshape(value.shape[0], -1), starts[None]), 0, (sizes - 1).astype(np.int32)[None])
    numbers: NDArray[np.int32] = (first + np.cumsum(sizes) - sizes).astype(np.int32)
    return inside + numbers[None]


def _one_hot(value: Shaped[Array, " B"], start: Any, n: int) -> Float32[Array, "B n"]:
    return jax.nn.one_hot(_less(value, np.asarray(start)), n, dtype=jnp.float32)


def _less(value: Shaped[Array, "*B"], start: NDArray[Any]) -> Int32[Array, "*B"]:
    """value - start as int32. It does not matter that both may lose upper bits: the difference is small."""
    return value.astype(jnp.int32) - start.astype(np.int32)


def _image(value: Shaped[Array, "B _ _ _"], space: spaces.Box) -> Float32[Array, "B _ _ _"]:
    low, high, bounded = space.low, space.high, _within_bounds(space)
    if channel_axis(space) == 0:
        value = jnp.moveaxis(value, 1, -1)
        low, high, bounded = (np.moveaxis(each, 0, -1) for each in (low, high, bounded))
    return _scaled(value, low, high, bounded)


def _scaled(
    value: Shaped[Array, "B *S"],
    low: Shaped[NDArray[Any], "*S"],
    high: Shaped[NDArray[Any], "*S"],
    bounded: Bool[NDArray[Any], "*S"],
) -> Float32[Array, "B *S"]:
    """(x - low) / (high - low) for the whole numbers within bounds, the range that the initialisation expects;
    other numbers as they are."""
    plain = value.astype(jnp.float32)
    if not bounded.any():
        return plain
    low, span = np.where(bounded, low, 0), np.where(bounded, high.astype(np.float64) - low.astype(np.float64), 1)
    whole = jnp.issubdtype(value.dtype, jnp.integer) and low.any()
    from_low = _less(value, _compact(low)).astype(jnp.float32) if whole else plain - _compact(low.astype(np.float32))
    scaled = from_low / _compact(np.maximum(span, 1).astype(np.float32))
    return scaled if bounded.all() else jnp.where(bounded[None], scaled, plain)


def _compact(array: NDArray[Any]) -> NDArray[Any]:
    """One number where all are the same: a constant of an image's size would be part of every program."""
    first = array.reshape(-1)[:1]
    return first.reshape(()) if (array == first).all() else array[None]
