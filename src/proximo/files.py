"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

PARTIAL = ".partial"
UMASK = os.umask(0)  # asked once: asking sets it, for all threads
os.umask(UMASK)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write under a temporary name beside `path`, then rename: a reader, or a crash, never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; give the new one the permissions that open() would have.
        os.chmod(temporary, 0o666 & ~UMASK)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def remove_partial(folder: Path) -> None:
    """Remove what writers left behind that were killed on the way."""
    for file in folder.rglob(f".*{PARTIAL}"):
        with contextlib.suppress(OSError):
            file.unlink()


def to_json(value: Any, **options: Any) -> str:
    """JSON that every reader takes: numbers that are not finite become null."""

    def plain(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: plain(inner) for key, inner in item.items()}
        if isinstance(item, list | tuple):
            return [plain(inner) for inner in item]
        return None if isinstance(item, float) and not math.isfinite(item) else item

    return json.dumps(plain(value), allow_nan=False, **options)
