"""Gymnasium spaces as JSON, so that a saved policy carries them and loading one runs no code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proximo.errors import UserError

LARGEST = 2**24
"""Numbers in a space, all its parts together: a file may say more, but not make us allocate it."""
LARGEST_ACTION = 2**20
MOST = 2**15
"""Parts of a space: each takes time."""
DEEPEST = 100


def space_to_json(space: spaces.Space[Any], largest: int = LARGEST) -> dict[str, Any]:
    """A description that `space_from_json` turns back into an equal space, of `largest` numbers at most."""
    data = _described(space)
    _check_size(data, largest)
    return data


def space_from_json(data: dict[str, Any], largest: int = LARGEST) -> spaces.Space[Any]:
    """The space that `space_to_json` described."""
    _check_size(data, largest)
    return _made(data)


def _described(space: spaces.Space[Any]) -> dict[str, Any]:
    if isinstance(space, spaces.Box):
        return {
            "type": "Box",
            "low": _numbers(space.low),
            "high": _numbers(space.high),
            "shape": list(space.shape),
            "dtype": np.dtype(space.dtype).name,
        }
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": np.dtype(space.dtype).name}
    if isinstance(space, spaces.MultiDiscrete):
        return {
            "type": "MultiDiscrete",
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
            "dtype": np.dtype(space.dtype).name,
        }
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": [[key, _described(inner)] for key, inner in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [_described(inner) for inner in space.spaces]}
    raise UserError(f"The space {space} cannot be saved with a policy.")


def _made(data: dict[str, Any]) -> spaces.Space[Any]:
    match data["type"]:
        case "Box":
            dtype, shape = _dtype(data["dtype"]), tuple(data["shape"])
            low, high = (_array(data[name], dtype, shape) for name in ("low", "high"))
            return spaces.Box(low, high, shape, dtype.type)
        case "Discrete":
            return spaces.Discrete(data["n"], start=data["start"], dtype=_dtype(data["dtype"]).type)
        case "MultiDiscrete":
            return spaces.MultiDiscrete(data["nvec"], start=data["start"], dtype=_dtype(data["dtype"]).type)
        case "MultiBinary":
            return spaces.MultiBinary(data["n"])
        case "Dict":
            return spaces.Dict([(key, _made(inner)) for key, inner in data["spaces"]])
        case "Tuple":
            return spaces.Tuple([_made(inner) for inner in data["spaces"]])
        case other:
            raise UserError(f"There is no space of the type {other}.")


def _check_size(data: dict[str, Any], largest: int) -> None:
    """Refuse what is too large to be saved, before any of it is made."""
    sizes = list(itertools.islice(_sizes(data, 0), MOST + 1))
    if len(sizes) > MOST or sum(sizes) > largest:
        raise UserError(
            f"A space of more than {MOST:,} parts, or {largest:,} numbers, is larger than any that can be saved."
        )


def _sizes(data: dict[str, Any], depth: int) -> Iterator[int]:
    """The numbers in each part of a space; components of a MultiDiscrete are parts."""
    if depth > DEEPEST:
        raise UserError("A space is nested too deeply.")
    match data["type"]:
        case "Box":
            yield math.prod(map(_count, data["shape"]))
        case "Discrete":
            yield _count(data["n"])
        case "MultiDiscrete":
            yield from map(_count, np.array(data["nvec"], object).reshape(-1).tolist())
        case "MultiBinary":
            yield math.prod(map(_count, data["n"] if isinstance(data["n"], list) else [data["n"]]))
        case "Dict":
            yield 0
            for _, inner in data["spaces"]:
                yield from _sizes(inner, depth + 1)
        case "Tuple":
            yield 0
            for inner in data["spaces"]:
                yield from _sizes(inner, depth + 1)


def _count(number: Any) -> int:
    """A length; at least 1, so that a length of 0 hides no other."""
    if type(number) is not int or number < 0:
        raise UserError(f"A space cannot have the size {number}.")
    return max(1, number)


def _dtype(name: Any) -> np.dtype[Any]:
    if not isinstance(name, str) or np.dtype(name).kind not in "biuf":
        raise UserError(f"A space cannot be of the type {name}.")
    return np.dtype(name)


def _numbers(bound: NDArray[Any]) -> list[Any]:
    """A flat list that JSON takes: infinities as texts, and a bound that is the same everywhere only once."""
    flat = bound.reshape(-1)
    flat = flat[:1] if flat.size and (flat == flat[0]).all() else flat
    return [
        str(number) if isinstance(number, float) and abs(number) == float("inf") else number for number in flat.tolist()
    ]


def _array(numbers: list[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    with np.errstate(over="raise"):
        array = np.array([float(number) if isinstance(number, str) else number for number in numbers], dtype)
    return np.full(shape, array[0], dtype) if array.size == 1 else array.reshape(shape)
