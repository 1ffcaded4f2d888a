"""Files of named arrays: safetensors with a checksum. Whole or refused, and reading one never runs anything."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from proximo.errors import UserError
from proximo.files import write_atomically

Tree = Any
Tensors = dict[str, np.ndarray]


def named(tree: Tree) -> Tensors:
    """Every leaf as an array under its path, such as `params/actor/Dense_0/kernel`. Random keys as their numbers."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {_name(path): np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf) for path, leaf in leaves}


def filled(types: Tree, tensors: Tensors, path: Path) -> Tree:
    """A tree like `types` (arrays, or shapes and types) with the leaves of `tensors`, which must be just those."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(types)
    wanted = {_name(where): leaf for where, leaf in leaves}
    if wanted.keys() != tensors.keys():
        odd = min(wanted.keys() ^ tensors.keys())
        raise UserError(
            f"{path} does not fit its own settings: the tensor {odd} is {'missing' if odd in wanted else 'unknown'}."
        )
    return jax.tree.unflatten(structure, [_leaf(leaf, tensors[name], name, path) for name, leaf in wanted.items()])


def write(path: Path, kind: str, tensors: Tensors, meta: dict[str, Any]) -> None:
    """Write a file of the given kind, such as "policy"; whole or not at all. The same content gives the same bytes."""
    ordered = {name: np.asarray(tensors[name], order="C") for name in sorted(tensors)}
    header = {"format": _format(kind), "sha256": _digest(ordered, meta), "meta": meta}
    # One entry: safetensors writes several in any order.
    write_atomically(path, safetensors.numpy.save(ordered, {"proximo": json.dumps(header)}))


def read(path: Path, kind: str) -> tuple[Tensors, dict[str, Any]]:
    """The arrays and the description in a file that `write` wrote; anything else is refused in words."""
    what = f"{path} cannot be read as a {kind}"
    if not path.is_file():
        raise UserError(f"{what}: {'it is not a file' if path.exists() else 'there is no such file'}.")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("proximo", "{}"))
            if header.get("format") != _format(kind):
                raise UserError(
                    f"{what}: it holds {header.get('format', 'something else')}, and {_format(kind)} is expected."
                )
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
        meta = header["meta"]
        if not isinstance(meta, dict) or header["sha256"] != _digest(tensors, meta):
            raise UserError(f"{what}: its checksum is wrong, so the file was damaged or changed.")
    except UserError:
        raise
    except Exception as error:  # whatever nonsense can lead to
        raise UserError(f"{what}: {' '.join(str(error).split())[:200]}.") from None
    return tensors, meta


def _format(kind: str) -> str:
    return f"proximo-{kind}-1"


def _digest(tensors: Tensors, meta: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(meta).encode())
    for name, array in tensors.items():
        digest.update(f"{name}:{array.dtype}:{array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _leaf(wanted: Any, given: np.ndarray, name: str, path: Path) -> jax.Array:
    kind: list[Any] = []  # of random key; only a traced one tells

    def numbers(key: jax.Array) -> jax.Array:
        kind.append(jax.random.key_impl(key))
        return jax.random.key_data(key)

    shaped = jax.eval_shape(numbers, wanted) if _is_key(wanted) else wanted
    if given.shape != shaped.shape or given.dtype != shaped.dtype:
        raise UserError(
            f"{path} does not fit its own settings: {name} should be {shaped.dtype}{list(shaped.shape)}, "
            f"not {given.dtype}{list(given.shape)}."
        )
    return jax.random.wrap_key_data(jnp.asarray(given), impl=kind[0]) if kind else jnp.asarray(given)
