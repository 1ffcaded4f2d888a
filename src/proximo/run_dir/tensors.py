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
from numpy.typing import NDArray

from proximo.errors import UserError
from proximo.run_dir.files import total_memory, write_atomically
from proximo.types import PyTree

Tensors = dict[str, NDArray[Any]]
VERSIONS = {"checkpoint": 4}
"""Of the kinds of files whose content has changed; others are still in their first version."""
LONGEST = 300
"""Letters of an error that may quote a file."""


def named(tree: PyTree) -> Tensors:
    """Every leaf as an array under its path, such as `params/actor/Dense_0/kernel`. Random keys as their numbers."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {_name(path): np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf) for path, leaf in leaves}


def filled(types: PyTree, tensors: Tensors, path: Path) -> PyTree:
    """A tree like `types` (arrays, or shapes and types) with the leaves of `tensors`, which must be just those."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(types)
    wanted = {_name(where): leaf for where, leaf in leaves}
    if wanted.keys() != tensors.keys():
        odd = min(wanted.keys() ^ tensors.keys())
        raise UserError(
            f"{path} does not fit its own settings: the tensor {in_words(odd)} is "
            f"{'missing' if odd in wanted else 'unknown'}."
        )
    return jax.tree.unflatten(structure, [_leaf(leaf, tensors[name], name, path) for name, leaf in wanted.items()])


def fitting(tree: PyTree, tensors: Tensors) -> tuple[PyTree, list[str], list[str]]:
    """`tree` with those of `tensors` that have the names, shapes and types of its leaves, layer by layer (whatever
    stands side by side, such as a kernel and its bias): all of a layer is taken, or nothing. And the names of the
    layers that were taken, and of those that were not."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    named = {_name(where): leaf for where, leaf in leaves}
    layers: dict[str, list[str]] = {}
    for name in named:
        layers.setdefault(name.rpartition("/")[0], []).append(name)

    def fits(name: str) -> bool:
        given, leaf = tensors.get(name), named[name]
        return given is not None and (given.shape, given.dtype) == (leaf.shape, leaf.dtype)

    taken = [layer for layer, names in layers.items() if all(map(fits, names))]
    found = named | {name: jnp.asarray(tensors[name]) for layer in taken for name in layers[layer]}
    whole = jax.tree.unflatten(structure, [found[name] for name in named])
    return whole, taken, [layer for layer in layers if layer not in taken]


def write(path: Path, kind: str, tensors: Tensors, meta: dict[str, Any]) -> None:
    """Write a file of the given kind, such as "policy"; whole or not at all. The same content gives the same bytes."""
    ordered = {name: np.asarray(tensors[name], order="C") for name in sorted(tensors)}
    header = {"format": _format(kind), "sha256": digest(ordered, json.dumps(meta)), "meta": meta}
    # One entry: safetensors writes several in any order.
    write_atomically(path, safetensors.numpy.save(ordered, {"proximo": json.dumps(header)}))


def read(path: Path, kind: str) -> tuple[Tensors, dict[str, Any]]:
    """The arrays and the description in a file that `write` wrote; anything else is refused in words."""
    what = f"{path} cannot be read as a {kind}"
    try:
        if not path.is_file():
            raise UserError(f"{what}: {'it is not a file' if path.exists() else 'there is no such file'}.")
        if path.stat().st_size > total_memory():
            raise UserError(f"{what}: it is larger than the memory of this machine.")
        with safetensors.safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get("proximo", "{}")
            header = json.loads(text)
            given = header.get("format") if isinstance(header, dict) else None
            if given != _format(kind):
                holds = in_words(given) if isinstance(given, str) else "something else"
                other = " Another version of Proximo wrote it." if holds.startswith(f"proximo-{kind}-") else ""
                raise UserError(f"{what}: it holds {holds}, but {_format(kind)} is expected.{other}")
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
        meta = header.get("meta")
        # The same content, written otherwise, is no longer what was written.
        whole = json.dumps(header) == text and _ends_plainly(path)
        if not (whole and isinstance(meta, dict) and header.get("sha256") == digest(tensors, json.dumps(meta))):
            raise UserError(f"{what}: its checksum is wrong, so the file was damaged or changed.")
    except UserError:
        raise
    except Exception as error:  # whatever nonsense can lead to
        raise UserError(f"{what}: {in_words(error)}.") from None
    return tensors, meta


def in_words(error: object) -> str:
    """What an error says, or a file, on one line that can be shown."""
    text = " ".join(str(error).split()).rstrip(".?") or type(error).__name__
    plain = "".join(letter if letter.isprintable() else "?" for letter in text[:LONGEST])
    return plain if len(text) <= LONGEST else f"{plain}…"


def digest(tensors: Tensors, meta: str) -> str:
    """The checksum of everything in a file: the names, types, shapes and contents of arrays, and the description."""
    found = hashlib.sha256(meta.encode())
    for name, array in tensors.items():
        found.update(f"{name}:{array.dtype}:{array.shape}".encode())
        found.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
    return found.hexdigest()


def _ends_plainly(path: Path) -> bool:
    """Whether nothing but spaces stands between the header and the data: no checksum covers them."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return file.read(size).rstrip(b" ").endswith(b"}")


def _format(kind: str) -> str:
    return f"proximo-{kind}-{VERSIONS.get(kind, 1)}"


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _leaf(wanted: Any, given: NDArray[Any], name: str, path: Path) -> jax.Array:
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


def below(tensors: Tensors, start: str) -> Tensors:
    """Those whose names begin with `start`, without it."""
    return {name[len(start) :]: array for name, array in tensors.items() if name.startswith(start)}
