"""Environments with many agents whose best policies are known."""

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from proximo.envs import JaxTeamEnv, Roster, TeamTransition


def each(agents, value):
    return dict.fromkeys(agents, value)


class TwoKinds:
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

    def reset(self, key):
        bits, numbers = (
            jax.random.bernoulli(key, shape=(2,)).astype(jnp.int32),
            jax.random.uniform(key, (2,), minval=-1),
        )
        return (bits, numbers), self._report(bits, numbers, jnp.zeros(4), False)

    def step(self, key, state, actions):
        bits, numbers = state
        right = [(actions[f"sorter_{i}"] == bits[i]).astype(jnp.float32) for i in range(2)]
        near = [1 - jnp.abs(actions[f"aimer_{i}"][0] - numbers[i]) for i in range(2)]
        return state, self._report(bits, numbers, jnp.stack([*right, *near]), True)

    def _report(self, bits, numbers, reward, ended):
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


class Lifetimes:
    """Agents that join and die at fixed times, and are paid by the clock: agent i lives from step JOINS[i] to ENDS[i],
    and gets 10 i + t at step t. The episode is over when nobody is left, after 6 steps."""

    id = "lifetimes"
    max_steps = 6
    JOINS, ENDS = (0, 0, 2), (3, 6, 5)  # the first step, and the one after the last
    roster = Roster(
        observation_spaces=each(("a_0", "a_1", "a_2"), spaces.Box(-1, 100, (1,), np.float32)),
        action_spaces=each(("a_0", "a_1", "a_2"), spaces.Discrete(2)),
    )

    def reset(self, key):
        return jnp.int32(0), self._report(jnp.int32(0), False)

    def step(self, key, state, actions):
        return state + 1, self._report(state + 1, True)

    def _report(self, now, moved):
        agents = self.roster.agents
        alive = {a: (now >= join) & (now < end) for a, join, end in zip(agents, self.JOINS, self.ENDS, strict=True)}
        reward = {a: 10.0 * i + (now - 1.0) * moved for i, a in enumerate(agents)}
        return TeamTransition(
            obs={a: jnp.full(1, now, jnp.float32) for a in agents},
            reward=reward,
            terminated={a: moved & (now == end) for a, end in zip(agents, self.ENDS, strict=True)},
            truncated=each(agents, False),
            alive=alive,
        )


assert all(isinstance(kind(), JaxTeamEnv) for kind in (TwoKinds, Lifetimes))
