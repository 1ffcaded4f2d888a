"""Loaded by every Python process that a test starts, because its folder is on their path: it draws no pictures of runs,
as `conftest.py` has it in the tests themselves. They would take longer than training does. What `test_signals.py`
starts has patches of its own, in `signalled.py`."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

FINISH = "proximo.train.finish"


def without_pictures(module: Any, executed: None) -> None:
    module.write_plots = lambda *_: []


class Patching:
    """Patches the module that draws pictures when it is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != FINISH:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: without_pictures(module, execute(module))
        return spec


if "SIGNALLED" in os.environ:
    import signalled  # noqa: F401
else:
    sys.meta_path.insert(0, Patching())
