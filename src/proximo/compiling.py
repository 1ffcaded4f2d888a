"""How programs are compiled and called."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax

# LLVM's higher levels take longer to compile on CPU, and what they compile runs no faster: the time goes into
# matrix products and memory, not into code that LLVM could improve (`python bench/optimization_level.py`).
CPU_OPTIONS = {"xla_backend_optimization_level": 1}

# Handing a small program to another thread takes as long as running it, and nobody here does anything meanwhile.
if "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def jit(function: Callable[..., Any], small: bool = False, **options: Any) -> Any:
    """`jax.jit` with options that suit the machine. A `small` program runs in one thread: waking others, which have
    gone to sleep since the last call, would take longer than all of it."""
    chosen: dict[str, Any] | None = None
    if jax.default_backend() == "cpu":
        chosen = CPU_OPTIONS | ({"xla_cpu_multi_thread_eigen": False} if small else {})
    return jax.jit(function, compiler_options=chosen, **options)
