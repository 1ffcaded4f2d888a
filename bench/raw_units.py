"""Two known tasks in raw units, as environments from a laboratory often are: millimetres, degrees, rewards in the
hundreds and thousands. Registered with Gymnasium as `raw_units:RawLander-v0` and `raw_units:RawPendulum-v0`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TransformObservation, TransformReward

DEGREES = 180 / np.pi
Env = gymnasium.Env[Any, Any]


def scaled(env: Env, factors: np.ndarray, reward: float) -> Env:
    """`env` with observations times `factors` and rewards times `reward`; bounds of observations are not said."""
    space = gymnasium.spaces.Box(-np.inf, np.inf, factors.shape, np.float32)
    env = TransformObservation(env, lambda obs: (obs * factors).astype(np.float32), space)
    return TransformReward(env, lambda value: float(value) * reward)


def raw_lander(**kwargs: Any) -> Env:
    """LunarLander: positions in thousandths, angles in degrees, hundredfold rewards."""
    factors = np.array([1000, 1000, 1000, 1000, DEGREES, DEGREES, 1, 1])
    return scaled(gymnasium.make("LunarLander-v3", **kwargs), factors, 100.0)


def raw_pendulum(**kwargs: Any) -> Env:
    """Pendulum: the tip in thousandths, the speed in degrees a second, thousandfold rewards."""
    return scaled(gymnasium.make("Pendulum-v1", **kwargs), np.array([1000, 1000, DEGREES]), 1000.0)


gymnasium.register("RawLander-v0", "raw_units:raw_lander")
gymnasium.register("RawPendulum-v0", "raw_units:raw_pendulum")
