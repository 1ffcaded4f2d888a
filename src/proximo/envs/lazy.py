"""Import a library's own imports only when it uses them."""

from __future__ import annotations

import importlib.util
import sys


def load_on_first_use(name: str) -> None:
    """Make `import name` cost nothing until an attribute of it is asked for."""
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
