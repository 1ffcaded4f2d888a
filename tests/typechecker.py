"""What checks annotations while tests run, see conftest.py."""

from __future__ import annotations

import functools
import inspect
import typing
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import jaxtyped

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


def quickly_jaxtyped(function: Any = None, **options: Any) -> Any:
    """`jaxtyped` for what is called most: functions that are made once. It checks arguments twice, to say in more words
    what is wrong; half of the time that a small training takes in Python would be that."""
    if function is None:
        return lambda function: quickly_jaxtyped(function, **options)
    if not inspect.isfunction(function) or inspect.isgeneratorfunction(function) or "<locals>" in function.__qualname__:
        return jaxtyped(function, **options)
    if "{" in "".join(map(str, function.__annotations__.values())):  # a size that is the value of an argument
        return jaxtyped(function, **options)
    function.__annotations__ = {
        name: _hint(annotation, function.__globals__) for name, annotation in function.__annotations__.items()
    }
    checked = _check(function)
    if checked is function:  # it has no annotations
        return function

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **named)
        with jaxtyped("context"):  # in which a name stands for one size
            try:
                return checked(*args, **named)
            except BeartypeCallHintViolation as error:
                raise jaxtyping.TypeCheckError(str(error)) from None

    return call


def _hint(annotation: Any, names: dict[str, Any]) -> Any:
    """What an annotation says, or Any where its names are not known yet, such as that of a class inside itself."""

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    try:
        return typing.get_type_hints(holder, names, include_extras=True)["it"]
    except Exception:  # whatever a name that is not there leads to
        return Any
