"""Makes Gymnasium's environments by their ids. Worker processes import this: it loads no JAX."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec


def make_registered(registered: EnvSpec | str, **options: Any) -> gymnasium.Env:
    """From what was registered: a worker process may not have run the code that does so."""
    # Its checker asks at every step what lanes ask better.
    return gymnasium.make(registered, disable_env_checker=True, **options)


def make_atari(name: str, **options: Any) -> gymnasium.Env:
    """The standard preprocessing: up to 30 no-ops at the start, every fourth frame (the maximum of the last two),
    84 x 84 in grey, the last four frames. Episodes are whole games and rewards are not clipped, so that returns are
    scores; `normalize.clip_rewards` clips them for learning."""
    importlib.import_module("ale_py")  # registers the games: in a worker process nobody has yet
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    env = gymnasium.make(name, frameskip=1, disable_env_checker=True, **options)
    return FrameStackObservation(AtariPreprocessing(env), 4)
