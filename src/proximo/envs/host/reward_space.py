"""Environments that declare several rewards for each step."""

from __future__ import annotations

import math
from typing import Any

import gymnasium

from proximo.envs.host.snapshot import BOOKKEEPING
from proximo.errors import UserError

PASSING = (gymnasium.Wrapper.step, gymnasium.ObservationWrapper.step, gymnasium.ActionWrapper.step)
"""A wrapper with one of these leaves rewards as they are."""


def check_reward_space(env: Any, name: str) -> None:
    """Refuse an environment that declares several rewards for each step, unless a wrapper may make one of them. What
    does so without a word is named at its first step."""
    while not declares_rewards(env):
        if not isinstance(env, gymnasium.Wrapper) or (type(env) not in BOOKKEEPING and type(env).step not in PASSING):
            return
        env = env.env
    shape = getattr(env.reward_space, "shape", None)
    if shape and math.prod(shape) > 1:
        raise UserError(
            f"{name} gives {math.prod(shape)} rewards at each step (its reward_space is {env.reward_space}), and PPO "
            f"learns from one number; put a wrapper around it that weighs and adds them (env.wrappers), as "
            f"mo_gymnasium.wrappers:LinearReward does."
        )


def declares_rewards(env: Any) -> bool:
    """Whether this very object has a `reward_space`: wrappers pass on the attributes of what they wrap."""
    return "reward_space" in vars(env) or hasattr(type(env), "reward_space")
