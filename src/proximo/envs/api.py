"""What an environment is to the rest of Proximo.

A *lane* is one stream of experience (an environment; later, one agent of one). Everything downstream sees
arrays with a leading axis of L lanes and never asks what kind of environment made them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import gymnasium
import jax
from flax import struct

Tree = Any
"""A pytree of arrays."""


@dataclass(frozen=True)
class EnvSpec:
    """What is known of an environment before it runs."""

    id: str
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    max_steps: int | None = None
    """The environment's own time limit, where it has one."""


@struct.dataclass
class Transition:
    """What one JAX environment reports after `reset` or `step`; no leading axis.

    `action_mask` is true for allowed actions, or None. `success` is whether a finished episode succeeded,
    or None where the environment does not say. `final_obs` is only set by an environment that resets itself:
    the true last observation, while `obs` already belongs to the next episode.
    """

    obs: Tree
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False
    action_mask: Tree = None
    success: Any = None
    final_obs: Tree = None


@runtime_checkable
class JaxEnv(Protocol):
    """One environment as two pure functions; write one of these to train on an environment of your own.

    `step` does not reset: lanes do that, and only when some episode ended.
    """

    spec: EnvSpec

    def reset(self, key: jax.Array) -> tuple[Tree, Transition]: ...

    def step(self, key: jax.Array, state: Tree, action: Tree) -> tuple[Tree, Transition]: ...


@struct.dataclass
class Timestep:
    """What L lanes report after a step. Same-step auto-reset: where an episode ended, `obs` and `action_mask`
    already belong to the next one, while reward, flags and `final_obs` belong to the step that was taken."""

    obs: Tree  # [L, ...]
    action_mask: Tree  # [L, ...] bool, or None
    reward: jax.Array  # [L] float32
    terminated: jax.Array  # [L] bool: the episode reached an end; nothing follows it
    truncated: jax.Array  # [L] bool: the episode was cut; its value goes on
    final_obs: Tree  # [L, ...] the observation that the step led to, also where the lane was reset
    valid: jax.Array  # [L] bool: false for a filler step or an absent agent
    success: jax.Array | None  # [L] bool, or None where the environment does not say

    @property
    def ended(self) -> jax.Array:
        return self.terminated | self.truncated


class CompiledEnv(Protocol):
    """L lanes inside a compiled program."""

    spec: EnvSpec
    num_lanes: int

    def reset(self, key: jax.Array) -> tuple[Tree, Timestep]: ...

    def step(self, key: jax.Array, state: Tree, action: Tree) -> tuple[Tree, Timestep]: ...
