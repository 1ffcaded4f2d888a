"""The trainer's side of tracking: starts the process that feeds a tracker, passes on what it says, lets it end."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from proximo.config import Config
from proximo.credentials import variables
from proximo.processes import signals_blocked
from proximo.run_dir.files import START, shown

MLFLOW = "proximo.tracking.mlflow:MlflowTracker"
SWITCH = "PROXIMO_MLFLOW"
"""The environment variable that turns tracking off everywhere, as for automatic tests, if it is 0."""
PATIENCE, PATIENCE_IN_TROUBLE = 15.0, 3.0
"""Seconds that the end of a run waits for a tracker to take anything more: usually, and when there was trouble."""


class NoTracker:
    """Tracks nothing."""

    def start(self) -> None: ...

    def hurry(self) -> None: ...

    def close(self) -> None: ...


class TrackerProcess(NoTracker):
    """Feeds a tracker while a run is trained. Nothing here waits, or raises, until `close`, which waits a little."""

    title = "MLflow"
    command: tuple[str, ...] = ("proximo.tracking.feed", MLFLOW)
    """The module of the process, and the tracker that it feeds."""

    def __init__(self, path: Path, note: Callable[[str], None], uri: str | None = None):
        self._path, self._note, self._variables = path, note, variables(uri)
        self._process: subprocess.Popen[bytes] | None = None
        self._uri, self._sent = "", 0
        self._trouble, self._troubled = "", False  # at the moment; at any time
        self._reached = True  # whether the trouble is the tracker's answer
        self._done = False

    def start(self) -> None:
        """From now on the rows of the run are sent. `config.yaml` is there. MLflow takes three seconds of a core to
        load: the time to start is before the programs are compiled, which leaves one free."""
        module, *tracker = self.command
        command = [sys.executable or "python3", "-P", "-m", module, str(self._path.absolute()), *tracker]
        try:
            with signals_blocked():  # they are for the trainer
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # so is Ctrl-Z
                    cwd=START,  # an environment may have changed it
                    env=os.environ | self._variables,
                )
        except OSError as error:
            self._note(f"{self.title} is missing {self._lack(0)} ({error.strerror}); {self._remedy}")
            return
        self._listener = threading.Thread(target=self._listen, args=[self._process.stdout], daemon=True)
        self._listener.start()

    def hurry(self) -> None:
        """Training has ended, and the evaluation and the pictures come now: time to send what there is."""
        self._tell(b"now\n")

    def close(self) -> None:
        """Wait, not long, until the tracker has everything; otherwise say what is missing."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            self._tell(b"end\n")
            self._heard = time.monotonic()
            while self._listener.is_alive() and time.monotonic() - self._heard < self._patience:
                self._listener.join(0.1)
        finally:
            self._process = None
            process.kill()
            process.wait()
            self._listener.join()
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.stdout.close()
        if not self._done:
            why = f" ({self._trouble})" if self._trouble else ""
            lack = "some data" if self._trouble and self._reached else self._lack(self._sent)
            self._note(f"{self.title} is missing {lack}{why}; {self._remedy}")
        elif self._troubled:
            self._note(f"{self.title} has everything now.")

    def _tell(self, word: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self._process.stdin.write(word)
                self._process.stdin.flush()

    def _lack(self, sent: int) -> str:
        """What the tracker does not have, in words."""
        return f"everything after update {sent:,} of this run" if sent else "this run"

    @property
    def _patience(self) -> float:
        return PATIENCE_IN_TROUBLE if self._trouble else PATIENCE

    @property
    def _remedy(self) -> str:
        return f"`proximo sync {shown(self._path)}` sends it."

    def _listen(self, lines: Iterable[bytes]) -> None:
        """Runs in a thread, which sleeps but for a line every few seconds."""
        for line in lines:
            facts = json.loads(line)
            self._uri = facts.get("uri", self._uri)
            if facts.get("sent", self._sent) != self._sent:
                self._sent, self._heard = facts["sent"], time.monotonic()
            self._done = "done" in facts
            self._trouble, self._reached = facts.get("trouble", ""), facts.get("reached", True)
            if self._trouble and not self._troubled:
                self._troubled = True
                self._note(self._complaint())

    def _complaint(self) -> str:
        if self._reached:
            return (
                f"{self.title} at {self._uri} refused some data: {self._trouble.rstrip('.')}. Training continues; "
                f"`proximo sync {shown(self._path)}` tries again."
            )
        return (
            f"{self.title} at {self._uri} cannot be reached ({self._trouble}). Training continues; what is missing is "
            f"sent when it can be, or by `proximo sync {shown(self._path)}`."
        )


def make_tracker(config: Config, path: Path, note: Callable[[str], None]) -> NoTracker:
    """What tracks a run with these settings."""
    return TrackerProcess(path, note, config.track.tracking_uri) if is_wanted(config) else NoTracker()


def is_wanted(config: Config) -> bool:
    """Whether MLflow is to be fed."""
    return config.track.mlflow and os.environ.get(SWITCH, "").lower() not in ("0", "false", "off", "no")
