"""Gymnasium environments whose every number is known, for tests of what steps them."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from probes import Alike
from proximo.envs.api import EnvSpec, Transition

START, LIMIT, WALL = 0.25, 7, 2.0


class Walk(gymnasium.Env[Any, Any]):
    """x goes 0.75 up (action 1) or 0.5 down (action 0) from 0.25, reward x; beyond +-2 the walk terminates, after
    seven steps it is cut. On steps divisible by three only up is allowed. `CompiledWalk` is the same in JAX."""

    observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.clock = np.float32(START), 0
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.clock += 1
        self.x = self.x + np.float32(0.75 if action == 1 else -0.5)
        obs, info = self._seen()
        terminated = bool(abs(self.x) > WALL)
        return obs, float(self.x), terminated, self.clock == LIMIT and not terminated, info

    def _seen(self) -> tuple[np.ndarray, dict[str, Any]]:
        allowed = np.array([self.clock % 3 != 0, True])
        return np.array([self.x, self.clock], np.float32), {"action_mask": allowed}


class Telling(Walk):
    """Tells how far it is: of all steps its clock, of each third a number that is none, at the end how it went."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        info |= {"clock": np.int64(self.clock), "third": np.array([3.0]) if self.clock % 3 == 0 else math.inf}
        info |= {"went": True} if terminated or truncated else {}
        return obs, reward, terminated, truncated, info


class CompiledWalk(metaclass=Alike):
    """`Walk` as a `JaxEnv`."""

    spec = EnvSpec("Walk", Walk.observation_space, Walk.action_space)

    def reset(self, key: jax.Array) -> tuple[Any, Transition]:
        state = (jnp.float32(START), jnp.int32(0))
        return state, Transition(obs=self._obs(state), action_mask=self._mask(state))

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        x, clock = state
        state = (x + jnp.where(action == 1, 0.75, -0.5), clock + 1)
        terminated = jnp.abs(state[0]) > WALL
        return state, Transition(
            obs=self._obs(state),
            reward=state[0],
            terminated=terminated,
            truncated=(state[1] == LIMIT) & ~terminated,
            action_mask=self._mask(state),
        )

    def _obs(self, state: Any) -> jax.Array:
        return jnp.stack([state[0], state[1].astype(jnp.float32)])

    def _mask(self, state: Any) -> jax.Array:
        return jnp.stack([state[1] % 3 != 0, jnp.bool_(True)])


class Noisy(gymnasium.Env[Any, Any]):
    """Draws its observations, rewards and ends from its own generator: shows seeds and resets. The first entry
    of the observation is the seed of the last seeded reset, the second the number of resets since."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Box(-2.0, 1.0, (3,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.seed, self.resets = seed, -1
        self.resets += 1
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        ended = self.np_random.random() < 0.15
        return self._obs(), float(np.sum(action)), ended, not ended and self.np_random.random() < 0.05, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.seed, self.resets, *self.np_random.normal(size=2)], np.float32)


class Hybrid(gymnasium.Env[Any, Any]):
    """A dictionary of everything to see, a dictionary of everything to do, a mask in the observation; one step."""

    observation_space = spaces.Dict(
        {
            "action_mask": spaces.MultiBinary(5),
            "grid": spaces.Box(0, 255, (5, 5, 3), np.uint8),
            "inner": spaces.Dict({"count": spaces.Discrete(3, start=-1), "word": spaces.Text(5)}),
            "pair": spaces.Tuple([spaces.MultiBinary(2), spaces.Box(-1.0, 1.0, (), np.float64)]),
        }
    )
    action_space = spaces.Dict(
        {
            "move": spaces.Discrete(3, start=1),
            "push": spaces.Box(-1.0, 4.0, (2,), np.float64),
            "talk": spaces.Discrete(2),
        }
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        assert action["move"] != 2, "forbidden by the mask"
        return self._obs(), float(action["talk"]), True, False, {"is_success": action["talk"] == 1}

    def _obs(self) -> dict[str, Any]:
        return {
            "action_mask": np.array([1, 0, 1, 1, 1], np.int8),
            "grid": np.full((5, 5, 3), 7, np.uint8),
            "inner": {"count": np.int64(self.np_random.integers(-1, 2)), "word": "go"},
            "pair": (np.array([0, 1], np.int8), np.array(0.5)),
        }
