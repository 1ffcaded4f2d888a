"""One run on a node of a cluster: the same process trains it as everywhere, and what it writes is sent home.

This is what the cluster's own process holds. It computes nothing, does not load JAX, and never waits: every call
answers at once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proximo.fleet.cores import available_cores, claim_cores
from proximo.fleet.shipping import Files, Outbox, Parcel, write_folder
from proximo.fleet.worker import Message, Worker
from proximo.run_dir.directory import versions
from proximo.train.interrupt import Interrupt

SAVE_SECONDS = 60.0
"""At most so much of a run is lost with its node."""
LOG_TAIL = 10_000


@dataclass(frozen=True)
class About:
    """What a node says of itself."""

    name: str
    versions: dict[str, str]
    sees: bool
    """Whether it has the file that it was asked for."""


@dataclass(frozen=True)
class News:
    """What happened since the last time."""

    parcel: Parcel | None
    notes: list[str] = field(default_factory=list)
    end: Message | None = None
    """How the run ended; what stands in the folder then has been sent."""
    log: str = ""
    """At the end: the last of what the environments printed."""


class RunOnNode:
    """Lives as long as its run. When it dies, so does the process that trains: its input ends."""

    def __init__(self) -> None:
        self._told = Interrupt(deaf=True)
        self._notes: deque[str] = deque()
        self._end: Message | None = None
        self._outbox: Outbox | None = None
        self._held = contextlib.ExitStack()
        self._names = ("", "")
        """What its folder is called here, and what at home."""

    def about(self, file: str) -> About:
        return About(socket.gethostname(), versions(), os.path.exists(file))

    def start(self, job: Message, files: Files | None, cpus: int, places: list[str], save: bool) -> None:
        """Train the run: in a folder of this node that holds `files`, or where the job says, if there are none to bring
        home. `places` are where the user's own modules were found; `save` asks for a checkpoint each minute."""
        place = Path(tempfile.mkdtemp(prefix="proximo-"))
        self._held.callback(shutil.rmtree, place, ignore_errors=True)
        self._log = place / "log"
        if files is not None:
            folder = place / "run"
            self._outbox = Outbox(folder, write_folder(folder, files))
            self._names = (str(folder), job["path"])
            job = job | {"path": str(folder)}
        sys.path += [place for place in places if place not in sys.path and os.path.isdir(place)]
        cores = claim_cores(cpus, self._held) or available_cores()
        self._worker = self._held.enter_context(contextlib.closing(Worker(cores, self._log)))
        self._save_at = time.monotonic() + SAVE_SECONDS if save else float("inf")
        threading.Thread(target=self._train, args=[job], daemon=True).start()

    def news(self, received: int) -> News:
        """What is new since the news of the number `received`."""
        end = self._end  # before the folder is looked at: nothing is added after it
        if time.monotonic() >= self._save_at:
            self._save_at += SAVE_SECONDS
            self._told.save()
        notes = [self._notes.popleft() for _ in range(len(self._notes))]
        parcel = None if self._outbox is None else self._outbox.pack(received)
        return News(parcel, notes, end, "" if end is None else self._last_printed())

    def stop(self) -> None:
        """Have the run saved and ended."""
        self._told.end(signal.SIGTERM)

    def save(self) -> None:
        """Have a checkpoint written."""
        self._told.save()

    def leave(self) -> None:
        """End the process, and remove the folder."""
        self._held.close()

    def _train(self, job: Message) -> None:
        """Runs in a thread."""
        end = self._worker.run(job, lambda sentence: self._notes.append(self._at_home(sentence)), self._told)
        self._end = end | ({"sentence": self._at_home(end["sentence"])} if "sentence" in end else {})

    def _at_home(self, sentence: str) -> str:
        here, home = self._names
        return sentence.replace(here, home) if here else sentence

    def _last_printed(self) -> str:
        with self._log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL))
            return file.read().decode(errors="replace")


def describe_difference(here: dict[str, str], there: dict[str, Any]) -> str:
    """What a node has in another version than this machine, in words; empty if all is the same."""
    other = {name: version for name, version in here.items() if there.get(name) != version}
    return ", ".join(f"{name} {there.get(name)} instead of {version}" for name, version in other.items())
