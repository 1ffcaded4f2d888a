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

from proximo.envs.spec import EnvSpec
from proximo.errors import OtherKind, UserError

if TYPE_CHECKING:
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
]


def __getattr__(name: str) -> Any:
    # On demand: worker processes come by here, and must not wait for JAX.
    if name not in __all__:
        raise AttributeError(f"module 'proximo.envs' has no attribute {name!r}")
    return getattr(importlib.import_module("proximo.envs.api"), name)


@dataclass(frozen=True)
class Family:
    """A library of environments. Its adapter module offers `names()`, `make(name)`, `accepts(env)`, `wrap(env)`."""

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
        Family("gymnax", "gymnax", "proximo.envs.compiled.gymnax", "classic control, MinAtar, bsuite and more, in JAX"),
        Family("jumanji", "jumanji", "proximo.envs.compiled.jumanji", "puzzles, packing, routing; in JAX", "jumanji"),
        Family("brax", "brax", "proximo.envs.compiled.brax", "rigid bodies, in JAX", "brax"),
        Family("jaxmarl", "jaxmarl", "proximo.envs.compiled.jaxmarl", "many agents, in JAX: MPE, SMAX, ...", "jaxmarl"),
        Family("envpool", "envpool", "proximo.envs.host.envpool", "Atari, MuJoCo and more, stepped in C++", "envpool"),
        Family("pettingzoo", "pettingzoo", "proximo.envs.host.pettingzoo", "many agents: MPE and more", "pettingzoo"),
    )
}


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


def make(env: Any) -> JaxEnv | HostSource:
    """The environment that `env` means: an id such as `CartPole-v1`, an environment object, or a factory."""
    from proximo.envs.api import HostSource, JaxEnv, JaxTeamEnv

    if isinstance(env, str):
        return _by_id(env)
    if isinstance(env, HostSource):
        return env
    for family in families().values():
        # An object of a package that nobody imported cannot exist; importing them all to ask would take seconds.
        if family.package in sys.modules and family.module().accepts(env):
            return _wrapped(family, env)
    if isinstance(env, JaxTeamEnv):
        from proximo.envs.compiled.agents import ManyAgents

        many: JaxEnv | HostSource = ManyAgents(env)  # type: ignore[assignment]
        return many
    if isinstance(env, JaxEnv):
        return env
    raise UserError(
        f"env must be an id such as CartPole-v1, an environment of Gymnasium, PettingZoo, gymnax, Jumanji or Brax, a "
        f"factory of Gymnasium's or PettingZoo's, or an object with spec, reset(key) and step(key, state, action); "
        f"not {type(env).__name__}."
    )


def _wrapped(family: Family, env: Any) -> JaxEnv | HostSource:
    """A source from `env`. What a factory makes shows only when it is called: then another family may know it."""
    try:
        source: JaxEnv | HostSource = family.module().wrap(env)
        return source
    except OtherKind as other:
        zoo = FAMILIES["pettingzoo"]
        if zoo.package in sys.modules and zoo.module().accepts(other.made):
            other_source: JaxEnv | HostSource = zoo.module().wrap(env)
            return other_source
        raise


def _by_id(env_id: str) -> JaxEnv | HostSource:
    prefix, slash, name = env_id.partition("/")
    known = families() if slash else FAMILIES
    if slash and prefix in known:
        source: JaxEnv | HostSource = known[prefix].module().make(name)
        return source
    near = difflib.get_close_matches(prefix, known, 1, 0.7)
    if slash and near:
        raise UserError(f"There is no environment family {prefix}; did you mean {near[0]}/{name}?")
    plain: JaxEnv | HostSource = FAMILIES[""].module().make(env_id)
    return plain
