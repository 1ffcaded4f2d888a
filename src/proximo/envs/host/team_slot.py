"""One host environment of many agents, with PettingZoo's parallel methods, in its slot: as `Slot`, for each agent."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proximo.envs.host.bounds import blank
from proximo.envs.host.shared_memory import UNSAID
from proximo.envs.host.slot import CRITIC_STATE, AgentFields, Slot, flag_of, kind_of, reward_of
from proximo.envs.host.transfer import MASK, EnvContractError, Row, action_reader, choices, fitting_mask
from proximo.spaces import leaves

REPORTS = ("observations", "rewards", "terminations", "truncations", "infos")


@dataclass(frozen=True)
class Member:
    """An agent, and its places in the buffers."""

    name: str
    fields: AgentFields
    act: Callable[[], Any]
    """Reads its action."""
    rows: list[Row]
    final_rows: list[Row]
    blanks: list[NDArray[Any]]
    """What stands in the rows while it is not there."""
    action_space: spaces.Space[Any]
    flags: NDArray[Any] | None
    """Its action mask, where it has one."""
    starts: NDArray[Any]
    """Where the flags of each of its choices begin."""

    def show(self, obs: Any) -> None:
        for row in self.rows:
            row.write(obs)

    def vanish(self) -> None:
        for row, nothing in zip(self.rows, self.blanks, strict=True):
            row.array[...] = nothing

    def show_last(self, obs: Any, was: bool, stays: bool) -> None:
        """Write what it saw last: this, or if it is gone without a word, what it saw before."""
        for final, row, nothing in zip(self.final_rows, self.rows, self.blanks, strict=True):
            if stays or (was and self.fields.key in obs):
                final.write(obs)
            else:
                final.array[...] = row.array if was else nothing

    def check_last(self, dead: bool, judged: bool) -> None:
        """Refuse numbers that are not finite in what it saw last. Nobody asks the dead: theirs is left out where not
        finite, and where a critic is asked what it expects of others (`judged`), who then see them no more."""
        for final, nothing in zip(self.final_rows, self.blanks, strict=True):
            if not dead:
                final.check()
            elif judged or not np.isfinite(final.array).all():
                final.array[...] = nothing

    def write_mask(self, obs: Any, infos: Any, acts: bool) -> None:
        """Which of its actions are allowed; all of them while none counts."""
        if self.fields.mask is None or self.flags is None:
            return
        if not acts:
            self.flags[...] = True
            return
        told = (obs if self.fields.mask == "obs" else infos).get(self.fields.key)
        given = told.get(MASK) if isinstance(told, Mapping) else None
        self.flags[...] = fitting_mask(self.action_space, given, self.starts, f" of {self.name}")


class TeamSlot(Slot):
    """An environment of many agents and its rows in the buffers."""

    _alive: list[bool]
    """Who is there."""
    _acts: list[bool]
    """Whose next action counts."""

    def _lay_out(self) -> None:
        groups, layout, buffers = self.options.spec.groups, self.options.agent_layout, self._buffers
        assert layout is not None
        self._agent_fields = layout.agents
        self._members: list[Member] = []
        self._spans = []  # of each group: its arrays, the lanes of this environment, and its columns among the agents
        for (name, group), columns in zip(groups.items(), groups.columns.values(), strict=True):
            own, first = buffers.groups[name], self.index * group.size
            self._spans.append((own, slice(first, first + group.size), columns))
            seen = list(leaves(group.observation_space))
            if own.action_mask is not None:
                own.action_mask[first : first + group.size] = True
            for lane, agent in enumerate(group.members, first):
                fields = layout.agents[agent]
                inside = (fields.key, *fields.inside)
                rows, final_rows = (
                    [Row((*inside, *path), array, lane) for (path, _), array in zip(seen, arrays, strict=True)]
                    for arrays in (own.obs, own.final_obs)
                )
                member = Member(
                    name=agent,
                    fields=fields,
                    act=action_reader(group.action_space, own.action, lane),
                    rows=rows,
                    final_rows=final_rows,
                    blanks=[blank(leaf) for _, leaf in seen],
                    action_space=group.action_space,
                    flags=None if own.action_mask is None else own.action_mask[lane],
                    starts=np.cumsum([0, *choices(group.action_space)])[:-1],
                )
                self._members.append(member)
        self._by_key = {member.fields.key: member for member in self._members}
        known = [] if groups.critic_state_space is None else list(leaves(groups.critic_state_space))
        self._state_rows, self._final_state_rows = (
            [Row(path, array, self.index, CRITIC_STATE) for (path, _), array in zip(known, arrays, strict=True)]
            for arrays in (buffers.critic_state, buffers.final_critic_state)
        )
        self._rows = [row for member in self._members for row in member.rows]
        self._final_rows = [row for member in self._members for row in member.final_rows]

    def _report(self, field: str, each: Any) -> None:
        """Write numbers or flags of all agents."""
        for own, lanes, columns in self._spans:
            getattr(own, field)[lanes] = each[columns]

    def step(self) -> None:
        if self.env is None:
            self.recover()
        elif self.move():
            self.begin()

    def begin(self) -> None:
        """Begin the next episode."""
        self._show(*self._begin_next())

    def move(self) -> bool:
        """Take the actions in the buffers, and report; whether the episode is over. The next one is not begun."""
        self.where = "step"
        self.total += 1
        self.length += 1
        recording = self._recording
        if self.total <= recording.until:
            for part in self._action_bytes:
                recording.actions += part
        obs, rewards, terminations, truncations, infos = self._stepped()
        if self._info is not None:
            self._info.write_means(infos)
        there, was, members = self._there(), self._alive, self._members
        ends = [_ends(member, terminations, "termination") for member in members]
        cut = [_ends(member, truncations, "truncation") for member in members]
        stays = [
            member.fields.key in there and not end and not late
            for member, end, late in zip(members, ends, cut, strict=True)
        ]
        over = not any(stays) or self.length == self._limit
        truncated = [
            before and not end and (over or not stay) for before, end, stay in zip(was, ends, stays, strict=True)
        ]
        paid = [
            _paid(member, rewards, stay) if before else 0.0
            for member, before, stay in zip(members, was, stays, strict=True)
        ]
        recording.rewards += sum(paid)
        self._report("reward", paid)
        self._report("terminated", [before and end for before, end in zip(was, ends, strict=True)])
        self._report("truncated", truncated)
        self._report("valid", self._acts)
        self._report("present", was)
        self._buffers.reset[self.index] = over
        if over or any(truncated):
            for member, before, stay, end in zip(members, was, stays, ends, strict=True):
                member.show_last(obs, before, stay)
                member.check_last(end, any(truncated))
        if any(truncated):
            self._write_state(self._final_state_rows)
            for row in self._final_state_rows:
                row.check()
        if over:
            self._buffers.success[self.index] = _success(infos)
            if self._info is not None:
                self._info.note_names(ChainMap(*(dict(info) for info in infos.values() if isinstance(info, Mapping))))
        else:
            self._alive, self._acts = stays, self._on_turn(stays)
            self._show(obs, infos)
        return over

    def _count_for_nothing(self) -> None:
        nobody = [False] * len(self._members)
        self._report("reward", [0.0] * len(nobody))
        self._report("terminated", nobody)
        self._report("truncated", [True] * len(nobody))
        self._report("valid", nobody)

    def _own_actions(self) -> list[np.ndarray]:
        return [array[lanes] for own, lanes, _ in self._spans for array in own.action]

    def _action_leaves(self) -> list[spaces.Space[Any]]:
        groups = self.options.spec.groups.values()
        return [leaf for group in groups for _, leaf in leaves(group.action_space)]

    def _shown(self) -> list[NDArray[Any]]:
        rows = [row.array for row in (*self._rows, *self._state_rows)]
        flags = [
            part[lanes]
            for own, lanes, _ in self._spans
            for part in (own.action_mask, own.alive, own.acts)
            if part is not None
        ]
        return rows + flags

    def _show_again(self, shown: list[NDArray[Any]]) -> None:
        super()._show_again(shown)
        self._alive, self._acts = self._flags("alive"), self._flags("acts")

    def _flags(self, field: str) -> list[bool]:
        """Flags of all agents, as they were reported."""
        each = [False] * len(self._members)
        for own, lanes, columns in self._spans:
            each[columns] = getattr(own, field)[lanes].tolist()
        return each

    def _stepped(self) -> tuple[Any, ...]:
        result = self.env.step({key: self._by_key[key].act() for key in self.env.agents})
        if not isinstance(result, tuple) or len(result) != len(REPORTS):
            raise EnvContractError(f"step must return five values ({', '.join(REPORTS)}), not {kind_of(result)}")
        for name, report in zip(REPORTS, result, strict=True):
            if not isinstance(report, Mapping):
                raise EnvContractError(f"step must return a dictionary by agent as {name}, not {kind_of(report)}")
        return result

    def _seed_actions(self, seed: int) -> None:
        for number, fields in enumerate(self._agent_fields.values()):  # whatever the groups
            self.env.action_space(fields.key).seed(seed + number)

    def _begin(self, seed: int | None) -> tuple[Any, Any]:
        obs, infos = super()._begin(seed)
        if not isinstance(obs, Mapping):
            raise EnvContractError(f"reset must return a dictionary by agent as observations, not {kind_of(obs)}")
        there = self._there()
        if not there:
            raise EnvContractError("after a reset there is nobody in its list of agents")
        self._alive = [member.fields.key in there for member in self._members]
        self._acts = self._on_turn(self._alive)
        return obs, infos

    def _show(self, obs: Any, info: Any) -> None:
        """Write what those see who are there."""
        for member, alive, acts in zip(self._members, self._alive, self._acts, strict=True):
            if alive:
                member.show(obs)
            else:
                member.vanish()
            member.write_mask(obs, info, acts)
        self._write_state(self._state_rows)
        self._report("alive", self._alive)
        self._report("acts", self._acts)

    def _write_state(self, rows: list[Row]) -> None:
        state = self.env.state() if rows else None
        for row in rows:
            row.write(state)

    def _there(self) -> set[Any]:
        """Whom the environment has, as it calls them."""
        there = set(self.env.agents)
        if not there <= self._by_key.keys():
            unknown = ", ".join(sorted(map(str, there - self._by_key.keys())))
            raise EnvContractError(f"it has agents that are not among its possible_agents: {unknown}")
        return there

    def _on_turn(self, alive: list[bool]) -> list[bool]:
        assert self.options.agent_layout is not None
        if not self.options.agent_layout.turns:
            return alive
        whose = self.env.aec_env.agent_selection
        return [there and member.fields.key == whose for there, member in zip(alive, self._members, strict=True)]


def _paid(member: Member, rewards: Any, stays: bool) -> float:
    """An agent's reward; whoever is gone without a word gets nothing."""
    if member.fields.key not in rewards and stays:
        raise EnvContractError(f"there is no reward for {member.name}")
    return reward_of(rewards.get(member.fields.key, 0.0), f" of {member.name}")


def _ends(member: Member, flags: Any, name: str) -> bool:
    flag = flags.get(member.fields.key, False)
    return flag if type(flag) is bool else flag_of(flag, f"the {name} of {member.name}")


def _success(infos: Any) -> int:
    """Whether all succeeded who say so."""
    said = [info["is_success"] for info in infos.values() if isinstance(info, Mapping) and "is_success" in info]
    return all(said) if said else UNSAID
