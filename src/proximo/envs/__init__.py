"""Environments by id. A family is imported when one of its environments is first asked for."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from proximo.envs.api import CompiledEnv, EnvSpec, JaxEnv, Timestep, Transition
from proximo.errors import UserError

__all__ = ["FAMILIES", "CompiledEnv", "EnvSpec", "Family", "JaxEnv", "Timestep", "Transition", "make"]


@dataclass(frozen=True)
class Family:
    """A library of environments. Its adapter module offers `names()`, `make(name)`, `accepts(env)`, `wrap(env)`."""

    prefix: str
    package: str
    adapter: str
    about: str
    extra: str | None = None
    """The optional dependency that installs it; None: part of the core."""

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


FAMILIES = {
    family.prefix: family
    for family in (
        Family("gymnax", "gymnax", "proximo.envs.compiled.gymnax", "classic control, MinAtar, bsuite and more, in JAX"),
    )
}


def make(env: Any) -> JaxEnv:
    """The environment that `env` means: an id such as `gymnax/CartPole-v1`, or an environment object."""
    if isinstance(env, str):
        return _by_id(env)
    for family in FAMILIES.values():
        if family.installed and family.module().accepts(env):
            return family.module().wrap(env)
    if isinstance(env, JaxEnv):
        return env
    raise UserError(
        f"env must be an id such as gymnax/CartPole-v1, a gymnax environment, or an object with "
        f"spec, reset(key) and step(key, state, action); not {type(env).__name__}."
    )


def _by_id(env_id: str) -> JaxEnv:
    prefix, slash, name = env_id.partition("/")
    if not slash:
        matches = [
            f"{family.prefix}/{known}"
            for family in FAMILIES.values()
            if family.installed
            for known in difflib.get_close_matches(env_id, family.module().names(), 1, 0.5)
        ]
        hint = f"did you mean {matches[0]}?" if matches else "`proximo envs` lists what there is."
        raise UserError(
            f"There is no environment {env_id}; an id starts with its family, as in gymnax/{env_id}; {hint}"
        )
    if prefix not in FAMILIES:
        near = difflib.get_close_matches(prefix, FAMILIES, 1, 0.4)
        hint = f"did you mean {near[0]}/{name}?" if near else f"families: {', '.join(FAMILIES)}."
        raise UserError(f"There is no environment family {prefix}; {hint}")
    return FAMILIES[prefix].module().make(name)
