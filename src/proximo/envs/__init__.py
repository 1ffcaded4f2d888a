"""Environments by id. A family is imported when one of its environments is first asked for."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from proximo.envs.arguments import Kwargs, WithKwargs, Wrappers, check_taken, is_known, wrapper_parts
from proximo.errors import OtherKind, UserError, quoted

if TYPE_CHECKING:
    from proximo.config import EnvConfig
    from proximo.envs.api import (
        CompiledEnv,
        HostEnv,
        HostSource,
        JaxEnv,
        JaxTeamEnv,
        LaneStep,
        Roster,
        TeamTransition,
        Timestep,
        Transition,
    )
    from proximo.envs.spec import EnvSpec

__all__ = [
    "FAMILIES",
    "CompiledEnv",
    "EnvSpec",
    "Family",
    "HostEnv",
    "HostSource",
    "JaxEnv",
    "JaxTeamEnv",
    "LaneStep",
    "Roster",
    "TeamTransition",
    "Timestep",
    "Transition",
    "families",
    "make",
    "make_configured",
    "named_modules",
]


def __getattr__(name: str) -> Any:
    # On demand: worker processes come by here, and must not wait for JAX.
    if name not in __all__:
        raise AttributeError(f"module 'proximo.envs' has no attribute {name!r}")
    return getattr(importlib.import_module("proximo.envs.api"), name)


@dataclass(frozen=True)
class Family:
    """A library of environments. Its adapter module offers `names()`, `make(name)`, `accepts(env)`, `wrap(env)`. Where
    environments take arguments, so does `make(name, /, **kwargs)`; where they can be wrapped by name, it has a keyword
    `wrappers` too."""

    prefix: str
    """What its ids start with, before a slash; empty for Gymnasium's, which have no such start."""
    package: str
    adapter: str
    about: str
    extra: str | None = None
    """The optional dependency that installs it; None: part of the core."""

    @property
    def title(self) -> str:
        return self.prefix or self.package

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    @property
    def install_command(self) -> str:
        return f'pip install "proximo[{self.extra}]"'

    def module(self) -> ModuleType:
        if not self.installed:
            raise UserError(f"{self.prefix}/ environments need the package {self.package}; {self.install_command}")
        return importlib.import_module(self.adapter)

    def ids(self) -> list[str]:
        return [f"{self.prefix}/{name}" if self.prefix else name for name in self.module().names()]


FAMILIES = {
    family.prefix: family
    for family in (
        Family("", "gymnasium", "proximo.envs.host.gymnasium", "Gymnasium's, and every package that registers there"),
        Family("vector", "gymnasium", "proximo.envs.host.vector", "many at once: registered vector environments"),
        Family("gymnax", "gymnax", "proximo.envs.compiled.gymnax", "classic control, MinAtar, bsuite and more, in JAX"),
        Family("jumanji", "jumanji", "proximo.envs.compiled.jumanji", "puzzles, packing, routing; in JAX", "jumanji"),
        Family("brax", "brax", "proximo.envs.compiled.brax", "rigid bodies, in JAX", "brax"),
        Family("jaxmarl", "jaxmarl", "proximo.envs.compiled.jaxmarl", "many agents, in JAX: MPE, SMAX, ...", "jaxmarl"),
        Family("envpool", "envpool", "proximo.envs.host.envpool", "Atari, MuJoCo and more, stepped in C++", "envpool"),
        Family("pettingzoo", "pettingzoo", "proximo.envs.host.pettingzoo", "many agents: MPE and more", "pettingzoo"),
    )
}

VECTOR, ZOO = "vector", "pettingzoo"
"""The families whose factories are known by what they make, and whose ids may name modules of the user's."""

ENTRY_POINTS = "proximo.envs"
"""The group of entry points by which other packages bring families: a prefix, and the adapter's module."""


def families() -> dict[str, Family]:
    """The built-in ones, and those that installed packages bring, which cannot replace a built-in one. Nothing is
    imported for that."""
    found = dict(FAMILIES)
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        package = entry.value.partition(".")[0]
        whose = entry.dist.name if entry.dist is not None else package
        found.setdefault(entry.name, Family(entry.name, package, entry.value, f"from the package {whose}"))
    return found


def make_configured(env: EnvConfig, handed_in: Any = None) -> JaxEnv | HostSource:
    """The environment that the settings name, or make of what was `handed_in`."""
    return make(env.id if handed_in is None else handed_in, env.kwargs, env.wrappers)


def make(env: Any, kwargs: Kwargs | None = None, wrappers: Wrappers = ()) -> JaxEnv | HostSource:
    """The environment that `env` means: an id such as `CartPole-v1`, an environment object, or a factory.

    `kwargs` are what it is made with, and `wrappers` what is put around it. An object is made already, and takes no
    arguments; of factories, those of Gymnasium's and PettingZoo's environments take them. A factory with a parameter
    `num_envs` makes vector environments.
    """
    from proximo.envs.api import HostSource, JaxEnv, JaxTeamEnv

    if isinstance(env, str):
        return _by_id(env, kwargs or {}, wrappers)
    if _is_factory(env):
        factory = WithKwargs(env, **kwargs) if kwargs else env
        of_vectors = FAMILIES[VECTOR].module().accepts(factory)
        return _wrapped(FAMILIES[VECTOR if of_vectors else ""], factory, wrappers)
    if kwargs:
        raise UserError(
            f"This {type(env).__name__} is made already, and takes no env.kwargs={quoted(dict(kwargs))}; hand in a "
            f"factory, or an id."
        )
    if isinstance(env, HostSource) and not wrappers:
        return env
    for family in families().values():
        # An object of a package that nobody imported cannot exist; importing them all to ask would take seconds.
        if family.package in sys.modules and family.module().accepts(env):
            return _wrapped(family, env, wrappers)
    if wrappers:
        raise UserError(
            f"A {type(env).__name__} cannot be wrapped by name (env.wrappers): only Gymnasium's and PettingZoo's "
            f"environments can."
        )
    if isinstance(env, JaxTeamEnv):
        from proximo.envs.compiled.agents import ManyAgents

        many: JaxEnv | HostSource = ManyAgents(env)  # type: ignore[assignment]
        return many
    if isinstance(env, JaxEnv):
        return env
    raise UserError(
        f"env must be an id such as CartPole-v1, an environment of Gymnasium, PettingZoo, gymnax, Jumanji or Brax, a "
        f"vector environment, a factory of Gymnasium's, PettingZoo's or vector environments, or an object with spec, "
        f"reset(key) and step(key, state, action); not {type(env).__name__}."
    )


def named_modules(env: EnvConfig, handed_in: bool = False, even_imported: bool = False) -> list[str]:
    """What the settings of an environment name that is imported, or called, to make it, and that is no part of Proximo
    or of an installed family: the module before a colon, PettingZoo's `package.module`, wrappers. An environment that
    was `handed_in` is not made from its id.

    A module that is imported already does nothing more, and is left out unless `even_imported`. Wrappers are called, so
    for them it makes no difference.
    """
    found = [] if handed_in else _modules_of_id(env.id)
    wrappers = [wrapper_parts(wrapper)[0] for wrapper in env.wrappers]
    modules = [name for name in found if even_imported or name not in sys.modules]
    return modules + [name for name in wrappers if not is_known(name)]


def _modules_of_id(env_id: str) -> list[str]:
    prefix, slash, name = env_id.partition("/")
    if slash and prefix in families():
        naming = prefix in (VECTOR, ZOO) and FAMILIES[prefix].installed
        return FAMILIES[prefix].module().named_modules(name) if naming else []
    module, colon, _ = env_id.partition(":")
    return [module] if colon else []


def _is_factory(env: Any) -> bool:
    """Whether this makes environments, of Gymnasium's or another kind."""
    return isinstance(env, type) or (callable(env) and not hasattr(env, "step"))


def _wrapped(family: Family, env: Any, wrappers: Wrappers) -> JaxEnv | HostSource:
    """A source from `env`. What most factories make shows only when it is called: then another family may know it."""
    wrap = family.module().wrap
    try:
        source: JaxEnv | HostSource = wrap(env, **check_taken(wrap, _named(env), {}, wrappers))
        return source
    except OtherKind as other:
        for prefix in (VECTOR, ZOO):
            family = FAMILIES[prefix]
            if family.package in sys.modules and family.module().accepts(other.made):
                other_source: JaxEnv | HostSource = family.module().wrap(env, wrappers=wrappers)
                return other_source
        raise


def _named(env: Any) -> str:
    return f"This {type(env).__name__}"


def _by_id(env_id: str, kwargs: Kwargs, wrappers: Wrappers) -> JaxEnv | HostSource:
    prefix, slash, name = env_id.partition("/")
    known = families() if slash else FAMILIES
    if slash and prefix in known:
        make = known[prefix].module().make
        source: JaxEnv | HostSource = make(name, **check_taken(make, env_id, kwargs, wrappers))
        return source
    near = difflib.get_close_matches(prefix, known, 1, 0.7)
    if slash and near:
        raise UserError(f"There is no environment family {prefix}; did you mean {near[0]}/{name}?")
    make = FAMILIES[""].module().make
    plain: JaxEnv | HostSource = make(env_id, **check_taken(make, env_id, kwargs, wrappers))
    return plain
