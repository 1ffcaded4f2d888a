"""Gymnasium spaces as JSON, so that a saved policy carries them and loading one runs no code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from proximo.errors import UserError

LARGEST = 2**26
"""Numbers in one array of a space: a file may say more, but not make us allocate it."""


def space_to_json(space: spaces.Space) -> dict[str, Any]:
    """A description that `space_from_json` turns back into an equal space."""
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
        return {"type": "Dict", "spaces": [[key, space_to_json(inner)] for key, inner in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(inner) for inner in space.spaces]}
    raise UserError(f"The space {space} cannot be saved with a policy.")


def space_from_json(data: dict[str, Any]) -> spaces.Space:
    """The space that `space_to_json` described."""
    match data["type"]:
        case "Box":
            dtype = np.dtype(data["dtype"])
            shape = _checked(data["shape"])
            low, high = (_array(data[name], dtype, shape) for name in ("low", "high"))
            return spaces.Box(low, high, shape, dtype.type)
        case "Discrete":
            return spaces.Discrete(data["n"], start=data["start"], dtype=np.dtype(data["dtype"]).type)
        case "MultiDiscrete":
            return spaces.MultiDiscrete(data["nvec"], start=data["start"], dtype=np.dtype(data["dtype"]).type)
        case "MultiBinary":
            _checked(data["n"] if isinstance(data["n"], list) else [data["n"]])
            return spaces.MultiBinary(data["n"])
        case "Dict":
            return spaces.Dict([(key, space_from_json(inner)) for key, inner in data["spaces"]])
        case "Tuple":
            return spaces.Tuple([space_from_json(inner) for inner in data["spaces"]])
        case other:
            raise UserError(f"There is no space of the type {other}.")


def _checked(shape: list[int]) -> tuple[int, ...]:
    if math.prod(shape) > LARGEST:
        raise UserError(f"A space of the shape {shape} is larger than any that can be saved.")
    return tuple(shape)


def _numbers(bound: np.ndarray) -> list[Any]:
    """A flat list that JSON takes: infinities as texts, and a bound that is the same everywhere only once."""
    flat = bound.reshape(-1)
    flat = flat[:1] if flat.size and (flat == flat[0]).all() else flat
    return [
        str(number) if isinstance(number, float) and abs(number) == float("inf") else number for number in flat.tolist()
    ]


def _array(numbers: list[Any], dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    array = np.array([float(number) if isinstance(number, str) else number for number in numbers], dtype)
    return np.full(shape, array[0], dtype) if array.size == 1 else array.reshape(shape)
