"""Many agents in groups: who shares a policy with whom."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from gymnasium import spaces

from proximo.config import AgentsConfig
from proximo.envs.api import HostSource, JaxEnv, Regrouped, Roster
from proximo.envs.groups import Group, Groups
from proximo.envs.spec import EnvSpec
from proximo.errors import UserError
from proximo.spaces import space_key

ALL = "all"
"""The one group of agents that share a policy."""


def named_groups(agents: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Agents by their names without the numbers at the end: `wolf_0` and `wolf_1` are of the group `wolf`."""
    groups: dict[str, list[str]] = {}
    for agent in agents:
        groups.setdefault(re.sub(r"[_-]?\d+$", "", agent) or ALL, []).append(agent)
    return {name: tuple(members) for name, members in groups.items()}


def team_spec(
    env_id: str, roster: Roster, agents: AgentsConfig, max_steps: int | None, masked: Collection[str] = ()
) -> EnvSpec:
    """The description of an environment of many agents, in the groups that the settings want. `masked`: whose action
    masks a host environment gives."""
    groups = in_groups(env_id, roster, agents, masked)
    seen, done = spaces.Dict(dict(roster.observation_spaces)), spaces.Dict(dict(roster.action_spaces))
    return EnvSpec(env_id, seen, done, max_steps, bool(masked), groups.critic_state_space, groups)


def in_groups(env_id: str, roster: Roster, agents: AgentsConfig, masked: Collection[str] = ()) -> Groups:
    """The agents of `roster` in groups, as the settings want them."""
    own = dict(roster.groups or named_groups(roster.agents))
    alike = all(_alike(roster, roster.agents[0], agent) for agent in roster.agents)
    kind = agents.policy
    if kind == "auto":
        fitting = all(_alike(roster, members[0], agent) for members in own.values() for agent in members)
        kind = "groups" if agents.members else "shared" if alike else "groups" if fitting else "independent"
    groups: Mapping[str, tuple[str, ...]]
    if kind == "shared":
        groups = {ALL: roster.agents}
    elif kind == "independent":
        groups = {agent: (agent,) for agent in roster.agents}
    else:
        groups = _given(env_id, roster, agents.members) if agents.members else own
    for name, members in groups.items():
        odd = next((agent for agent in members if not _alike(roster, members[0], agent)), None)
        if odd is not None:
            advice = "agents.policy=groups or independent" if kind == "shared" else "other agents.members"
            raise UserError(
                f"In {env_id}, {members[0]} and {odd} see or do different things, and cannot have one policy"
                f"{'' if kind == 'shared' else f' (group {name})'}; use {advice}. {members[0]} has "
                f"{_shown(roster, members[0])}, {odd} has {_shown(roster, odd)}."
            )
    made = {
        name: Group(
            tuple(members),
            roster.observation_spaces[members[0]],
            roster.action_spaces[members[0]],
            any(agent in masked for agent in members),
        )
        for name, members in groups.items()
    }
    return Groups(made, roster.critic_state_space if agents.critic == "central" else None, many=True)


def with_groups(source: JaxEnv | HostSource, agents: AgentsConfig) -> JaxEnv | HostSource:
    """`source` with its agents in the groups that the settings want. Settings for many agents are refused where there
    is one."""
    if isinstance(source, Regrouped):
        made: JaxEnv | HostSource = source.with_groups(agents)
        return made
    if agents != AgentsConfig():
        changed = next(name for name, value in vars(AgentsConfig()).items() if getattr(agents, name) != value)
        raise UserError(
            f"agents.{changed}={getattr(agents, changed)} is for environments with many agents, and "
            f"{source.spec.id} has one; leave it out."
        )
    return source


def _given(env_id: str, roster: Roster, groups: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    """The groups of the settings, if they have every agent once."""
    named = [agent for members in groups.values() for agent in members]
    unknown = [agent for agent in named if agent not in roster.agents]
    missing = [agent for agent in roster.agents if agent not in named]
    twice = sorted({agent for agent in named if named.count(agent) > 1})
    empty = [name for name, members in groups.items() if not members]
    for wrong, what in ((unknown, "does not have"), (missing, "also has"), (twice, "has only once"), (empty, "")):
        if wrong and what:
            raise UserError(
                f"agents.members must name each agent of {env_id} once; it {what} {', '.join(wrong)}. "
                f"Its agents are: {', '.join(roster.agents)}."
            )
        if wrong:
            raise UserError(f"agents.members: the group {wrong[0]} has no agent; leave it out.")
    return groups


def _alike(roster: Roster, one: str, other: str) -> bool:
    spaces = (roster.observation_spaces, roster.action_spaces)
    return all(space_key(each[one]) == space_key(each[other]) for each in spaces)


def _shown(roster: Roster, agent: str) -> str:
    return f"{roster.observation_spaces[agent]} and {roster.action_spaces[agent]}"
