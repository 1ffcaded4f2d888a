"""The table of packages in the documents is what `make test-extras` found."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])
    spec = importlib.util.spec_from_file_location("packages_table", ROOT / "tools" / "packages_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_what_was_found(tool: Any) -> None:
    page = tool.PAGE.read_text(encoding="utf-8")
    found = json.loads(tool.FOUND.read_text(encoding="utf-8"))
    assert tool.with_table(page, tool.table(found), tool.START) == page, "run `python tools/packages_table.py`"
    pins = (ROOT / "tests" / "extras" / "requirements.txt").read_text()
    assert all(f"{name}=={one['version']}\n" in pins for name, one in found.items())


def test_the_table(tool: Any) -> None:
    one = {"version": "1.2", "command": "train a:B-v0 --steps 10", "before": -7.25, "after": 1234.5, "seconds": 3}
    assert tool.table({"a-b": one}).splitlines()[2:] == [
        "| a-b 1.2 | `proximo train a:B-v0 --steps 10` | -7.25 | 1,234 |"
    ]
