"""Time from the command to its first progress line: `python bench/startup.py [--repeats R] [--cold] [COMMAND ...]`.

Starts `proximo train gymnax/CartPole-v1` (or the given command) as a user would, waits for the first line that
starts with a number and has the word "steps" or "step" in it (`256 / 200,000 steps ...`; the announcement of the run
does not count), and ends the command. The first of several finds no compiled programs on disk, the others do; with
`--cold` none does.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRESS = re.compile(r"^\s*\d.*\bsteps?\b")
GRACE_SECONDS = 10


def command_line(given: list[str]) -> list[str]:
    """`given`, or the default command by the `proximo` beside this Python."""
    if given:
        return [str(Path(given[0]).absolute()) if os.sep in given[0] else given[0], *given[1:]]
    beside = Path(sys.executable).parent / "proximo"
    return [str(beside) if beside.exists() else "proximo", "train", "gymnax/CartPole-v1"]


def seconds_to_progress(command: list[str], cache: str) -> tuple[float, str]:
    """Seconds until the first progress line, and that line. Runs in an empty directory, so that nothing is resumed;
    `cache` is the user's folder of things that can be made again."""
    seen = []
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"PYTHONUNBUFFERED": "1", "XDG_CACHE_HOME": cache},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                seen.append(line)
                if PROGRESS.search(line):
                    return time.perf_counter() - start, line.strip()
        finally:
            end(process)
    raise SystemExit(
        f"{shlex.join(command)} ended with code {process.returncode} and no progress line with 'step' or 'steps'; "
        f"it printed:\n{''.join(seen[-20:])}"
    )


def end(process: subprocess.Popen[str]) -> None:
    """Stop the command, and wait for it: it must not run into the next measurement."""
    process.terminate()
    try:
        process.communicate(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds from a training command to its first progress line.")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--cold", action="store_true", help="an empty cache each time")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="default: proximo train gymnax/CartPole-v1")
    arguments = parser.parse_args()
    command = command_line(arguments.command)
    print(shlex.join(command), flush=True)
    times = []
    with tempfile.TemporaryDirectory() as cache:
        for number in range(arguments.repeats):
            seconds, line = seconds_to_progress(command, f"{cache}/{number}" if arguments.cold else cache)
            times.append(seconds)
            print(f"{seconds:6.2f} s  {line}", flush=True)
    if not arguments.cold:
        print(f"the first, with nothing compiled yet, took {times.pop(0):.2f} s; of the others:")
    print(f"median {statistics.median(times):.2f} s (min {min(times):.2f}, max {max(times):.2f})")


if __name__ == "__main__":
    main()
