"""What minibatches are made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

PyTree = Any


@struct.dataclass
class Samples:
    """N = T * L samples of one group."""

    obs: PyTree  # [N, ...]
    action_mask: PyTree  # [N, ...] bool, or None
    action: PyTree  # [N, ...]
    log_prob: jax.Array  # [N] under the policy that acted
    value: jax.Array  # [N] before the update
    advantage: jax.Array  # [N]
    target: jax.Array  # [N] advantage + value
    valid: jax.Array  # [N] bool
    episode_start: jax.Array | None = None  # [N] bool; None for networks without memory
    carry: PyTree = None  # [N, ...] what was remembered before each step; in sequences, before the first
    env_row: jax.Array | None = None  # [N] int32: its row among the states [T * E, ...] that critics see, if they do


def in_sequences(samples: Samples, num_lanes: int, length: int) -> Samples:
    """Samples [T * L, ...] as sequences [T / length * L, length, ...]: pieces of a lane in time order, each with the
    memory that it starts from."""

    def pieces(leaf: jax.Array) -> jax.Array:
        split = leaf.reshape(-1, length, num_lanes, *leaf.shape[1:])
        return jnp.moveaxis(split, 1, 2).reshape(-1, length, *leaf.shape[1:])

    sequences = jax.tree.map(pieces, samples)
    return replace(sequences, carry=jax.tree.map(lambda leaf: leaf[:, 0], sequences.carry))
