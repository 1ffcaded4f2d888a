"""The part of a policy that acts in host environments, and the memory it reads: made for many quick calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from proximo.compiling import jit
from proximo.config import Config
from proximo.envs.api import Batch
from proximo.envs.host.buffers import ALIGNMENT, aligned
from proximo.policy.team import AnyPolicy
from proximo.ppo.team import initial_state

Tree = Any
SMALL = 100_000
"""Parameters up to which an actor is quicker in one thread."""


def actor(policy: AnyPolicy, batch: Batch, params: Tree) -> Callable[..., tuple[Tree, Tree, Tree]]:
    """A function from what the lanes of `batch` see to their actions: in the policy's own coordinates, and as the
    environments take them, or None if that is the same. `params` has the shapes of the actor's parameters.

    Groups that are served together are still computed one by one: the last bits of a matrix product depend on
    its size, and must not depend on the number of worker processes.
    """
    types = (params, policy.initial_stats())
    whole, first = reads_record(), batch[0].start

    def act(
        packed: list[jax.Array], noise: Tree, t: jax.Array, carry: Tree, obs: Tree, mask: Tree
    ) -> tuple[Tree, Tree, Tree]:
        params, stats = unpack(packed, types)
        drawn = at(noise, t)
        obs, mask = at((obs, mask), (t, slice(first, batch[-1].stop))) if whole else (obs, mask)
        parts = []
        for lanes in batch:
            group = slice(lanes.start - first, lanes.stop - first)
            memory, outputs = policy.explore(params, stats, at(carry, group), at(obs, group), lanes)
            action = policy.distribution.sample(outputs, at(drawn, lanes), at(mask, group))
            to_env = policy.distribution.to_env(action)
            parts.append((memory, action, None if to_env is action else to_env))
        return parts[0] if len(parts) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)

    return act


def reads_record() -> bool:
    """Whether the actor is handed the whole record, and picks its step itself."""
    return jax.default_backend() == "cpu"


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros that begin where XLA wants its arrays to begin."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return aligned(np.zeros(size + ALIGNMENT, np.uint8))[:size].view(dtype).reshape(shape)


def same_memory(array: np.ndarray) -> jax.Array:
    """An array for JAX in the very memory of `array`: what is written there later is what a program reads then."""
    shown = jnp.from_dlpack(array)
    assert not array.size or shown.unsafe_buffer_pointer() == array.ctypes.data
    return shown


def acting_types(policy: AnyPolicy, config: Config) -> Tree:
    """Shapes and types of what `policy.acting` gives."""
    start = lambda key: initial_state(policy, policy.init(key), policy.initial_stats(), config)  # noqa: E731
    return jax.eval_shape(lambda key: policy.acting(start(key)), jax.random.key(0))


def compiled_actor(policy: AnyPolicy, batch: Batch, params: Tree) -> Any:
    small = sum(leaf.size for leaf in jax.tree.leaves(params)) < SMALL
    return jit(actor(policy, batch, params), small=small)


def spans(batch: Batch) -> tuple[tuple[int, int], ...]:
    """Where the groups of a batch begin and end; Python's slices cannot be part of a key."""
    return tuple((lanes.start, lanes.stop) for lanes in batch)


def pack(tree: Tree) -> list[jax.Array]:
    """All leaves of one type as one array: a call takes longer the more arrays it is handed."""
    leaves = jax.tree.leaves(tree)
    kinds = sorted({str(leaf.dtype) for leaf in leaves})
    return [jnp.concatenate([leaf.reshape(-1) for leaf in leaves if leaf.dtype == kind]) for kind in kinds]


def unpack(packed: list[jax.Array], types: Tree) -> Tree:
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


def at(tree: Tree, index: Any) -> Tree:
    return jax.tree.map(lambda leaf: leaf[index], tree)
