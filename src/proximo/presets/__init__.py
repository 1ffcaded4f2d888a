"""Tuned settings per environment: `presets/<family>/<name>.yaml`, used unless told otherwise."""

from __future__ import annotations

from pathlib import Path

from proximo.settings import Values, from_file

FOLDER = Path(__file__).parent


def find_preset(env_id: str) -> Values:
    """The preset's values; none where there is no preset for `env_id`."""
    names = {path.relative_to(FOLDER).with_suffix("").as_posix(): path for path in FOLDER.glob("**/*.yaml")}
    return from_file(names[env_id]) if env_id in names else {}
