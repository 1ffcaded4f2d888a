"""The settings that decide the shape of a program, and the numbers that are its arguments.

Runs whose settings differ in such numbers alone share one compiled program.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Int

from proximo.config import Config, EnvConfig, TrackConfig, TrainConfig
from proximo.types import AnyArray

DynamicConfig = dict[str, dict[str, Any]]
"""Section and name of each setting that is an argument, with its value."""
MOVING = ("linear", "cosine")


def split_static(config: Config) -> tuple[Config, DynamicConfig]:
    """The settings that decide the shape of a training program, all others at their defaults; and the numbers."""
    dynamic: DynamicConfig = {}
    for section in ("ppo", "normalize", "track"):
        values = vars(getattr(config, section))
        dynamic[section] = {name: np.float32(value) for name, value in values.items() if type(value) is float}
    ppo = config.ppo
    schedules = (ppo.learning_rate_schedule, ppo.clip_epsilon_schedule, ppo.entropy_coef_schedule)
    train = TrainConfig(on_nonfinite=config.train.on_nonfinite, shards=config.train.shards)
    if any(schedule in MOVING for schedule in schedules):  # how far a run is depends on its length
        whole = config.num_updates * config.frames_per_batch
        train = dataclasses.replace(train, total_timesteps=whole, schedule_start=config.train.schedule_start)
    static = Config(
        env=EnvConfig(num_envs=config.env.num_envs, max_steps_per_episode=config.env.max_steps_per_episode),
        ppo=ppo,
        network=config.network,
        normalize=config.normalize,
        train=train,
        track=TrackConfig(success_return=config.track.success_return, info=config.track.info),
    )
    return merge(static, {section: dict.fromkeys(names, 0.0) for section, names in dynamic.items()}), dynamic


def merge(static: Config, dynamic: DynamicConfig, seed: int | Int[AnyArray, ""] = 0) -> Config:
    """`static` with these numbers, which may be traced."""
    sections: dict[str, Any] = {
        section: dataclasses.replace(getattr(static, section), **numbers) for section, numbers in dynamic.items()
    }
    return dataclasses.replace(static, **sections | {"seed": seed})
