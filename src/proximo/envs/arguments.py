"""What environments are made with besides their names: arguments, and wrappers. Worker processes import this: it loads
no JAX."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from proximo.config import EnvConfig
from proximo.envs.own_modules import import_named
from proximo.errors import UserError, quoted

Kwargs = Mapping[str, Any]
Wrappers = Sequence[str | Mapping[str, Any]]
"""As `env.wrappers` has them, the innermost first."""
NOTHING: Kwargs = MappingProxyType({})
NAME = "name"
LONGEST = 200
"""Letters of an environment's error in a sentence."""


class WithKwargs(partial[Any]):
    """A factory of the user's, called with `env.kwargs`. Keywords that it has from elsewhere are its own."""


def env_key(env: EnvConfig) -> str:
    """What an environment is made from, as a value: the id, the arguments, the wrappers. A text, since `True`, 1 and
    1.0 are equal in Python, and not the same to an environment."""
    return arguments_key(env.id, env.kwargs, env.wrappers)


def arguments_key(env_id: str, kwargs: Kwargs | None, wrappers: Wrappers = ()) -> str:
    """As `env_key`, from its parts."""
    return json.dumps([env_id, dict(kwargs or {}), list(wrappers)])


def apply_wrappers(env: Any, wrappers: Wrappers) -> Any:
    """`env` inside of each of `wrappers` in turn; whatever goes wrong is the user's to correct."""
    for wrapper in wrappers:
        name, given = wrapper_parts(wrapper)
        make = find_wrapper(name)
        try:
            env = make(env, **given)
        except Exception as error:
            raise UserError(f"{_with(name, given)} cannot wrap the environment: {in_words(error)}.") from None
    return env


def wrapper_parts(wrapper: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of a wrapper and its arguments."""
    if isinstance(wrapper, str):
        return wrapper, {}
    return wrapper[NAME], {key: value for key, value in wrapper.items() if key != NAME}


def wrapper_module(name: str) -> tuple[str, str]:
    """The module that the name of a wrapper names, and what it names there."""
    module, _, path = name.partition(":") if ":" in name else name.rpartition(".")
    return module, path


def is_known(name: str) -> bool:
    """Whether this is a wrapper of Gymnasium's that does nothing but wrap: `RecordVideo` writes to where it is told."""
    module, path = wrapper_module(name)
    return (
        module in ("gymnasium.wrappers", "gymnasium.wrappers.vector")
        and re.fullmatch(r"[A-Z]\w*", path) is not None
        and path != "RecordVideo"
    )


def find_wrapper(name: str) -> Callable[..., Any]:
    """The class, or the function, that `package.module:Class` or `package.module.Class` names."""
    module, path = wrapper_module(name)
    try:
        found: Any = import_named(module)
    except ModuleNotFoundError as error:
        raise UserError(f"env.wrappers names {name}, which cannot be imported: {str(error).rstrip('.')}.") from None
    except Exception as error:
        raise UserError(f"env.wrappers names {name}, and importing {module} failed: {in_words(error)}.") from None
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            near = difflib.get_close_matches(part, dir(found), 1, 0.6)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise UserError(f"env.wrappers names {name}, but {module} has no {part}{hint}") from None
    if not callable(found):
        raise UserError(f"env.wrappers names {name}, which is a {type(found).__name__}, not a wrapper.")
    wrapper: Callable[..., Any] = found
    return wrapper


@contextlib.contextmanager
def made_with(env_id: str, kwargs: Kwargs) -> Iterator[None]:
    """Whatever goes wrong in making an environment with arguments is said to be theirs."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not kwargs:
            raise
        raise refused(env_id, kwargs, error) from None


def refused(env_id: str, kwargs: Kwargs, error: BaseException) -> UserError:
    """For arguments that an environment does not take."""
    why = error.__cause__ if type(error.__cause__) is type(error) else error  # Gymnasium says it once more, at length
    return UserError(f"{env_id} cannot be made with env.kwargs={quoted(dict(kwargs))}: {in_words(why)}.")


def check_taken(make: Callable[..., Any], env_id: str, kwargs: Kwargs, wrappers: Wrappers) -> dict[str, Any]:
    """What `make(name, **arguments)` of a family is called with besides the name; a family that takes no such
    arguments, or no wrappers, is refused."""
    if "wrappers" in kwargs:
        raise UserError(f"{env_id} cannot be given the argument `wrappers`; the setting env.wrappers lists wrappers.")
    parameters = inspect.signature(make).parameters
    if wrappers and "wrappers" not in parameters:
        raise UserError(
            f"{env_id} cannot be wrapped by name (env.wrappers): only Gymnasium's and PettingZoo's environments can; "
            f"in Python, an environment object can be handed in that is wrapped already."
        )
    given = dict(kwargs) | ({"wrappers": wrappers} if wrappers else {})
    try:
        inspect.signature(make).bind("name", **given)
    except TypeError as error:
        raise refused(env_id, kwargs, error) from None
    return given


def in_words(error: BaseException) -> str:
    """An error in a sentence of ours."""
    text = " ".join(f"{type(error).__name__}: {error}".removesuffix(": ").split()).rstrip(".")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _with(name: str, given: Kwargs) -> str:
    return f"The wrapper {name}" + (f" with {quoted(dict(given))}" if given else "")
