"""Which JAX environments are alike: the keys by which what was compiled for one serves for another.

Only Proximo's own classes state keys. What an environment of a user's does cannot be told from outside, and it may be
changed between two runs: programs for it are compiled for each trainer alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from functools import cached_property
from typing import Any

from proximo.compile import key_of

_fixed: dict[int, Stated] = {}
"""Objects that stay as they are while some runs last, by their identity."""
STATED = "stated"


class Stated:
    """The key of an environment: its class, some values, and the key of the environment `inside` it, if it has one.

    The key is gone once an attribute of the environment, or of what it has `held` since then, is no longer the same.
    """

    def __init__(self, env: Any, *values: Hashable, inside: Any = None, held: Any = None):
        self.env = env
        self._own: Hashable = (type(env), type(held), *values)
        self._inside = inside
        self._then = [(thing, _attributes(thing)) for thing in (env, *_layers(held))]

    def key(self) -> Hashable | None:
        if not all(_unchanged(thing, then) for thing, then in self._then):
            return None
        return self._own if self._inside is None else key_of(self._own, env_key(self._inside))


def env_key(env: Any) -> Hashable | None:
    """What `env` is, as a value; None where that cannot be said."""
    # Not by `getattr`: a wrapper that hands on the attributes of what it wraps is another environment.
    stated = _fixed.get(id(env)) or _attributes(env, all=True).get(STATED)
    return stated.key() if isinstance(stated, Stated) and stated.env is env else None


@contextlib.contextmanager
def same_for_all(env: Any) -> Iterator[None]:
    """Runs inside this that are given the very object `env`, in whatever thread, share what was compiled for it."""
    _fixed[id(env)] = Stated(env, object())
    try:
        yield
    finally:
        _fixed.pop(id(env), None)


def _layers(env: Any) -> list[Any]:
    """`env`, and what libraries wrap in it."""
    layers: list[Any] = []
    while env is not None and not any(env is layer for layer in layers):
        layers.append(env)
        inside = _attributes(env)
        env = inside.get("env", inside.get("_env"))
    return layers


def _attributes(thing: Any, all: bool = False) -> dict[str, Any]:
    held = getattr(thing, "__dict__", {})
    return held if all else {name: value for name, value in held.items() if name != STATED}


def _unchanged(thing: Any, then: dict[str, Any]) -> bool:
    now = _attributes(thing)
    # A property that is worked out once becomes an attribute when somebody asks for it.
    new = (name for name in now if not isinstance(getattr(type(thing), name, None), cached_property))
    return then.keys() >= set(new) and all(name in now and now[name] is value for name, value in then.items())
