"""gymnax environments: `gymnax/CartPole-v1`, or an environment object of its class."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from proximo.envs.api import Transition
from proximo.envs.arguments import arguments_key, made_with
from proximo.envs.compiled.foreign import lenient, unknown
from proximo.envs.keys import Stated
from proximo.envs.lazy import deferred
from proximo.envs.spec import EnvSpec
from proximo.errors import UserError
from proximo.spaces import build, pick
from proximo.types import PyTree

# gymnax imports these for pictures that nobody asked for yet; together they take longer to load than JAX.
with deferred("seaborn", "matplotlib.pyplot"):
    from gymnax import make as make_gymnax
    from gymnax import registered_envs
    from gymnax.environments.environment import Environment
    from gymnax.environments.spaces import gymnax_space_to_gym_space


def names() -> list[str]:
    return list(registered_envs)


def make(name: str, /, **kwargs: Any) -> GymnaxEnv:
    """The registered environment `name`; `kwargs` are some of its parameters, or what its class is made with."""
    if name not in registered_envs:
        raise unknown("gymnax", name, names())
    env_id = f"gymnax/{name}"
    try:
        with made_with(env_id, kwargs), lenient():
            own = _parameters(make_gymnax(name)[1], kwargs) if kwargs else {}
            env, params = make_gymnax(name, **{key: value for key, value in kwargs.items() if key not in own})
            return GymnaxEnv(env, params.replace(**own) if own else params, env_id, arguments_key(env_id, kwargs))
    except OSError as error:
        raise UserError(f"{env_id} needs data that it downloads when made, and that failed: {error}") from None


def _parameters(params: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Those of `kwargs` that are parameters of the environment, real numbers where these are."""
    known = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    return {
        key: float(value) if type(known[key]) is float and type(value) is int else value
        for key, value in kwargs.items()
        if key in known
    }


def accepts(env: Any) -> bool:
    return isinstance(env, Environment)


def wrap(env: Environment) -> GymnaxEnv:
    return GymnaxEnv(env, env.default_params, f"gymnax/{env.name}")


class GymnaxEnv:
    """A gymnax environment as a `JaxEnv`."""

    def __init__(self, env: Environment, params: Any, env_id: str, key: str | None = None):
        """`key` is all that it was made from, where it was made by its name."""
        self.env = env
        self.params = params
        with lenient():
            observation_space, action_space = env.observation_space(params), env.action_space(params)
        limit = getattr(params, "max_steps_in_episode", None)
        self.spec = EnvSpec(
            id=env_id,
            observation_space=_space(observation_space),
            action_space=_space(action_space),
            max_steps=None if limit is None else int(limit),
        )
        # An environment with a `step` of its own has an auto-reset of its own, which is used as it is.
        self._resets_itself = type(env).step is not Environment.step
        self.stated = Stated(self, key or env_id, inside=None if key else env, held=env)

    def reset(self, key: jax.Array) -> tuple[PyTree, Transition]:
        with lenient():
            obs, state = self.env.reset_env(key, self.params)
        return state, Transition(obs=self._typed(obs))

    def step(self, key: jax.Array, state: PyTree, action: PyTree) -> tuple[PyTree, Transition]:
        final_obs = None
        with lenient():
            if self._resets_itself:
                obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, self.params)
                final_obs = self._typed(info["final_observation"])
            else:
                obs, state, reward, terminated, info = self.env.step_env(key, state, action, self.params)
                truncated = self.env.is_truncated(state, self.params)
        moved = Transition(
            obs=self._typed(obs),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            success=info.get("is_success"),
            final_obs=final_obs,
            info=info,
        )
        return state, moved

    def _typed(self, obs: PyTree) -> PyTree:
        """Some environments emit another type than their space declares; the space is the promise."""
        return build(self.spec.observation_space, lambda path, leaf: jnp.asarray(pick(obs, path), leaf.dtype))


def _space(space: Any) -> spaces.Space[Any]:
    """The Gymnasium space with JAX's 32-bit integers instead of 64-bit ones."""
    converted: spaces.Space[Any] = gymnax_space_to_gym_space(space)
    if isinstance(converted, spaces.Discrete):
        return spaces.Discrete(int(converted.n), dtype=np.int32)
    return converted
