"""Film a policy: the pictures of one episode, drawn by the environment itself."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from proximo.config import EnvConfig, EvalConfig
from proximo.envs.api import HostSource, JaxEnv
from proximo.envs.host.rows import read_mask
from proximo.errors import EnvError, ProximoError, UserError
from proximo.evaluate import Actions, step_limit
from proximo.policy.observation import ObservationAdapter
from proximo.policy.team_agent import AnyAgent
from proximo.seeding import EVALUATION_OFFSET, RESET_OFFSET, evaluation_action_key
from proximo.spaces import cast, to_mask
from proximo.trace import JaxStage, Seen, play
from proximo.track.video import check_installed, write_video

FPS = 30
"""Frames a second, for environments that do not say (`metadata["render_fps"]`)."""
# Pictures go into a file: they need no sound, no greeting on the standard output, and no screen.
QUIET = {"SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
WITHOUT_SCREEN = {"SDL_VIDEODRIVER": "dummy", "MUJOCO_GL": "egl"}

Frames = Iterator[np.ndarray]


def record(
    source: JaxEnv | HostSource,
    agent: AnyAgent,
    env: EnvConfig,
    seed: int,
    deterministic: bool = True,
    max_steps: int = EvalConfig.max_steps,
) -> tuple[Frames, float]:
    """The pictures [H, W, 3] of an episode, made as they are taken, and how many make a second.

    The episode starts as the first one of an evaluation with the same seed does. An environment that cannot be drawn
    is refused at once.
    """
    draws = drawing(source)
    actions = Actions(agent.policy, None if deterministic else evaluation_action_key(seed))
    limit = step_limit(source, env, max_steps)
    if not isinstance(source, HostSource):
        return compiled_frames(source, actions, agent, limit, seed), rate(source)
    canvas = draws()
    return host_frames(FilmedStage(source, canvas, agent, seed), actions, agent, limit), rate(canvas)


def check_drawable(source: JaxEnv | HostSource) -> None:
    """Refuse, before a run has begun, an environment that cannot be filmed at its end."""
    check_installed()
    draws = drawing(source)
    if isinstance(source, HostSource):
        canvas = draws()
        try:
            canvas.reset(seed=0)
            drawn(canvas, source.spec.id)
        finally:
            canvas.close()


def drawing(source: JaxEnv | HostSource) -> Any:
    """What draws: a function that makes a host environment which does, or a JAX environment's method."""
    prepare()
    draws = getattr(source, "rendering" if isinstance(source, HostSource) else "render", None)
    if draws is None:
        known = "EnvPool's cannot" if isinstance(source, HostSource) else "it has no method `render(state)`"
        raise UserError(
            f"{source.spec.id} cannot be drawn: {known}. Gymnasium's and PettingZoo's can, and JAX "
            f"environments with a method `render(state)` that gives a picture [H, W, 3] of bytes."
        )
    return draws


def prepare() -> None:
    """Tell the libraries that draw how to do so, where the user has not."""
    screen = sys.platform != "linux" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    for name, value in (QUIET if screen else QUIET | WITHOUT_SCREEN).items():
        os.environ.setdefault(name, value)


def film(
    stem: Path,
    source: JaxEnv | HostSource,
    agent: AnyAgent,
    env: EnvConfig,
    seed: int,
    deterministic: bool = True,
    max_steps: int = EvalConfig.max_steps,
) -> tuple[list[str], list[str]]:
    """Write an episode as `stem`.mp4 and `stem`.gif; the files, and what the user should know of them."""
    check_installed()
    frames, fps = record(source, agent, env, seed, deterministic, max_steps)
    count, more = write_video(stem, frames, fps)
    cut = f"The video was cut after {count:,} frames; the episode goes on."
    return [f"{stem}.mp4", f"{stem}.gif"], [cut] if more else []


def host_frames(stage: FilmedStage, actions: Actions, agent: AnyAgent, limit: int | None) -> Frames:
    """The pictures of an episode of an environment that draws itself; it is closed in the end."""
    try:
        for _ in play(stage, actions, agent, limit):
            yield drawn(stage.env, stage.source.spec.id)
    except ProximoError:
        raise
    except Exception as error:
        raise EnvError(
            f"The environment {stage.source.spec.id} failed while it was filmed: {type(error).__name__}: {error}.",
            traceback.format_exc(),
        ) from None
    finally:
        stage.env.close()


class FilmedStage:
    """An environment of `source` that draws itself."""

    def __init__(self, source: Any, env: gymnasium.Env, agent: AnyAgent, seed: int):
        self.source = source
        self.env = env
        self._adapter = ObservationAdapter(source.spec.observation_space)
        self._seed = seed + EVALUATION_OFFSET

    def reset(self) -> Seen:
        self.env.action_space.seed(self._seed)
        return self._seen(*self.env.reset(seed=self._seed + RESET_OFFSET))

    def step(self, number: int, action: Any) -> Seen:
        spec = self.source.spec
        taken = cast(spec.action_space, action, single=True)
        obs, _, terminated, truncated, info = self.env.step(taken if spec.team is None else spec.team.apart(taken))
        return self._seen(obs, info, terminated=bool(terminated), truncated=bool(truncated))

    def _seen(self, obs: Any, info: Any, **flags: Any) -> Seen:
        where = None if any(flags.values()) else self.source.mask_source
        mask = read_mask(self.env, obs, info, where) if where else None
        flat = None if mask is None else to_mask(self.env.action_space, mask)[None]
        return Seen(self._adapter.batch(obs)[0], flat, **flags, forgotten=getattr(self.env, "forgotten", None))


def compiled_frames(env: Any, actions: Actions, agent: AnyAgent, limit: int | None, seed: int) -> Frames:
    """The pictures of an episode of a JAX environment that has a method `render`."""
    stage = JaxStage(env, seed)
    for _ in play(stage, actions, agent, limit):
        if stage.state is not None:
            yield picture(env.render(stage.state), env.spec.id)


def drawn(env: gymnasium.Env, name: str) -> np.ndarray:
    """A host environment's picture, or a sentence that says why there is none."""
    try:
        return picture(env.render(), name)
    except UserError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f'{name} cannot be drawn: {str(error).rstrip(".")}; pip install "proximo[video]"') from None
    except Exception as error:
        gl = "; MUJOCO_GL=egl or MUJOCO_GL=osmesa may help" if "mujoco" in type(env.unwrapped).__module__ else ""
        raise UserError(f"{name} cannot be drawn here: {type(error).__name__}: {error}{gl}.") from None


def picture(given: Any, name: str) -> np.ndarray:
    """What an environment drew, if it is a picture."""
    frame = np.asarray(given)
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        got = "nothing" if given is None else f"{frame.dtype}{list(frame.shape)}"
        raise UserError(f"{name} cannot be drawn: its render() must give uint8 [H, W, 3], and gave {got}.")
    return frame


def rate(env: Any) -> float:
    """Frames a second that make an environment's clock run as ours."""
    return float((getattr(env, "metadata", None) or {}).get("render_fps") or FPS)
