"""Several observations as one: the last N, the newest at the end. Where an episode starts, its first one N times.

Runners stack what environments show, so that policies, and everything after, see observations of the stacked space.
Images are stacked along their channels, other arrays along the last axis, single numbers to vectors; action masks are
not part of the observation here, and stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import numpy as np
from gymnasium import spaces
from jaxtyping import Shaped
from numpy.typing import NDArray

from proximo.envs.api import Groups, LaneStep
from proximo.errors import UserError
from proximo.spaces import Path, build, channel_axis, pick, shown
from proximo.types import AnyArray, PyTree


@dataclass(frozen=True)
class Stacking:
    """How `num` observations of `space` become one. Works on arrays of NumPy and of JAX, with any leading axes."""

    space: spaces.Space[Any]
    num: int

    def first(self, obs: PyTree, xp: ModuleType = np) -> PyTree[Shaped[AnyArray, "..."]]:
        """What is seen at the start of an episode."""

        def leaf(path: Path, leaf: spaces.Space[Any]) -> Any:
            return xp.concatenate([self._frame(obs, path, leaf, xp)] * self.num, axis=_axis(leaf))

        return build(self.space, leaf)

    def following(
        self, stacked: PyTree[Shaped[AnyArray, "..."]], obs: PyTree, xp: ModuleType = np
    ) -> PyTree[Shaped[AnyArray, "..."]]:
        """`stacked` without its oldest observation, and with `obs` at its end."""

        def leaf(path: Path, leaf: spaces.Space[Any]) -> Any:
            new, axis, old = self._frame(obs, path, leaf, xp), _axis(leaf), pick(stacked, path)
            kept = old[..., new.shape[axis] :, :, :] if axis == -3 else old[..., new.shape[axis] :]
            return xp.concatenate([kept.astype(new.dtype), new], axis=axis)

        return build(self.space, leaf)

    def _frame(self, obs: PyTree, path: Path, leaf: spaces.Space[Any], xp: ModuleType) -> Any:
        array = xp.asarray(pick(obs, path))
        return array if leaf.shape else array[..., None]


class FrameStacker:
    """Stacks what an environment shows, for a policy that was trained with `env.frame_stack`:

    frames = FrameStacker(env.observation_space, agent.config.env.frame_stack)
    action = agent.act(frames.reset(obs))     # the first observation of an episode
    action = agent.act(frames.step(obs))      # each one after
    """

    def __init__(self, observation_space: spaces.Space[Any], num: int):
        self._stacking = Stacking(observation_space, num)
        self._seen: PyTree = None

    def reset(self, obs: PyTree) -> PyTree:
        self._seen = self._stacking.first(obs)
        return self._seen

    def step(self, obs: PyTree) -> PyTree:
        self._seen = self._stacking.following(self._seen, obs)
        return self._seen


def stacked_space(space: spaces.Space[Any], num: int) -> spaces.Space[Any]:
    """Of `num` observations of `space`."""
    return _stacked(space, num, ())


def _axis(leaf: spaces.Space[Any]) -> int:
    """Along which observations are stacked, counted from the end."""
    return -3 if channel_axis(leaf) == 0 else -1


def _stacked(space: spaces.Space[Any], num: int, path: Path) -> spaces.Space[Any]:
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, _stacked(inner, num, (*path, key))) for key, inner in space.spaces.items()])
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_stacked(inner, num, (*path, index)) for index, inner in enumerate(space.spaces)])
    made = _stacked_leaf(space, num)
    if channel_axis(made) != channel_axis(space):
        raise UserError(
            f"env.frame_stack={num} would make {made.shape} of observations{shown(path)} of the shape {space.shape}, "
            f"and channels could not be told from sides; stack fewer, or in a wrapper of your own."
        )
    return made


def _stacked_leaf(leaf: spaces.Space[Any], num: int) -> spaces.Space[Any]:
    dtype: Any = leaf.dtype

    def repeated(array: Any) -> NDArray[Any]:
        return np.concatenate([np.atleast_1d(array)] * num, axis=_axis(leaf))

    if isinstance(leaf, spaces.Box):
        return spaces.Box(repeated(leaf.low), repeated(leaf.high), dtype=dtype.type)
    if isinstance(leaf, spaces.Discrete):
        return spaces.MultiDiscrete(repeated(leaf.n), start=repeated(leaf.start), dtype=dtype.type)
    if isinstance(leaf, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(repeated(leaf.nvec), start=repeated(leaf.start), dtype=dtype.type)
    if isinstance(leaf, spaces.MultiBinary):
        return spaces.MultiBinary(list(repeated(np.zeros(leaf.shape)).shape))
    return leaf  # which no network reads, and the policy says so


class FrameStack:
    """What the lanes of an environment with these groups see of its last `num` observations. With `num` 1, what they
    see is what it shows. Works on arrays of NumPy and of JAX."""

    def __init__(self, groups: Groups, num: int):
        self.num = num
        self.groups = groups if num == 1 else groups.seen_through(lambda space: stacked_space(space, num))
        """With the observation spaces that policies see."""
        self._stackings = {name: Stacking(group.observation_space, num) for name, group in groups.items()}

    def first(
        self, name: str, obs: PyTree[Shaped[AnyArray, "L ..."]], xp: ModuleType = np
    ) -> PyTree[Shaped[AnyArray, "L ..."]]:
        """What the lanes of a group see at the start of an episode."""
        return obs if self.num == 1 else self._stackings[name].first(obs, xp)

    def following(
        self, name: str, before: PyTree[Shaped[AnyArray, "L ..."]], step: LaneStep, xp: ModuleType = np
    ) -> tuple[PyTree[Shaped[AnyArray, "L ..."]], PyTree[Shaped[AnyArray, "L ..."]]]:
        """What lanes see after a step, who saw `before`: in the next episode, where that has begun; and at its end."""
        if self.num == 1:
            return step.obs, step.final_obs
        stacking = self._stackings[name]
        final, on = (stacking.following(before, obs, xp) for obs in (step.final_obs, step.obs))
        first, begins = stacking.first(step.obs, xp), step.reset_mask

        def chosen(new: Shaped[AnyArray, "L *S"], on: Shaped[AnyArray, "L *S"]) -> Any:
            return xp.where(begins.reshape(begins.shape + (1,) * (new.ndim - begins.ndim)), new, on)

        return jax.tree.map(chosen, first, on), final
