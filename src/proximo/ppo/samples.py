"""What minibatches are made of."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, Shaped

from proximo.types import PyTree, Struct


class Samples(Struct):
    """N = T * L samples of one group; for networks with memory also as sequences [B, S], or in time order [S, B]."""

    obs: PyTree[Shaped[Array, "rows ..."]]
    action_mask: PyTree[Bool[Array, "rows ..."]]
    """Or None."""
    action: PyTree[Shaped[Array, "rows ..."]]
    log_prob: Float[Array, "*N"]
    """Under the policy that acted."""
    value: Float[Array, "*N"]
    """Before the update."""
    advantage: Float[Array, "*N"]
    target: Float[Array, "*N"]
    """advantage + value"""
    valid: Bool[Array, "*N"]
    episode_start: Bool[Array, "*N"] | None = None
    """None for networks without memory."""
    carry: PyTree[Shaped[Array, "rows ..."]] = None
    """What was remembered before each step; in sequences, before the first."""
    env_row: Int32[Array, "*N"] | None = None
    """Its row among the states [T * E, ...] that critics see, if they do."""


def in_sequences(samples: Samples, num_lanes: int, length: int) -> Samples:
    """Samples [T * L, ...] as sequences [T / length * L, length, ...]: pieces of a lane in time order, each with the
    memory that it starts from."""

    def pieces(leaf: Shaped[Array, "N ..."]) -> Shaped[Array, "B S ..."]:
        split = leaf.reshape(-1, length, num_lanes, *leaf.shape[1:])
        return jnp.moveaxis(split, 1, 2).reshape(-1, length, *leaf.shape[1:])

    sequences: Samples = jax.tree.map(pieces, samples)
    return replace(sequences, carry=jax.tree.map(lambda leaf: leaf[:, 0], sequences.carry))
