"""Modules of the user's own, which settings name: found where Python finds them, or else in the current folder. Worker
processes import this: it loads no JAX."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType


def import_named(module: str) -> ModuleType:
    """The module of this name.

    The current folder is added to the places where Python looks, the last of them, and only if what is asked for is
    there and nowhere else: a folder from somewhere else must not bring along what libraries try to import.
    """
    look_here_for(module)
    return importlib.import_module(module)


def look_here_for(module: str) -> None:
    """Let Python find `module` in the current folder, if it is there and nowhere else."""
    top = module.partition(".")[0]
    if top in sys.modules or _found(top):
        return
    try:
        here = Path(os.getcwd())
    except OSError:  # it is gone
        return
    if (here / f"{top}.py").is_file() or (here / top).is_dir():
        sys.path.append(str(here))
        importlib.invalidate_caches()


def _found(top: str) -> bool:
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False
