"""Import a library without what it imports only for pictures."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any


class OnDemand(ModuleType):
    """Stands in for a module, and loads it when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def deferred(*names: str) -> Iterator[None]:
    """Whatever is imported inside gets stand-ins for the modules `names`; imports elsewhere are not affected."""
    added = {name: OnDemand(name) for name in names if name not in sys.modules}
    for name in added:
        if "." in name:
            importlib.import_module(name.rpartition(".")[0])
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]
