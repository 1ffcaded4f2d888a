"""From `metrics.jsonl` to a tracker, in a process of its own: training shares no interpreter with it, and never waits.

    python -m proximo.tracking.feed RUN TRACKER

TRACKER is the dotted path of a class (see `tracker.py`).

Lines on the standard input say when training ends, and when the run does; lines of JSON on the standard output say how
it goes.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pkgutil
import select
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from proximo.config import Config
from proximo.errors import UserError
from proximo.processes import leave_signals
from proximo.run_dir.lock import take_lock
from proximo.run_dir.read import NewRows, read_config, read_result
from proximo.tracking.mlflow import MlflowTracker
from proximo.tracking.tracker import Record, Tracker, in_words, is_unreached

PAUSE, FILES_PAUSE = 5.0, 10.0
LONGEST_PAUSE = 10.0
ORPHAN_SECONDS = 60.0
"""How long the rest of a run is tried to be sent when its training was killed."""
AUTO_EVERY = 10
"""Updates between two that are sent, at the least, unless the settings say it."""
NEEDED = ("update", "step", "time/elapsed")
"""What each row that is sent must have."""
PLAYED = ("eval/", "callback/")
"""What is sent of a row for the sake of its evaluation."""
NICENESS = 10  # and no more: at the end of a run somebody waits


def period(elapsed: float) -> int:
    """The number of the period of training that is at `elapsed` seconds. They last half a second at first, two seconds
    after a minute and a half, and ten, which is the longest, after nine and a half minutes."""
    return int(60 * math.log1p(min(elapsed, 570.0) / 30) + max(elapsed - 570.0, 0.0) / 10)


class Choice:
    """What a tracker gets of the rows: the first of all, every so many updates, and every evaluation. Where rows are to
    be `thinned`, only the first such update and the first evaluation in each period of training.

    It is asked about all rows, in their order. The rows alone decide: however they are read, the same is due.
    """

    def __init__(self, every: int, thinned: bool = True):
        self._every, self._thinned = every, thinned
        self._sent = self._evaluated = -1  # the last periods of which a row, and of which an evaluation, was due

    def due(self, row: Record) -> Record:
        """The part of `row` that is to be sent; empty if it is not."""
        update = row["update"]
        now = period(row["time/elapsed"]) if self._thinned else update
        evaluated = any(name.startswith("eval/") for name in row)
        if update == 1:  # also when rows are read from the start again
            self._sent = self._evaluated = -1
        if now != self._sent and (update == 1 or evaluated or update % self._every == 0):
            self._sent, self._evaluated = now, now if evaluated else self._evaluated
            return row
        if evaluated and now != self._evaluated:
            self._evaluated = now
            return {name: value for name, value in row.items() if name in NEEDED or name.startswith(PLAYED)}
        return {}


class Feeder:
    """Sends a tracker what is due of the run in `path`. What fails raises, and is done again by the next call."""

    def __init__(self, tracker: Tracker, path: Path, config: Config):
        self.tracker = tracker
        self._path, self._rows = path, NewRows(path)
        every = config.track.log_frequency
        self._choice = Choice(AUTO_EVERY) if every == "auto" else Choice(every, thinned=False)
        self._opened = False
        self._waiting: list[Record] = []
        self._last: list[Record] = []  # the last row: that is sent at the end, due or not
        self._files_at = time.monotonic()

    @property
    def address(self) -> str:
        return self.tracker.address

    @property
    def sent(self) -> int:
        """The last update that the tracker has."""
        return self.tracker.last_update

    def feed(self, live: bool = True) -> None:
        """Send the rows that are due, and now and then the files."""
        try:
            if not self._opened:
                self.tracker.open(live)
                self._opened = True
            while True:
                self.tracker.rows(self._waiting)
                rows = self._rows.read()
                self._waiting = [due for row in rows if (due := self._choice.due(row))]
                if not rows:
                    break
                self._last = rows[-1:]
            if time.monotonic() - self._files_at >= FILES_PAUSE:
                self._files_at = time.monotonic()
                self.tracker.files(final=False)
        except BaseException:
            self._opened = False
            raise

    def finish(self) -> None:
        """Send everything that is left, and how the run ended."""
        self.feed(live=False)
        result = read_result(self._path)
        try:
            if result is not None:
                self.tracker.rows(self._last)
            self.tracker.files(final=True)
            self.tracker.close(result)
        except BaseException:
            self._opened = False
            raise


@contextlib.contextmanager
def alone(path: Path, wait: bool) -> Iterator[None]:
    """While this lasts, nobody else feeds a tracker from this run."""
    folder = os.open(path, os.O_RDONLY)
    try:
        if not take_lock(folder, patience=math.inf if wait else 0.0):
            raise UserError(f"{path} is already being sent to MLflow by its own training.")
        yield
    finally:
        os.close(folder)


def sync(path: Path, config: Config, uri: str | None = None) -> Feeder:
    """Send everything of a run that MLflow does not have yet."""
    feeder = Feeder(MlflowTracker(path, config, uri), path, config)
    send_everything(feeder, path)
    return feeder


def send_everything(feeder: Sender, path: Path) -> None:
    """Send what is left of the run or the experiment in `path`; a sentence where that fails."""
    with alone(path, wait=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what MLflow uses that is deprecated is no concern of the user's
        try:
            feeder.finish()
        except Exception as error:
            raise UserError(f"MLflow at {feeder.address} did not accept {path}: {in_words(error)}.") from error


def say(**facts: Any) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        print(json.dumps(facts), file=sys.__stdout__, flush=True)


def told(seconds: float) -> bytes | None:
    """What the trainer says within `seconds`: b"end", b"" if it is gone, None if nothing, or b"now", which is heard at
    once and asks for no more than what is done now and then anyway."""
    ready, _, _ = select.select([0], [], [], seconds)
    word = os.read(0, 100).strip().rpartition(b"\n")[2] if ready else None
    return None if word == b"now" else word


@runtime_checkable
class Sender(Protocol):
    """What is fed from: a run, or an experiment. What fails raises, and is done again by the next call."""

    @property
    def address(self) -> str: ...

    @property
    def sent(self) -> int: ...

    def feed(self) -> None: ...

    def finish(self) -> None: ...


def keep_feeding(feeder: Sender) -> None:
    """Feed until training ends, and then to the end; what fails is tried again, later and later. Of a failure that the
    next attempt mends nothing is said."""
    word: bytes | None = None
    failures, pause, gone_at = 0, 0.0, 0.0
    while word != b"" or time.monotonic() - gone_at < ORPHAN_SECONDS:
        if word is None:
            word, gone_at = told(pause), time.monotonic()
        else:
            time.sleep(min(pause, 1.0))
        try:
            if word is not None:
                feeder.finish()
                say(done=True, sent=feeder.sent)
                return
            feeder.feed()
            failures, pause = 0, PAUSE
            say(sent=feeder.sent)
        except Exception as error:
            failures += 1
            pause = min(2.0 ** (failures - 1), LONGEST_PAUSE)
            if failures > 1 or word is not None:
                say(trouble=in_words(error), reached=not is_unreached(error), sent=feeder.sent)


def serve(path: Path, make: Callable[[], Sender]) -> None:
    """The life of a process that feeds from `path`: started by the one that trains, and ended by it."""
    leave_signals()  # meant for the trainer, which will say so
    os.nice(NICENESS)
    sys.stdout = sys.stderr  # what trackers print is not for the trainer
    feeder = make()
    say(uri=feeder.address)
    with alone(path, wait=True):
        keep_feeding(feeder)


def main() -> None:
    path, name = Path(sys.argv[1]), sys.argv[2]

    def make() -> Sender:
        config = read_config(path)
        return Feeder(pkgutil.resolve_name(name)(path, config), path, config)

    serve(path, make)


if __name__ == "__main__":
    main()
