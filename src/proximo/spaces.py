"""Gymnasium spaces, taken apart: the leaves of nested ones, and what masks of actions look like."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

if TYPE_CHECKING:  # worker processes come by here, and must not wait for JAX
    from proximo.types import PyTree


Path = tuple[Any, ...]
"""The keys that lead to a leaf; empty for a space that is not nested."""


def leaves(space: spaces.Space[Any], path: Path = ()) -> Iterator[tuple[Path, spaces.Space[Any]]]:
    """The spaces inside `space` that are not Dict or Tuple, with their paths, in the space's own order."""
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from leaves(inner, (*path, index))
    else:
        yield path, space


def has_continuous(space: spaces.Space[Any]) -> bool:
    """Whether some of the actions in `space` are continuous."""
    return any(isinstance(leaf, spaces.Box) for _, leaf in leaves(space))


def space_key(space: spaces.Space[Any]) -> Hashable | None:
    """All that a policy depends on in `space`, as a value: kinds, shapes, types, bounds to the bit, and the order of
    entries, all of which `==` on spaces takes lightly. None for a kind of space that is not known here."""
    if isinstance(space, spaces.Dict):
        inner = tuple((type(key), key, space_key(entry)) for key, entry in space.spaces.items())
        return None if any(key is None for *_, key in inner) else ("Dict", inner)
    if isinstance(space, spaces.Tuple):
        entries = tuple(space_key(entry) for entry in space.spaces)
        return None if None in entries else ("Tuple", entries)
    if isinstance(space, spaces.Box):
        return ("Box", *_bits(space.low), *_bits(space.high))
    if isinstance(space, spaces.Discrete):
        return ("Discrete", int(space.n), int(space.start), np.dtype(space.dtype).str)
    if isinstance(space, spaces.MultiDiscrete):
        return ("MultiDiscrete", *_bits(space.nvec), *_bits(space.start), np.dtype(space.dtype).str)
    if isinstance(space, spaces.MultiBinary):
        return ("MultiBinary", space.shape)
    return None


def form_key(space: spaces.Space[Any]) -> Hashable | None:
    """What stays of `space_key` where bounds and precision do not matter: all that the shapes of networks depend on."""
    if isinstance(space, spaces.Dict):
        return ("Dict", tuple((type(key), key, form_key(entry)) for key, entry in space.spaces.items()))
    if isinstance(space, spaces.Tuple):
        return ("Tuple", tuple(form_key(entry) for entry in space.spaces))
    if isinstance(space, spaces.Box):
        return ("Box", space.shape, "float" if np.issubdtype(space.dtype, np.floating) else np.dtype(space.dtype).str)
    if isinstance(space, spaces.Discrete):
        return ("Discrete", int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return ("MultiDiscrete", space.shape, tuple(space.nvec.reshape(-1)), tuple(space.start.reshape(-1)))
    return space_key(space)


def first_difference(
    ours: spaces.Space[Any], theirs: spaces.Space[Any], path: Path = ()
) -> tuple[Path, spaces.Space[Any], spaces.Space[Any]]:
    """Where two spaces of different form begin to differ: the path there, and what stands there in each."""
    if isinstance(ours, spaces.Dict) and isinstance(theirs, spaces.Dict) and list(ours.spaces) == list(theirs.spaces):
        pairs: list[Any] = [(key, entry, theirs.spaces[key]) for key, entry in ours.spaces.items()]
    elif isinstance(ours, spaces.Tuple) and isinstance(theirs, spaces.Tuple) and len(ours.spaces) == len(theirs.spaces):
        pairs = [(i, *both) for i, both in enumerate(zip(ours.spaces, theirs.spaces, strict=True))]
    else:
        return path, ours, theirs
    for key, one, other in pairs:
        if form_key(one) != form_key(other):
            return first_difference(one, other, (*path, key))
    return path, ours, theirs


def _bits(array: NDArray[Any]) -> tuple[Hashable, ...]:
    """An array as a value; the bounds of images are too long to be kept themselves."""
    return array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).hexdigest()


def pick(tree: PyTree, path: Path) -> Any:
    """What stands at `path`."""
    for key in path:
        tree = tree[key]
    return tree


def shown(path: Path) -> str:
    """`path` as Python would have it: `['arm'][0]`."""
    return "".join(f"[{key!r}]" for key in path)


def build(space: spaces.Space[Any], make: Callable[[Path, spaces.Space[Any]], Any], path: Path = ()) -> PyTree:
    """A tree of the shape of `space`, with `make(path, leaf)` for each leaf."""
    if isinstance(space, spaces.Dict):
        return {key: build(inner, make, (*path, key)) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(build(inner, make, (*path, index)) for index, inner in enumerate(space.spaces))
    return make(path, space)


def stacked(space: spaces.Space[Any], members: list[Any]) -> PyTree:
    """Members of `space` side by side: leaves [N, ...]."""
    return build(space, lambda path, _: np.stack([pick(member, path) for member in members]))


def channel_axis(space: spaces.Space[Any]) -> int | None:
    """Which axis of an image its channels are: 0 or 2; None for what is no image.

    Images are boxes of rank 3, wide enough for the smallest patch that a network looks at. Channels come first where
    there are few of them before a square, or before two long sides; otherwise last.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        return None
    first, *sides = space.shape
    axis = 0 if first <= 16 and first < min(sides) and (sides[0] == sides[1] or min(sides) > 16) else 2
    return axis if min(sides if axis == 0 else space.shape[:2]) >= 3 else None


def cast(space: spaces.Space[Any], actions: PyTree, single: bool = False) -> PyTree:
    """A policy's batch of actions as members of `space`: numpy arrays [B, ...] in its dtypes, or the first row alone.

    Boxes are clipped once more: single precision need not have a number between two close bounds of a double.
    """

    def member(path: Path, leaf: spaces.Space[Any]) -> Any:
        value = np.asarray(pick(actions, path)).astype(leaf.dtype)
        if isinstance(leaf, spaces.Box):
            value = np.clip(value, leaf.low, leaf.high)
        if not single:
            return value
        return value[0] if isinstance(leaf, spaces.Discrete) else value[0, ...]  # [0, ...] of rank 0 stays an array

    return build(space, member)


def mask_shape(space: spaces.Space[Any]) -> tuple[int, ...]:
    """The shape of an action mask: one flag per choice.

    Discrete: (n,). MultiDiscrete: the components one after the other. MultiBinary: (bits, 2), may it be 0, may it
    be 1. Dict and Tuple: the flags of all discrete parts one after the other, in the space's own order. Continuous
    actions have no flags.
    """
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return (int(space.nvec.sum()),)
    if isinstance(space, spaces.MultiBinary):
        return (math.prod(space.shape), 2)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return (sum(math.prod(mask_shape(leaf)) for _, leaf in leaves(space)),)
    return (0,)


def to_mask(space: spaces.Space[Any], given: Any) -> NDArray[Any]:
    """A mask as an environment gives it (flat, in the space's shape, or nested like the space) as bool[mask_shape].

    Raises ValueError with a sentence where it does not fit.
    """
    shape = mask_shape(space)
    if isinstance(given, dict | tuple | list) and isinstance(space, spaces.Dict | spaces.Tuple):
        try:
            parts = [
                to_mask(leaf, pick(given, path)).reshape(-1) for path, leaf in leaves(space) if mask_shape(leaf)[0]
            ]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"the action mask must have the entries of the action space {space}") from None
        return np.concatenate(parts) if parts else np.zeros(0, bool)
    if isinstance(given, tuple | list) and isinstance(space, spaces.MultiDiscrete):
        given = np.concatenate([np.asarray(part).reshape(-1) for part in given])
    mask = np.asarray(given)
    if mask.size != math.prod(shape):
        raise ValueError(f"the action mask must have {math.prod(shape)} flags for {space}, not the shape {mask.shape}")
    return mask.astype(bool).reshape(shape)
