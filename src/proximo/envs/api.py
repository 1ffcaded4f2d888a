"""What an environment is to the rest of Proximo.

There are two axes. E environments are what is reset, seeded, restored and counted. L = E * K lanes are what networks,
advantages and minibatches see: a lane is one agent of one environment, lane = env * K + member, for each group of K
agents that share a policy. Nothing downstream asks what kind of environment made them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import gymnasium
import jax
from jaxtyping import Bool, Float, Int8, Shaped

from proximo.config import AgentsConfig, EnvConfig
from proximo.envs.groups import Group as Group
from proximo.envs.groups import Groups as Groups
from proximo.envs.spec import EnvSpec as EnvSpec
from proximo.types import AnyArray, PyTree, Struct


class LaneStep(Struct):
    """What the lanes of one group report after a step. Same-step auto-reset: where an episode ended, `obs` and
    `action_mask` already belong to the next one, while reward, flags and `final_obs` belong to the step that was taken.

    The last three are None where agents are never absent and always act.
    """

    obs: PyTree[Shaped[AnyArray, "L ..."]]
    action_mask: PyTree[Bool[AnyArray, "L ..."]]
    """Or None."""
    reward: Float[AnyArray, "*T L"]
    """0 of agents that are not there."""
    terminated: Bool[AnyArray, "*T L"]
    """The episode reached an end; nothing follows it."""
    truncated: Bool[AnyArray, "*T L"]
    """The episode was cut; its value goes on."""
    final_obs: PyTree[Shaped[AnyArray, "L ..."]]
    """The observation that the step led to, also where the environment was reset."""
    valid: Bool[AnyArray, "*T L"]
    """This action counted; false for a filler step or an absent agent."""
    present: Bool[AnyArray, "*T L"] | None = None
    """There when the step was taken."""
    alive: Bool[AnyArray, "*T L"] | None = None
    """There after it, in the next episode where that has begun."""
    acts: Bool[AnyArray, " L"] | None = None
    """Whose next action counts."""

    @property
    def ended(self) -> Bool[AnyArray, "*T L"]:
        return self.terminated | self.truncated

    @property
    def reset_mask(self) -> Bool[AnyArray, "*T L"]:
        """After which steps memory is empty, see `reset_mask`."""
        return reset_mask(self)


@runtime_checkable
class LaneEnds(Protocol):
    """What says where the memory of lanes is empty."""

    @property
    def terminated(self) -> Bool[AnyArray, "*T L"]: ...
    @property
    def truncated(self) -> Bool[AnyArray, "*T L"]: ...
    @property
    def valid(self) -> Bool[AnyArray, "*T L"]: ...
    @property
    def present(self) -> Bool[AnyArray, "*T L"] | None: ...
    @property
    def alive(self) -> Bool[AnyArray, "*T L"] | None: ...


def reset_mask(step: LaneEnds) -> Bool[AnyArray, "*T L"]:
    """After which steps memory is empty: where an episode ended, and where nothing counted. Of agents that may be
    absent: where one was not there before the step, or is not after it."""
    if step.alive is None or step.present is None:
        return step.terminated | step.truncated | ~step.valid
    return step.terminated | step.truncated | ~step.alive | ~step.present


class Timestep(Struct):
    """What E environments report after a step: the lanes of each group, and what belongs to environments."""

    groups: dict[str, LaneStep]
    reset: Bool[AnyArray, "*T E"]
    """An episode came to its end, for all who were in it, and the next one has begun."""
    success: Int8[AnyArray, "*T E"]
    """Of an episode that ended, 1 or 0 as the environment says; -1 where it does not."""
    critic_state: PyTree[Shaped[AnyArray, "E ..."]] = None
    """What only critics see, or None."""
    final_critic_state: PyTree[Shaped[AnyArray, "E ..."]] = None
    """What the step led to, as `final_obs`."""
    info: Float[AnyArray, "*T E I"] | None = None
    """The entries of the environment's info that are tracked (`track.info`), of the step that was taken: NaN where one
    was not there. None where nothing is tracked."""


class Transition(Struct):
    """What one JAX environment reports after `reset` or `step`; no leading axis.

    `action_mask` is true for allowed actions, or None. `success` is whether a finished episode succeeded,
    or None where the environment does not say. `critic_state` is what only the critic sees (`spec.critic_state_space`).
    `final_obs` and `final_critic_state` are only set by an environment that resets itself: the true last ones, while
    `obs` already belongs to the next episode. `info` are numbers by name, of which `track.info` names those that are
    reported.
    """

    obs: PyTree
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False
    action_mask: PyTree = None
    success: Any = None
    final_obs: PyTree = None
    critic_state: PyTree = None
    final_critic_state: PyTree = None
    info: Mapping[str, Any] | None = None


@runtime_checkable
class JaxEnv(Protocol):
    """One environment as two pure functions; write one of these to train on an environment of your own.

    `step` does not reset: that is done for all environments at once, and only when some episode ended. Both may take a
    keyword `task`, with a default: they get it where a curriculum sets one, and are called without where none does.
    """

    spec: EnvSpec

    def reset(self, key: jax.Array) -> tuple[PyTree, Transition]: ...

    def step(self, key: jax.Array, state: PyTree, action: PyTree) -> tuple[PyTree, Transition]: ...


@dataclass(frozen=True)
class Roster:
    """Who there is in an environment with many agents, in its own order, before they are put into groups."""

    observation_spaces: Mapping[str, gymnasium.Space[Any]]
    action_spaces: Mapping[str, gymnasium.Space[Any]]
    groups: Mapping[str, tuple[str, ...]] | None = None
    """The environment's own; None: by the names of the agents, without the numbers at their ends."""
    critic_state_space: gymnasium.Space[Any] | None = None
    """Of what the environment knows of itself as a whole, where it says so."""

    @property
    def agents(self) -> tuple[str, ...]:
        return tuple(self.observation_spaces)


class TeamTransition(Struct):
    """What one JAX environment with many agents reports after `reset` or `step`: dictionaries by agent.

    An agent takes part while it is `alive`; one that dies is terminated or truncated in that step, and one that joins
    becomes alive. `acts` says whose next action counts (in games with turns); None: of all who are alive. An episode
    is `over` when the environment is to be reset; None: when nobody is alive. `critic_state` is what a central critic
    may see. `info` are numbers by name, as in `Transition`; of one that each agent has, the mean counts.
    """

    obs: dict[str, PyTree]
    reward: dict[str, Any]
    terminated: dict[str, Any]
    truncated: dict[str, Any]
    alive: dict[str, Any]
    acts: dict[str, Any] | None = None
    over: Any = None
    action_mask: dict[str, PyTree] | None = None
    critic_state: PyTree = None
    success: Any = None
    info: Mapping[str, Any] | None = None


@runtime_checkable
class JaxTeamEnv(Protocol):
    """One environment with many agents as two pure functions; write one of these for one of your own.

    As with `JaxEnv`, `step` does not reset. Actions are a dictionary by agent; those of agents that are not there, or
    do not act, are to be ignored.
    """

    id: str
    roster: Roster
    max_steps: int | None

    def reset(self, key: jax.Array) -> tuple[PyTree, TeamTransition]: ...

    def step(self, key: jax.Array, state: PyTree, actions: dict[str, PyTree]) -> tuple[PyTree, TeamTransition]: ...


@runtime_checkable
class CompiledEnv(Protocol):
    """E environments inside a compiled program. Actions are a dictionary by group, leaves [L, ...]. A `task` [E, ...]
    goes to each environment, where there is one."""

    spec: EnvSpec
    num_envs: int
    info: tuple[str, ...]
    """Entries of infos that are reported with each step."""
    info_names: list[str]
    """All that infos have."""

    def reset(self, key: jax.Array, task: PyTree = None) -> tuple[PyTree, Timestep]: ...

    def step(
        self, key: jax.Array, state: PyTree, action: dict[str, PyTree], task: PyTree = None
    ) -> tuple[PyTree, Timestep]: ...


Part = tuple[slice, ...]
"""Environments that are exchanged with the policy together, as slices that lie side by side."""


@runtime_checkable
class HostEnv(Protocol):
    """E environments that run outside the compiled program, in this process or in others.

    Each of the `parts` is stepped on its own: `send` gives it actions, a dictionary by group with leaves [L, ...], and
    `recv` waits until they are done. Between the two, other parts can be served. What `recv` returns are views that
    hold until the next `send`.
    """

    spec: EnvSpec
    num_envs: int
    parts: tuple[Part, ...]
    notices: list[str]
    """What the user should know, in sentences; whoever shows them takes them away."""

    @property
    def info_names(self) -> list[str]:
        """What the infos of ended episodes had, where some of it is tracked (`spec.info`)."""
        ...

    def reset(self, seed: int, options: dict[str, Any] | None = None) -> Timestep:
        """All environments at the start of an episode; environment i is seeded `seed + i`. The `options` go to the
        `reset` of each."""
        ...

    def send(self, part: int, action: dict[str, PyTree]) -> None: ...

    def recv(self, part: int) -> Timestep: ...

    def get_states(self) -> list[bytes | None]:
        """Where each environment is, between steps: all there is to go on from; None where one cannot be restored."""
        ...

    def set_states(self, states: list[bytes]) -> bool:
        """Put all environments where they were, after `reset`; with any number of workers. False if that cannot be
        done: then they are as `reset` left them, and a notice says why."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class HostSource(Protocol):
    """Where host environments come from."""

    spec: EnvSpec

    def open_envs(self, num_envs: int, env: EnvConfig) -> HostEnv:
        """`num_envs` environments, run as `env` says."""
        ...


Source = TypeVar("Source", bound=HostSource)


def with_info(source: Source, names: tuple[str, ...]) -> Source:
    """`source`, whose environments report these entries of their info."""
    if not names:
        return source
    other = copy.copy(source)
    other.spec = replace(source.spec, info=names)
    return other


@runtime_checkable
class Regrouped(Protocol):
    """An environment whose agents can be put into other groups."""

    def with_groups(self, agents: AgentsConfig) -> Any: ...


def envs_of(part: Part) -> slice:
    """The environments of a part, which lie side by side."""
    return slice(part[0].start, part[-1].stop)


def lanes_of(envs: slice, size: int) -> slice:
    """The lanes that a group of `size` members has in these environments."""
    return slice(envs.start * size, envs.stop * size)
