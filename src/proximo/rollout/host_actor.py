"""The part of a policy that acts in host environments, and the memory it reads: made for many quick calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped
from numpy.typing import NDArray

from proximo.compile import cached, jit
from proximo.envs.api import Part, envs_of, lanes_of
from proximo.envs.host.shared_memory import ALIGNMENT, aligned
from proximo.packing import pack, unpack
from proximo.policy.behaviour import Behaviour, ByGroup, draw_actions, draw_noise
from proximo.types import AnyArray, PyTree

SMALL = 100_000
"""Parameters up to which an actor is quicker in one thread."""


def actor(
    behaviour: Behaviour, part: Part, chosen: PyTree[jax.ShapeDtypeStruct]
) -> Callable[..., tuple[ByGroup, ByGroup, ByGroup | None]]:
    """A function from what the lanes of `part` see to their actions, by group: in the policies' own coordinates, and as
    the environments take them, or None if that is the same. `chosen` has the shapes of what the behaviour chooses.

    Slices that are served together are still computed one by one: the last bits of a matrix product depend on its size,
    and must not depend on the number of worker processes.
    """
    policies = behaviour.policies
    sizes = {name: group.size for name, group in policies.groups.items()}
    whole, first = reads_record(), envs_of(part)

    def of(trees: dict[str, PyTree], envs: slice, *t: jax.Array) -> dict[str, PyTree]:
        """Of dictionaries by group, the lanes of some environments, where there is time at one."""
        return {name: at(tree, (*t, lanes_of(envs, sizes[name]))) for name, tree in trees.items()}

    def act(
        packed: list[Shaped[Array, " _"]],
        noise: dict[str, PyTree[Float[Array, "T _ ..."]]] | None,
        t: Int[Array, ""],
        carry: ByGroup,
        obs: ByGroup,
        masks: dict[str, PyTree[Bool[Array, "_ ..."]]],
    ) -> tuple[ByGroup, ByGroup, ByGroup | None]:
        params, drawn = unpack(packed, chosen), at(noise, t)
        obs, masks = (of(trees, first, t) for trees in (obs, masks)) if whole else (obs, masks)
        parts = []
        for envs in part:
            here = slice(envs.start - first.start, envs.stop - first.start)
            memory, outputs = behaviour.act(params, of(carry, here), of(obs, here), envs)
            noise_here = None if drawn is None else of(drawn, envs)
            action, taken = draw_actions(policies, outputs, of(masks, here), noise_here)
            same = all(taken[name] is action[name] for name in action)
            parts.append((memory, action, None if same else taken))
        return parts[0] if len(parts) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)

    return act


def reads_record() -> bool:
    """Whether the actor is handed the whole record, and picks its step itself."""
    return jax.default_backend() == "cpu"


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Zeros that begin where XLA wants its arrays to begin."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = aligned(np.zeros(size + ALIGNMENT, np.uint8))
    zeros: NDArray[Any] = room[:size].view(dtype).reshape(shape)
    return zeros


def same_memory(array: Shaped[NDArray[Any], "*S"]) -> Shaped[Array, "*S"]:
    """An array for JAX in the very memory of `array`: what is written there later is what a program reads then."""
    shown = jnp.from_dlpack(array)
    assert not array.size or shown.unsafe_buffer_pointer() == array.ctypes.data
    return shown


Leaves = list[Shaped[Array, "..."]]


def compiled_actor(
    behaviour: Behaviour, part: Part, chosen: PyTree[jax.ShapeDtypeStruct], seen: PyTree
) -> Callable[..., tuple[Leaves, Leaves, Leaves | None]]:
    """`actor` compiled, with lists of leaves for dictionaries: each dictionary that a call is handed, or returns, costs
    time. Arguments are `packed`, the leaves of the noise (or None), the time, the leaves of the carry, and then those
    of what is `seen`, which are observations and masks; results are the leaves of what `actor` returns."""
    act, policies = actor(behaviour, part, chosen), behaviour.policies
    noise = jax.tree.structure(jax.eval_shape(lambda key: draw_noise(policies, key, 1), jax.random.key(0)))
    memory, shown = jax.tree.structure(policies.initial_carry("actor", 1)), jax.tree.structure(seen)

    def flat(
        packed: Leaves, drawn: Leaves | None, t: Int[Array, ""], carry: Leaves, *leaves: Shaped[Array, "..."]
    ) -> tuple[Leaves, Leaves, Leaves | None]:
        obs, masks = jax.tree.unflatten(shown, leaves)
        by_group = None if drawn is None else jax.tree.unflatten(noise, drawn)
        after, action, taken = act(packed, by_group, t, jax.tree.unflatten(memory, carry), obs, masks)
        return jax.tree.leaves(after), jax.tree.leaves(action), None if taken is None else jax.tree.leaves(taken)

    program: Callable[..., tuple[Leaves, Leaves, Leaves | None]]
    program = jit(flat, small=sum(leaf.size for leaf in jax.tree.leaves(chosen)) < SMALL)
    return program


def spans(part: Part) -> tuple[tuple[int, int], ...]:
    """Where the slices of a part begin and end; Python's slices cannot be part of a key."""
    return tuple((envs.start, envs.stop) for envs in part)


def packed(chosen: PyTree[Shaped[AnyArray, "..."]]) -> Leaves:
    """What a behaviour has chosen, packed, by a program of its own."""
    found: Leaves = cached(("pack",), lambda: jit(pack))(chosen)
    return found


def at(tree: PyTree, index: Any) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[index], tree)
