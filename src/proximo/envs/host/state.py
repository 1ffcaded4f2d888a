"""The state of an environment and its wrappers as bytes, and back into a freshly made one.

The outermost object that has `get_state()` and `set_state(state)` speaks for itself and everything inside it. The
others are read, and written, attribute by attribute. What cannot be read that way makes the environment one that
cannot be restored: better none than a wrong one.
"""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit

from proximo.envs.host.codec import Unsupported, decode, encode
from proximo.envs.host.graph import Drawing, generator_state
from proximo.envs.host.redraw import redraw

ZOO_WRAPPERS = ("pettingzoo.utils.wrappers.", "pettingzoo.utils.conversions")
__all__ = ["Unsupported", "captured", "decode", "encode", "restore"]


def captured(env: Any) -> bytes:
    """The environment's state; raises `Unsupported` where that cannot be read, or whatever `get_state` raises."""
    roots, sealed = _levels(env)
    state: dict[str, Any] = {"nodes": Drawing(roots, sealed).nodes}
    if sealed:
        state["hook"] = sealed[0].get_state()
        # What people forget: the generator, and the time limit inside a wrapper that speaks for all.
        stream = getattr(env.unwrapped, "_np_random", None)
        state["stream"] = generator_state(stream) if isinstance(stream, np.random.Generator) else None
        state["elapsed"] = [level._elapsed_steps for level in sealed if type(level) is TimeLimit]
    return encode(state)


def restore(env: Any, data: bytes) -> None:
    """Put `env`, which was made and reset, where another one was captured. Raises ValueError where that fails; what
    `env` is like then is not known."""
    state = decode(data)
    try:
        roots, sealed = _levels(env)
        redraw(state["nodes"], roots, sealed)
        if sealed:
            sealed[0].set_state(state["hook"])
            stream = getattr(env.unwrapped, "_np_random", None)
            if state["stream"] is not None and isinstance(stream, np.random.Generator):
                stream.bit_generator.state = state["stream"][1]
            limits = [level for level in sealed if type(level) is TimeLimit]
            for level, elapsed in zip(limits, state["elapsed"], strict=True):
                level._elapsed_steps = elapsed
    except TimeoutError:
        raise
    except Exception as error:
        words = str(error) if isinstance(error, ValueError | Unsupported) else f"{type(error).__name__}: {error}"
        raise ValueError(f"the environment does not take back its state: {words}") from None


def _levels(env: Any) -> tuple[list[Any], list[Any]]:
    """The environment and its wrappers from the outside in: those to be read by their attributes, and those that the
    first of them speaks for."""
    levels = [env]
    while (inner := _inside(levels[-1])) is not None:
        levels.append(inner)
    first = next((number for number, level in enumerate(levels) if _has_hook(level)), len(levels))
    return levels[:first], levels[first:]


def _inside(level: Any) -> Any:
    """What a wrapper of Gymnasium or PettingZoo holds; None for what is none."""
    if isinstance(level, gymnasium.Wrapper):
        return level.env
    if any(base.__module__.startswith(ZOO_WRAPPERS) for base in type(level).__mro__):
        return vars(level).get("env", vars(level).get("aec_env"))
    return None


def _has_hook(level: Any) -> bool:
    """Whether it has the two methods itself, to be called with nothing and with a state. MuJoCo's `set_state` takes
    positions and velocities, and is something else."""
    for name, number in (("get_state", 0), ("set_state", 1)):
        if inspect.getattr_static(level, name, None) is None or not callable(getattr(level, name)):
            return False
        try:
            parameters = inspect.signature(getattr(level, name)).parameters.values()
        except (TypeError, ValueError):
            return False
        starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if sum(one.default is one.empty and one.kind not in starred for one in parameters) != number:
            return False
    return True
