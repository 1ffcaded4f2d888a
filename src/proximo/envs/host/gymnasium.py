"""Gymnasium environments: `CartPole-v1`, `module:Id`, an environment object, or a factory of them."""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.util
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from proximo.config import MAX_WORKERS, EnvConfig
from proximo.envs.host.pool import AsyncEnvPool
from proximo.envs.host.rows import mask_method, read_mask
from proximo.envs.host.workers import num_cores
from proximo.envs.spec import EnvSpec
from proximo.errors import EnvError, UserError
from proximo.spaces import Path, shown, to_mask

# Where an id or its code comes from, and the extra that installs it.
PLUGINS = {"ALE/": ("ale_py", "atari"), "MiniGrid-": ("minigrid", "minigrid"), "BabyAI-": ("minigrid", "minigrid")}
EXTRAS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}
UNKNOWN = (gymnasium.error.NameNotFound, gymnasium.error.NamespaceNotFound, gymnasium.error.VersionNotFound)
MASK = "action_mask"
PICTURES = "rgb_array"
PROBE_SECONDS, PROBE_STEPS = 0.2, 500
# A step that is mostly waiting gains from a process per environment, whatever the number of cores.
WAITING_SHARE, WAITING_SECONDS = 0.5, 300e-6
# What stepping all lanes must take before worker processes pay for the signals to and from them.
WORTHWHILE_SECONDS, LONG_SECONDS = 40e-6, 4e-3


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


def make(name: str) -> GymnasiumSource:
    """The environment with the id `name`."""
    for prefix, (package, extra) in PLUGINS.items():
        if name.startswith(prefix):
            if not importlib.util.find_spec(package):
                raise UserError(f'{name} needs the package {package}; pip install "proximo[{extra}]"')
            importlib.import_module(package)
    if ":" not in name and name not in gymnasium.registry:
        raise UserError(_unknown(name))  # Gymnasium itself would take the newest version of a name without one
    factory = partial(make_atari if name.startswith("ALE/") else make_registered, name)
    return GymnasiumSource(factory, name, partial(factory, render_mode=PICTURES))


def make_registered(name: str, **options: Any) -> gymnasium.Env:
    # Its checker asks at every step what lanes ask better.
    return gymnasium.make(name, disable_env_checker=True, **options)


def make_atari(name: str, **options: Any) -> gymnasium.Env:
    """The standard preprocessing: up to 30 no-ops at the start, every fourth frame (the maximum of the last two),
    84 x 84 in grey, the last four frames. Episodes are whole games and rewards are not clipped, so that returns are
    scores; `normalize.clip_rewards` clips them for learning."""
    importlib.import_module("ale_py")  # registers the games: in a worker process nobody has yet
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    env = gymnasium.make(name, frameskip=1, disable_env_checker=True, **options)
    return FrameStackObservation(AtariPreprocessing(env), 4)


def accepts(env: Any) -> bool:
    if isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv | type):
        return True
    return callable(env) and not hasattr(env, "step")


def wrap(env: Any) -> GymnasiumSource:
    """A source from an environment object, of which lanes get copies, or from a factory."""
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise UserError(
            f"{type(env).__name__} is a vector of environments; hand in a single environment or a factory of them, "
            f"and say how many there shall be with num_envs."
        )
    if not isinstance(env, gymnasium.Env):
        return GymnasiumSource(env, None)
    try:
        copy.deepcopy(env).close()
    except Exception as error:
        raise UserError(
            f"This {type(env.unwrapped).__name__} cannot be copied ({type(error).__name__}: {error}), and every lane "
            f"needs its own; hand in a factory instead, such as env=lambda: {type(env.unwrapped).__name__}(...)."
        ) from None
    return GymnasiumSource(partial(copy.deepcopy, env), env.spec.id if env.spec else None)


class GymnasiumSource:
    """Lanes of a Gymnasium environment. One is made here at once, to see what it is like."""

    def __init__(self, factory: Callable[[], Any], env_id: str | None, drawing: Callable[[], Any] | None = None):
        self.factory = factory
        self._drawing = drawing
        self.notices: list[str] = []
        self._step_seconds: tuple[float, float] | None = None
        self._env_id = env_id
        env = self._made()
        name = env_id or (env.spec.id if env.spec else type(env.unwrapped).__name__)
        try:
            obs, info = env.reset(seed=0)
        except Exception as error:
            raise EnvError(
                f"The environment {name} cannot be reset: {type(error).__name__}: {error}.", traceback.format_exc()
            ) from None
        self.mask_source = find_mask(env, obs, info)
        observation_space, left_out = learnable(env.observation_space, obs, self.mask_source)
        if left_out:
            self.notices.append(f"Left out of the observation, being text: {', '.join(left_out)}.")
        self.spec = EnvSpec(
            id=name,
            observation_space=observation_space,
            action_space=env.action_space,
            max_steps=env.spec.max_episode_steps if env.spec else None,
            has_mask=self.mask_source is not None,
        )
        if self.mask_source is not None:
            _check_mask(env, obs, info, self.mask_source, name)
        self._probe: Any = env

    def lanes(self, num_envs: int, env: EnvConfig) -> AsyncEnvPool:
        workers = env.workers if env.workers != "auto" else self.choose_workers(num_envs)
        if self._probe is not None:
            self._probe.close()
            self._probe = None
        pool = AsyncEnvPool(self.factory, self.spec, num_envs, env, workers, self.mask_source)
        pool.notices += self.notices
        self.notices = []
        return pool

    def rendering(self) -> gymnasium.Env:
        """One environment whose `render()` gives pictures. A user's factory, or object, must see to that itself."""
        env = self._made()
        modes = env.metadata.get("render_modes") or []
        if self._drawing is not None and PICTURES in modes:
            env.close()
            env = _made(self._drawing, self._env_id)
        if env.render_mode != PICTURES:
            env.close()
            raise UserError(
                f"{self.spec.id} cannot be drawn: it was made with render_mode={env.render_mode}, not {PICTURES}; "
                f'its metadata["render_modes"] has {", ".join(map(str, modes)) or "none"}.'
            )
        return env

    def _made(self) -> gymnasium.Env:
        return _made(self.factory, self._env_id)

    def choose_workers(self, num_envs: int) -> int:
        """As many processes as pay, judged by how long a step takes."""
        if self._step_seconds is None:
            self._probe = self._probe or self._made()
            self._step_seconds = measure(self._probe)
        wall, busy = self._step_seconds
        waiting = wall > WAITING_SECONDS and busy < WAITING_SHARE * wall
        if waiting:
            workers = min(num_envs, MAX_WORKERS) if num_envs > 1 else 0
        elif wall * num_envs < WORTHWHILE_SECONDS:
            workers = 0
        else:
            # One core is left to this process, unless the environments take so long that it has little to do.
            workers = min(num_envs, num_cores() - (wall * num_envs < LONG_SECONDS))
        how = f"{workers} worker process{'es' if workers > 1 else ''}" if workers else "this process"
        spent = f"{wall * 1e6:,.0f} us{', mostly waiting' if waiting else ''}"
        self.notices.append(f"A step of {self.spec.id} takes {spent}: {num_envs} environments in {how} (env.workers).")
        return workers


def _made(factory: Callable[[], Any], env_id: str | None) -> gymnasium.Env:
    """One environment, or a sentence that says why there is none."""
    try:
        env = factory()
    except gymnasium.error.DependencyNotInstalled as error:
        entry = gymnasium.spec(env_id).entry_point if env_id else ""
        extra = next((extra for package, extra in EXTRAS.items() if str(entry).startswith(package)), None)
        command = f'; pip install "proximo[{extra}]"' if extra else ""
        raise UserError(f"{env_id} needs a package that is not installed: {error}{command}") from None
    except UNKNOWN:
        raise UserError(_unknown(str(env_id))) from None
    except gymnasium.error.Error as error:
        raise UserError(f"{env_id} cannot be made: {error}") from None
    except ModuleNotFoundError as error:
        raise UserError(f"{env_id or 'The environment'} cannot be made: {error}.") from None
    except Exception as error:
        raise EnvError(
            f"{env_id or 'The environment'} cannot be made: {type(error).__name__}: {error}.", traceback.format_exc()
        ) from None
    if not isinstance(env, gymnasium.Env):
        raise UserError(
            f"The factory must return a gymnasium.Env, not {type(env).__module__}.{type(env).__name__}; an environment "
            f"for the older gym package can be wrapped with shimmy."
        )
    return env


def _unknown(env_id: str) -> str:
    near = difflib.get_close_matches(env_id, names(), 1, 0.6)
    hint = f"did you mean {near[0]}?" if near else "`proximo envs` lists what there is."
    return f"There is no environment {env_id}; {hint}"


def find_mask(env: gymnasium.Env, obs: Any, info: Any) -> str | None:
    """Where this environment says which actions are allowed, if it does."""
    if isinstance(info, dict) and MASK in info:
        return "info"
    if isinstance(obs, dict) and MASK in obs:
        return "obs"
    return "method" if callable(mask_method(env)) else None


def _check_mask(env: gymnasium.Env, obs: Any, info: Any, source: str, name: str) -> None:
    try:
        to_mask(env.action_space, read_mask(env, obs, info, source))
    except ValueError as error:
        raise UserError(f"{name}: {error}.") from None


def learnable(space: spaces.Space, obs: Any, mask_source: str | None) -> tuple[spaces.Space, list[str]]:
    """The space without its mask and without texts, which no network reads; and where the texts were."""
    if not isinstance(space, spaces.Dict):
        return space, []
    left_out: list[str] = []

    def kept(space: spaces.Dict, obs: Any, path: Path) -> spaces.Dict:
        entries = {}
        for key, inner in space.spaces.items():
            if isinstance(inner, spaces.Text) or isinstance(obs[key], str):
                left_out.append(shown((*path, key)))
            elif path or key != MASK or mask_source != "obs":
                entries[key] = kept(inner, obs[key], (*path, key)) if isinstance(inner, spaces.Dict) else inner
        return spaces.Dict(entries)

    return kept(space, obs, ()), left_out


def measure(env: gymnasium.Env) -> tuple[float, float]:
    """Seconds that a step with a random action takes in the middle of many: on the clock, and of the processor."""
    env.reset(seed=0)
    env.action_space.seed(0)
    started = time.perf_counter()
    times: list[tuple[float, float]] = []
    while len(times) < PROBE_STEPS and time.perf_counter() - started < PROBE_SECONDS:
        action = env.action_space.sample()
        wall, busy = time.perf_counter(), time.process_time()
        try:
            _, _, terminated, truncated, _ = env.step(action)
            times.append((time.perf_counter() - wall, time.process_time() - busy))
            if terminated or truncated:
                env.reset()
        except Exception:  # a random action may be a forbidden one; other faults show, and are named, in the lanes
            break
    walls, busys = np.median(times or [(0.0, 0.0)], axis=0)
    return float(walls), float(busys)
