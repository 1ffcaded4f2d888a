"""A fleet trains runs, several at a time: `submit` gives it one, `events` says how they go, `cancel` stops one.

What is trained is always an ordinary run in its folder, and how far it came is read from its `metrics.jsonl`, wherever
the process is that writes it.
"""

from __future__ import annotations

import abc
import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proximo.config import Config
from proximo.run_dir.directory import METRICS
from proximo.run_dir.files import open_inside
from proximo.run_dir.read import Row
from proximo.train.interrupt import Interrupt

POLL_SECONDS = 0.25
LARGEST_READ = 2**22


@dataclass(frozen=True, eq=False)
class Job:
    """One run to train in its folder, from the start, or on from where it stands there."""

    config: Config
    folder: Path
    """Absolute: an environment may change the working directory."""
    compiled: bool = False
    """Whether the environment is written in JAX; see `local.find_compiled`."""


@dataclass(frozen=True)
class HandedIn:
    """What all runs of a fleet are given besides their settings."""

    env: Any = None
    """The environment, where it was handed in as an object or a factory."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """The loss and the optimizer, where they were."""
    trust: bool = False
    """Whether Python modules may be imported that the settings of a folder name which was not made here."""


@dataclass(frozen=True)
class Began:
    job: Job


@dataclass(frozen=True)
class Advanced:
    """New rows of the run's `metrics.jsonl`; those of a run that is taken up again come once more."""

    job: Job
    rows: list[Row]


@dataclass(frozen=True)
class Noted:
    job: Job
    sentence: str


@dataclass(frozen=True)
class Ended:
    """How a run ended: complete, interrupted (so are those that were cancelled), or failed, which `sentence`
    explains."""

    job: Job
    end: str
    sentence: str = ""
    seconds: float | None = None


Event = Began | Advanced | Noted | Ended


class Fleet(abc.ABC):
    """A context. When a signal comes, runs at work are saved and end, and those that wait are not begun."""

    def __init__(self, interrupt: Interrupt):
        self._interrupt = interrupt
        self._following: dict[Job, RowReader] = {}

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """How many runs can be trained at a time."""

    @abc.abstractmethod
    def submit(self, job: Job) -> None:
        """Train it as soon as there is room."""

    @abc.abstractmethod
    def cancel(self, job: Job) -> None:
        """Have it saved and ended; nothing happens if it has ended already."""

    @abc.abstractmethod
    def close(self, wait: bool = True) -> None:
        """Cancel what is left, and wait until it is saved and nothing is at work."""

    @abc.abstractmethod
    def _news(self, seconds: float) -> list[Began | Noted | Ended]:
        """What happened; waits for it for at most `seconds`."""

    def events(self) -> Iterator[Event]:
        """What happens, until all jobs have ended, those too that are submitted on the way."""
        while self._busy():
            for event in self._news(POLL_SECONDS):
                if isinstance(event, Began):
                    self._following[event.job] = RowReader(event.job.folder)
                elif isinstance(event, Ended) and (reader := self._following.pop(event.job, None)):
                    while rows := reader.read():
                        yield Advanced(event.job, rows)
                yield event
            for job, reader in list(self._following.items()):
                if rows := reader.read():
                    yield Advanced(job, rows)

    @abc.abstractmethod
    def _busy(self) -> bool:
        """Whether there is an end to come that was not told."""

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self.close(wait=kind is not KeyboardInterrupt)  # which comes from somebody who does not want to


class RowReader:
    """Reads the rows of a run as they are written."""

    def __init__(self, folder: Path):
        self._file, self._place = folder / METRICS, 0

    def read(self) -> list[Row]:
        """The next rows. A line that is none is left out: a run that is taken up again writes over its last ones."""
        try:
            with open_inside(self._file) as file:
                size = file.seek(0, 2)
                self._place = file.seek(self._place if self._place <= size else 0)
                text = file.read(LARGEST_READ)
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._place += len(whole)
        rows: list[Row] = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(line)
                if isinstance(row, dict) and isinstance(row.get("step"), int):
                    rows.append(row)
        return rows
