"""Several observations as one: the last N, the newest at the end. Where an episode starts, its first one N times.

The stack is made where observations are, in the environment: whatever comes after sees an environment whose observation
space is the stacked one. Images are stacked along their channels, other arrays along the last axis, single numbers to
vectors; action masks are not part of the observation here, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnasium import spaces

from proximo.config import EnvConfig
from proximo.envs.api import HostEnv, HostSource, JaxEnv, Timestep, Transition, Tree, lanes_of
from proximo.envs.host.codec import decode, encode
from proximo.envs.keys import Stated
from proximo.errors import UserError
from proximo.spaces import Path, build, channel_axis, leaves, pick, shown


@dataclass(frozen=True)
class Stacking:
    """How `num` observations of `space` become one. Works on arrays of NumPy and of JAX, with any leading axes."""

    space: spaces.Space
    num: int

    def first(self, obs: Tree, xp: Any = np) -> Tree:
        """What is seen at the start of an episode."""

        def leaf(path: Path, leaf: spaces.Space) -> Any:
            return xp.concatenate([self._frame(obs, path, leaf, xp)] * self.num, axis=_axis(leaf))

        return build(self.space, leaf)

    def following(self, stacked: Tree, obs: Tree, xp: Any = np) -> Tree:
        """`stacked` without its oldest observation, and with `obs` at its end."""

        def leaf(path: Path, leaf: spaces.Space) -> Any:
            new, axis, old = self._frame(obs, path, leaf, xp), _axis(leaf), pick(stacked, path)
            kept = old[..., new.shape[axis] :, :, :] if axis == -3 else old[..., new.shape[axis] :]
            return xp.concatenate([kept.astype(new.dtype), new], axis=axis)

        return build(self.space, leaf)

    def stacked_space(self) -> spaces.Space:
        return _stacked(self.space, self.num, ())

    def _frame(self, obs: Tree, path: Path, leaf: spaces.Space, xp: Any) -> Any:
        array = xp.asarray(pick(obs, path))
        return array if leaf.shape else array[..., None]


class FrameStacker:
    """Stacks what an environment shows, for a policy that was trained with `env.frame_stack`:

    frames = FrameStacker(env.observation_space, agent.config.env.frame_stack)
    action = agent.act(frames.reset(obs))     # the first observation of an episode
    action = agent.act(frames.step(obs))      # each one after
    """

    def __init__(self, observation_space: spaces.Space, num: int):
        self._stacking = Stacking(observation_space, num)
        self._seen: Tree = None

    def reset(self, obs: Tree) -> Tree:
        self._seen = self._stacking.first(obs)
        return self._seen

    def step(self, obs: Tree) -> Tree:
        self._seen = self._stacking.following(self._seen, obs)
        return self._seen


def _axis(leaf: spaces.Space) -> int:
    """Along which observations are stacked, counted from the end."""
    return -3 if channel_axis(leaf) == 0 else -1


def _stacked(space: spaces.Space, num: int, path: Path) -> spaces.Space:
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


def _stacked_leaf(leaf: spaces.Space, num: int) -> spaces.Space:
    dtype: Any = leaf.dtype

    def repeated(array: Any) -> np.ndarray:
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


@struct.dataclass
class StackedState:
    env: Tree
    obs: Tree  # the stack


class StackedEnv:
    """A `JaxEnv` that shows the last observations of another."""

    def __init__(self, env: JaxEnv, num: int):
        self.env = env
        self._stacking = Stacking(env.spec.observation_space, num)
        self.spec = replace(env.spec, observation_space=self._stacking.stacked_space())
        self.metadata = getattr(env, "metadata", None)
        draws = getattr(env, "render", None)
        if draws is not None:
            self.render = lambda state: draws(state.env)
        self.stated = Stated(self, num, inside=env)

    def reset(self, key: jax.Array) -> tuple[StackedState, Transition]:
        state, first = self.env.reset(key)
        stacked = self._stacking.first(first.obs, jnp)
        return StackedState(state, stacked), replace(first, obs=stacked)

    def step(self, key: jax.Array, state: StackedState, action: Tree) -> tuple[StackedState, Transition]:
        inner, moved = self.env.step(key, state.env, action)
        stacked = self._stacking.following(state.obs, moved.obs, jnp)
        if moved.final_obs is not None:  # it has reset itself: what it shows may be of the next episode
            ended = jnp.asarray(moved.terminated) | jnp.asarray(moved.truncated)
            final_obs = self._stacking.following(state.obs, moved.final_obs, jnp)
            anew = self._stacking.first(moved.obs, jnp)
            stacked = jax.tree.map(lambda new, on: jnp.where(ended, new, on), anew, stacked)
            moved = replace(moved, final_obs=final_obs)
        return StackedState(inner, stacked), replace(moved, obs=stacked)


class StackedSource:
    """A `HostSource` whose lanes show the last observations of another's."""

    def __init__(self, source: HostSource, num: int):
        self._source = source
        self._stacking = Stacking(source.spec.observation_space, num)
        self.spec = replace(source.spec, observation_space=self._stacking.stacked_space())

    def __getattr__(self, name: str) -> Any:
        if name == "rendering":
            draws = self._source.rendering  # type: ignore[attr-defined]
            return lambda: StackedDrawing(draws(), FrameStacker(self._stacking.space, self._stacking.num))
        return getattr(self._source, name)

    def lanes(self, num_envs: int, env: EnvConfig) -> StackedLanes:
        return StackedLanes(self._source.lanes(num_envs, env), self._stacking)


class StackedDrawing(gymnasium.Wrapper):
    """One environment that draws itself, and shows its last observations."""

    def __init__(self, env: gymnasium.Env, frames: FrameStacker):
        super().__init__(env)
        self._frames = frames

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**options)
        return self._with(obs, self._frames.reset(obs)), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, *rest = self.env.step(action)
        return self._with(obs, self._frames.step(obs)), *rest  # type: ignore[return-value]

    @staticmethod
    def _with(obs: Any, stacked: Tree) -> Any:
        """Entries that are not stacked, such as an action mask, are kept."""
        return {**obs, **stacked} if isinstance(obs, Mapping) else stacked


class StackedLanes:
    """A `HostEnv` that shows the last observations of another."""

    def __init__(self, env: HostEnv, stacking: Stacking):
        self.env = env
        self.spec = replace(env.spec, observation_space=stacking.stacked_space())
        self.num_lanes = env.num_lanes
        self.batches = env.batches
        self._stacking = stacking
        self._lanes = [lanes_of(batch) for batch in env.batches]
        self._parts: list[tuple[Timestep, Timestep] | None] = [None] * len(env.batches)
        self._obs: Tree = None
        self._final_obs: Tree = None

    @property
    def notices(self) -> list[str]:
        return self.env.notices

    def reset(self, seed: int) -> Timestep:
        first = self.env.reset(seed)
        stacked = self._stacking.first(first.obs)
        if self._obs is None:
            self._obs, self._final_obs = stacked, jax.tree.map(np.copy, stacked)
        else:
            _write(self._obs, stacked)
        return replace(first, obs=self._obs, final_obs=self._final_obs)

    def send(self, batch: int, action: Tree) -> None:
        self.env.send(batch, action)

    def recv(self, batch: int) -> Timestep:
        moved = self.env.recv(batch)
        obs, final_obs = _at((self._obs, self._final_obs), self._lanes[batch])
        ended = moved.terminated | moved.truncated
        if ended.any():
            _write(final_obs, self._stacking.following(obs, moved.final_obs))
        _write(obs, self._stacking.following(obs, moved.obs))
        # After an end, and after a filler step (EnvPool resets in one), what is shown is the first of an episode.
        anew = ended | ~moved.valid
        if anew.any():
            _write(obs, self._stacking.first(moved.obs), anew)
        part = self._parts[batch]
        if part is None or part[0] is not moved:
            part = self._parts[batch] = (moved, replace(moved, obs=obs, final_obs=final_obs))
        return part[1]

    def get_states(self) -> list[bytes | None]:
        """Each lane's own state, and its stack."""
        return [
            None if state is None else encode([state, *(array[lane].tobytes() for array in self._arrays())])
            for lane, state in enumerate(self.env.get_states())
        ]

    def set_states(self, states: list[bytes]) -> bool:
        arrays = self._arrays()
        try:
            held = [decode(state) for state in states]
            sizes = [array[0].nbytes for array in arrays]
            if not all(_fits(parts, sizes) for parts in held):
                raise ValueError("these are no states of stacked lanes")
        except (ValueError, TypeError):
            self.notices.append(
                f"The environment {self.spec.id} cannot be restored: its last observations are not known."
            )
            return False
        if not self.env.set_states([parts[0] for parts in held]):
            return False
        for lane, parts in enumerate(held):
            for array, data in zip(arrays, parts[1:], strict=True):
                array[lane] = np.frombuffer(data, array.dtype).reshape(array.shape[1:])
        return True

    def close(self) -> None:
        self.env.close()

    def _arrays(self) -> list[np.ndarray]:
        """The stacks [L, ...] of all entries."""
        return [pick(self._obs, path) for path, _ in leaves(self.spec.observation_space)]


def _fits(parts: Any, sizes: list[int]) -> bool:
    """Whether this is the state of a lane, and the bytes of its stack."""
    if type(parts) is not list or any(type(part) is not bytes for part in parts):
        return False
    return [len(part) for part in parts[1:]] == sizes


def _at(tree: Tree, index: Any) -> Tree:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _write(targets: Tree, source: Tree, rows: Any = ...) -> None:
    for target, value in zip(jax.tree.leaves(targets), jax.tree.leaves(source), strict=True):
        target[rows] = value[rows]
