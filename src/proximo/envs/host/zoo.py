"""Makes PettingZoo's environments, in the form in which all agents act at once. Worker processes import this: it loads
no JAX."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pettingzoo
from pettingzoo.utils.conversions import aec_to_parallel, turn_based_aec_to_parallel

from proximo.envs.arguments import Wrappers, apply_wrappers


def make_zoo(module: str, name: str, wrappers: Wrappers, /, **options: Any) -> Any:
    """An environment that PettingZoo has registered in the namespace `module`, or a module of that package which makes
    one, as those of mpe2 do; inside of `wrappers`, which get it in the form in which it is made."""
    if registered(module, name):
        kind: Any = "parallel" if registered(module, name, pettingzoo.parallel_registry) else "aec"
        return as_parallel(apply_wrappers(pettingzoo.make(kind, f"{module}/{name}", **options), wrappers))
    made = importlib.import_module(f"{module}.{name}")
    make = getattr(made, "parallel_env", None) or made.env
    return as_parallel(apply_wrappers(make(**options), wrappers))


def registered(module: str, name: str, registry: Any = None) -> bool:
    """Whether PettingZoo knows an environment, whose name may end in `-v1` or in `_v1`."""
    known = pettingzoo.aec_registry if registry is None else registry
    return any(_plain(f"{module}/{name}") == _plain(env_id) for env_id in known)


def _plain(env_id: str) -> str:
    return env_id.replace("-", "_")


def parallel(factory: Callable[[], Any], wrappers: Wrappers = ()) -> Any:
    """What `factory` makes, inside of `wrappers`, in the parallel form."""
    return as_parallel(apply_wrappers(factory(), wrappers))


def as_parallel(env: Any) -> Any:
    """The parallel form of an environment in which agents act one after the other: all in each step, or where that is
    not the same, the one on turn."""
    if not isinstance(env, pettingzoo.AECEnv):
        return env
    return aec_to_parallel(env) if env.metadata.get("is_parallelizable") else turn_based_aec_to_parallel(env)


def takes_turns(env: Any) -> bool:
    """Whether only the agent on turn acts: `env.aec_env.agent_selection`."""
    inner = getattr(env, "aec_env", None)
    return inner is not None and not inner.metadata.get("is_parallelizable")
