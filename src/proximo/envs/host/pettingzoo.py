"""PettingZoo's environments of many agents: `pettingzoo/mpe2.simple_spread_v3`, an object, or a factory of them.

All agents act at once. Environments in which they act one after the other are brought into that form by PettingZoo's
own converters; in games with turns, only the action of the agent on turn counts.
"""

from __future__ import annotations

import copy
import difflib
import importlib.util
import pkgutil
import re
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
from gymnasium import spaces
from pettingzoo.env_registry.exceptions import FailedToImport

from proximo.config import AgentsConfig, EnvConfig
from proximo.envs.api import Roster
from proximo.envs.arguments import NOTHING, Kwargs, WithKwargs, Wrappers, refused
from proximo.envs.grouping import team_spec
from proximo.envs.host.camera import Camera
from proximo.envs.host.drawing import PICTURES, drawable
from proximo.envs.host.fresh import Fresh
from proximo.envs.host.num_workers import StepTime
from proximo.envs.host.pool import AsyncEnvPool
from proximo.envs.host.slot import AgentFields, MultiAgentLayout, SlotOptions
from proximo.envs.host.team_env import TeamEnv
from proximo.envs.host.transfer import MASK, learnable
from proximo.envs.host.zoo import make_zoo, parallel, registered, takes_turns
from proximo.envs.own_modules import look_here_for
from proximo.envs.spec import EnvSpec
from proximo.errors import EnvError, UserError
from proximo.spaces import Path, leaves, shown

MPE = "mpe2"
# What environments need besides PettingZoo, by the start of their names.
NEEDS = {
    "atari.": "multi_agent_ale_py",
    "butterfly.pistonball": "pymunk",
    "classic.chess": "chess",
    "classic.hanabi": "pyspiel",
    "classic.leduc_holdem": "rlcard",
    "classic.texas_holdem": "rlcard",
    "sisl.multiwalker": "Box2D",
}
OBSERVATION = "observation"
READABLE = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def names() -> list[str]:
    """Those of PettingZoo whose packages are there, and those of mpe2."""
    return [
        name
        for name in _all_names()
        if all(importlib.util.find_spec(package) for start, package in NEEDS.items() if name.startswith(start))
    ]


def _all_names() -> list[str]:
    own = sorted({_named(env_id) for env_id in (*pettingzoo.aec_registry, *pettingzoo.parallel_registry)})
    mpe = importlib.util.find_spec(MPE)
    places = (mpe.submodule_search_locations if mpe else None) or []
    found = [module.name for module in pkgutil.iter_modules(places) if re.search(r"_v\d+$", module.name)]
    return [*(f"{MPE}.{name}" for name in found), *own]


def _named(env_id: str) -> str:
    return env_id.replace("/", ".").replace("-", "_")


def make(name: str, /, *, wrappers: Wrappers = (), **kwargs: Any) -> PettingZooSource:
    """The environment that `name`, such as `classic.rps_v2`, means, made with `kwargs`, inside of `wrappers`."""
    module, _, env = name.rpartition(".")
    if module == MPE and not importlib.util.find_spec(MPE):
        raise UserError(f'pettingzoo/{name} needs the package {MPE}; pip install "proximo[pettingzoo]"')
    if "." in name:
        look_here_for(name)
    if not registered(module, env) and not _is_module(name):
        near = difflib.get_close_matches(name, _all_names(), 1, 0.6)
        hint = f"did you mean pettingzoo/{near[0]}?" if near else "`proximo envs pettingzoo` lists them."
        raise UserError(f"PettingZoo has no environment {name}; {hint}")
    factory = partial(make_zoo, module, env, tuple(wrappers), **kwargs)
    return PettingZooSource(factory, f"pettingzoo/{name}", partial(factory, render_mode=PICTURES), kwargs)


def named_modules(name: str) -> list[str]:
    """The module outside of PettingZoo and mpe2 that `name` names, if it does."""
    module, _, env = name.rpartition(".")
    return [] if module == MPE or registered(module, env) else [name]


def _is_module(name: str) -> bool:
    try:
        return "." in name and importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def accepts(env: Any) -> bool:
    """Objects, and what factories make; of factories, Gymnasium's adapter asks first what they make."""
    return isinstance(env, pettingzoo.ParallelEnv | pettingzoo.AECEnv)


def wrap(env: Any, wrappers: Wrappers = ()) -> PettingZooSource:
    """A source from an environment object, of which each slot gets a copy, or from a factory; inside of `wrappers`."""
    if not accepts(env):
        factory = partial(parallel, Fresh(env), tuple(wrappers))
        source = PettingZooSource(factory, None, kwargs=env.keywords if isinstance(env, WithKwargs) else {})
        source.check_fresh()
        return source
    kind = type(env.unwrapped).__name__
    try:
        copy.deepcopy(env).close()
    except Exception as error:
        raise UserError(
            f"This {kind} cannot be copied ({type(error).__name__}: {error}), and each of the environments "
            f"needs its own; hand in a factory instead, such as env=lambda: {kind}(...)."
        ) from None
    return PettingZooSource(partial(parallel, partial(copy.deepcopy, env), tuple(wrappers)), None)


class PettingZooSource:
    """Environments of PettingZoo's. One is made here at once, to see what it is like."""

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
        self._env_id = env_id
        env = self._made()
        self._name = env_id or str(env)
        try:
            obs, infos = env.reset(seed=0)
            self._turns = takes_turns(env)
            self._roster, agent_fields, left_out = survey(env, obs, infos, self._turns, self._name)
        except EnvError:
            raise
        except Exception as error:
            raise EnvError(
                f"The environment {self._name} cannot be reset: {type(error).__name__}: {error}.",
                traceback.format_exc(),
            ) from None
        check_spaces(self._roster, self._name)
        self.notices = [f"Left out of the observation, being text: {', '.join(left_out)}."] if left_out else []
        self._agent_layout = MultiAgentLayout(agent_fields, self._turns)
        self._max_steps = None if self._turns else _max_cycles(env)
        self._arrange(AgentsConfig())
        masked = "info" if self.spec.has_mask else None
        self.step_time = StepTime(self._name, self._alone(env), lambda: self._alone(self._made()), masked)

    def with_groups(self, agents: AgentsConfig) -> PettingZooSource:
        """The same source with other groups."""
        other = copy.copy(self)
        other._arrange(agents)
        return other

    def open_envs(self, num_envs: int, env: EnvConfig) -> AsyncEnvPool:
        workers, why = self.step_time.choose_num_workers(num_envs, env)
        pool = AsyncEnvPool(self.factory, self.spec, num_envs, env, workers, agent_layout=self._agent_layout)
        pool.notices += self.notices + why
        self.notices = []
        return pool

    def filmed(self, env: EnvConfig) -> tuple[AsyncEnvPool, Camera]:
        """One environment in this process, and the camera on it."""
        camera = Camera(drawable(self._made, self.factory, self._drawing, self._name), self._name)
        return AsyncEnvPool(lambda: camera, self.spec, 1, env, agent_layout=self._agent_layout), camera

    def _arrange(self, agents: AgentsConfig) -> None:
        masked = [name for name, fields in self._agent_layout.agents.items() if fields.mask]
        self.spec: EnvSpec = team_spec(self._name, self._roster, agents, self._max_steps, masked)

    def _alone(self, env: Any) -> TeamEnv:
        """One environment, outside of a pool."""
        return TeamEnv(env, SlotOptions(self.spec, None, limit=None, agent_layout=self._agent_layout))

    def check_fresh(self) -> None:
        """Refuse a factory that returns one object again and again, before anything depends on how many are needed."""
        self._made().close()

    def _made(self, factory: Callable[[], Any] | None = None) -> Any:
        return _made(factory or self.factory, self._env_id, self._kwargs)


def _made(factory: Callable[[], Any], env_id: str | None, kwargs: Kwargs) -> Any:
    """One environment, or a sentence that says why there is none."""
    name = env_id or "The environment"
    try:
        env = factory()
    except (ImportError, FailedToImport, gymnasium.error.DependencyNotInstalled) as error:
        extra = (env_id or "").removeprefix("pettingzoo/").partition(".")[0]
        command = f'; pip install "pettingzoo[{extra}]"' if _has_extra(extra) else ""
        raise UserError(f"{name} needs a package that is not installed: {error.__cause__ or error}{command}") from None
    except UserError:
        raise
    except Exception as error:
        if kwargs:
            raise refused(name, kwargs, error) from None
        raise EnvError(f"{name} cannot be made: {type(error).__name__}: {error}.", traceback.format_exc()) from None
    if not isinstance(env, pettingzoo.ParallelEnv):
        raise UserError(f"{name} must be one of PettingZoo's, not {type(env).__module__}.{type(env).__name__}.")
    if not getattr(env, "possible_agents", None):
        raise UserError(f"{name} does not say who can be in it: its list possible_agents must name all agents.")
    return env


def _has_extra(module: str) -> bool:
    """Whether this is a part of PettingZoo, with an extra of its name."""
    return any(env_id.startswith(f"{module}/") for env_id in pettingzoo.aec_registry)


def survey(
    env: Any, obs: Any, infos: Any, turns: bool, env_name: str
) -> tuple[Roster, dict[str, AgentFields], list[str]]:
    """Who there is, where each one's part is in what `env` reports, and which texts are left out."""
    observation_spaces, action_spaces, agent_fields = {}, {}, {}
    left_out: list[str] = []
    informed = {agent for agent, info in infos.items() if isinstance(info, Mapping) and MASK in info}
    for agent in env.possible_agents:
        space, name = env.observation_space(agent), str(agent)
        mask = None
        if isinstance(space, spaces.Dict) and MASK in space.spaces:
            mask = "obs"
        elif agent in informed or (informed and (turns or agent not in obs)):
            mask = "info"  # who is not on turn, or not there yet, need not have one
        seen = obs[agent] if agent in obs else space.sample()
        space, texts = learnable(space, seen, mask, f"{env_name} (agent {name})")
        left_out += [f"[{name!r}]{path}" for path in texts]
        inside: Path = ()
        if mask == "obs" and isinstance(space, spaces.Dict) and list(space.spaces) == [OBSERVATION]:
            space, inside = space[OBSERVATION], (OBSERVATION,)
        agent_fields[name] = AgentFields(agent, inside, mask)
        observation_spaces[name] = space
        action_spaces[name] = env.action_space(agent)
    return Roster(observation_spaces, action_spaces, None, _state_space(env)), agent_fields, left_out


def _state_space(env: Any) -> spaces.Space[Any] | None:
    """Of what the environment knows of itself as a whole, if it says so and does as it says."""
    space = getattr(env, "state_space", None)
    if not isinstance(space, spaces.Box):
        return None
    try:
        return space if np.shape(env.state()) == space.shape else None
    except Exception:
        return None


def _max_cycles(env: Any) -> int | None:
    """The environment's own limit on steps, as most call it."""
    limit = getattr(env.unwrapped, "max_cycles", None)
    return limit if type(limit) is int and limit > 0 else None


def check_spaces(roster: Roster, name: str) -> None:
    """Refuse what has no shape: it cannot stand beside another agent's."""
    for what, each in (("sees", roster.observation_spaces), ("does", roster.action_spaces)):
        for agent, space in each.items():
            for path, leaf in leaves(space):
                if not isinstance(leaf, READABLE):
                    raise UserError(
                        f"{name}: what {agent} {what}{shown(path)} is {leaf}, which has no fixed shape to feed a "
                        f"network; wrap the environment so that it has Box, Discrete, MultiDiscrete, MultiBinary, or "
                        f"a Dict or Tuple of these."
                    )
