"""The pictures at the end of a run, and the film."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proximo.config import Config
from proximo.envs.api import HostSource, JaxEnv
from proximo.plots.write import draw_pictures
from proximo.rollout.episode_log import LoggedAgents, episode_log
from proximo.rollout.video import render_video

_drawing = threading.Lock()
"""Matplotlib is not made for threads, of which an experiment has several."""


def illustrate(
    path: Path,
    config: Config,
    result: dict[str, Any],
    env: JaxEnv | HostSource,
    agents: LoggedAgents,
    stop: Callable[[], bool] = bool,
) -> list[str]:
    """Draw the run in `path`, and, if its policy was evaluated, an episode of that. What fails becomes a sentence:
    a picture is never worth a run."""
    trouble: list[str] = []
    played = None
    try:
        if result["final_eval"]:
            played = episode_log(env, agents, config.env, config.seed, stop, config.eval.max_steps)
    except Exception as error:
        trouble.append(f"The final episode could not be traced: {type(error).__name__}: {error}")
    try:
        with _drawing:
            trouble += draw_pictures(path, config, result, played)
    except Exception as error:
        trouble.append(f"There are no pictures: {type(error).__name__}: {error}")
    try:
        if config.track.video and result["final_eval"]:
            limit = config.eval.max_steps
            trouble += render_video(path / "videos" / "final", env, agents, config.env, config.seed, max_steps=limit)[1]
    except Exception as error:
        trouble.append(f"There is no video: {error}")
    return trouble
