"""Gymnasium environments: `CartPole-v1`, `module:Id`, an environment object, or a factory of them."""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.util
import re
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium

from proximo.config import EnvConfig
from proximo.envs.arguments import NOTHING, Kwargs, WithKwargs, Wrappers, in_words, refused
from proximo.envs.host.camera import Camera
from proximo.envs.host.drawing import PICTURES, drawable
from proximo.envs.host.fresh import Fresh
from proximo.envs.host.num_workers import StepTime
from proximo.envs.host.pool import AsyncEnvPool
from proximo.envs.host.registered import make_atari, make_registered, make_wrapped
from proximo.envs.host.reward_space import check_reward_space
from proximo.envs.host.slot import CRITIC_STATE
from proximo.envs.host.transfer import MASK, learnable, mask_method, read_mask
from proximo.envs.installed import find_like, find_module, plugins
from proximo.envs.own_modules import look_here_for
from proximo.envs.spec import EnvSpec
from proximo.errors import EnvError, OtherKind, UserError, quoted
from proximo.spaces import to_mask

# Where an id or its code comes from, and the extra that installs it.
PLUGINS = {"ALE/": ("ale_py", "atari"), "MiniGrid-": ("minigrid", "minigrid"), "BabyAI-": ("minigrid", "minigrid")}
EXTRAS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}
MODULE_AND_ID = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^:]+")
LACKING = re.compile(r"missing \d+ required .*argument")
UNKNOWN = (gymnasium.error.NameNotFound, gymnasium.error.NamespaceNotFound, gymnasium.error.VersionNotFound)


def names() -> list[str]:
    """Registered ids, the newest version of each."""
    for package, _ in PLUGINS.values():
        if importlib.util.find_spec(package):
            importlib.import_module(package)
    newest: dict[str, Any] = {}
    for spec in gymnasium.registry.values():
        key = f"{spec.namespace}/{spec.name}" if spec.namespace else spec.name
        if key not in newest or (spec.version or 0) > (newest[key].version or 0):
            newest[key] = spec
    ids = [spec.id for spec in newest.values() if spec.namespace not in ("phys2d", "tabular")]
    return [env_id for env_id in ids if not env_id.startswith("GymV")]


def make(name: str, /, *, wrappers: Wrappers = (), **kwargs: Any) -> GymnasiumSource:
    """The environment with the id `name`, made with `kwargs`, inside of `wrappers`."""
    for prefix, (package, extra) in PLUGINS.items():
        if name.startswith(prefix):
            if not importlib.util.find_spec(package):
                raise UserError(f'{name} needs the package {package}; pip install "proximo[{extra}]"')
            importlib.import_module(package)
    if ":" in name and not MODULE_AND_ID.fullmatch(name):
        module, _, rest = name.partition(":")
        meant = f"{module.replace('-', '_')}:{rest}"  # pip knows packages with a dash
        hint = "`module:Id`, such as my_package.envs:MyEnv-v0, names one."
        hint = f"did you mean {meant}?" if MODULE_AND_ID.fullmatch(meant) else hint
        raise UserError(f"{name} is not an environment id; {hint}")
    if ":" in name:
        look_here_for(name.partition(":")[0])
    if ":" not in name and name not in gymnasium.registry:
        raise UserError(_unknown(name))  # Gymnasium itself would take the newest version of a name without one
    factory: Callable[..., Any] = partial(make_registered, gymnasium.registry.get(name, name), **kwargs)
    if name.startswith("ALE/"):
        factory = partial(make_atari, name, **kwargs)
    if wrappers:
        factory = partial(make_wrapped, factory, tuple(wrappers))
    return GymnasiumSource(factory, name, partial(factory, render_mode=PICTURES), kwargs)


def accepts(env: Any) -> bool:
    if isinstance(env, gymnasium.Env | type):
        return True
    return callable(env) and not hasattr(env, "step")


def wrap(env: Any, wrappers: Wrappers = ()) -> GymnasiumSource:
    """A source from an environment object, of which each slot gets a copy, or from a factory; inside of `wrappers`."""

    def wrapped(factory: Callable[..., Any]) -> Callable[..., Any]:
        return partial(make_wrapped, factory, tuple(wrappers)) if wrappers else factory

    if not isinstance(env, gymnasium.Env):
        source = GymnasiumSource(wrapped(Fresh(env)), None, kwargs=env.keywords if isinstance(env, WithKwargs) else {})
        source.check_fresh()
        return source
    try:
        copy.deepcopy(env).close()
    except Exception as error:
        raise UserError(
            f"This {type(env.unwrapped).__name__} cannot be copied ({type(error).__name__}: {error}), and each of the "
            f"environments needs its own; hand in a factory instead, such as "
            f"env=lambda: {type(env.unwrapped).__name__}(...)."
        ) from None
    return GymnasiumSource(wrapped(partial(copy.deepcopy, env)), env.spec.id if env.spec else None)


class GymnasiumSource:
    """Environments of Gymnasium's. One is made here at once, to see what it is like."""

    def __init__(
        self,
        factory: Callable[[], Any],
        env_id: str | None,
        drawing: Callable[[], Any] | None = None,
        kwargs: Kwargs = NOTHING,
    ):
        self.factory = factory
        self._drawing = drawing
        self._kwargs = kwargs
        self.notices: list[str] = []
        self._env_id = env_id
        env = self._made()
        name = env_id or (env.spec.id if env.spec else type(env.unwrapped).__name__)
        check_reward_space(env, name)
        try:
            answer = env.reset(seed=0)
        except Exception as error:
            raise EnvError(
                f"The environment {name} cannot be reset: {in_words(error)}.", traceback.format_exc()
            ) from None
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
            raise UserError(
                f"reset() of {name} must return an observation and a dictionary, as Gymnasium has it, not "
                f"{quoted(answer)}; an environment for the older gym package can be wrapped with shimmy."
            )
        obs, info = answer
        self.mask_source = find_mask(env, obs, info)
        observation_space, left_out = learnable(env.observation_space, obs, self.mask_source, name)
        if left_out:
            self.notices.append(f"Left out of the observation, being text: {', '.join(left_out)}.")
        self.spec = EnvSpec(
            id=name,
            observation_space=observation_space,
            action_space=env.action_space,
            max_steps=env.spec.max_episode_steps if env.spec else None,
            has_mask=self.mask_source is not None,
            critic_state_space=critic_state_space(env, info, name),
        )
        if self.mask_source is not None:
            _check_mask(env, obs, info, self.mask_source, name)
        self.step_time = StepTime(name, env, self._made, self.mask_source)

    def open_envs(self, num_envs: int, env: EnvConfig) -> AsyncEnvPool:
        workers, why = self.step_time.choose_num_workers(num_envs, env)
        pool = AsyncEnvPool(self.factory, self.spec, num_envs, env, workers, self.mask_source)
        pool.notices += self.notices + why
        self.notices = []
        return pool

    def filmed(self, env: EnvConfig) -> tuple[AsyncEnvPool, Camera]:
        """One environment in this process, and the camera on it."""
        made = partial(_made, env_id=self._env_id, kwargs=self._kwargs)
        drawn = drawable(made, self.factory, self._drawing, self.spec.id)
        camera = Camera(drawn, self.spec.id)
        return AsyncEnvPool(lambda: camera, self.spec, 1, env, mask_source=self.mask_source), camera

    def check_fresh(self) -> None:
        """Refuse a factory that returns one object again and again, before anything depends on how many are needed."""
        self._made().close()

    def _made(self) -> gymnasium.Env[Any, Any]:
        return _made(self.factory, self._env_id, self._kwargs)


def _made(factory: Callable[[], Any], env_id: str | None, kwargs: Kwargs) -> gymnasium.Env[Any, Any]:
    """One environment, or a sentence that says why there is none."""
    title = env_id or "The environment"
    try:
        env = factory()
    except gymnasium.error.DependencyNotInstalled as error:
        entry = gymnasium.spec(env_id).entry_point if env_id else ""
        extra = next((extra for package, extra in EXTRAS.items() if str(entry).startswith(package)), None)
        command = f'; pip install "proximo[{extra}]"' if extra else ""
        raise UserError(f"{title} needs a package that is not installed: {error}{command}") from None
    except UNKNOWN as error:
        said = f"{title} cannot be made: {in_words(error)}. The factory has to import the package that registers it."
        raise UserError(_unknown(env_id) if env_id else said) from None
    except UserError:
        raise
    except gymnasium.error.Error as error:
        raise UserError(f"{title} cannot be made: {error}") from None
    except ModuleNotFoundError as error:
        raise UserError(f"{title} cannot be made: {_missing(error, env_id)}.") from None
    except Exception as error:
        if kwargs:
            raise refused(title, kwargs, error) from None
        if env_id and isinstance(error, TypeError) and LACKING.search(str(error)):
            raise UserError(
                f"{env_id} cannot be made without arguments: {in_words(error.__cause__ or error)}. env.kwargs "
                f"(--env-arg NAME=VALUE) gives them; what is no plain data, such as a table, belongs into a factory in "
                f"Python, or into a module of yours that registers an id with it."
            ) from None
        raise EnvError(f"{title} cannot be made: {in_words(error)}.", traceback.format_exc()) from None
    if not isinstance(env, gymnasium.Env):
        raise OtherKind(
            f"The factory must return a gymnasium.Env, not {type(env).__module__}.{type(env).__name__}; an environment "
            f"for the older gym package can be wrapped with shimmy.",
            env,
        )
    return env


def _missing(error: ModuleNotFoundError, env_id: str | None) -> str:
    """What is to be said of a module that cannot be found; of the one that the id names, where it is looked for."""
    module, colon, _ = (env_id or "").partition(":")
    lacking = getattr(error.__cause__ or error, "name", None)  # Gymnasium raises another error from the first one
    if colon and lacking and f"{module}.".startswith(f"{lacking}."):
        return f"there is no module {lacking}, neither installed, nor in PYTHONPATH, nor in the current folder"
    return str(error.__cause__ or error).rstrip(".")


def _unknown(env_id: str) -> str:
    before, colon, name = env_id.rpartition(":")
    if colon:
        return _not_registered(before, name)
    if module := find_module(env_id):
        return f"{env_id} is not registered before its package is imported; {module}:{env_id} does both."
    package, slash, rest = env_id.partition("/")
    if slash and package in plugins():
        return f"There is no environment {env_id}; did you mean {package}:{rest}?"
    if module := find_like(env_id):
        return (
            f"There is no environment {env_id} before a package is imported that registers it; {module} is installed "
            f"and has ids like it: try {module}:{env_id}."
        )
    near = difflib.get_close_matches(env_id, names(), 1, 0.6)
    hint = f"did you mean {near[0]}?" if near else "`proximo envs` lists what there is."
    return f"There is no environment {env_id}; {hint}"


def _not_registered(module: str, name: str) -> str:
    """What is to be said of a module that was imported and did not register an id."""
    said = f"{module} registers no environment {name}"
    elsewhere = find_module(name)
    if elsewhere is not None and elsewhere != module:
        return f"{said}, but {elsewhere} does: {elsewhere}:{name}."
    same = difflib.get_close_matches(name, list(gymnasium.registry), 1, 0.6)
    return f"{said}; did you mean {module}:{same[0]}?" if same else f"{said}."


def find_mask(env: gymnasium.Env[Any, Any], obs: Any, info: Any) -> str | None:
    """Where this environment says which actions are allowed, if it does."""
    if isinstance(info, dict) and MASK in info:
        return "info"
    if isinstance(obs, dict) and MASK in obs:
        return "obs"
    return "method" if callable(mask_method(env)) else None


def critic_state_space(env: gymnasium.Env[Any, Any], info: Any, name: str) -> gymnasium.Space[Any] | None:
    """The space of what only the critic sees, `info["critic_state"]`, where the environment says so."""
    try:
        space: gymnasium.Space[Any] | None = env.get_wrapper_attr("critic_state_space")
    except AttributeError:
        return None
    if space is not None and CRITIC_STATE not in info:
        raise UserError(f"{name} has a critic_state_space, and the info of its reset has no entry {CRITIC_STATE!r}.")
    return space


def _check_mask(env: gymnasium.Env[Any, Any], obs: Any, info: Any, source: str, name: str) -> None:
    try:
        to_mask(env.action_space, read_mask(env, obs, info, source))
    except ValueError as error:
        raise UserError(f"{name}: {error}.") from None
