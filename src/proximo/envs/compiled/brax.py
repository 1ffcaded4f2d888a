"""Brax environments: `brax/ant`, or an environment object of its class.

The physics is the one that each environment has by default (`generalized`); `--env-arg backend=spring` chooses
another. Episodes are cut after 1,000 steps, as in Brax's
own training. Unlike there, each begins with a reset of its own, not with the state that its lane began with; that takes
less time than a step does, and only when some lane ended.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from proximo.envs.api import Transition
from proximo.envs.arguments import arguments_key, made_with
from proximo.envs.compiled.foreign import lenient, unknown
from proximo.envs.keys import Stated
from proximo.envs.spec import EnvSpec
from proximo.errors import UserError
from proximo.types import PyTree

# What it imports prints which libraries for GPUs it did not find, and warns of its own age.
with contextlib.redirect_stdout(io.StringIO()), lenient():
    from brax import envs
    from brax.envs.wrappers import training

MAX_STEPS = 1000
NOT_LISTED = {"fast", "swimmer"}
"""A toy for Brax's own tests, and one that asks JAX for an argument that it no longer has."""
WRAPPERS = (
    training.VmapWrapper,
    training.DomainRandomizationVmapWrapper,
    training.EpisodeWrapper,
    training.AutoResetWrapper,
    training.EvalWrapper,
)


def names() -> list[str]:
    return sorted(set(envs._envs) - NOT_LISTED)


def make(name: str, /, **kwargs: Any) -> BraxEnv:
    """The registered environment `name`, made with `kwargs`."""
    if name == "swimmer":
        raise UserError("brax/swimmer calls functions that this version of JAX no longer has; Brax has to fix that.")
    if name not in envs._envs:
        raise unknown("brax", name, names())
    env_id = f"brax/{name}"
    with made_with(env_id, kwargs), lenient():
        return BraxEnv(envs.get_environment(name, **kwargs), env_id, arguments_key(env_id, kwargs))


def accepts(env: Any) -> bool:
    return isinstance(env, envs.Env)


def wrap(env: envs.Env) -> BraxEnv:
    inner = env
    while isinstance(inner, envs.Wrapper):
        if isinstance(inner, WRAPPERS):
            raise UserError(
                f"Hand in the environment without {type(inner).__name__}: Proximo makes copies of it, ends their "
                f"episodes (env.max_steps_per_episode, at most {MAX_STEPS:,}) and resets them."
            )
        inner = inner.env
    return BraxEnv(env, f"brax/{type(inner).__name__}")


class BraxEnv:
    """A Brax environment as a `JaxEnv`; its state is Brax's and the number of steps taken."""

    def __init__(self, env: envs.Env, env_id: str, key: str | None = None):
        """`key` is all that it was made from, where it was made by its name."""
        self.env = env
        with lenient():
            obs = jax.eval_shape(env.reset, jax.random.key(0)).obs
            actions = env.action_size
        self.spec = EnvSpec(
            id=env_id,
            observation_space=_space(obs),
            action_space=spaces.Box(-1.0, 1.0, (actions,), np.float32),
            max_steps=MAX_STEPS,
        )
        self.stated = Stated(self, key or env_id, inside=None if key else env, held=env)

    def reset(self, key: jax.Array) -> tuple[PyTree, Transition]:
        with lenient():
            state = self.env.reset(key)
        return (state, jnp.int32(0)), Transition(obs=state.obs)

    def step(self, key: jax.Array, state: PyTree, action: PyTree) -> tuple[PyTree, Transition]:
        inner, steps = state
        with lenient():
            inner = self.env.step(inner, action)
        steps += 1
        terminated = inner.done.astype(bool)
        moved = Transition(
            obs=inner.obs,
            reward=inner.reward,
            terminated=terminated,
            truncated=(steps >= MAX_STEPS) & ~terminated,
            info=inner.metrics,
        )
        return (inner, steps), moved


def _space(obs: Any) -> spaces.Space[Any]:
    if isinstance(obs, dict):
        return spaces.Dict({key: _space(entry) for key, entry in obs.items()})
    return spaces.Box(-np.inf, np.inf, obs.shape, np.float32)
