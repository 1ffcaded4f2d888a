"""What an environment is to the rest of Proximo.

A *lane* is one stream of experience (an environment; later, one agent of one). Everything downstream sees
arrays with a leading axis of L lanes and never asks what kind of environment made them.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import jax
from flax import struct

from proximo.config import EnvConfig
from proximo.envs.spec import EnvSpec as EnvSpec
from proximo.teams import Roster as Roster
from proximo.teams import Team as Team

Tree = Any
"""A pytree of arrays."""
Array = Any
"""An array of JAX inside the compiled program, of NumPy outside."""


@struct.dataclass
class Transition:
    """What one JAX environment reports after `reset` or `step`; no leading axis.

    `action_mask` is true for allowed actions, or None. `success` is whether a finished episode succeeded,
    or None where the environment does not say. `final_obs` is only set by an environment that resets itself:
    the true last observation, while `obs` already belongs to the next episode.

    With many agents (see `TeamTransition`), reward and flags are [A], and so are `alive` and `acts`; `over` is one.
    """

    obs: Tree
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False
    action_mask: Tree = None
    success: Any = None
    final_obs: Tree = None
    alive: Any = None
    acts: Any = None
    over: Any = None


@runtime_checkable
class JaxEnv(Protocol):
    """One environment as two pure functions; write one of these to train on an environment of your own.

    `step` does not reset: lanes do that, and only when some episode ended.
    """

    spec: EnvSpec

    def reset(self, key: jax.Array) -> tuple[Tree, Transition]: ...

    def step(self, key: jax.Array, state: Tree, action: Tree) -> tuple[Tree, Transition]: ...


@struct.dataclass
class TeamTransition:
    """What one JAX environment with many agents reports after `reset` or `step`: dictionaries by agent.

    An agent takes part while it is `alive`; one that dies is terminated or truncated in that step, and one that joins
    becomes alive. `acts` says whose next action counts (in games with turns); None: of all who are alive. An episode
    is `over` when the environment is to be reset; None: when nobody is alive. `state` is what a central critic may see.
    """

    obs: dict[str, Tree]
    reward: dict[str, Any]
    terminated: dict[str, Any]
    truncated: dict[str, Any]
    alive: dict[str, Any]
    acts: dict[str, Any] | None = None
    over: Any = None
    action_mask: dict[str, Tree] | None = None
    state: Tree = None
    success: Any = None


@runtime_checkable
class JaxTeamEnv(Protocol):
    """One environment with many agents as two pure functions; write one of these for one of your own.

    As with `JaxEnv`, `step` does not reset. Actions are a dictionary by agent; those of agents that are not there, or
    do not act, are to be ignored.
    """

    id: str
    roster: Roster
    max_steps: int | None

    def reset(self, key: jax.Array) -> tuple[Tree, TeamTransition]: ...

    def step(self, key: jax.Array, state: Tree, actions: dict[str, Tree]) -> tuple[Tree, TeamTransition]: ...


@struct.dataclass
class Timestep:
    """What L lanes report after a step. Same-step auto-reset: where an episode ended, `obs` and `action_mask`
    already belong to the next one, while reward, flags and `final_obs` belong to the step that was taken.

    With many agents, reward and flags are [L, A], in the order of `spec.team`: a lane here is an environment, until the
    rollout is taken apart. Rewards of agents that are not alive are 0.
    """

    obs: Tree  # [L, ...]
    action_mask: Tree  # [L, ...] bool, or None
    reward: Array  # [L] float32
    terminated: Array  # [L] bool: the episode reached an end; nothing follows it
    truncated: Array  # [L] bool: the episode was cut; its value goes on
    final_obs: Tree  # [L, ...] the observation that the step led to, also where the lane was reset
    valid: Array  # [L] bool: false for a filler step or an absent agent
    success: Array | None  # [L] bool, or None where the environment does not say
    over: Array | None = None  # [L] bool with many agents: the environment was reset
    absent: Array | None = None  # [L, A] bool with many agents: not there after the step, as all are when it is over
    there: Array | None = None  # [L, A] bool with many agents: there before the step
    acts: Array | None = None  # [L, A] bool with many agents: whose next action counts

    @property
    def ended(self) -> Array:
        return self.terminated | self.truncated

    @property
    def finished(self) -> Array:
        """[L] where an episode came to its end, for all who were in it."""
        return self.ended if self.over is None else self.over

    @property
    def forgotten(self) -> Array:
        """After which steps memory is empty: where an episode ended, and where nothing counted. Of many agents: where
        one was not there before the step, or is not after it."""
        if self.absent is None or self.there is None:
            return self.ended | ~self.valid
        return self.ended | self.absent | ~self.there


class CompiledEnv(Protocol):
    """L lanes inside a compiled program."""

    spec: EnvSpec
    num_lanes: int

    def reset(self, key: jax.Array) -> tuple[Tree, Timestep]: ...

    def step(self, key: jax.Array, state: Tree, action: Tree) -> tuple[Tree, Timestep]: ...


Batch = tuple[slice, ...]
"""Groups of lanes that are exchanged with the policy together."""


class HostEnv(Protocol):
    """L lanes of environments that run outside the compiled program, in this process or in others.

    Each of the `batches` is stepped on its own: `send` gives it actions, `recv` waits until they are done.
    Between the two, other batches can be served. What `recv` returns are views that hold until the next `send`.
    """

    spec: EnvSpec
    num_lanes: int
    batches: tuple[Batch, ...]
    notices: list[str]
    """What the user should know, in sentences; whoever shows them takes them away."""

    def reset(self, seed: int) -> Timestep:
        """All lanes at the start of an episode; lane i is seeded `seed + i`."""
        ...

    def send(self, batch: int, action: Tree) -> None: ...

    def recv(self, batch: int) -> Timestep: ...

    def get_states(self) -> list[bytes | None]:
        """Where each lane is, between steps: all there is to go on from; None where a lane cannot be restored."""
        ...

    def set_states(self, states: list[bytes]) -> bool:
        """Put all lanes where they were, after `reset`; with any number of workers. False if that cannot be done: then
        the lanes are as `reset` left them, and a notice says why."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class HostSource(Protocol):
    """Where lanes of a host environment come from."""

    spec: EnvSpec

    def lanes(self, num_envs: int, env: EnvConfig) -> HostEnv:
        """`num_envs` environments, run as `env` says."""
        ...


def lanes_of(batch: Batch) -> slice:
    """The lanes of a batch's groups, which lie side by side."""
    return slice(batch[0].start, batch[-1].stop)
