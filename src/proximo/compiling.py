"""How programs are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

# LLVM's higher levels take longer to compile on CPU, and what they compile runs no faster: the time goes into
# matrix products and memory, not into code that LLVM could improve (`python bench/optimization_level.py`).
CPU_OPTIONS = {"xla_backend_optimization_level": 1}


def jit(function: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit` with options that suit the machine."""
    return jax.jit(function, compiler_options=CPU_OPTIONS if jax.default_backend() == "cpu" else None, **options)
