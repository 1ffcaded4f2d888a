"""The processor cores of this machine, and which of them a run may have for itself."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from proximo.run_dir.lock import take_lock


def available_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def claim_cores(count: int, held: contextlib.ExitStack) -> list[int]:
    """Cores that no other run has claimed, until `held` is closed or this process ends; none if there are not enough.

    A node of a cluster says how many runs it has, but not which cores are whose.
    """
    folder, cores = Path(tempfile.gettempdir()) / f"proximo-cores-{os.getuid()}", list[int]()
    with contextlib.suppress(OSError), contextlib.ExitStack() as claimed:  # it may be another user's
        folder.mkdir(mode=0o700, exist_ok=True)
        for core in available_cores():
            file = claimed.enter_context((folder / str(core)).open("ab"))
            if take_lock(file):
                cores.append(core)
            if len(cores) == count:
                held.push(claimed.pop_all())
                return cores
    return []
