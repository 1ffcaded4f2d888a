"""Trees of arrays as few flat ones, and back: calls and transfers take longer the more arrays they are handed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from proximo.types import PyTree


def pack(tree: PyTree[Shaped[Array, "..."]]) -> list[Shaped[Array, " _"]]:
    """All leaves of one type as one array."""
    leaves = jax.tree.leaves(tree)
    kinds = sorted({str(leaf.dtype) for leaf in leaves})
    return [jnp.concatenate([leaf.reshape(-1) for leaf in leaves if leaf.dtype == kind]) for kind in kinds]


def unpack(packed: list[Shaped[Array, " _"]], types: PyTree[jax.ShapeDtypeStruct]) -> PyTree[Shaped[Array, "..."]]:
    """The tree that `pack` packed; `types` has its shapes and types."""
    leaves, structure = jax.tree.flatten(types)
    kinds = sorted({str(leaf.dtype) for leaf in leaves})
    rest = dict(zip(kinds, packed, strict=True))
    unpacked = []
    for leaf in leaves:
        kind = str(leaf.dtype)
        unpacked.append(rest[kind][: leaf.size].reshape(leaf.shape))
        rest[kind] = rest[kind][leaf.size :]
    return jax.tree.unflatten(structure, unpacked)
