"""Installed packages that bring environments to Gymnasium when they are imported: found by their metadata and their
source. Nothing of them is imported here."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from proximo.envs import families

ENTRY_POINTS = "gymnasium.envs"
"""The group of entry points by which packages told earlier versions of Gymnasium what to import."""
NEEDS_GYMNASIUM = re.compile(r"^Requires-Dist:\s*gymnasium(?![\w.-])", re.MULTILINE | re.IGNORECASE)
ID = r"[\w:./-]+-v\d+"
REGISTERED = re.compile(rf"(?:\bid\s*=\s*|\bregister\(\s*)[\"']({ID})[\"']")
MOST_FILES, LARGEST_FILE = 1000, 2**20
NO_PLUGINS = {"ale_py", "minigrid", "proximo", "stable_baselines3"}
"""Packages whose environments are known without a module before them, or that bring none."""


@cache
def plugins() -> dict[str, list[str]]:
    """The modules to import, and the ids that they register as far as their source says so plainly; without families,
    which have a place of their own."""
    known = _known()
    found: dict[str, list[str]] = {}
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        found.setdefault(entry.value.partition(":")[0].removesuffix(".__init__").strip(), [])
    declared = set(found)
    for package in _dependents():
        if package not in {module.partition(".")[0] for module in declared}:
            found.setdefault(package, [])
    chosen = {module: _ids(module) for module in sorted(found) if module.partition(".")[0] not in known}
    return {module: ids for module, ids in chosen.items() if ids or module in declared}


def find_module(env_id: str) -> str | None:
    """The module of an installed package whose source registers `env_id`, if there is one."""
    quoted = re.compile(rf"[\"']{re.escape(env_id)}[\"']")
    for module, ids in plugins().items():
        if env_id in ids:
            return module
    for package in (package for package in _dependents() if package not in _known()):
        if any("register(" in text and quoted.search(text) for text in _texts(package, "*.py")):
            return package
    return None


def _known() -> set[str]:
    return NO_PLUGINS | {family.package for family in families().values()}


def _dependents() -> list[str]:
    """Importable packages whose distributions need Gymnasium."""
    found = set()
    for dist in importlib.metadata.distributions():
        text = dist.read_text("METADATA") or ""
        if NEEDS_GYMNASIUM.search(text.partition("\n\n")[0]):
            found |= set((dist.read_text("top_level.txt") or "").split()) or _top_names(dist)
    return sorted(found)


def _top_names(dist: Any) -> set[str]:
    # Not always one of importlib.metadata's: who imports the backport of it gets that one's.
    files = [file for file in dist.files or [] if file.suffix == ".py" and len(file.parts) > 1]
    names = {file.parts[0] for file in files if file.parts[0].isidentifier()}
    return names or {(dist.name or "").replace("-", "_")}


def _ids(module: str) -> list[str]:
    """What the files in which packages register say: ids in quotes."""
    found: dict[str, None] = {}
    for text in _texts(module, "__init__.py"):
        if "gymnasium" in text or "gym" in text:
            found |= dict.fromkeys(REGISTERED.findall(text))
    return list(found)


def _texts(module: str, pattern: str) -> Iterator[str]:
    """The source files of a module's package that match."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return
    for place in (spec and spec.submodule_search_locations) or []:
        for number, file in enumerate(sorted(Path(place).rglob(pattern))):
            if number < MOST_FILES and file.stat().st_size < LARGEST_FILE:
                yield file.read_text(encoding="utf-8", errors="replace")
