"""Tuned settings per environment: `presets/<family>/<name>.yaml`, used unless told otherwise.

`gymnasium/<namespace>/default.yaml` stands for every environment of a namespace, such as ALE.
"""

from __future__ import annotations

from pathlib import Path

from proximo.settings import Values, from_file

FOLDER = Path(__file__).parent


def find_preset(env_id: str) -> Values:
    """The preset's values; none where there is no preset for `env_id`."""
    names = {path.relative_to(FOLDER).with_suffix("").as_posix(): path for path in FOLDER.glob("**/*.yaml")}
    namespace = env_id.partition("/")[0]
    for name in (env_id, f"gymnasium/{env_id}", f"gymnasium/{namespace}/default"):
        if name in names:
            return from_file(names[name])
    return {}
