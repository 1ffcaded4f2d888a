"""Trees packed into few arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from proximo.packing import pack, unpack


def test_packing_is_exact() -> None:
    tree = {"a": jnp.arange(6.0).reshape(2, 3), "b": (jnp.int32(7), jnp.array([True, False])), "c": jnp.float32(8)}
    packed = pack(tree)
    assert len(packed) == 3
    again = unpack(packed, jax.eval_shape(lambda: tree))
    assert str(jax.tree.structure(again)) == str(jax.tree.structure(tree))
    for one, other in zip(jax.tree.leaves(tree), jax.tree.leaves(again), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
