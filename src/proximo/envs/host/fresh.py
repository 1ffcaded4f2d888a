"""Factories that must make a new environment each time. Worker processes import this: it loads no JAX."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from proximo.errors import UserError


class Fresh:
    """A factory that refuses to give one object twice: two environments of a pool would step it by turns. Wrappers do
    not make another object of what they wrap. In another process it begins anew, as what it makes does."""

    def __init__(self, factory: Callable[..., Any]):
        self.factory = factory
        self._given: list[weakref.ref[Any]] = []  # those that are still there

    def __call__(self, **given: Any) -> Any:
        env = self.factory(**given)
        base = getattr(env, "unwrapped", None)
        if base is None:
            return env  # no environment: whoever asked for one says so
        self._given = [given for given in self._given if given() is not None]
        if any(given() is base for given in self._given):
            raise UserError(
                f"The factory {named(self.factory)} returned the same {type(base).__name__} twice, and every "
                f"environment needs an object of its own; make it inside the factory, such as "
                f"env=lambda: {type(base).__name__}(...)."
            )
        self._given.append(weakref.ref(base))
        return env

    def __reduce__(self) -> tuple[Any, ...]:
        return Fresh, (self.factory,)


def named(factory: Any) -> str:
    """A factory as its user knows it: the name of a function, and where it was written."""
    inner = getattr(factory, "func", factory)
    code = getattr(inner, "__code__", None)
    name = getattr(inner, "__qualname__", type(inner).__name__)
    return name if code is None else f"{name} (line {code.co_firstlineno} of {code.co_filename})"
