"""What checks annotations while tests run, see conftest.py."""

from __future__ import annotations

from typing import Any

from beartype import BeartypeConf, beartype

# As for mypy, an int is a float where one is asked for.
_check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_checked: dict[Any, Any] = {}


def check(function: Any) -> Any:
    """`function` with its arguments and result checked. jaxtyping hands in an empty one with the annotations of the
    true one, and does so again each time that a function inside another one is made, which may be at every step: what
    checks the same annotations is made once."""
    if "<locals>" not in function.__qualname__:
        return _check(function)
    code = function.__code__
    kinds = (code.co_varnames, code.co_posonlyargcount, code.co_argcount, code.co_kwonlyargcount, code.co_flags)
    # By what annotations say: jaxtyping makes another class each time that it reads `Float[Array, "N"]`.
    key = (function.__module__, function.__qualname__, kinds, repr(function.__annotations__))
    if key not in _checked:
        _checked[key] = _check(function)
    return _checked[key]
