"""What `bench/defaults.yaml` says (environments, budgets, candidates and their settings), and the results so far."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

Settings = dict[str, Any]
HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
RESULTS, PRESETS = DOCS / "defaults" / "results.jsonl", DOCS / "defaults" / "presets.jsonl"
PLAN: dict[str, Any] = yaml.safe_load((HERE / "defaults.yaml").read_text())
ENVIRONMENTS: dict[str, dict[str, Any]] = PLAN["environments"]


def candidates() -> dict[str, tuple[str | None, Settings]]:
    """Every candidate by name: the kind of action it is for, and all of its settings."""
    found: dict[str, tuple[str | None, Settings]] = {}
    for entries in PLAN["rounds"].values():
        for name, entry in entries.items():
            changed = entry.get("settings", entry) if "only" in entry else entry
            found[name] = (entry.get("only"), PLAN["documents"] | changed)
    return found


def settings_of(name: str, kind: str) -> Settings:
    """What candidate `name` trains with where actions are of `kind`; `discrete:` and `continuous:` say it by kind."""
    _, values = candidates()[name]
    plain = {key: value for key, value in values.items() if key not in ("discrete", "continuous")}
    chosen: dict[str, Any] = plain | values.get(kind, {})
    return chosen


def results(path: Path = RESULTS) -> list[dict[str, Any]]:
    """The lines of a file of results."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def of_half(half: str) -> list[str]:
    return [env for env, about in ENVIRONMENTS.items() if about["half"] == half]
