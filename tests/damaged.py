"""Loads files that claim too much, in a process that may not use much: `python damaged.py POLICY FILES...`.

Prints a line for each file that is not refused in words, and the megabytes that were needed. The last file may be read
by nobody.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proximo import PPOAgent
from proximo.errors import UserError
from proximo.train import checkpoint

ALLOWED = 6 * 2**30


def complaint(load: Callable[[Path], Any], path: Path, seconds: float = 5.0) -> str:
    """What is wrong with how `load` refuses a file; empty if nothing is."""
    started = time.monotonic()
    try:
        load(Path(path))
    except UserError as error:
        text = str(error)
        taken = time.monotonic() - started
        if taken > seconds:
            return f"took {taken:.1f} s"
        fine = text.endswith(".") and text.isprintable() and len(text) < 1000 and "Traceback" not in text
        return "" if fine else f"said {text!r}"
    except BaseException as error:
        return f"raised {type(error).__name__}: {error}"
    return "was accepted"


def trouble(call: Callable[[], Any], seconds: float = 10.0, waited: float = 100.0) -> str:
    """What is wrong with how `call` takes what it is given; empty if nothing is: it works, or refuses in words."""
    started, working = time.monotonic(), time.process_time()
    try:
        call()
    except UserError as error:
        text = str(error)
        if not (text.endswith((".", "?")) and text.isprintable() and len(text) < 2000 and "Traceback" not in text):
            return f"said {text!r}"
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    # On a busy machine the clock says little; that nothing is waited for, it does say.
    worked, taken = time.process_time() - working, time.monotonic() - started
    return f"took {worked:.1f} s of {taken:.1f} s" if worked > seconds or taken > waited else ""


def load_policy(path: Path) -> PPOAgent:
    return PPOAgent.load(path)


def load_checkpoint(path: Path) -> Any:
    return checkpoint.load(path).agents()


if __name__ == "__main__":
    honest, *files, unreadable = map(Path, sys.argv[1:])
    load_policy(honest)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ALLOWED,) * 2)
    cases = [(load_checkpoint if "checkpoint" in file.name else load_policy, file) for file in files]
    for load, file in cases:
        if found := complaint(load, file, 20):
            print(f"{file.name} {found}", flush=True)
    if os.getuid() == 0:
        os.seteuid(65534)
    for file in (unreadable, unreadable / "inside", honest):  # the honest one is in a folder of root's
        for load in (load_policy, load_checkpoint):
            if (file != honest or os.getuid() == 0) and (found := complaint(load, file)):
                print(f"{file.name} {found}", flush=True)
    print("megabytes", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
