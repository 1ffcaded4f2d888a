"""The run directory: `config.yaml`, `metrics.jsonl`, `result.json`, `models/`, `plots/`."""

from __future__ import annotations

import errno
import importlib.metadata
import io
import itertools
import os
import platform
import re
import time
from pathlib import Path
from typing import Any

from proximo import settings
from proximo._version import __version__
from proximo.config import Config
from proximo.errors import UserError
from proximo.run_dir.files import PARTIAL, check_inside, regular, remove_partial, shown, to_json, write_atomically
from proximo.run_dir.lock import take_lock

RUNS = Path("runs")
CONFIG, METRICS, RESULT = "config.yaml", "metrics.jsonl", "result.json"
ERROR = "error.txt"
"""Of a run in a fleet: what ended the last attempt."""
READERS_SECONDS = 0.5
"""How long somebody who only looks whether the run is trained may hold its lock."""
CHUNK = 2**20


def default_directory(config: Config, runs: Path = RUNS) -> Path:
    """A new name under `runs/`: environment, seed, time."""
    name = re.sub(r"[^\w.=+-]", "-", config.env.id)[:80]
    return unused(runs / f"{name}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}")


def unused(path: Path) -> Path:
    """`path`, with a number after it where there is something of that name."""
    numbered = (path.with_name(f"{path.name}-{count}") for count in itertools.count(2))
    return next(one for one in itertools.chain([path], numbered) if not one.exists())


def versions() -> dict[str, str]:
    """Of everything that a run's numbers depend on."""
    packages = ("jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "gymnax")
    found = {name: importlib.metadata.version(name) for name in packages}
    return {"proximo": __version__, "python": platform.python_version(), **found}


class RunDirectory:
    """Writes one run. `metrics.jsonl` has one object per update, in order; a run belongs to one process at a time.

    Whatever cannot be written raises OSError, and can be tried again: nothing is left half done.
    """

    path: Path
    _metrics: io.FileIO
    _end: int  # of the rows that are written
    _waiting: list[bytes]  # rows that are not
    _last: bytes  # the last row that was
    num_rows: int

    def __init__(self, path: Path):
        """Take a new or empty folder; one in which a run was only just beginning counts as empty."""
        self.path = path
        if path.exists() and (not path.is_dir() or any(_foreign(file) for file in path.iterdir())):
            raise UserError(f"{shown(path)} is not an empty folder; give --out a new or an empty one.")
        self._take()

    @classmethod
    def reopen(cls, path: Path, num_rows: int) -> RunDirectory:
        """Take the folder of a run to go on after its first `num_rows` updates; later rows are made anew."""
        store = cls.__new__(cls)
        store.path = path
        store._take()
        end = _end_of_row(store._metrics.fileno(), num_rows)
        if end is None:
            store.close()
            raise UserError(f"{shown(path / METRICS)} has lost rows: the run had made {num_rows:,} updates.")
        store._end, store.num_rows = end, num_rows
        return store

    def begin(self, config: Config) -> None:
        """Write the settings. From now on the folder is a run, and what an earlier part of it left is cut off."""
        self._metrics.truncate(self._end)
        (self.path / RESULT).unlink(missing_ok=True)
        write_atomically(self.path / CONFIG, settings.to_yaml(config))

    def append(self, records: list[dict[str, Any]]) -> None:
        """Add the rows of finished updates. Those that cannot be written are kept for the next time."""
        self._waiting += [f"{to_json(record)}\n".encode() for record in records]
        self.check()
        text = b"".join(self._waiting)
        self._metrics.truncate(self._end)  # what a write that failed left behind
        if self._metrics.write(text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._end += len(text)
        self.num_rows += len(self._waiting)
        self._last = self._waiting[-1] if self._waiting else self._last
        self._waiting = []

    def splice(self, place: int, text: bytes) -> None:
        """Have `text` stand from `place` on: rows that were written elsewhere. Those that are here already stay."""
        self.check()
        file = self._metrics.fileno()
        if place > os.fstat(file).st_size:
            raise OSError(errno.EINVAL, "rows before these are missing")
        here = os.pread(file, len(text) + 1, place)
        if here == text:
            return
        same = _common_prefix(here, text)
        self._metrics.truncate(place + same)
        if self._metrics.write(text[same:]) < len(text) - same:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file)

    def amend(self, record: dict[str, Any]) -> None:
        """Write the last row, which was appended here, once more with something added. It is written over: there is no
        moment in which the row is not there."""
        line = f"{to_json(record)}\n".encode()
        if self._waiting:
            self._waiting[-1] = line
            self.append([])
            return
        self.check()
        file = regular(self.path / METRICS, os.O_WRONLY)  # what appends can write nowhere else
        start = self._end - len(self._last)
        try:
            if os.pwrite(file, line, start) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.ftruncate(file, start + len(line))
        finally:
            os.close(file)
        self._end, self._last = start + len(line), line

    def sync(self) -> None:
        """Rows are on the disk itself when this returns: what is written next may count on them."""
        os.fsync(self._metrics.fileno())

    def check(self) -> None:
        """The folder must be the one that was taken: files that are open can be written long after they are gone."""
        held = os.fstat(self._metrics.fileno())
        try:
            found = (self.path / METRICS).lstat()
        except OSError:
            found = None
        if found is None or (found.st_ino, found.st_dev) != (held.st_ino, held.st_dev):
            raise FileNotFoundError(errno.ENOENT, "the folder of the run has vanished")

    def finish(self, result: dict[str, Any]) -> None:
        write_atomically(self.path / RESULT, to_json(result, indent=2) + "\n")

    def close(self) -> None:
        self._metrics.close()

    def _take(self) -> None:
        self._waiting, self._last, self._end, self.num_rows = [], b"", 0, 0
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._metrics = io.FileIO(self.path / METRICS, "a+", opener=_own)
        except OSError as error:
            raise UserError(f"Cannot write the run to {shown(self.path)}: {error.strerror}.") from None
        if not take_lock(self._metrics, patience=READERS_SECONDS):
            self.close()
            raise UserError(f"{shown(self.path)} is being trained by another process; wait for it or stop it.")
        try:
            check_inside(self.path)
        except OSError as error:
            self.close()
            raise UserError(f"Cannot write the run to {shown(self.path)}: {error.strerror}.") from None
        remove_partial(self.path)  # those of a run at work are safe: it has the lock


def _own(path: str | Path, flags: int) -> int:
    """Open a file that has this one name: what is appended must not appear in another one."""
    file = regular(path, flags)
    if os.fstat(file).st_nlink > 1:
        os.close(file)
        raise OSError(errno.EMLINK, f"{Path(path).name} has other names (hard links); copy the folder first", path)
    return file


def _common_prefix(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _end_of_row(file: int, count: int) -> int | None:
    """Where the first `count` rows end; None if there are fewer."""
    end = 0
    while count:
        chunk = os.pread(file, CHUNK, end)
        if not chunk:
            return None
        found, place = chunk.count(b"\n"), len(chunk) - 1
        if found >= count:
            place = -1
            for _ in range(count):
                place = chunk.index(b"\n", place + 1)
        count -= min(found, count)
        end += place + 1
    return end


def _foreign(file: Path) -> bool:
    begun = file.name == METRICS and not file.lstat().st_size
    return not (begun or file.name.endswith(PARTIAL))
