"""Names of metrics that a user chose: entries of an info, and what callbacks return."""

from __future__ import annotations

import re
from collections.abc import Iterable

LONGEST = 250
"""Letters that MLflow takes."""


def key_name(name: str) -> str:
    """`name` as trackers take it for a parameter or a metric: without letters that they refuse, and no path that leads
    somewhere else."""
    parts = re.sub(r"[^/\w.\- :]", "-", name)[:LONGEST].split("/")
    return "/".join(part if part.strip(".") else "-" for part in parts)


def same_to_trackers(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two of `names` that trackers could not tell apart."""
    seen: dict[str, str] = {}
    for name in names:
        if (known := key_name(name)) in seen:
            return seen[known], name
        seen[known] = name
    return None
