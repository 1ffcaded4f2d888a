"""Film a policy: the pictures of one episode, drawn by the environment itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from numpy.typing import NDArray

from proximo.config import EnvConfig, EvalConfig
from proximo.envs.api import HostEnv, HostSource, JaxEnv
from proximo.envs.host.camera import Camera, picture
from proximo.errors import EnvError, UserError
from proximo.policy.behaviour import Learners, actors
from proximo.rollout.episode_log import LoggedAgents, compiled_steps, host_steps
from proximo.rollout.evaluate import step_limit
from proximo.rollout.video_file import check_installed, write_video
from proximo.seeding import evaluation_action_key

FPS = 30
"""Frames a second, for environments that do not say (`metadata["render_fps"]`)."""
# Pictures go into a file: they need no sound, no greeting on the standard output, and no screen.
QUIET = {"SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
WITHOUT_SCREEN = {"SDL_VIDEODRIVER": "dummy", "MUJOCO_GL": "egl"}

Frames = Iterator[NDArray[Any]]


def episode_frames(
    source: JaxEnv | HostSource,
    agents: LoggedAgents,
    env: EnvConfig,
    seed: int,
    deterministic: bool = True,
    max_steps: int = EvalConfig.max_steps,
) -> tuple[Frames, float]:
    """The pictures [H, W, 3] of an episode, made as they are taken, and how many make a second.

    The episode starts as the first one of an evaluation with the same seed does. An environment that cannot be drawn
    is refused at once.
    """
    check_drawn(source)
    env = replace(env, max_steps_per_episode=step_limit(source, env, max_steps))
    key = None if deterministic else evaluation_action_key(seed)
    given = (Learners(agents.policies), actors(agents.groups), env, seed, key)
    if isinstance(source, FilmedSource):
        filmed, camera = source.filmed(env)
        return host_frames(filmed, camera, given), rate(camera)
    return compiled_frames(source, given), rate(source)


@runtime_checkable
class FilmedSource(Protocol):
    """A `HostSource` whose environments can be filmed."""

    def filmed(self, env: EnvConfig) -> tuple[HostEnv, Camera]: ...


def check_drawable(source: JaxEnv | HostSource) -> None:
    """Refuse, before a run has begun, an environment that cannot be filmed at its end."""
    check_installed()
    check_drawn(source)
    if isinstance(source, FilmedSource):
        env, camera = source.filmed(EnvConfig())
        try:
            camera.reset(seed=0)
        finally:
            env.close()
            camera.env.close()


def check_drawn(source: JaxEnv | HostSource) -> None:
    """Refuse an environment that cannot be drawn."""
    prepare()
    if isinstance(source, FilmedSource) or (hasattr(source, "render") and not isinstance(source, HostSource)):
        return
    known = "EnvPool's cannot" if isinstance(source, HostSource) else "it has no method `render(state)`"
    raise UserError(
        f"{source.spec.id} cannot be drawn: {known}. Gymnasium's and PettingZoo's can, and JAX "
        f"environments with a method `render(state)` that gives a picture [H, W, 3] of bytes."
    )


def prepare() -> None:
    """Tell the libraries that draw how to do so, where the user has not."""
    screen = sys.platform != "linux" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    for name, value in (QUIET if screen else QUIET | WITHOUT_SCREEN).items():
        os.environ.setdefault(name, value)


def render_video(
    stem: Path,
    source: JaxEnv | HostSource,
    agents: LoggedAgents,
    env: EnvConfig,
    seed: int,
    deterministic: bool = True,
    max_steps: int = EvalConfig.max_steps,
) -> tuple[list[str], list[str]]:
    """Write an episode as `stem`.mp4 and `stem`.gif; the files, and what the user should know of them."""
    check_installed()
    frames, fps = episode_frames(source, agents, env, seed, deterministic, max_steps)
    count, more = write_video(stem, frames, fps)
    cut = f"The video was cut after {count:,} frames; the episode goes on."
    return [f"{stem}.mp4", f"{stem}.gif"], [cut] if more else []


def host_frames(env: HostEnv, camera: Camera, given: tuple[Any, ...]) -> Frames:
    """The pictures of an episode of an environment that draws itself; it is closed in the end."""
    with closing(env):
        try:
            for steps in host_steps(env, *given):
                end = np.flatnonzero(steps.reset[:, 0])
                # What was drawn after the end, at each step and each reset, is of the next episodes.
                taken = len(camera.pictures) - (len(steps.reset) - end[0] - 1 + len(end) if len(end) else 0)
                yield from camera.pictures[:taken]
                if len(end):
                    return
                camera.pictures.clear()
        except EnvError:
            if camera.trouble is not None:
                raise camera.trouble from None
            raise


def compiled_frames(env: Any, given: tuple[Any, ...]) -> Frames:
    """The pictures of an episode of a JAX environment that has a method `render`."""
    for chunk in compiled_steps(env, *given):
        steps = chunk.until_end()
        before, after = steps.env
        for t in range(len(steps.reset)):
            yield picture(env.render(jax.tree.map(lambda leaf, t=t: leaf[t, 0], before)), env.spec.id)
        if steps.over:
            if after is not None:
                yield picture(env.render(jax.tree.map(lambda leaf: leaf[-1, 0], after)), env.spec.id)
            return


def rate(env: Any) -> float:
    """Frames a second that make an environment's clock run as ours."""
    return float((getattr(env, "metadata", None) or {}).get("render_fps") or FPS)
