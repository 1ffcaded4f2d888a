"""How programs are compiled and called."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import jax

from proximo.program_cache import keep_programs

# LLVM's higher levels take longer to compile on CPU, and what they compile runs no faster: the time goes into
# matrix products and memory, not into code that LLVM could improve (`python bench/optimization_level.py`).
CPU_OPTIONS = {"xla_backend_optimization_level": 1}

# In a small program, calling a library for matrix products takes longer than the products (`python bench/actor.py`).
# Such a program serves one group of environments or several, and each must get the same bits alone and beside others:
# with emitters for fusions it does.
EMITTERS = {"xla_cpu_use_fusion_emitters": True}
ONE_THREAD, NO_LIBRARY = {"xla_cpu_multi_thread_eigen": False}, {"xla_cpu_experimental_ynn_fusion_type": ""}

MOST_KEPT = 128
_kept: OrderedDict[Hashable, Kept] = OrderedDict()
_lock = threading.Lock()


class Kept:
    """Something in the cache, or on its way there."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made: list[Any] = []


def prepare_backend() -> None:
    """Set JAX up for these programs, unless the user has said otherwise. JAX reads this when it first computes anything
    in a process, so whatever comes first of trainers, agents and evaluations calls it first of all.

    Handing a small program to another thread takes as long as running it, and nobody here does anything meanwhile.
    """
    if "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    keep_programs()


def cached(key: Hashable | None, make: Callable[[], Any]) -> Any:
    """What `make` makes, once in this process for each key: runs that are alike share their programs. Of threads that
    want the same at the same time, one makes it and the others wait. Without a key it is made for the caller alone.

    A key holds values, never objects that somebody may change, and what is kept holds none of these either.
    """
    if key is None:
        return make()
    with _lock:
        kept = _kept.setdefault(key, Kept())
        _kept.move_to_end(key)
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    with kept.lock:
        if not kept.made:
            kept.made.append(make())
        return kept.made[0]


def key_of(*parts: Hashable | None) -> Hashable | None:
    """A key of several parts; None if one of them is None, because what has no key of its own is part of none.
    Values that may be None belong into a tuple."""
    return None if any(part is None for part in parts) else parts


def settings_key(settings: Any) -> str:
    """Settings (a dataclass) as part of a key: every value, in order."""
    return json.dumps(dataclasses.asdict(settings))


def compiled(key: Hashable | None, function: Callable[..., Any], *given: Any) -> Any:
    """`function` compiled, now, for arguments like those `given`: a program that no longer knows the objects from which
    it was made, and so can be `cached`."""
    return cached(key, lambda: jit(function).lower(*given).compile())


def shapes(tree: Any) -> Hashable:
    """Structure, shapes and types of a tree of arrays, as part of a key."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, *((leaf.shape, leaf.dtype) for leaf in leaves)


def jit(function: Callable[..., Any], small: bool = False, **options: Any) -> Any:
    """`jax.jit` with options that suit the machine, unless XLA_FLAGS says otherwise. A `small` program runs in one
    thread, because waking others, which have gone to sleep since the last call, would take longer than all of it; and
    it is compiled in the same way whatever XLA_FLAGS says."""
    chosen: dict[str, Any] | None = None
    if jax.default_backend() == "cpu":
        flags = os.environ.get("XLA_FLAGS", "")
        chosen = {name: value for name, value in CPU_OPTIONS.items() if small or name not in flags}
        chosen |= _small_options() if small else {}
    return jax.jit(function, compiler_options=chosen, **options)


@cache
def _small_options() -> dict[str, Any]:
    """For small programs. Of the library, XLA says that it is an experiment, so the option may be gone one day."""
    try:
        jax.jit(lambda: 0, compiler_options=NO_LIBRARY).lower().compile()
    except jax.errors.JaxRuntimeError:
        return ONE_THREAD | EMITTERS
    return ONE_THREAD | EMITTERS | NO_LIBRARY
