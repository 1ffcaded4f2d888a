"""PettingZoo environments whose every number is known. They load no JAX, which worker processes need not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from faulty import RESET_OFFSET, RESTART_STRIDE

Moved = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]
"""What a step reports of each agent: observation, reward, whether it terminated or was truncated, and more."""


def about(name: str, **more: Any) -> dict[str, Any]:
    """The metadata of an environment."""
    return {"name": name, "render_modes": []} | more


class Lifetimes(ParallelEnv[str, Any, Any]):
    """Agents that join and die at fixed times, and are paid by the clock: `team_probes.Lifetimes` in host form."""

    metadata = about("lifetimes")
    render_mode: str | None = None
    JOINS, ENDS = (0, 0, 2), (3, 6, 5)  # the first step, and the one after the last

    def __init__(self) -> None:
        self.possible_agents = ["a_0", "a_1", "a_2"]
        self.space: spaces.Space[Any] = spaces.Box(-1, 100, (1,), np.float32)
        self.action: spaces.Space[Any] = spaces.Discrete(2)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        self.now = 0
        self.agents = self.living()
        return self.look(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Moved:
        assert list(actions) == self.agents
        self.now += 1
        agents = self.agents
        self.agents = self.living()
        seen = dict.fromkeys([*agents, *self.agents])
        rewards = {agent: 10.0 * i + self.now - 1 for i, agent in enumerate(self.possible_agents)}
        ends = dict(zip(self.possible_agents, self.ENDS, strict=True))
        terminations = {agent: self.now == ends[agent] for agent in seen}
        return self.look(seen), rewards, terminations, dict.fromkeys(seen, False), {agent: {} for agent in seen}

    def living(self) -> list[str]:
        times = zip(self.possible_agents, self.JOINS, self.ENDS, strict=True)
        return [agent for agent, join, end in times if join <= self.now < end]

    def look(self, agents: Iterable[str]) -> dict[str, Any]:
        return {agent: np.full(1, self.now, np.float32) for agent in agents}


class Leaving(Lifetimes):
    """As `Lifetimes`; at step 3, a_0 is truncated, and at step 5, a_2 is gone without a word."""

    def step(self, actions: dict[str, Any]) -> Moved:
        obs, rewards, terminations, truncations, infos = super().step(actions)
        if self.now == 3:
            terminations["a_0"], truncations["a_0"] = False, True
        if self.now == 5:
            for report in (obs, rewards, terminations, truncations, infos):
                report.pop("a_2")
        return obs, rewards, terminations, truncations, infos


class Ghosts(Lifetimes):
    """`team_probes.Ghosts` in host form."""

    metadata = about("ghosts")

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.fill = fill

    def look(self, agents: Iterable[str]) -> dict[str, Any]:
        seen = {agent: self.now if agent in self.agents else self.fill for agent in self.possible_agents}
        return {agent: np.full(1, number, np.float32) for agent, number in seen.items()}


class Rotation(AECEnv[str, Any, Any]):
    """`team_probes.Rotation` in host form."""

    metadata = about("rotation", is_parallelizable=False)
    render_mode = None

    def __init__(self, moves: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moves, self.possible_agents = moves, ["p_0", "p_1", "p_2"]
        self.observation_spaces = dict.fromkeys(self.possible_agents, spaces.Box(0, 1000, (1,), np.float32))
        self.action_spaces: dict[str, spaces.Space[Any]] = dict.fromkeys(self.possible_agents, spaces.Discrete(2))

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def observe(self, agent: str) -> np.ndarray:
        return np.full(1, self.now, np.float32)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.now, self.agents, self.agent_selection = 0, list(self.possible_agents), "p_0"
        self.rewards, self._cumulative_rewards = (dict.fromkeys(self.agents, 0.0) for _ in range(2))
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[self.agent_selection] = 0.0
        self.rewards = {agent: 10.0 * i + self.now for i, agent in enumerate(self.possible_agents)}
        self.now += 1
        self.terminations = dict.fromkeys(self.agents, self.now == self.moves)
        self.agent_selection = self.possible_agents[self.now % 3]
        self._accumulate_rewards()


class Clocks(Lifetimes):
    """`team_probes.Clocks` in host form."""

    metadata = about("clocks", render_modes=["rgb_array"])
    render_mode = "rgb_array"

    def __init__(self) -> None:
        super().__init__()
        self.space, self.action = spaces.Box(0, 10, (1,), np.float32), spaces.Discrete(8)

    def step(self, actions: dict[str, Any]) -> Moved:
        joins = dict(zip(self.possible_agents, self.JOINS, strict=True))
        paid = {agent: float(action == self.now - joins[agent]) for agent, action in actions.items()}
        self.total += sum(paid.values())
        obs, _, terminated, truncated, infos = super().step(actions)
        return obs, dict.fromkeys(obs, 0.0) | paid, terminated, truncated, infos

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        self.total = 0.0
        return super().reset(seed, options)

    def render(self) -> np.ndarray:
        return np.full((8, 8, 3), self.total, np.uint8)

    def look(self, agents: Iterable[str]) -> dict[str, Any]:
        return {agent: np.full(1, 7, np.float32) for agent in agents}


class RockPaperScissors(ParallelEnv[str, Any, Any]):
    """`team_probes.RockPaperScissors` in host form."""

    metadata = about("rock-paper-scissors")
    render_mode = None
    PAYS = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], np.float32)

    def __init__(self) -> None:
        self.possible_agents = ["one", "other"]
        self.space: spaces.Space[Any] = spaces.Box(0, 1, (1,), np.float32)
        self.action: spaces.Space[Any] = spaces.Discrete(3)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, np.ones(1, np.float32)), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Moved:
        pay = float(self.PAYS[actions["one"], actions["other"]])

        def each(value: Any) -> dict[str, Any]:
            return dict.fromkeys(self.possible_agents, value)

        self.agents = []
        rewards = {"one": pay, "other": -pay}
        return each(np.ones(1, np.float32)), rewards, each(True), each(False), {agent: {} for agent in rewards}


class Kinds(ParallelEnv[str, Any, Any]):
    """A dog with its mask in what it sees, a cat with its mask in its info, a text and a code that starts at 5, an owl
    without a mask. The cat leaves in the first step, the others are cut after three."""

    metadata = about("kinds")
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents = ["dog", "cat", "owl"]
        self.observation_spaces = {
            "dog": spaces.Dict({"observation": spaces.Box(1.0, 9.0, (2,)), "action_mask": spaces.MultiBinary(3)}),
            "cat": spaces.Dict({"code": spaces.Discrete(4, start=5), "word": spaces.Text(5)}),
            "owl": spaces.Tuple([spaces.Box(-1.0, 1.0, (1,), np.float64), spaces.MultiBinary(2)]),
        }
        self.action_spaces = {
            "dog": spaces.Discrete(3),
            "cat": spaces.MultiDiscrete([2, 2]),
            "owl": spaces.Dict({"wing": spaces.Box(-2.0, 2.0, (2,), np.float64), "hoot": spaces.Discrete(2, start=1)}),
        }

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        self.now, self.agents = 0, list(self.possible_agents)
        return self.look(), self.infos()

    def step(self, actions: dict[str, Any]) -> Moved:
        assert all(self.action_spaces[agent].contains(action) for agent, action in actions.items()), actions
        assert actions["dog"] != self.now, "forbidden by the mask"
        agents, self.now = self.agents, self.now + 1
        over = self.now == 3
        obs, infos = self.look(), self.infos()
        ends, cuts = (dict.fromkeys(agents, flag) for flag in (False, over))
        if "cat" in agents:
            ends["cat"] = True
        self.agents = [] if over else ["dog", "owl"]
        return obs, dict.fromkeys(agents, 0.5), ends, cuts, infos

    def look(self) -> dict[str, Any]:
        mask = np.ones(3, np.int8)
        mask[self.now % 3] = 0
        seen = {
            "dog": {"observation": np.full(2, 1 + self.now, np.float32), "action_mask": mask},
            "cat": {"code": np.int64(7), "word": "miau"},
            "owl": (np.array([0.5]), np.array([1, 0], np.int8)),
        }
        return {agent: seen[agent] for agent in self.agents}

    def infos(self) -> dict[str, Any]:
        return {agent: {"action_mask": ([1, 0], [1, 1])} if agent == "cat" else {} for agent in self.agents}


class Faulty(ParallelEnv[str, Any, Any]):
    """Two agents see the number of their environment, their step and a random number; every episode has five steps,
    each with reward 1.

    In environment `number`, `in_step` spoils step `at`, and `in_reset` the reset after `at` steps, before it was first
    started anew; by its seed one is known, that of the run being 0.
    """

    metadata = about("faulty")
    render_mode = None

    def __init__(
        self,
        in_step: Callable[[Any], Any] | None = None,
        in_reset: Callable[[Any], Any] | None = None,
        number: int = 1,
        at: int = 3,
    ) -> None:
        self.in_step, self.in_reset, self.faulty_number, self.at = in_step, in_reset, number, at
        self.possible_agents = ["left", "right"]
        self.space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action: spaces.Space[Any] = spaces.Discrete(2)
        self.generation = self.number = self.total = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.random = np.random.default_rng(seed)
            self.generation, self.number = divmod(seed - RESET_OFFSET, RESTART_STRIDE)
            self.total = 0
        self.count, self.agents = 0, list(self.possible_agents)
        result: Any = (self.look(), {agent: {} for agent in self.agents})
        return self.in_reset(result) if self.in_reset and self.now() else result

    def step(self, actions: dict[str, Any]) -> Any:
        self.total += 1
        self.count += 1
        agents, over = self.agents, self.count == 5

        def each(value: Any) -> dict[str, Any]:
            return dict.fromkeys(agents, value)

        result: Any = (self.look(), each(1.0), each(False), each(over), {agent: {} for agent in agents})
        if over:
            self.agents = []
        return self.in_step(result) if self.in_step and self.now() else result

    def look(self) -> dict[str, Any]:
        return {agent: np.array([self.number, self.total, self.random.random()], np.float32) for agent in self.agents}

    def now(self) -> bool:
        return self.number == self.faulty_number and self.total == self.at and self.generation == 0


def changed(place: int, agent: str, value: Any) -> Callable[[Any], Any]:
    """A fault: what one agent is told in one of the five reports."""

    def spoil(result: Any) -> Any:
        return (*result[:place], {**result[place], agent: value}, *result[place + 1 :])

    return spoil


def lacking(place: int, agent: str) -> Callable[[Any], Any]:
    """A fault: one agent is not told anything in one of the five reports."""

    def spoil(result: Any) -> Any:
        told = {key: value for key, value in result[place].items() if key != agent}
        return (*result[:place], told, *result[place + 1 :])

    return spoil
