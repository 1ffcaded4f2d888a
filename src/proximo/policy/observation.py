"""From what an environment emits to what a network reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnasium import spaces

from proximo.errors import UserError

Tree = Any


@struct.dataclass
class Features:
    """What a network reads: one vector per lane, and any number of images."""

    vector: jax.Array  # [B, D] float32; D may be 0
    images: tuple[jax.Array, ...]  # each [B, H, W, C] float32


class ObservationAdapter:
    """Turns observations of a space into `Features`.

    Numbers become parts of the vector, discrete values one-hot parts of it, arrays of rank 3 images
    (bytes are scaled to 0..1); dictionaries and tuples are taken apart, entry by entry.
    """

    def __init__(self, space: spaces.Space):
        self.space = space
        self._leaves = list(_leaves(space, ()))
        widths = [_width(leaf) for _, leaf in self._leaves if not _is_image(leaf)]
        continuous = [_is_continuous(leaf) for _, leaf in self._leaves if not _is_image(leaf)]
        self.vector_size = sum(widths)
        self.continuous = np.repeat(np.array(continuous, bool), widths)
        """[D] which entries of the vector are measurements, for which running statistics make sense."""
        if not self._leaves:
            raise UserError(f"The observation space {space} is empty: there is nothing to learn from.")

    def __call__(self, obs: Tree) -> Features:
        """Features of a batch of observations, leaves [B, ...]."""
        vectors, images = [], []
        for path, leaf in self._leaves:
            value = jnp.asarray(_pick(obs, path))
            if _is_image(leaf):
                images.append(_image(value, leaf))
            else:
                vectors.append(_vector(value, leaf))
        batch = vectors[0].shape[0] if vectors else images[0].shape[0]
        vector = jnp.concatenate(vectors, axis=-1) if vectors else jnp.zeros((batch, 0), jnp.float32)
        return Features(vector, tuple(images))

    def batch(self, obs: Tree) -> tuple[Tree, bool]:
        """`obs` as arrays with a leading axis, and whether it was a single observation without one."""
        arrays = _arrays(obs, self.space)
        first, leaf = self._leaves[0]
        single = _pick(arrays, first).shape == leaf.shape
        for path, leaf in self._leaves:
            given = _pick(arrays, path).shape
            if given != (leaf.shape if single else given[:1] + leaf.shape):
                where = "".join(f"[{key!r}]" for key in path)
                raise UserError(
                    f"The observation{where} must have the shape {leaf.shape}, after a batch axis in all entries "
                    f"or in none; not {given}."
                )
        return (jax.tree.map(lambda x: x[None], arrays) if single else arrays), single


def _leaves(space: spaces.Space, path: tuple) -> Iterator[tuple[tuple, spaces.Space]]:
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from _leaves(inner, (*path, index))
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        yield path, space
    else:
        where = "".join(f"[{key!r}]" for key in path)
        raise UserError(
            f"The observation space{where} is {space}, which has no fixed shape to feed a network; wrap the "
            f"environment so that it emits Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these."
        )


def _arrays(obs: Tree, space: spaces.Space) -> Tree:
    """`obs` with an array in every entry of the space; lists of numbers become arrays, too."""
    if isinstance(space, spaces.Dict):
        return {key: _arrays(obs[key], inner) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_arrays(entry, inner) for entry, inner in zip(obs, space.spaces, strict=True))
    return np.asarray(obs)


def _pick(obs: Tree, path: tuple) -> Any:
    for key in path:
        obs = obs[key]
    return obs


def _is_image(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 3


def _is_continuous(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)


def _width(space: spaces.Space) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return int(np.prod(space.shape or ()))


def _vector(value: jax.Array, space: spaces.Space) -> jax.Array:
    batch = value.shape[0]
    if isinstance(space, spaces.Discrete):
        return jax.nn.one_hot(value - jnp.asarray(space.start, value.dtype), int(space.n), dtype=jnp.float32)
    if isinstance(space, spaces.MultiDiscrete):
        values, starts = value.reshape(batch, -1), space.start.reshape(-1)
        parts = [
            jax.nn.one_hot(values[:, i] - jnp.asarray(starts[i], value.dtype), int(n), dtype=jnp.float32)
            for i, n in enumerate(space.nvec.reshape(-1))
        ]
        return jnp.concatenate(parts, axis=-1)
    flat = value.reshape(batch, -1).astype(jnp.float32)
    if isinstance(space, spaces.Box) and not _is_continuous(space):
        # Whole numbers within bounds are brought to 0..1, the range that the initialisation expects.
        low, high = space.low.reshape(1, -1).astype(np.float32), space.high.reshape(1, -1).astype(np.float32)
        if np.all(high - low < 2.0**24):
            return (flat - low) / np.maximum(high - low, 1)
    return flat


def _image(value: jax.Array, space: spaces.Space) -> jax.Array:
    return value.astype(jnp.float32) / 255 if space.dtype == np.uint8 else value.astype(jnp.float32)
