"""One learner on several devices, with the same bits wherever these are.

With K shards (`train.shards`), shard k has environments k * E / K to (k + 1) * E / K - 1 and an equal share of each
minibatch. All devices run one program and hold the same parameters. What is summed over samples is summed by each
shard, sent to all, and added by all in the order of the shards:

    S = (..((s_1 + s_2) + s_3) + ..) + s_K

Only `all_gather` is used for this: other collectives add in an order of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Key, Shaped

from proximo.compile import prepare_backend
from proximo.errors import UserError
from proximo.packing import pack, unpack
from proximo.seeding import shard_key
from proximo.types import PyTree

SHARD = "shard"
SAME = PartitionSpec()
"""The same on every device."""
DIVIDED = PartitionSpec(SHARD)
"""Each device has the first axis of its own environments, or lanes."""
DIVIDED_LATER = PartitionSpec(None, SHARD)
"""So is the second axis, behind that of time."""


def num_shards() -> int:
    """Of the program that is being traced; 1 if it is not one of several shards."""
    found: int = jax.sharding.get_abstract_mesh().shape.get(SHARD, 1)
    return found


def sum_over_shards(tree: PyTree[Shaped[Array, "..."]]) -> PyTree[Shaped[Array, "..."]]:
    """Of the sums that each shard has formed, the sums over all shards, added in their order."""
    if num_shards() == 1:
        return tree
    return unpack([reduce(add, list(parts)) for parts in _sent(tree)], jax.eval_shape(lambda: tree))


def side_by_side(tree: PyTree[Shaped[Array, "..."]], axis: int = 0) -> PyTree[Shaped[Array, "..."]]:
    """What all shards have, in their order, along an axis."""
    if num_shards() == 1:
        return tree
    types, parts = jax.eval_shape(lambda: tree), zip(*_sent(tree), strict=True)
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis), *(unpack(list(part), types) for part in parts))


def _sent(tree: PyTree[Shaped[Array, "..."]]) -> list[Shaped[Array, "K _"]]:
    """What `pack` makes of it in each shard: one flat array to send for each type."""
    return [jax.lax.all_gather(flat, SHARD) for flat in pack(tree)]


def own_key(key: Key[Array, ""]) -> Key[Array, ""]:
    """What this shard draws from, where all have `key`."""
    return key if num_shards() == 1 else shard_key(key, jax.lax.axis_index(SHARD))


def divided(function: Callable[..., Any], num: int, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """`function`, which knows only what is one shard's, as a program of `num` shards."""
    # JAX cannot see that what was sent to all and added is the same everywhere.
    return jax.shard_map(function, mesh=mesh_of(num), in_specs=in_specs, out_specs=out_specs, check_vma=False)


def mesh_of(num: int) -> Mesh:
    """The devices of `num` shards, in order."""
    return Mesh(np.array(jax.devices()[:num]), (SHARD,))


def own_shards(num: int) -> range:
    """The numbers of the shards that this process has of `num`."""
    here = [number for number, device in enumerate(jax.devices()[:num]) if device.process_index == jax.process_index()]
    return range(here[0], here[-1] + 1)


def need_devices(num: int) -> None:
    """Have JAX offer `num` devices, for as many shards. On a CPU it can, as long as nothing has used it."""
    if num == 1:
        return
    prepare_backend()
    with contextlib.suppress(RuntimeError):  # it is in use; then its devices must do
        jax.config.update("jax_num_cpu_devices", max(num, jax.config.values["jax_num_cpu_devices"]))
    if (found := len(jax.devices())) < num:
        raise UserError(
            f"train.shards={num} needs {num} devices, and JAX has {found} here. On a CPU, begin the script with "
            f'jax.config.update("jax_num_cpu_devices", {num}), before anything uses JAX, or start it with '
            f"JAX_NUM_CPU_DEVICES={num}."
        )


def placed(tree: PyTree, num: int, spec: PartitionSpec = SAME) -> PyTree:
    """Whole arrays of any kind on the devices of `num` shards, as `spec` says."""
    if num == 1:
        return tree
    sharding = NamedSharding(mesh_of(num), spec)

    def put(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        whole = np.asarray(leaf)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    return jax.tree.map(put, tree)


def spread(tree: PyTree, num: int, specs: PyTree) -> PyTree:
    """What each process has of its own shards, together as arrays on the devices of `num` shards; `specs` say of each
    leaf how it is divided."""
    if num == 1:
        return tree
    mesh = mesh_of(num)

    def put(leaf: Any, spec: PartitionSpec) -> Any:
        return jax.make_array_from_process_local_data(NamedSharding(mesh, spec), np.asarray(leaf))

    return jax.tree.map(put, tree, specs)


def local(tree: PyTree) -> PyTree:
    """What this process has of arrays on several devices: of those that are the same everywhere one copy, on one
    device, and of those that are divided its own part, outside of JAX. Others as they are."""

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or len(leaf.sharding.device_set) == 1:
            return leaf
        if leaf.sharding.is_fully_replicated:
            return leaf.addressable_data(0)
        shards = sorted(leaf.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        return np.concatenate([np.asarray(shard.data) for shard in shards])

    return jax.tree.map(own, tree)
