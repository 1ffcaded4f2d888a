"""JAX environments with many agents as one environment: agents of a group side by side."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from proximo.config import AgentsConfig
from proximo.envs.api import JaxTeamEnv, TeamTransition, Transition, Tree
from proximo.envs.host.bounds import blank
from proximo.envs.keys import Stated
from proximo.envs.spec import team_spec
from proximo.envs.team import arranged
from proximo.spaces import build, pick
from proximo.teams import AGENTS, STATE, Team


class GatheredEnv:
    """A `JaxEnv` of all agents of another environment, in groups."""

    def __init__(self, env: JaxTeamEnv, agents: AgentsConfig | None = None):
        self.env = env
        self.team: Team = arranged(env.id, env.roster, agents or AgentsConfig())
        self.spec = team_spec(env.id, self.team, env.max_steps)
        draws = getattr(env, "render", None)
        if draws is not None:
            self.render = draws
        self.stated = Stated(self, self.team.key, inside=env)

    def arranged(self, agents: AgentsConfig) -> GatheredEnv:
        """The same environment with other groups."""
        return GatheredEnv(self.env, agents)

    def reset(self, key: jax.Array) -> tuple[Tree, Transition]:
        state, first = self.env.reset(key)
        return state, self._gathered(first)

    def step(self, key: jax.Array, state: Tree, action: Tree) -> tuple[Tree, Transition]:
        actions = {
            agent: jax.tree.map(lambda leaf, i=i: leaf[i], action[group])
            for group, members in self.team.groups.items()
            for i, agent in enumerate(members)
        }
        state, moved = self.env.step(key, state, actions)
        return state, self._gathered(moved)

    def _gathered(self, report: TeamTransition) -> Transition:
        team = self.team
        alive = self._flags(report.alive)
        obs: dict[str, Tree] = {
            AGENTS: {
                group: jax.tree.map(lambda *rows: jnp.stack(rows), *(report.obs[agent] for agent in members))
                for group, members in team.groups.items()
            }
        }
        if team.state_space is not None:
            obs[STATE] = report.state
        return Transition(
            obs=obs,
            reward=jnp.stack([jnp.asarray(report.reward[agent], jnp.float32) for agent in team.agents]),
            terminated=self._flags(report.terminated),
            truncated=self._flags(report.truncated),
            action_mask=None if report.action_mask is None else self._mask(report.action_mask),
            success=report.success,
            alive=alive,
            acts=alive if report.acts is None else alive & self._flags(report.acts),
            over=jnp.asarray(~alive.any() if report.over is None else report.over, bool),
        )

    def _flags(self, each: dict[str, Any]) -> jax.Array:
        return jnp.stack([jnp.asarray(each[agent], bool) for agent in self.team.agents])

    def _mask(self, masks: dict[str, Tree]) -> jax.Array:
        """Agent by agent; whoever has no mask may do everything."""
        parts = []
        for group, members in self.team.groups.items():
            for agent in members:
                every = jnp.ones(self.team.mask_sizes[group], bool)
                given = masks.get(agent)
                parts.append(every if given is None else jnp.asarray(given, bool).reshape(-1))
        return jnp.concatenate(parts)


def shown(team: Team, obs: Tree, there: jax.Array) -> Tree:
    """Observations [..., K, ...] by group, blank of agents for whom `there` [..., A] is false: whatever an environment
    says of the dead, such as NaN, reaches no network and no statistic."""

    def rows(group: str, path: Any, leaf: Any) -> jax.Array:
        seen, flags = pick(obs[AGENTS][group], path), there[..., team.members(group)]
        wide = flags.reshape(flags.shape + (1,) * (seen.ndim - flags.ndim))
        return jnp.where(wide, seen, jnp.broadcast_to(jnp.asarray(blank(leaf), seen.dtype), seen.shape))

    return {
        **obs,
        AGENTS: {name: build(space, partial(rows, name)) for name, space in team.observation_spaces.items()},
    }
