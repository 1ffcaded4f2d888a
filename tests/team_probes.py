"""Environments with many agents whose best policies are known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from probes import Alike
from proximo.envs import JaxTeamEnv, Roster, TeamTransition


def each(agents: Iterable[str], value: Any) -> dict[str, Any]:
    return dict.fromkeys(agents, value)


class TwoKinds(metaclass=Alike):
    """Two sorters see a bit and must name it; two aimers see a number and must give it back. One step an episode."""

    id = "two-kinds"
    max_steps = 1
    roster = Roster(
        observation_spaces={
            **each(("sorter_0", "sorter_1"), spaces.Discrete(2)),
            **each(("aimer_0", "aimer_1"), spaces.Box(-1, 1, (3,), np.float32)),
        },
        action_spaces={
            **each(("sorter_0", "sorter_1"), spaces.Discrete(2)),
            **each(("aimer_0", "aimer_1"), spaces.Box(-1, 1, (1,), np.float32)),
        },
    )

    def reset(self, key: jax.Array) -> tuple[Any, TeamTransition]:
        bits, numbers = (
            jax.random.bernoulli(key, shape=(2,)).astype(jnp.int32),
            jax.random.uniform(key, (2,), minval=-1),
        )
        return (bits, numbers), self._report(bits, numbers, jnp.zeros(4), False)

    def step(self, key: jax.Array, state: Any, actions: dict[str, Any]) -> tuple[Any, TeamTransition]:
        bits, numbers = state
        right = [(actions[f"sorter_{i}"] == bits[i]).astype(jnp.float32) for i in range(2)]
        near = [1 - jnp.abs(actions[f"aimer_{i}"][0] - numbers[i]) for i in range(2)]
        return state, self._report(bits, numbers, jnp.stack([*right, *near]), True)

    def _report(self, bits: jax.Array, numbers: jax.Array, reward: jax.Array, ended: bool) -> TeamTransition:
        seen = {f"sorter_{i}": bits[i] for i in range(2)}
        seen |= {f"aimer_{i}": jnp.full(3, numbers[i], jnp.float32) for i in range(2)}
        agents = self.roster.agents
        return TeamTransition(
            obs=seen,
            reward=dict(zip(agents, reward, strict=True)),
            terminated=each(agents, ended),
            truncated=each(agents, False),
            alive=each(agents, not ended),
        )


class Lifetimes(metaclass=Alike):
    """Agents that join and die at fixed times, and are paid by the clock: agent i lives from step JOINS[i] to ENDS[i],
    and gets 10 i + t at step t. The episode is over when nobody is left, after 6 steps."""

    id = "lifetimes"
    max_steps = 6
    JOINS, ENDS = (0, 0, 2), (3, 6, 5)  # the first step, and the one after the last
    roster = Roster(
        observation_spaces=each(("a_0", "a_1", "a_2"), spaces.Box(-1, 100, (1,), np.float32)),
        action_spaces=each(("a_0", "a_1", "a_2"), spaces.Discrete(2)),
    )

    def reset(self, key: jax.Array) -> tuple[Any, TeamTransition]:
        return jnp.int32(0), self._report(jnp.int32(0), False)

    def step(self, key: jax.Array, state: Any, actions: dict[str, Any]) -> tuple[Any, TeamTransition]:
        return state + 1, self._report(state + 1, True)

    def _report(self, now: jax.Array, moved: bool) -> TeamTransition:
        agents = self.roster.agents
        alive = {a: (now >= join) & (now < end) for a, join, end in zip(agents, self.JOINS, self.ENDS, strict=True)}
        reward = {a: 10.0 * i + (now - 1).astype(jnp.float32) for i, a in enumerate(agents)}
        return TeamTransition(
            obs={a: jnp.full(1, now, jnp.float32) for a in agents},
            reward=reward,
            terminated={a: (now == end) if moved else False for a, end in zip(agents, self.ENDS, strict=True)},
            truncated=each(agents, False),
            alive=alive,
        )


assert all(isinstance(kind(), JaxTeamEnv) for kind in (TwoKinds, Lifetimes))


class Weather(metaclass=Alike):
    """Two agents see a sign each and must answer it; both get 10 or -10 by the weather, which only the state shows, and
    0.02 for each right answer. For a critic that does not see the weather the answers drown in its noise. One step an
    episode."""

    id = "weather"
    max_steps = 1
    SIGNS = 16
    roster = Roster(
        observation_spaces=each(("left", "right"), spaces.Discrete(SIGNS)),
        action_spaces=each(("left", "right"), spaces.Discrete(2)),
        groups={"both": ("left", "right")},
        critic_state_space=spaces.Box(-1, 1, (1,), np.float32),
    )

    def reset(self, key: jax.Array) -> tuple[Any, TeamTransition]:
        key, own = jax.random.split(key)
        signs = jax.random.randint(own, (2,), 0, self.SIGNS)
        weather = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
        return (signs, weather), self._report(signs, weather, 0.0, False)

    def step(self, key: jax.Array, state: Any, actions: dict[str, Any]) -> tuple[Any, TeamTransition]:
        signs, weather = state
        right = sum((actions[agent] == signs[i] % 2).astype(jnp.float32) for i, agent in enumerate(self.roster.agents))
        return state, self._report(signs, weather, 10 * weather + 0.02 * right, True)

    def _report(self, signs: jax.Array, weather: jax.Array, reward: Any, ended: bool) -> TeamTransition:
        agents = self.roster.agents
        return TeamTransition(
            obs={agent: signs[i] for i, agent in enumerate(agents)},
            reward=each(agents, reward),
            terminated=each(agents, ended),
            truncated=each(agents, False),
            alive=each(agents, not ended),
            critic_state=weather[None],
        )


class RockPaperScissors(metaclass=Alike):
    """Two players show rock, paper or scissors, once an episode."""

    id = "rock-paper-scissors"
    max_steps = 1
    PAYS = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], np.float32)
    roster = Roster(
        observation_spaces=each(("one", "other"), spaces.Box(0, 1, (1,), np.float32)),
        action_spaces=each(("one", "other"), spaces.Discrete(3)),
    )

    def reset(self, key: jax.Array) -> tuple[Any, TeamTransition]:
        return (), self._report(jnp.float32(0), False)

    def step(self, key: jax.Array, state: Any, actions: dict[str, Any]) -> tuple[Any, TeamTransition]:
        return state, self._report(jnp.asarray(self.PAYS)[actions["one"], actions["other"]], True)

    def _report(self, pay: Any, ended: bool) -> TeamTransition:
        agents = self.roster.agents
        return TeamTransition(
            obs=each(agents, jnp.ones(1, jnp.float32)),
            reward={"one": pay, "other": -pay},
            terminated=each(agents, ended),
            truncated=each(agents, False),
            alive=each(agents, not ended),
        )


class Ghosts(Lifetimes):
    """`Lifetimes` in which whoever is not there sees `fill`: the dead, in the step in which they die too, and those who
    have not joined."""

    id = "ghosts"

    def __init__(self, fill: float) -> None:
        self.fill = fill

    def _report(self, now: jax.Array, moved: bool) -> TeamTransition:
        report = super()._report(now, moved)
        fill = jnp.full(1, self.fill, jnp.float32)
        return replace(report, obs={a: jnp.where(report.alive[a], report.obs[a], fill) for a in self.roster.agents})


class Rotation(metaclass=Alike):
    """Three players in turn, one a step; in step t of a game, whoever's turn it is, player i is paid 10 i + t, and all
    see t. A game has `moves` moves."""

    id = "rotation"
    max_steps = None
    roster = Roster(
        observation_spaces=each(("p_0", "p_1", "p_2"), spaces.Box(0, 1000, (1,), np.float32)),
        action_spaces=each(("p_0", "p_1", "p_2"), spaces.Discrete(2)),
    )

    def __init__(self, moves: int) -> None:
        self.moves = moves

    def reset(self, key: jax.Array) -> tuple[Any, TeamTransition]:
        return jnp.int32(0), self._report(jnp.int32(0))

    def step(self, key: jax.Array, state: Any, actions: dict[str, Any]) -> tuple[Any, TeamTransition]:
        return state + 1, self._report(state + 1)

    def _report(self, now: jax.Array) -> TeamTransition:
        agents, over = self.roster.agents, now == self.moves
        return TeamTransition(
            obs=each(agents, now.astype(jnp.float32)[None]),
            reward={agent: 10.0 * i + (now - 1).astype(jnp.float32) for i, agent in enumerate(agents)},
            terminated=each(agents, over),
            truncated=each(agents, False),
            alive=each(agents, ~over),
            acts={agent: now % 3 == i for i, agent in enumerate(agents)},
        )


class Clocks(metaclass=Alike):
    """Agents that join and die as in `Lifetimes`, and are paid 1 for naming the number of steps that they have been
    there. Only memory knows it, and only memory that was empty when they joined. All see 7, those who are not there
    too. It is drawn as a picture of what all were paid."""

    id = "clocks"
    max_steps = 6
    JOINS, ENDS = Lifetimes.JOINS, Lifetimes.ENDS
    PAID = (3, 6, 3)  # at most, in an episode
    roster = Roster(
        observation_spaces=each(("a_0", "a_1", "a_2"), spaces.Box(0, 10, (1,), np.float32)),
        action_spaces=each(("a_0", "a_1", "a_2"), spaces.Discrete(8)),
    )

    def reset(self, key: jax.Array) -> tuple[Any, TeamTransition]:
        return (jnp.int32(0), jnp.float32(0)), self._report(jnp.int32(0), each(self.roster.agents, 0.0), False)

    def step(self, key: jax.Array, state: Any, actions: dict[str, Any]) -> tuple[Any, TeamTransition]:
        now, total = state
        lives = zip(self.roster.agents, self.JOINS, self.ENDS, strict=True)
        right = {a: (actions[a] == now - join) & (now >= join) & (now < end) for a, join, end in lives}
        paid = {a: flag.astype(jnp.float32) for a, flag in right.items()}
        return (now + 1, total + sum(paid.values())), self._report(now + 1, paid, True)

    def render(self, state: Any) -> np.ndarray:
        return np.full((8, 8, 3), state[1], np.uint8)

    def _report(self, now: jax.Array, reward: dict[str, Any], moved: bool) -> TeamTransition:
        lives = list(zip(self.roster.agents, self.JOINS, self.ENDS, strict=True))
        return TeamTransition(
            obs=each(self.roster.agents, jnp.full(1, 7.0)),
            reward=reward,
            terminated={a: (now == end) if moved else False for a, _, end in lives},
            truncated=each(self.roster.agents, False),
            alive={a: (now >= join) & (now < end) for a, join, end in lives},
        )


class HighestWins(RockPaperScissors):
    """Two players name a number from 0 to 2, once an episode; the higher one wins."""

    id = "highest-wins"
    PAYS = np.array([[0, -1, -1], [1, 0, -1], [1, 1, 0]], np.float32)
