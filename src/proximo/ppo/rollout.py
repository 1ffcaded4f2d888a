"""The record of experience that one update learns from. T steps, L lanes.

With many agents it is collected with environments as lanes, and rewards and flags [T, E, A]; `proximo.ppo.team` takes
out the part of each group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

Tree = Any
Array = Any
"""An array of JAX, or of NumPy where host environments filled it."""


@struct.dataclass
class Rollout:
    """What happened, in time order. Collection fills it whole; the update uses it once."""

    obs: Tree  # [T, L, ...] what the policy saw
    action_mask: Tree  # [T, L, ...] bool, or None
    action: Tree  # [T, L, ...] in the distribution's own coordinates
    reward: Array  # [T, L]
    terminated: Array  # [T, L] bool
    truncated: Array  # [T, L] bool
    valid: Array  # [T, L] bool
    final_obs: Tree  # [T, L, ...] where each truncated step led; elsewhere anything finite
    last_obs: Tree  # [L, ...] what the policy sees next
    carry: Tree  # [L, ...] the memory at the start
    absent: Array | None = None  # [T, L] bool with many agents: not there after the step
    there: Array | None = None  # [T, L] bool with many agents: there before the step
    acts: Array | None = None  # [L] bool with many agents: whose next action counts
    settled: Array | None = None  # [T, L] bool, of a group: whether what came of an action is known (`ppo.team`)

    @property
    def ended(self) -> Array:
        return self.terminated | self.truncated

    @property
    def forgotten(self) -> Array:
        """[T, L] after which steps memory is empty: as `Timestep.forgotten`."""
        if self.absent is None or self.there is None:
            return self.ended | ~self.valid
        return self.ended | self.absent | ~self.there


@struct.dataclass
class Episodes:
    """The episodes that finished during a rollout, at the step where each did."""

    length: jax.Array  # [T, L] int32; 0 where none finished
    returned: jax.Array  # [T, L] float32 sum of its rewards
    success: jax.Array  # [T, L] bool
    agents: jax.Array | None = None  # [T, L, A] float32 with many agents: the sums of each
    score: jax.Array | None = None  # [T, L] float32 with self-play: 1 won, 1/2 drawn, 0 lost; -1 without opponents


@struct.dataclass
class Samples:
    """What minibatches are made of: N = T * L samples."""

    obs: Tree  # [N, ...]
    action_mask: Tree  # [N, ...] bool, or None
    action: Tree  # [N, ...]
    log_prob: jax.Array  # [N] under the policy that acted
    value: jax.Array  # [N] before the update
    advantage: jax.Array  # [N]
    target: jax.Array  # [N] advantage + value
    valid: jax.Array  # [N] bool
    fresh: jax.Array | None = None  # [N] bool: an episode starts here; None for networks without memory
    memory: Tree = None  # [N, ...] what was remembered before each step; in sequences, before the first


def in_sequences(samples: Samples, num_lanes: int, length: int) -> Samples:
    """Samples [T * L, ...] as sequences [T / length * L, length, ...]: pieces of a lane in time order, each with the
    memory that it starts from."""

    def pieces(leaf: jax.Array) -> jax.Array:
        split = leaf.reshape(-1, length, num_lanes, *leaf.shape[1:])
        return jnp.moveaxis(split, 1, 2).reshape(-1, length, *leaf.shape[1:])

    sequences = jax.tree.map(pieces, samples)
    return replace(sequences, memory=jax.tree.map(lambda leaf: leaf[:, 0], sequences.memory))


def flatten_lanes(tree: Tree) -> Tree:
    """[T, L, ...] to [T * L, ...] in every leaf."""
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree)
