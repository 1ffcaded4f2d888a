"""How one agent's observation, mask and action pass between its environment and the buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proximo.errors import EnvError
from proximo.spaces import Path, build, leaves, pick, shown, to_mask

MASK = "action_mask"
"""What an action mask is called, in an observation or in its info."""


class EnvContractError(Exception):
    """An environment broke its contract; the message says how."""


class Row:
    """Where one entry of an observation is written: the row `index` of `array`, or several side by side. `what` is what
    errors call it."""

    def __init__(self, path: Path, array: NDArray[Any], index: int | slice, what: str = "observation"):
        self.path = path
        self.what = what
        self.title = f"{what}{shown(path)}"
        self.array = array[index, ...]
        self._shape, self._dtype = self.array.shape, self.array.dtype

    def write(self, obs: Any) -> None:
        if self.path:
            whole = obs
            try:
                obs = pick(whole, self.path)
            except (KeyError, IndexError, TypeError):
                came = f"a dictionary with {list(whole)}" if isinstance(whole, Mapping) else f"a {type(whole).__name__}"
                raise EnvContractError(f"the {self.what} has no entry {shown(self.path)}, being {came}") from None
        value = obs if type(obs) is np.ndarray else np.asarray(obs)
        if value.shape != self._shape:
            raise EnvContractError(f"{self.title} must have the shape {self._shape}, not {value.shape}")
        if value.dtype is self._dtype:
            self.array[...] = value
            return
        try:
            np.copyto(self.array, value, casting="same_kind")
        except TypeError:
            raise EnvContractError(f"{self.title} must be of a type like {self._dtype}, not {value.dtype}") from None

    def check(self) -> None:
        if self._dtype.kind != "f" or isfinite(np.vdot(self.array, self.array)):
            return
        wrong = np.argwhere(~np.isfinite(self.array))
        if len(wrong):
            first = tuple(int(number) for number in wrong[0])
            raise EnvContractError(f"{self.title} is {self.array[first]} at the index {list(first)}")


def learnable(
    space: spaces.Space[Any], obs: Any, mask_source: str | None, name: str
) -> tuple[spaces.Space[Any], list[str]]:
    """The space of the environment `name` without its mask and without texts, which no network reads; and where the
    texts were."""
    if not isinstance(space, spaces.Dict):
        return space, []
    left_out: list[str] = []

    def kept(space: spaces.Dict, obs: Any, path: Path) -> spaces.Dict:
        entries = {}
        for key, inner in space.spaces.items():
            if not isinstance(obs, Mapping) or key not in obs:
                came = f"a dictionary with {list(obs)}" if isinstance(obs, Mapping) else f"a {type(obs).__name__}"
                raise EnvError(
                    f"The environment {name} does not keep to its observation space: its reset gave {came} for the "
                    f"observation{shown(path)}, which should be a dictionary with {list(space.spaces)}."
                )
            if isinstance(inner, spaces.Text) or isinstance(obs[key], str):
                left_out.append(shown((*path, key)))
            elif path or key != MASK or mask_source != "obs":
                entries[key] = kept(inner, obs[key], (*path, key)) if isinstance(inner, spaces.Dict) else inner
        return spaces.Dict(entries)

    return kept(space, obs, ()), left_out


def read_mask(env: Any, obs: Any, info: Any, source: str | None) -> Any:
    """The action mask from where this environment keeps it; None if it is not there."""
    if source == "info":
        return info.get(MASK) if isinstance(info, dict) else None
    if source == "obs":
        return obs.get(MASK)
    return mask_method(env)()


def mask_method(env: Any) -> Any:
    """An environment's `action_masks`, below its wrappers too; None if it has none."""
    try:
        return env.get_wrapper_attr("action_masks")
    except AttributeError:
        return getattr(env, "action_masks", None)


def fitting_mask(space: spaces.Space[Any], given: Any, starts: NDArray[Any], whose: str = "") -> NDArray[Any]:
    """A mask of `space` as it was given, if it allows something in each choice; `starts`: where their flags begin."""
    if given is None:
        raise EnvContractError(f"the action mask{whose} is missing, which was there at the first reset")
    try:
        mask = to_mask(space, given)
    except ValueError as error:
        raise EnvContractError(str(error).replace("the action mask", f"the action mask{whose}", 1)) from None
    if not np.logical_or.reduceat(mask.reshape(-1), starts).all():
        raise EnvContractError(f"the action mask{whose} allows no action")
    return mask


def choices(space: spaces.Space[Any]) -> list[int]:
    """How many flags each choice has in a mask of `space`."""
    sizes: list[int] = []
    for _, leaf in leaves(space):
        if isinstance(leaf, spaces.Discrete):
            sizes.append(int(leaf.n))
        elif isinstance(leaf, spaces.MultiDiscrete):
            sizes += leaf.nvec.reshape(-1).tolist()
        elif isinstance(leaf, spaces.MultiBinary):
            sizes += [2] * int(np.prod(leaf.shape))
    return sizes


def action_reader(space: spaces.Space[Any], arrays: list[NDArray[Any]], index: int) -> Callable[[], Any]:
    """A function that reads the action in row `index` of the buffers, as the environment takes it."""
    rest = iter(arrays)

    def reader(_: Path, leaf: spaces.Space[Any]) -> Callable[[], Any]:
        array = next(rest)
        if isinstance(leaf, spaces.Discrete):
            return partial(array.item, index)
        if isinstance(leaf, spaces.Box) and array.dtype == np.float64:
            # Rounded to single precision by the policy, and perhaps across a bound.
            return lambda: np.clip(array[index, ...], leaf.low, leaf.high)
        return lambda: array[index, ...].copy()  # a copy, because an environment may keep it

    readers = build(space, reader)
    if callable(readers):
        one: Callable[[], Any] = readers
        return one
    return lambda: _called(readers)


def _called(readers: Any) -> Any:
    if isinstance(readers, dict):
        return {key: _called(inner) for key, inner in readers.items()}
    if isinstance(readers, tuple):
        return tuple(_called(inner) for inner in readers)
    return readers()
