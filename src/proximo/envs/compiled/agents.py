"""From what one JAX environment reports, about one agent or many, to groups of agents side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int8, Shaped

from proximo.config import AgentsConfig
from proximo.envs.api import JaxEnv, JaxTeamEnv, TeamTransition, Transition
from proximo.envs.grouping import team_spec
from proximo.envs.groups import ONE, Groups
from proximo.envs.host.bounds import blank
from proximo.envs.keys import Stated
from proximo.envs.spec import EnvSpec
from proximo.errors import UserError
from proximo.spaces import build, pick
from proximo.types import PyTree, Struct


class Members(Struct):
    """What one environment reports of a group of K agents; `alive` and `acts` are None where none is ever absent."""

    obs: PyTree[Shaped[Array, "..."]]
    reward: Float[Array, "*E K"]
    terminated: Bool[Array, "*E K"]
    truncated: Bool[Array, "*E K"]
    action_mask: PyTree[Bool[Array, "..."]] = None
    """Or None."""
    final_obs: PyTree[Shaped[Array, "..."]] = None
    """Where the environment has reset itself, or None."""
    alive: Bool[Array, "*E K"] | None = None
    acts: Bool[Array, "*E K"] | None = None


class Report(Struct):
    """What one environment reports: of each group, and of itself."""

    groups: dict[str, Members]
    over: Bool[Array, "*E"]
    """The episode is over for all."""
    success: Int8[Array, "*E"] | None = None
    """None where it is never said."""
    critic_state: PyTree = None
    final_critic_state: PyTree = None
    info: Any = None
    """All that it says besides, by name; of `VectorizedEnv` the numbers that are tracked, or None."""


@runtime_checkable
class GroupedEnv(Protocol):
    """One environment that reports, and takes actions, by group."""

    spec: EnvSpec

    def reset(self, key: jax.Array, **task: PyTree) -> tuple[PyTree, Report]: ...

    def step(
        self, key: jax.Array, state: PyTree, action: dict[str, PyTree], **task: PyTree
    ) -> tuple[PyTree, Report]: ...


class OneAgent:
    """A `JaxEnv` as a `GroupedEnv`: one group with one member."""

    def __init__(self, env: JaxEnv):
        self.env = env
        self.spec = env.spec
        self.stated = Stated(self, inside=env)

    def reset(self, key: jax.Array, **task: PyTree) -> tuple[PyTree, Report]:
        state, first = self.env.reset(key, **task)
        return state, self._report(first)

    def step(self, key: jax.Array, state: PyTree, action: dict[str, PyTree], **task: PyTree) -> tuple[PyTree, Report]:
        alone = jax.tree.map(lambda leaf: leaf[0], action[ONE])
        state, moved = self.env.step(key, state, alone, **task)
        return state, replace(self._report(moved), info=moved.info)

    def _report(self, told: Transition) -> Report:
        terminated, truncated = jnp.asarray(told.terminated, bool), jnp.asarray(told.truncated, bool)
        obs, mask, final_obs = jax.tree.map(
            lambda leaf: jnp.asarray(leaf)[None], (told.obs, told.action_mask, told.final_obs)
        )
        members = Members(
            obs=obs,
            reward=jnp.asarray(told.reward, jnp.float32)[None],
            terminated=terminated[None],
            truncated=truncated[None],
            action_mask=mask,
            final_obs=final_obs,
        )
        states = (told.critic_state, told.final_critic_state)
        if self.spec.critic_state_space is None:
            states = (None, None)
        elif told.critic_state is None:
            raise UserError(f"{self.spec.id} has a critic_state_space, and its Transition has no critic_state.")
        return Report({ONE: members}, terminated | truncated, _said(told.success), *states)


class ManyAgents:
    """A `JaxTeamEnv` as a `GroupedEnv`."""

    def __init__(self, env: JaxTeamEnv, agents: AgentsConfig | None = None):
        self.env = env
        self.spec = team_spec(env.id, env.roster, agents or AgentsConfig(), env.max_steps)
        self._groups: Groups = self.spec.groups
        draws = getattr(env, "render", None)
        if draws is not None:
            self.render = draws
        if self._groups.key is not None:
            self.stated = Stated(self, self._groups.key, inside=env)

    def with_groups(self, agents: AgentsConfig) -> ManyAgents:
        """The same environment with other groups."""
        return ManyAgents(self.env, agents)

    def reset(self, key: jax.Array, **task: PyTree) -> tuple[PyTree, Report]:
        state, first = self.env.reset(key, **task)
        return state, self._report(first)

    def step(self, key: jax.Array, state: PyTree, action: dict[str, PyTree], **task: PyTree) -> tuple[PyTree, Report]:
        actions = {
            agent: jax.tree.map(lambda leaf, i=i: leaf[i], action[name])
            for name, group in self._groups.items()
            for i, agent in enumerate(group.members)
        }
        state, moved = self.env.step(key, state, actions, **task)
        return state, replace(self._report(moved), info=moved.info)

    def _report(self, told: TeamTransition) -> Report:
        groups = {name: self._members(name, told) for name in self._groups}
        nobody = ~jnp.concatenate([jnp.asarray(members.alive) for members in groups.values()]).any()
        return Report(
            groups=groups,
            over=jnp.asarray(nobody if told.over is None else told.over, bool),
            success=_said(told.success),
            critic_state=None if self._groups.critic_state_space is None else told.critic_state,
        )

    def _members(self, name: str, told: TeamTransition) -> Members:
        names = self._groups[name].members

        def flags(each: dict[str, Any]) -> Bool[Array, " K"]:
            return jnp.stack([jnp.asarray(each[agent], bool) for agent in names])

        alive = flags(told.alive)
        return Members(
            obs=jax.tree.map(lambda *rows: jnp.stack(rows), *(told.obs[agent] for agent in names)),
            reward=jnp.stack([jnp.asarray(told.reward[agent], jnp.float32) for agent in names]),
            terminated=flags(told.terminated),
            truncated=flags(told.truncated),
            action_mask=None if told.action_mask is None else self._masks(name, told.action_mask),
            alive=alive,
            acts=alive if told.acts is None else alive & flags(told.acts),
        )

    def _masks(self, name: str, masks: dict[str, PyTree]) -> jax.Array | None:
        """Agent by agent; whoever has no mask may do everything. None for actions that are not chosen among."""
        group = self._groups[name]
        every = jnp.ones(group.mask_shape, bool)
        if not every.size:
            return None
        given = [masks.get(agent) for agent in group.members]
        return jnp.stack([every if mask is None else jnp.asarray(mask, bool).reshape(every.shape) for mask in given])


def _said(success: Any) -> jax.Array | None:
    return None if success is None else jnp.asarray(success).astype(jnp.int8)


def grouped(env: JaxEnv | GroupedEnv) -> GroupedEnv:
    """A JAX environment in the form in which it reports by group."""
    many: Any = env
    return many if isinstance(env, ManyAgents) else OneAgent(many)


def without_absent(space: Any, obs: PyTree, there: jax.Array) -> PyTree:
    """Observations [L, ...], blank of agents for whom `there` [L] is false: whatever an environment says of the dead,
    such as NaN, reaches no network and no statistic."""

    def rows(path: Any, leaf: Any) -> jax.Array:
        seen = pick(obs, path)
        wide = there.reshape(there.shape + (1,) * (seen.ndim - there.ndim))
        return jnp.where(wide, seen, jnp.broadcast_to(jnp.asarray(blank(leaf), seen.dtype), seen.shape))

    return build(space, rows)
