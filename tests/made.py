"""Environments as the kind that a test knows them to be; `envs.make` promises one of two."""

from __future__ import annotations

from typing import Any

from proximo import envs
from proximo.envs.api import HostSource, JaxEnv
from proximo.envs.arguments import Kwargs, Wrappers
from proximo.envs.compiled.agents import ManyAgents
from proximo.envs.host.gymnasium import GymnasiumSource
from proximo.envs.host.pettingzoo import PettingZooSource


def jax_env(env: Any, kwargs: Kwargs | None = None) -> JaxEnv:
    made = envs.make(env, kwargs)
    assert isinstance(made, JaxEnv)
    return made


def jax_team(env: Any) -> ManyAgents:
    made: object = envs.make(env)
    assert isinstance(made, ManyAgents)
    return made


def host_source(env: Any) -> HostSource:
    made = envs.make(env)
    assert isinstance(made, HostSource)
    return made


def gymnasium_source(env: Any, kwargs: Kwargs | None = None, wrappers: Wrappers = ()) -> GymnasiumSource:
    made = envs.make(env, kwargs, wrappers)
    assert isinstance(made, GymnasiumSource)
    return made


def pettingzoo_source(env: Any) -> PettingZooSource:
    made = envs.make(env)
    assert isinstance(made, PettingZooSource)
    return made
