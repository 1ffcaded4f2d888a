"""The one lock of Proximo's files: held by a process as long as it has the file open, and gone however it ends."""

from __future__ import annotations

import fcntl
import time
from typing import IO, Any

RETRY_SECONDS = 0.05


def take_lock(file: IO[Any] | int, shared: bool = False, patience: float = 0.0) -> bool:
    """Lock an open file or folder, for this process alone or `shared` with others that read; whether that succeeded
    within `patience` seconds. Closing the file unlocks it.

    A file system without locks grants every one: those who use it must not start two processes on one folder.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(RETRY_SECONDS)
        except OSError:
            return True
