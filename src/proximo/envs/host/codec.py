"""Plain data as bytes and back, exactly. Reading executes nothing, and takes no more memory than the bytes justify.

The bytes: `MAGIC`, the length of a JSON text (8 bytes, little-endian), that text, and the contents of arrays and byte
strings one after the other, in the order in which the text names them. The text is a tree: null, true, false, strings
and small integers stand for themselves; anything else is a list that starts with its kind.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections import deque
from typing import Any

import numpy as np

MAGIC = b"PROXIMO1"
DEEPEST = 100
LARGEST = 2**53
"""Beyond, integers are written in base 16."""
DTYPE = re.compile(r"[<>|][biufcSUVmM]\d{1,9}(\[\d{0,9}[A-Za-z]{1,2}\])?")
SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
Path = tuple[Any, ...]
"""Where something stands: (the path of what holds it, how it is reached from there); empty at the top. An attribute
is reached by its name, an entry by a list of its index or key: put into words only when they are needed."""


class Unsupported(Exception):
    """There is something that cannot be written down; the message says what, and where it stands."""

    def __init__(self, path: Path, value: Any, why: str = ""):
        module = getattr(type(value), "__module__", "builtins")  # which some of Box2D's lack
        kind = f"{module}.{type(value).__qualname__}".removeprefix("builtins.")
        super().__init__(f"{shown(path) or 'the state'} is a {kind}{why and ', '}{why}")


def shown(path: Path) -> str:
    parts = []
    while path:
        path, part = path
        parts.append(part if isinstance(part, str) else f"[{part[0]!r}]")
    return "".join(reversed(parts))


def encode(tree: Any) -> bytes:
    """Nested plain data as bytes: numbers, strings, bytes, lists, tuples, sets, dictionaries, deques, NumPy arrays."""
    raw: list[bytes] = []
    text = json.dumps(_written(tree, raw, (), 0), separators=(",", ":")).encode()
    return b"".join([MAGIC, struct.pack("<Q", len(text)), text, *raw])


def decode(data: bytes) -> Any:
    """What `encode` wrote. Raises ValueError, in words, for anything else."""
    start = len(MAGIC) + 8
    if len(data) < start or data[: len(MAGIC)] != MAGIC:
        raise ValueError("these bytes are no state that Proximo wrote")
    length = struct.unpack("<Q", data[len(MAGIC) : start])[0]
    if length > len(data) - start:
        raise ValueError("the state is cut short")
    try:
        tree = json.loads(data[start : start + length].decode())
    except RecursionError:
        raise ValueError("the state is nested too deeply") from None
    reader = _Reader(memoryview(data)[start + length :])
    found = reader.read(tree, 0)
    if len(reader.rest):
        raise ValueError("the state has bytes that belong to nothing")
    return found


def _written(value: Any, raw: list[bytes], path: Path, depth: int) -> Any:
    """`value` as the tree of the JSON text; contents of arrays go to `raw`."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -LARGEST < value < LARGEST else ["int", f"{value:x}"]
    if kind is float:
        return ["float", struct.pack(">d", value).hex()]
    if depth > DEEPEST:
        raise Unsupported(path, value, "nested too deeply")
    if kind is bytes:
        raw.append(value)
        return ["bytes", len(value)]
    if kind is np.ndarray or isinstance(value, np.generic):
        described = _described(value.dtype, value, path)
        raw.append(value.tobytes())
        return ["scalar", described] if kind is not np.ndarray else ["array", described, list(value.shape)]
    if kind is dict:
        pairs = []
        for key, entry in value.items():
            inner = (path, [key])
            if not _may_be_key(key):
                raise Unsupported(inner, key, "which cannot be a key here")
            pairs.append([_written(key, raw, inner, depth + 1), _written(entry, raw, inner, depth + 1)])
        return ["dict", pairs]
    if kind is deque or kind in SEQUENCES.values():
        entries = [_written(entry, raw, (path, [number]), depth + 1) for number, entry in enumerate(value)]
        return ["deque", value.maxlen, entries] if kind is deque else [kind.__name__, entries]
    raise Unsupported(path, value)


class _Reader:
    """Reads a tree, and takes the contents of arrays from `rest` as they come."""

    def __init__(self, rest: memoryview):
        self.rest = rest

    def read(self, node: Any, depth: int) -> Any:
        if node is None or type(node) in (bool, str, int):
            return node
        if depth > DEEPEST + 1:
            raise ValueError("the state is nested too deeply")
        match node:
            case ["int", str(digits)] if re.fullmatch("-?[0-9a-f]+", digits):
                return int(digits, 16)
            case ["float", str(digits)] if re.fullmatch("[0-9a-f]{16}", digits):
                return struct.unpack(">d", bytes.fromhex(digits))[0]
            case ["bytes", int(size)]:
                return self._taken(size)
            case ["scalar", described]:
                return self._array(described, [])[()]
            case ["array", described, list(shape)] if len(shape) <= 32:
                return self._array(described, shape)
            case ["dict", list(pairs)]:
                return self._dict(pairs, depth)
            case ["deque", limit, list(entries)] if limit is None or (type(limit) is int and 0 <= limit < 2**63):
                found = deque((self.read(entry, depth + 1) for entry in entries), limit)
                return _whole(found, entries)
            case [str(kind), list(entries)] if kind in SEQUENCES:
                read = [self.read(entry, depth + 1) for entry in entries]
                try:
                    return _whole(SEQUENCES[kind](read), entries)
                except TypeError:
                    raise ValueError("a set in the state has a member that cannot be one") from None
        raise ValueError(f"the state has an entry that cannot be read: {str(node)[:60]}")

    def _dict(self, pairs: list[Any], depth: int) -> dict[Any, Any]:
        found = {}
        for pair in pairs:
            if type(pair) is not list or len(pair) != 2:
                raise ValueError("a dictionary in the state has an entry that is no pair")
            key, value = (self.read(part, depth + 1) for part in pair)
            if not _may_be_key(key):
                raise ValueError("a dictionary in the state has a key that cannot be one")
            found[key] = value
        return _whole(found, pairs)

    def _taken(self, size: int) -> bytes:
        if type(size) is not int or not 0 <= size <= len(self.rest):
            raise ValueError("the state is cut short")
        taken, self.rest = bytes(self.rest[:size]), self.rest[size:]
        return taken

    def _array(self, described: Any, shape: list[Any]) -> np.ndarray:
        dtype = _dtype(described)
        if any(type(number) is not int or not 0 <= number < 2**48 for number in shape):
            raise ValueError(f"an array in the state has the shape {str(shape)[:60]}")
        data = self._taken(dtype.itemsize * math.prod(shape))
        try:
            array = np.empty(shape, dtype)
            if data:
                array[...] = np.frombuffer(data, dtype).reshape(shape)
        except (ValueError, MemoryError):
            raise ValueError(f"an array in the state has the shape {str(shape)[:60]}") from None
        return array


def _whole(found: Any, entries: list[Any]) -> Any:
    if len(found) != len(entries):
        raise ValueError("the state has entries that exclude each other")
    return found


def _may_be_key(key: Any) -> bool:
    if type(key) is tuple:
        return all(_may_be_key(part) for part in key)
    plain = key is None or type(key) in (bool, int, float, str, bytes)
    return plain or (isinstance(key, np.generic) and not isinstance(key, np.void))


def _described(dtype: np.dtype, value: Any, path: Path) -> Any:
    """A type of array elements, as JSON has it."""
    described = _listed(np.lib.format.dtype_to_descr(dtype)) if dtype.names and not dtype.metadata else dtype.str
    try:
        if _dtype(described) == dtype:
            return described
    except ValueError:
        pass
    raise Unsupported(path, value, f"of {dtype}")


def _listed(described: Any) -> Any:
    return [_listed(part) for part in described] if isinstance(described, tuple | list) else described


def _dtype(described: Any) -> np.dtype:
    try:
        dtype = np.lib.format.descr_to_dtype(_as_numpy_has_it(described))
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError, RecursionError, AttributeError):
        dtype = None
    if dtype is None or dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"an array in the state is of an unknown type: {str(described)[:60]}")
    return dtype


def _as_numpy_has_it(described: Any) -> Any:
    """A name of a type, or a list of fields: (name, type) or (name, type, shape)."""
    if isinstance(described, str):
        if not DTYPE.fullmatch(described):
            raise ValueError(described)
        return described
    fields = []
    for name, kind, *shape in described:
        if len(shape) > 1 or any(type(size) is not int or not 0 < size < 2**31 for one in shape for size in one):
            raise ValueError(described)
        names = tuple(name) if isinstance(name, list) else name
        fields.append((names, _as_numpy_has_it(kind), *map(tuple, shape)))
    return fields
