"""Jumanji environments: `jumanji/Maze-v0`, or an environment object of its class.

Structured observations become Dict spaces with Jumanji's names; the entry `action_mask` becomes the mask of actions.
A mask of its own for each component of an action is used as it is. A mask over all combinations of components (which
item into which space, in BinPack) makes the action one choice among these combinations: components that are drawn one
by one could not keep to it.

An `agent_position` in a grid of flags (the walls of Maze) and the other positions there become one image, the `view`:
the grid with the agent in the middle. What is two steps to its right is then at the same place in every observation,
and does not have to be learnt for each cell anew.

Jumanji says with its discount whether something could follow: an end with discount 0 is a termination, any other a
truncation. Its environments report their own time limits with discount 0, as terminations; all but PacMan and MultiCVRP
show the clock in the observation (`step_count`), so that the value of time running out can be learned. Only
LevelBasedForaging and Connector, which reward each agent by itself, report them as truncations.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jumanji import registration, specs
from jumanji.env import Environment
from jumanji.wrappers import AutoResetWrapper, VmapWrapper, Wrapper
from numpy.typing import NDArray

from proximo.envs.api import Transition
from proximo.envs.arguments import arguments_key, made_with
from proximo.envs.compiled.foreign import lenient, unknown
from proximo.envs.keys import Stated
from proximo.envs.spec import EnvSpec
from proximo.errors import UserError
from proximo.spaces import Path, build
from proximo.types import PyTree

MASK = "action_mask"
CLOCK = "step_count"
AGENT = "agent_position"
VIEW = "view"
PER_AGENT = {"Connector-v3", "LevelBasedForaging-v0", "SearchAndRescue-v0"}
"""These reward each agent by itself, and are refused."""


def names() -> list[str]:
    return sorted(registration.registered_environments() - PER_AGENT)


def make(name: str, /, **kwargs: Any) -> JumanjiEnv:
    """The registered environment `name`, made with `kwargs`."""
    if name not in registration.registered_environments():
        raise unknown("jumanji", name, names())
    env_id = f"jumanji/{name}"
    try:
        with made_with(env_id, kwargs), lenient():
            return JumanjiEnv(registration.make(name, **kwargs), env_id, arguments_key(env_id, kwargs))
    except OSError as error:
        raise UserError(f"{env_id} needs data that it downloads when made, and that failed: {error}") from None


def accepts(env: Any) -> bool:
    return isinstance(env, Environment)


def wrap(env: Environment[Any, Any, Any]) -> JumanjiEnv:
    inner = env
    while isinstance(inner, Wrapper):
        if isinstance(inner, AutoResetWrapper | VmapWrapper):
            raise UserError(
                f"Hand in the environment without {type(inner).__name__}: Proximo makes copies of it, and resets them."
            )
        inner = inner._env
    return JumanjiEnv(env, f"jumanji/{type(inner).__name__}")


class JumanjiEnv:
    """A Jumanji environment as a `JaxEnv`."""

    def __init__(self, env: Environment[Any, Any, Any], env_id: str, key: str | None = None):
        """`key` is all that it was made from, where it was made by its name."""
        self.env = env
        with lenient():
            observation, action, reward = env.observation_spec, env.action_spec, env.reward_spec
            if reward.shape != ():
                raise UserError(
                    f"{env_id} rewards each of its {math.prod(reward.shape)} agents by itself, and one policy needs "
                    f"one reward; hand in jumanji.wrappers.MultiToSingleWrapper(env), which sums them up."
                )
            limit = getattr(env, "time_limit", None)
            mask = vars(observation).get(MASK)
            self._mask_shape = None if mask is None else tuple(mask.shape)
            self._choices, action_space = _actions(action, self._mask_shape, env_id)
            self._entries = _space(observation, limit)
            self._places = _places(self._entries)
            self.spec = EnvSpec(
                id=env_id,
                observation_space=_shown(self._entries, self._places),
                action_space=action_space,
                max_steps=None if limit is None else int(limit),
            )
        self.stated = Stated(self, key or env_id, inside=None if key else env, held=env)

    def reset(self, key: jax.Array) -> tuple[PyTree, Transition]:
        with lenient():
            state, first = self.env.reset(key)
        return state, self._report(first)

    def step(self, key: jax.Array, state: PyTree, action: PyTree) -> tuple[PyTree, Transition]:
        with lenient():
            state, moved = self.env.step(state, self._taken(action))
        return state, self._report(moved)

    def _taken(self, action: PyTree) -> jax.Array:
        """The action as Jumanji takes it."""
        spec = self.env.action_spec
        if self._choices is not None:
            action = jnp.stack(jnp.unravel_index(action, self._choices)) + spec.minimum
        return jnp.asarray(action, spec.dtype)

    def _report(self, step: Any) -> Transition:
        ended = step.last()
        obs = build(self._entries, lambda path, leaf: jnp.asarray(_at(step, path), leaf.dtype))
        return Transition(
            obs=obs if self._places is None else _seen(obs, self._places),
            reward=step.reward,
            terminated=ended & (step.discount == 0),
            truncated=ended & (step.discount != 0),
            action_mask=None if self._mask_shape is None else step.observation.action_mask.reshape(-1).astype(bool),
            info=step.extras,
        )


def _at(step: Any, path: Path) -> jax.Array:
    value: Any = step.observation
    for name in path:
        value = getattr(value, name)
    found: jax.Array = value
    return found


def _space(spec: Any, limit: int | None, name: str = "") -> spaces.Space[Any]:
    """The space of observations of `spec`, without their mask."""
    if not isinstance(spec, specs.Array):
        entries = {key: entry for key, entry in vars(spec).items() if isinstance(entry, specs.Spec) and key != MASK}
        return spaces.Dict({key: _space(entry, limit, key) for key, entry in entries.items()})
    if name == CLOCK and limit is not None:
        # Some declare it as so many categories, some as any number.
        return spaces.Box(0, int(limit), spec.shape, np.int32)
    if isinstance(spec, specs.DiscreteArray):
        return spaces.Discrete(int(spec.num_values), dtype=np.int32)
    if isinstance(spec, specs.MultiDiscreteArray):
        return spaces.MultiDiscrete(np.asarray(spec.num_values), dtype=np.int32)
    return _box(spec)


def _places(space: spaces.Space[Any]) -> tuple[str, list[str]] | None:
    """The names of a grid of flags around an agent, and of the other positions in it; None where there is none."""
    if not isinstance(space, spaces.Dict):
        return None
    for name, grid in space.items():
        if isinstance(grid, spaces.Box) and len(grid.shape) == 2 and grid == spaces.Box(0, 1, grid.shape, np.int8):
            row, col = (spaces.Box(0, side - 1, (), np.int32) for side in grid.shape)
            positions = [key for key, entry in space.items() if entry == spaces.Dict({"row": row, "col": col})]
            if AGENT in positions:
                return name, [key for key in positions if key != AGENT]
    return None


def _shown(space: spaces.Space[Any], places: tuple[str, list[str]] | None) -> spaces.Space[Any]:
    """`space` with the view instead of the grid and the positions in it."""
    if places is None or not isinstance(space, spaces.Dict):
        return space
    grid, others = places
    height, width = space[grid].shape or ()
    view = spaces.Box(0, 1, (2 * height - 1, 2 * width - 1, 2 + len(others)), np.int8)
    return spaces.Dict({VIEW: view, **_besides(dict(space.items()), places)})


def _seen(obs: dict[str, Any], places: tuple[str, list[str]]) -> dict[str, Any]:
    """`obs` with the view: planes of the grid, of the cells that are inside it, and of each other position."""
    grid, others = obs[places[0]], [obs[name] for name in places[1]]
    height, width = grid.shape
    points = [jnp.zeros_like(grid).at[place["row"], place["col"]].set(1) for place in others]
    planes = jnp.stack([grid, jnp.ones_like(grid), *points], axis=-1)
    margins = ((height - 1, height - 1), (width - 1, width - 1), (0, 0))
    corner = (obs[AGENT]["row"], obs[AGENT]["col"], 0)
    view = jax.lax.dynamic_slice(jnp.pad(planes, margins), corner, (2 * height - 1, 2 * width - 1, planes.shape[-1]))
    return {VIEW: view, **_besides(obs, places)}


def _besides(entries: dict[str, Any], places: tuple[str, list[str]]) -> dict[str, Any]:
    """What is not part of the view."""
    return {name: entry for name, entry in entries.items() if name not in (places[0], AGENT, *places[1])}


def _whole(spec: Any) -> bool:
    """Whether these are whole numbers within bounds."""
    return isinstance(spec, specs.BoundedArray) and np.dtype(spec.dtype).kind in "iu"


def _bounds(spec: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    return np.broadcast_to(np.asarray(spec.minimum), spec.shape), np.broadcast_to(np.asarray(spec.maximum), spec.shape)


def _box(spec: Any) -> spaces.Box:
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return spaces.Box(0, 1, spec.shape, np.int8)
    if isinstance(spec, specs.BoundedArray):
        return spaces.Box(*_bounds(spec), spec.shape, dtype.type)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, spec.shape, dtype.type)
    return spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, spec.shape, dtype.type)


def _actions(spec: Any, mask: tuple[int, ...] | None, env_id: str) -> tuple[tuple[int, ...] | None, spaces.Space[Any]]:
    """The sizes of the components that one choice stands for, or None where it stands for itself; and the space."""
    if isinstance(spec, specs.DiscreteArray):
        num = int(spec.num_values)
        if mask in (None, (num,)):
            return None, spaces.Discrete(num, dtype=np.int32)
    elif _whole(spec):
        low, high = _bounds(spec)
        sizes = high.astype(np.int64) - low + 1
        if mask is None:
            return None, spaces.MultiDiscrete(sizes, dtype=np.int32, start=low.astype(np.int32))
        joint = sizes.ndim == 1 and mask == tuple(sizes.tolist())
        # Not equal, at most: MultiCVRP declares one value more than it has.
        per_component = mask[:-1] == sizes.shape and np.ptp(sizes) == 0 and mask[-1] <= sizes.max()
        if joint and per_component:
            raise UserError(
                f"{env_id} has a mask of the shape {mask}, which can be read as one flag per value of each component, "
                f"or as one per pair of values; leave {MASK} out of its observation."
            )
        if joint:
            return mask, spaces.Discrete(math.prod(mask), dtype=np.int32)
        if per_component:
            sizes = np.full(sizes.shape, mask[-1])
            return None, spaces.MultiDiscrete(sizes, dtype=np.int32, start=low.astype(np.int32))
    elif mask is None:
        return None, _box(spec)
    raise UserError(
        f"{env_id} has a mask of the shape {mask}, which has neither one flag per action of {spec}, nor one per "
        f"value of each component, nor one per combination of them; leave {MASK} out of its observation."
    )
