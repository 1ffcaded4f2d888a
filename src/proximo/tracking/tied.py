"""A program that must not outlive whoever started it, however that ended.

    python -m proximo.tracking.tied COMMAND...

Runs COMMAND until it ends or the standard input does, and then ends the process group that both are in: start it in a
session of its own, with a pipe as its input.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from proximo.processes import leave_signals

END_SECONDS = 10.0
"""How long the program may take to end when it is asked to."""


def main() -> None:
    leave_signals()
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_input, args=[process], daemon=True).start()
    process.wait()
    os.killpg(0, signal.SIGKILL)  # whatever it started, and this process


def _end_with_input(process: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1024):
        pass
    os.killpg(0, signal.SIGTERM)
    try:
        process.wait(END_SECONDS)
    finally:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
