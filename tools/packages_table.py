"""The table in docs/packages.md, from what `make test-extras` found: python tools/packages_table.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from figures import with_table

DOCS = Path(__file__).parent.parent / "docs"
FOUND, PAGE = DOCS / "packages.json", DOCS / "packages.md"
START = "<!-- written by tools/packages_table.py -->"


def table(found: dict[str, dict[str, Any]]) -> str:
    """One line for each package: how it is trained, and its returns."""
    lines = ["| Package | trained with | return before | after |", "|---|---|---|---|"]
    for name, one in found.items():
        command = one["command"].replace("|", "\\|")
        lines.append(f"| {name} {one['version']} | `proximo {command}` | {one['before']:,.4g} | {one['after']:,.4g} |")
    return "\n".join(lines)


def main() -> None:
    found = json.loads(FOUND.read_text(encoding="utf-8"))
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table(found), START), encoding="utf-8")


if __name__ == "__main__":
    main()
