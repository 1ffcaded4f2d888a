"""What a program is made of, and what it is told: settings that decide its shape, and numbers that are its arguments.

Runs whose settings differ in such numbers alone share one compiled program.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from proximo.config import Config, EnvConfig, TrackConfig, TrainConfig

Numbers = dict[str, dict[str, Any]]
"""Section and name of each setting that is an argument, with its value."""
MOVING = ("linear", "cosine")


def split(config: Config) -> tuple[Config, Numbers]:
    """The settings that decide the shape of a training program, all others at their defaults; and the numbers."""
    numbers: Numbers = {}
    for section in ("ppo", "normalize", "track"):
        values = vars(getattr(config, section))
        numbers[section] = {name: np.float32(value) for name, value in values.items() if type(value) is float}
    ppo = config.ppo
    schedules = (ppo.learning_rate_schedule, ppo.clip_epsilon_schedule, ppo.entropy_coef_schedule)
    train = TrainConfig(on_nonfinite=config.train.on_nonfinite)
    if any(schedule in MOVING for schedule in schedules):  # how far a run is depends on its length
        train = dataclasses.replace(train, total_timesteps=config.num_updates * config.frames_per_batch)
    shape = Config(
        env=EnvConfig(num_envs=config.env.num_envs, max_steps_per_episode=config.env.max_steps_per_episode),
        ppo=ppo,
        network=config.network,
        normalize=config.normalize,
        train=train,
        track=TrackConfig(success_return=config.track.success_return),
    )
    return joined(shape, {section: dict.fromkeys(names, 0.0) for section, names in numbers.items()}), numbers


def joined(shape: Config, numbers: Numbers, seed: Any = 0) -> Config:
    """`shape` with these numbers, which may be traced."""
    sections = {section: dataclasses.replace(getattr(shape, section), **numbers[section]) for section in numbers}
    return dataclasses.replace(shape, seed=seed, **sections)
