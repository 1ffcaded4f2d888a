"""A critic that sees more than the actor: `python examples/privileged_critic.py`.

A hidden wind pays +10 or -10 whatever the agent does, and drowns the reward of its own choice. The critic is told the
wind as the `critic_state`, and what is left to explain is the choice. The actor never sees it: the saved policy acts on
observations alone.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from proximo import PPOTrainer


class Wind(gymnasium.Env[Any, Any]):
    """See one of 16 signs, and answer whether it is odd; one step an episode."""

    observation_space = spaces.Discrete(16)
    action_space = spaces.Discrete(2)
    critic_state_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.sign, self.wind = int(self.np_random.integers(16)), float(self.np_random.choice([-1.0, 1.0]))
        return self.sign, self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = 10.0 * self.wind + 0.1 * float(action == self.sign % 2)
        return self.sign, reward, True, False, self.info()

    def info(self) -> dict[str, Any]:
        return {"critic_state": np.array([self.wind], np.float32)}


def main(**settings: Any) -> PPOTrainer:
    trainer = PPOTrainer(Wind, **settings)
    trainer.train()
    return trainer


if __name__ == "__main__":
    agent = main(total_timesteps=100_000, num_envs=16, minibatch_size=256, gamma=0.9, out="runs/privileged").agent
    right = sum(int(agent.act(sign)) == sign % 2 for sign in range(16))
    expected = agent.value(3, critic_state=[1.0])
    print(f"{right} of 16 signs are answered right; with the wind the critic expects {expected:.2f}.")
