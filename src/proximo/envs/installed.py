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
ID = r"[\w:./-]+"
REGISTERED = re.compile(rf"(?:\bid\s*=\s*[\"']({ID}-v\d+)|\bregister\(\s*(?:id\s*=\s*)?[\"']({ID}))[\"']")
TEMPLATE = re.compile(r"[\"']([\w:./-]*\{[\w:./{}-]*-v\d+)[\"']")
"""An id that is put together, as in `f"Panda{task}-v3"`."""
GAPS = re.compile(r"(\{[^{}]*\})+")
VERSION = re.compile(r"-v\d+$")
MOST_FILES, LARGEST_FILE = 1000, 2**20
NO_PLUGINS = {"ale_py", "minigrid", "proximo", "stable_baselines3"}
"""Packages whose environments are known without a module before them, or that bring none."""


@cache
def plugins() -> dict[str, list[str]]:
    """The modules to import, and the ids that they register as far as their source says so plainly, with a … for what
    is filled in; without families, which have a place of their own."""
    known = _known()
    declared = [entry.value for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)]
    modules = {value.partition(":")[0].removesuffix(".__init__").strip() for value in declared}
    found: dict[str, list[str]] = {module: [i for ids in _ids(module).values() for i in ids] for module in modules}
    for package in _dependents():
        if package not in {module.partition(".")[0] for module in modules}:
            found |= _ids(package)
    return {module: found[module] for module in sorted(found) if module.partition(".")[0] not in known}


def find_module(env_id: str) -> str | None:
    """The module of an installed package whose source registers `env_id`, if there is one."""
    quoted = re.compile(rf"[\"']{re.escape(env_id)}[\"']")
    for module, ids in plugins().items():
        if env_id in ids:
            return module
    for package in (package for package in _dependents() if package not in _known()):
        if any("register(" in text and quoted.search(text) for _, text in _texts(package, "*.py")):
            return package
    return None


def find_like(env_id: str) -> str | None:
    """The module of an installed package whose source registers an id that is put together and could be this, or that
    differs in its version."""
    for module, ids in plugins().items():
        if any(_could_be(VERSION.sub("", registered), VERSION.sub("", env_id)) for registered in ids):
            return module
    return None


def _could_be(registered: str, name: str) -> bool:
    """Whether a name fits a registered one, in which … stands for anything; a few letters must be said."""
    parts = registered.split("…")
    return max(map(len, parts)) > 2 and re.fullmatch(".*".join(map(re.escape, parts)), name) is not None


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


def _ids(module: str) -> dict[str, list[str]]:
    """What the files in which packages register say, by the module to import: ids in quotes."""
    found: dict[str, dict[str, None]] = {}
    for name, text in (files := dict(_texts(module, "__init__.py"))).items():
        if "register(" in text and "gym" in text:
            ids = [plain or called for plain, called in REGISTERED.findall(text)]
            ids += [GAPS.sub("…", template) for template in TEMPLATE.findall(text)]
            found.setdefault(_importing(name, files), {}).update(dict.fromkeys(ids))
    return {name: list(ids) for name, ids in found.items()}


def _importing(name: str, files: dict[str, str]) -> str:
    """The outermost package with which `name` is imported, as far as the lines with `import` say so."""
    outer = name
    while outer := outer.rpartition(".")[0]:
        if re.search(rf"^\s*(from|import)\b.*\b{name.rpartition('.')[2]}\b", files.get(outer, ""), re.MULTILINE):
            return _importing(outer, files)
    return name


def _texts(module: str, pattern: str) -> Iterator[tuple[str, str]]:
    """The source files of a module's package that match: the names of their packages, or modules, and what they say."""
    package = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return
    for place in (spec and spec.submodule_search_locations) or []:
        for number, file in enumerate(sorted(Path(place).rglob(pattern))):
            if number < MOST_FILES and file.stat().st_size < LARGEST_FILE:
                inner = file.relative_to(place).with_suffix("").parts
                name = ".".join([package, *inner]).removesuffix(".__init__")
                yield name, file.read_text(encoding="utf-8", errors="replace")
