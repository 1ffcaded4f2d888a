"""Whether observations lie in the space that was promised: looked at once per rollout, all of it at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


def outside(space: spaces.Space[Any], values: NDArray[Any]) -> tuple[int, ...] | None:
    """The index of the first of `values` [T, L, ...] that does not belong to `space`."""
    bounds = _bounds(space)
    if bounds is None:
        return None
    low, high = bounds
    if values.dtype.kind == "f":  # kept in single precision, in which a bound may be rounded either way
        with np.errstate(over="ignore"):
            low, high = np.asarray(low, values.dtype), np.asarray(high, values.dtype)
    wrong = (values < low) | (values > high)
    return tuple(int(number) for number in np.argwhere(wrong)[0]) if wrong.any() else None


def blank(space: Any) -> NDArray[Any]:
    """What stands where there is nothing to observe: zeros, or the members of `space` that are nearest to them."""
    zeros, bounds = np.zeros(space.shape, space.dtype), _bounds(space)
    return zeros if bounds is None else np.asarray(np.clip(zeros, *bounds))


def _bounds(space: Any) -> tuple[Any, Any] | None:
    """The least and the greatest member, or None where every number of the type is one, as for the bytes of images."""
    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start) + int(space.n) - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    if space.dtype.kind == "b":
        return None
    limits: Any = np.iinfo(space.dtype) if space.dtype.kind in "iu" else np.finfo(space.dtype)
    free = (space.low <= limits.min).all() and (space.high >= limits.max).all()
    return None if free else (space.low, space.high)
