"""Compiled programs are kept on disk, so that a run like an earlier one begins at once.

JAX does the keeping; here is where, and how much. `PROXIMO_CACHE=0` keeps nothing; where JAX itself is told
(`JAX_COMPILATION_CACHE_DIR`, `jax.config`), nothing is changed. A program is found again only for the same code,
shapes, versions and kind of processor, and computes the same bits as one that was just compiled.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from functools import cache
from pathlib import Path

import jax

from proximo.run_dir.files import cache_folder

MOST_BYTES = 2**30
"""Of programs on disk; those used longest ago go first."""
LEAST_SECONDS = 0.1
"""Of compiling; what takes less is compiled again."""


@cache
def keep_programs() -> None:
    """Tell JAX to keep programs, once in a process. A disk that is full or cannot be written to is no trouble: then
    programs are compiled, as without a cache."""
    if os.environ.get("PROXIMO_CACHE") == "0" or jax.config.jax_compilation_cache_dir is not None:
        return
    folder = cache_folder() / "programs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)  # what lies there is run
        prune(folder, MOST_BYTES)
    except OSError:
        return
    # A file that a killed process left half written, or a full disk: the program is compiled.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)


def prune(folder: Path, most_bytes: int) -> None:
    """Remove what was used longest ago, until the files in `folder` have at most `most_bytes`."""
    found = []
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):  # another process does the same
            used = entry.stat(follow_symlinks=False)
            found.append((max(used.st_atime, used.st_mtime), used.st_size, entry.path))
    excess = sum(size for _, size, _ in found) - most_bytes
    for _, size, path in sorted(found):
        if excess <= 0:
            return
        Path(path).unlink(missing_ok=True)
        excess -= size
