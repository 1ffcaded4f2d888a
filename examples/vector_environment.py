"""A simulator of many environments at once, in NumPy: rockets that are to land softly. It is a
`gymnasium.vector.VectorEnv`, which is all that Proximo needs to know.

    python examples/vector_environment.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from proximo import PPOTrainer, check

GRAVITY, THRUST, TICK, LIMIT = 1.6, 4.0, 0.1, 200


class Rockets(VectorEnv[Any, Any, Any]):
    """Each falls from 10 m, and its engine is off or on. An episode ends on the ground, with a reward of 10 for less
    than 1 m/s; a step costs 0.01."""

    single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        # A rocket that has landed is reset in the same step, so `info` must have what it saw last.
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)  # seeds self.np_random
        self.height, self.speed, self.steps = np.zeros((3, self.num_envs))
        self._start(np.ones(self.num_envs, bool))
        return self._seen(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.speed += (THRUST * actions - GRAVITY) * TICK
        self.height += self.speed * TICK
        self.steps += 1
        landed = self.height <= 0
        softly = landed & (self.speed > -1)
        late = (self.steps >= LIMIT) & ~landed
        reward = 10.0 * softly - 0.01
        info = {}
        if (ended := landed | late).any():
            info = {"final_obs": self._seen(), "final_info": {"is_success": softly}}
            self._start(ended)
        return self._seen(), reward, landed, late, info

    def _start(self, which: Any) -> None:
        self.height = np.where(which, 10.0, self.height)
        self.speed = np.where(which, self.np_random.uniform(-2, 0, self.num_envs), self.speed)
        self.steps = np.where(which, 0, self.steps)

    def _seen(self) -> Any:
        return np.stack([self.height, self.speed], axis=1).astype(np.float32)


def main(**keywords: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"num_envs": 64, "total_timesteps": 400_000, "out": "runs/rockets"}
    # The class itself is the factory: it is called with the number of environments, for training and for evaluations.
    return PPOTrainer(Rockets, **(settings | keywords)).train()


if __name__ == "__main__":
    print(check(Rockets))
    print(main()["final_eval"]["success_rate"])
