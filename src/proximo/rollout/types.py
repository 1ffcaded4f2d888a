"""The record of experience: what an update learns from, what an evaluation counts. T steps, E environments, L lanes."""

from __future__ import annotations

from typing import Any

import jax
from flax import struct

from proximo.envs.api import Array, PyTree, reset_mask


@struct.dataclass
class Rollout:
    """What happened to the lanes of one group, in time order. Collection fills it whole; the update uses it once.

    The last four are None where agents are never absent and always act.
    """

    obs: PyTree  # [T, L, ...] what the policy saw
    action_mask: PyTree  # [T, L, ...] bool, or None
    action: PyTree  # [T, L, ...] in the distribution's own coordinates
    reward: Array  # [T, L]
    terminated: Array  # [T, L] bool
    truncated: Array  # [T, L] bool
    valid: Array  # [T, L] bool: this action counted
    final_obs: PyTree  # [T, L, ...] where each truncated step led; elsewhere anything finite
    last_obs: PyTree  # [L, ...] what the policy sees next
    carry: PyTree  # [L, ...] the actor's memory at the start
    present: Array | None = None  # [T, L] bool: there when the step was taken
    alive: Array | None = None  # [T, L] bool: there after it
    acts: Array | None = None  # [L] bool: whose next action counts
    settled: Array | None = None  # [T, L] bool: whether what came of an action is known (`multi_agent.prepare`)

    @property
    def ended(self) -> Array:
        return self.terminated | self.truncated

    @property
    def reset_mask(self) -> Array:
        """[T, L] after which steps memory is empty."""
        return reset_mask(self)


@struct.dataclass
class Episodes:
    """The episodes that finished during a rollout, at the step where each did."""

    length: jax.Array  # [T, E] int32; 0 where none finished
    episode_return: jax.Array  # [T, E] float32 sum of its rewards; of several agents, the mean of theirs
    success: jax.Array  # [T, E] bool
    members: dict[str, jax.Array]  # [T, E, K] float32 the sums of each agent, by group
    score: jax.Array | None = None  # [T, E] float32 with self-play: 1 won, 1/2 drawn, 0 lost; -1 without opponents


@struct.dataclass
class CriticState:
    """What only critics see, one for each environment: stored once, whatever the number of agents."""

    seen: PyTree  # [T, E, ...] before each step
    final: PyTree  # [T, E, ...] where each step led
    last: PyTree  # [E, ...] after the rollout


@struct.dataclass
class Experience:
    """A rollout of all groups."""

    groups: dict[str, Rollout]
    critic_state: CriticState | None
    episodes: Episodes


@struct.dataclass
class RunnerState:
    """Where the environments stand between two rollouts."""

    env: PyTree  # the state of compiled environments; empty for others
    task: PyTree  # [E, ...] what a curriculum asks of each environment, or None
    obs: dict[str, PyTree]  # [L, ...] what the policies see next: with `env.frame_stack`, the stack
    action_mask: dict[str, Any]  # [L, ...] bool, or None
    carry: dict[str, PyTree]  # [L, ...] the actors' memory
    critic_state: PyTree  # [E, ...] what critics see besides, or None
    episode_length: jax.Array  # [E] int32 steps in the running episode
    episode_return: dict[str, jax.Array]  # [E, K] float32 rewards in the running episode
