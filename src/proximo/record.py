"""Film a policy: the pictures of one episode, drawn by the environment itself."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from proximo.compiling import jit
from proximo.config import EnvConfig
from proximo.envs.api import HostSource, JaxEnv
from proximo.envs.host.rows import read_mask
from proximo.errors import EnvError, ProximoError, UserError
from proximo.evaluate import Actions, step_limit
from proximo.policy.agent import PPOAgent
from proximo.seeding import EVALUATION_OFFSET, RESET_OFFSET, evaluation_action_key, evaluation_key
from proximo.spaces import cast, to_mask
from proximo.track.video import check_installed, write_video

FPS = 30
"""Frames a second, for environments that do not say (`metadata["render_fps"]`)."""
# Pictures go into a file: they need no sound, no greeting on the standard output, and no screen.
QUIET = {"SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
WITHOUT_SCREEN = {"SDL_VIDEODRIVER": "dummy", "MUJOCO_GL": "egl"}

Frames = Iterator[np.ndarray]


def record(
    source: JaxEnv | HostSource, agent: PPOAgent, env: EnvConfig, seed: int, deterministic: bool = True
) -> tuple[Frames, float]:
    """The pictures [H, W, 3] of an episode, made as they are taken, and how many make a second.

    The episode starts as the first one of an evaluation with the same seed does. An environment that cannot be drawn
    is refused at once.
    """
    prepare()
    actions = Actions(agent.policy, None if deterministic else evaluation_action_key(seed))
    limit = step_limit(source, env)
    draws = getattr(source, "rendering" if isinstance(source, HostSource) else "render", None)
    if draws is None:
        known = "EnvPool's cannot" if isinstance(source, HostSource) else "it has no method `render(state)`"
        raise UserError(
            f"{source.spec.id} cannot be drawn: {known}. Gymnasium's environments can, and JAX environments with a "
            f"method `render(state)` that gives a picture [H, W, 3] of bytes."
        )
    if not isinstance(source, HostSource):
        return compiled_frames(source, actions, agent, limit, seed), rate(source)
    canvas = draws()
    return host_frames(source, canvas, actions, agent, limit, seed), rate(canvas)


def prepare() -> None:
    """Tell the libraries that draw how to do so, where the user has not."""
    screen = sys.platform != "linux" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    for name, value in (QUIET if screen else QUIET | WITHOUT_SCREEN).items():
        os.environ.setdefault(name, value)


def film(
    stem: Path, source: JaxEnv | HostSource, agent: PPOAgent, env: EnvConfig, seed: int, deterministic: bool = True
) -> tuple[list[str], list[str]]:
    """Write an episode as `stem`.mp4 and `stem`.gif; the files, and what the user should know of them."""
    check_installed()
    frames, fps = record(source, agent, env, seed, deterministic)
    count, more = write_video(stem, frames, fps)
    cut = f"The video was cut after {count:,} frames; the episode goes on."
    return [f"{stem}.mp4", f"{stem}.gif"], [cut] if more else []


def host_frames(
    source: Any, env: gymnasium.Env, actions: Actions, agent: PPOAgent, limit: int | None, seed: int
) -> Frames:
    """The pictures of an episode of `env`, which is one of `source`'s and draws itself; it is closed in the end."""
    name, space, seed = source.spec.id, source.spec.action_space, seed + EVALUATION_OFFSET
    act = jit(actions.at)
    carry = agent.policy.initial_carry(1)["actor"]
    try:
        env.action_space.seed(seed)
        obs, info = env.reset(seed=seed + RESET_OFFSET)
        yield drawn(env, name)
        step, ended = 0, False
        while not ended and step != limit:
            mask = read_mask(env, obs, info, source.mask_source) if source.mask_source else None
            flags = None if mask is None else to_mask(space, mask)[None]
            batch, _ = agent.policy.adapter.batch(obs)
            carry, action = act(np.int32(step), agent.params, agent.obs_stats, carry, batch, flags)
            obs, _, terminated, truncated, info = env.step(cast(space, jax.device_get(action), single=True))
            yield drawn(env, name)
            step, ended = step + 1, terminated or truncated
    except ProximoError:
        raise
    except Exception as error:
        raise EnvError(
            f"The environment {name} failed while it was filmed: {type(error).__name__}: {error}.",
            traceback.format_exc(),
        ) from None
    finally:
        env.close()


def compiled_frames(env: Any, actions: Actions, agent: PPOAgent, limit: int | None, seed: int) -> Frames:
    """The pictures of an episode of a JAX environment that has a method `render`."""
    key = evaluation_key(seed)

    def advance(step: jax.Array, params: Any, stats: Any, carry: Any, state: Any, seen: Any) -> tuple[Any, Any, Any]:
        batch, mask = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (seen.obs, seen.action_mask))
        carry, action = actions.at(step, params, stats, carry, batch, mask)
        # Keys as `Lanes` makes them for its first lane.
        step_key = jax.random.split(jax.random.split(jax.random.fold_in(key, step), 1)[0])[0]
        return carry, *env.step(step_key, state, jax.tree.map(lambda leaf: leaf[0], action))

    act = jit(advance)
    carry = agent.policy.initial_carry(1)["actor"]
    state, seen = jit(env.reset)(jax.random.split(key, 1)[0])
    yield picture(env.render(state), env.spec.id)
    step, ended = 0, False
    while not ended and step != limit:
        carry, state, seen = act(np.int32(step), agent.params, agent.obs_stats, carry, state, seen)
        step, ended = step + 1, bool(seen.terminated) or bool(seen.truncated)
        if not ended or seen.final_obs is None:  # one that resets itself has the next episode's state by now
            yield picture(env.render(state), env.spec.id)


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
