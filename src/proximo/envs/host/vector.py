"""Vector environments: a `gymnasium.vector.VectorEnv` or a `VecEnv` of Stable-Baselines3, an object or a factory of
them, and `vector/CartPole-v1` for an id that is registered with a `vector_entry_point`.

Whoever writes a simulator of many environments at once makes it a `VectorEnv`. Stable-Baselines3 is never imported:
its objects are known by their methods.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.util
import inspect
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from proximo.config import EnvConfig
from proximo.envs.arguments import NOTHING, Kwargs, WithKwargs, Wrappers, apply_wrappers, refused
from proximo.envs.groups import ONE
from proximo.envs.host.batched import BatchedEnvs
from proximo.envs.host.drawing import PICTURES, drawable
from proximo.envs.host.fresh import Fresh, named
from proximo.envs.host.num_workers import random_action
from proximo.envs.host.reward_space import check_reward_space
from proximo.envs.host.vector_batch import FirstOf, Shared, VectorBatch, VectorCamera, layers, survey
from proximo.envs.own_modules import import_named
from proximo.errors import EnvError, UserError
from proximo.spaces import stacked

VEC_ENV = ("num_envs", "step_async", "step_wait", "env_method", "get_attr", "seed")
"""What a `VecEnv` of Stable-Baselines3 has."""
NUMBER = ("num_envs", "n_envs")
"""What factories call the number of environments."""
NORMALIZERS = {"VecNormalize", "NormalizeObservation", "NormalizeReward"}
Make = Callable[[int], Any]


def names() -> list[str]:
    """Ids that are registered with a vector entry point."""
    if importlib.util.find_spec("ale_py"):
        importlib.import_module("ale_py")
    return [spec.id for spec in gymnasium.registry.values() if spec.vector_entry_point is not None]


def make(name: str, /, *, wrappers: Wrappers = (), **kwargs: Any) -> VectorSource:
    """The vector environment that is registered as `name`, made with `kwargs`, inside of `wrappers`."""
    module, colon, plain = name.rpartition(":")
    if colon:
        try:
            import_named(module)
        except ModuleNotFoundError as error:
            raise UserError(f"vector/{name} cannot be made: {str(error).rstrip('.')}.") from None
    elif name.startswith("ALE/") and importlib.util.find_spec("ale_py"):
        importlib.import_module("ale_py")
    spec = gymnasium.registry.get(plain)
    if spec is None:
        near = difflib.get_close_matches(plain, names(), 1, 0.6)
        hint = f"did you mean vector/{near[0]}?" if near else "`proximo envs vector` lists what there is."
        raise UserError(f"There is no environment vector/{name}; {hint}")
    if spec.vector_entry_point is None:
        raise UserError(
            f"{plain} is not registered with a vector_entry_point; train on {name}, of which Proximo itself steps "
            f"env.num_envs at a time."
        )
    for number in NUMBER:
        if number in kwargs:
            raise UserError(
                f"vector/{name} cannot be given the argument {number}; env.num_envs says how many there are."
            )
    factory = partial(_registered, spec, tuple(wrappers), kwargs)
    return VectorSource(factory, f"vector/{name}", kwargs=kwargs, drawing=partial(factory, render_mode=PICTURES))


def named_modules(name: str) -> list[str]:
    """The module that `name` names, if it does."""
    module, colon, _ = name.rpartition(":")
    return [module] if colon else []


def accepts(env: Any) -> bool:
    """Vector environments; and of factories, those that are called with a number of environments."""
    if isinstance(env, type) or (callable(env) and not hasattr(env, "step")):
        return number_name(env) is not None
    return isinstance(env, VectorEnv) or is_vec_env(env)


def is_vec_env(env: Any) -> bool:
    """Whether this is a `VecEnv` as Stable-Baselines3 has them."""
    return not isinstance(env, VectorEnv) and all(hasattr(env, name) for name in VEC_ENV)


def number_name(factory: Any) -> str | None:
    """What a factory calls the number of environments, if it is called with one: `num_envs`, `n_envs`; of a function,
    whatever its only parameter without a default is called."""
    if isinstance(factory, type) and issubclass(factory, gymnasium.Env):
        return None
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return None
    known = next((name for name in NUMBER if name in parameters), None)
    if known is not None or isinstance(factory, type):
        return known
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = [one.name for one in parameters.values() if one.default is one.empty and one.kind in named]
    return needed[0] if len(needed) == 1 else None


def wrap(env: Any, wrappers: Wrappers = ()) -> VectorSource:
    """A source from a vector environment, or from a factory of them; inside of `wrappers`."""
    if isinstance(env, VectorEnv) or is_vec_env(env):
        again = made_again(env)
        if again is not None:
            return VectorSource(partial(_wrapped, again, tuple(wrappers)), num_envs=int(env.num_envs))
        shared = apply_wrappers(env, wrappers)
        return VectorSource(lambda _: shared, num_envs=int(env.num_envs), shared=Shared())
    kwargs = env.keywords if isinstance(env, WithKwargs) else {}
    fresh, number, title = Fresh(env), number_name(env), f"The factory {named(env)}"
    if number is not None:
        factory = partial(_wrapped, partial(_numbered, fresh, number), tuple(wrappers))
        return VectorSource(factory, kwargs=kwargs, title=title)
    made = fresh()
    size = int(made.num_envs)
    made.close()
    return VectorSource(
        partial(_wrapped, lambda _: fresh(), tuple(wrappers)), kwargs=kwargs, num_envs=size, title=title
    )


def _registered(spec: Any, wrappers: Wrappers, kwargs: dict[str, Any], number: int, /, **options: Any) -> Any:
    mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
    return apply_wrappers(gymnasium.make_vec(spec, number, mode, **kwargs | options), wrappers)


def _wrapped(factory: Make, wrappers: Wrappers, number: int) -> Any:
    return apply_wrappers(factory(number), wrappers)


def _numbered(factory: Callable[..., Any], name: str, number: int) -> Any:
    return factory(**{name: number})


def made_again(env: Any) -> Make | None:
    """How to make another one like the object `env`: as `gymnasium.make_vec` made it, or a copy; None where neither can
    be."""
    if any(has_processes(layer) for layer in layers(env)):
        return None  # nor are processes forked here again: JAX has threads
    if not is_vec_env(env) and env.unwrapped is env and env.spec is not None:
        return lambda _: gymnasium.make_vec(copy.deepcopy(env.spec))
    try:
        copy.deepcopy(env).close()
    except Exception:
        return None
    return lambda _: copy.deepcopy(env)


def has_processes(layer: Any) -> bool:
    """Whether this holds processes, or ends of pipes: a copy would use, and close, those of the original."""
    held = [one for value in vars(layer).values() for one in (value if isinstance(value, list | tuple) else [value])]
    return any(isinstance(one, BaseProcess | Connection) for one in held)


class VectorSource:
    """Vector environments. One is made here at once, or the object at hand is used, to see what it is like."""

    def __init__(
        self,
        factory: Make,
        env_id: str | None = None,
        kwargs: Kwargs = NOTHING,
        num_envs: int | None = None,
        drawing: Callable[..., Any] | None = None,
        shared: Shared | None = None,
        title: str = "The factory",
    ):
        self.num_envs = num_envs
        """How many environments each object has; None where there are as many as are asked for."""
        self._factory, self._kwargs, self._drawing, self._shared = factory, kwargs, drawing, shared
        self._title = env_id or title
        self.notices: list[str] = []
        env = self._made(num_envs or 1)
        name = env_id or _name(env)
        check_reward_space(env, name)
        self._kind, self.mask_source, self._observed, self.spec, left_out = survey(env, name)
        if left_out:
            self.notices.append(f"Left out of the observation, being text: {', '.join(left_out)}.")
        if shared is not None:
            self.notices.append(
                f"This {type(env).__name__} cannot be copied, so evaluations use it too: each begins new episodes, "
                f"and so does training after it. A factory, env=lambda num_envs: ..., gives evaluations their own."
            )
        for layer in layers(env):
            if type(layer).__name__ in NORMALIZERS:
                self.notices.append(
                    f"{type(layer).__name__} around {name} keeps statistics that no policy file holds, and returns are "
                    f"reported as it makes them; leave it out: Proximo standardises by itself (normalize)."
                )
        self._try_out(env)

    def open_envs(self, num_envs: int, env: EnvConfig) -> BatchedEnvs:
        if isinstance(env.workers, int) and env.workers > 0:
            raise UserError(
                f"{self.spec.id} steps its environments itself, so that env.workers={env.workers} has no effect; leave "
                f"it out."
            )
        if env.on_error == "restart":
            raise UserError(f"{self.spec.id} cannot be started anew after a failure; use env.on_error=stop.")
        if self.num_envs is not None and num_envs > self.num_envs:
            raise UserError(
                f"{self.spec.id} has {self.num_envs} environments, and env.num_envs={num_envs} are asked for."
            )
        opened = self._opened(lambda: self._made(self.num_envs or num_envs), num_envs, env)
        opened.notices += self.notices
        self.notices = []
        return opened

    def filmed(self, env: EnvConfig) -> tuple[BatchedEnvs, VectorCamera]:
        """One environment in this process, and the camera on it."""
        number = self.num_envs or 1
        drawing = None if self._drawing is None else partial(self._drawing, number)
        shared = self._shared is not None
        drawn = drawable(lambda make: FirstOf(make(), shared), partial(self._made, number), drawing, self.spec.id)
        camera = VectorCamera(drawn, self.spec.id)
        return self._opened(lambda: drawn.env, 1, env, camera), camera

    def _opened(
        self, make: Callable[[], Any], num_envs: int, env: EnvConfig, camera: VectorCamera | None = None
    ) -> BatchedEnvs:
        def open_batch(envs: slice) -> VectorBatch:
            limit = env.max_steps_per_episode
            given = (self.spec, self._observed, self.mask_source, num_envs, limit, self._shared, camera)
            return self._kind(make(), *given)

        return BatchedEnvs(self.spec, num_envs, env, [slice(0, num_envs)], open_batch)

    def _try_out(self, env: Any) -> None:
        """Take a step, so that what is not as it should be is said before anything is trained; `env` is closed."""
        number = int(env.num_envs)
        opened = self._opened(lambda: env, number, EnvConfig())
        first = opened.reset(0).groups[ONE]
        space, random = copy.deepcopy(self.spec.action_space), np.random.default_rng(0)
        masks = [None] * number if first.action_mask is None else first.action_mask
        opened.send(0, {ONE: stacked(space, [random_action(space, mask, random) for mask in masks])})
        opened.recv(0)
        opened.close()

    def _made(self, number: int) -> Any:
        """One vector environment, or a sentence that says why there is none."""
        try:
            env = self._factory(number)
        except (UserError, EnvError):
            raise
        except Exception as error:
            if self._kwargs:
                raise refused(self._title, self._kwargs, error) from None
            raise EnvError(
                f"{self._title} made no vector environment of {number}: {type(error).__name__}: {error}.",
                traceback.format_exc(),
            ) from None
        if not isinstance(env, VectorEnv) and not is_vec_env(env):
            raise UserError(
                f"{self._title} was called with a number of environments, and must return a "
                f"gymnasium.vector.VectorEnv, or a VecEnv of Stable-Baselines3, not {type(env).__name__}."
            )
        if env.num_envs != number:
            raise UserError(f"{self._title} was asked for {number} environments, and made {env.num_envs}.")
        return env


def _name(env: Any) -> str:
    """What a vector environment that was handed in is called: by its id, or by the classes of what is in it."""
    spec = getattr(env.unwrapped, "spec", None)
    inner = getattr(env.unwrapped, "envs", None)
    if spec is None and inner:
        spec = getattr(inner[0], "spec", None)
    if spec is not None:
        return str(spec.id)
    return type(inner[0].unwrapped if inner else env.unwrapped).__name__
