"""Steps per second with images: `python bench/images.py`.

First random bytes as frames, of MinAtar's size and of Atari's, from an environment in JAX that costs next to nothing,
so that what is measured is the network: collecting with it, and learning (8 environments, 32 steps, 4 epochs of
minibatches of 64, one hidden layer of 256). Medians of REPEATS updates, by turns. Then games, as `proximo train` trains
them: medians over the updates after the first.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from proximo import PPOTrainer, settings
from proximo.envs import EnvSpec, Transition
from proximo.train.setup import fresh_agents, make_program

REPEATS = 3
SIZES = {"MinAtar, 10 x 10 x 4": (10, 10, 4), "Atari, 84 x 84 x 4": (84, 84, 4)}
GAMES = {"gymnax/Breakout-MinAtar": 500_000, "ALE/Pong-v5": 8_192}
"""And for how many steps they are trained."""
NETWORKS = (("small", "separate"), ("nature", "separate"), ("nature", "shared"), ("impala", "shared"))


class Snow:
    """Random frames, episodes of 100 steps."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.spec = EnvSpec("snow", spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(6))

    def reset(self, key: jax.Array) -> tuple[Any, Transition]:
        return jnp.int32(0), Transition(obs=jax.random.bits(key, self.shape, jnp.uint8))

    def step(self, key: jax.Array, clock: jax.Array, action: jax.Array) -> tuple[Any, Transition]:
        obs = jax.random.bits(key, self.shape, jnp.uint8)
        return clock + 1, Transition(obs=obs, reward=1.0, terminated=clock == 99)


class Training:
    """A program that is compiled; a call makes an update and returns the steps per second."""

    def __init__(self, shape: tuple[int, ...], cnn: str, torso: str) -> None:
        chosen = dict(
            num_envs=8,
            rollout_length=32,
            epochs_per_update=4,
            minibatch_size=64,
            hidden_sizes=[256],
            activation="relu",
            cnn=cnn,
            torso=torso,
            normalize_rewards=False,
        )
        config = settings.build(settings.from_keywords(chosen))
        env = Snow(shape)
        agents = fresh_agents(env.spec, config, None)
        self.program = make_program(env, agents, config)
        self.state = self.program.init((agents.part("params"), agents.part("obs_stats"), agents.part("reward_stats")))
        self.program.compile(self.state)
        self.frames = config.frames_per_batch

    def __call__(self) -> float:
        start = time.perf_counter()
        self.state, _ = self.program.run(self.state, 1)
        return self.frames / (time.perf_counter() - start)


def game(env: str, steps: int) -> float:
    """Steps per second of training, with the preset."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/run"
        PPOTrainer(env, total_timesteps=steps, eval_frequency=0, eval_episodes=1, mlflow=False, out=out).train()
        rows = [json.loads(line) for line in Path(out, "metrics.jsonl").read_text().splitlines()]
    return float(rows[0]["step"] / statistics.median(row["time/update"] for row in rows[1:]))


def main() -> None:
    for name, shape in SIZES.items():
        fitting = [pair for pair in NETWORKS if pair[0] != "nature" or min(shape[:2]) >= 36]
        contestants = {pair: Training(shape, *pair) for pair in fitting}
        rates: dict[tuple[str, str], list[float]] = {pair: [] for pair in contestants}
        for _ in range(REPEATS):
            for pair, update in contestants.items():
                rates[pair].append(update())
        for (cnn, torso), found in rates.items():
            print(f"{name:<22}{cnn:<8}{torso:<10}{statistics.median(found):10,.0f} steps per second", flush=True)
    for env, steps in GAMES.items():
        print(f"{env:<40}{game(env, steps):10,.0f} steps per second", flush=True)


if __name__ == "__main__":
    main()
