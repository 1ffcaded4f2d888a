"""The run directory: `config.yaml`, `metrics.jsonl`, `result.json`, `models/`, `plots/`."""

from __future__ import annotations

import errno
import fcntl
import importlib.metadata
import io
import os
import platform
import time
from pathlib import Path
from typing import Any

from proximo import settings
from proximo._version import __version__
from proximo.config import Config
from proximo.errors import UserError
from proximo.files import PARTIAL, remove_partial, to_json, write_atomically

RUNS = Path("runs")


def default_directory(config: Config) -> Path:
    """A new name under `runs/`: environment, seed, time."""
    name = config.env.id.replace("/", "-").replace(":", "-")
    stem = f"{name}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, count = RUNS / stem, 1
    while path.exists():
        count += 1
        path = RUNS / f"{stem}-{count}"
    return path


def versions() -> dict[str, str]:
    """Of everything that a run's numbers depend on."""
    packages = ("jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "gymnax")
    found = {name: importlib.metadata.version(name) for name in packages}
    return {"proximo": __version__, "python": platform.python_version(), **found}


class RunStore:
    """Writes one run. `metrics.jsonl` has one object per update, in order; a run belongs to one process at a time.

    Whatever cannot be written raises OSError, and can be tried again: nothing is left half done.
    """

    path: Path
    _metrics: io.FileIO
    _end: int  # of the rows that are written
    _waiting: list[bytes]  # rows that are not
    num_rows: int

    def __init__(self, path: Path):
        """Take a new or empty folder; one in which a run was only just beginning counts as empty."""
        self.path = path
        if path.exists() and (not path.is_dir() or any(_foreign(file) for file in path.iterdir())):
            raise UserError(f"{path} already holds something; give --out a new or empty folder.")
        self._take()

    @classmethod
    def reopen(cls, path: Path, num_rows: int) -> RunStore:
        """Take the folder of a run to go on after its first `num_rows` updates; later rows are made anew."""
        store = cls.__new__(cls)
        store.path = path
        store._take()
        lines = store._metrics.read().splitlines(keepends=True)[:num_rows]
        if len(lines) < num_rows or any(not line.endswith(b"\n") for line in lines):
            store.close()
            raise UserError(f"{path / 'metrics.jsonl'} has lost rows: {num_rows:,} updates were made before.")
        store._end, store.num_rows = sum(map(len, lines)), num_rows
        return store

    def begin(self, config: Config) -> None:
        """Write the settings. From now on the folder is a run, and what an earlier part of it left is cut off."""
        self._metrics.truncate(self._end)
        (self.path / "result.json").unlink(missing_ok=True)
        write_atomically(self.path / "config.yaml", settings.to_yaml(config))

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
        self._waiting = []

    def sync(self) -> None:
        """Rows are on the disk itself when this returns: what is written next may count on them."""
        os.fsync(self._metrics.fileno())

    def check(self) -> None:
        """The folder must be the one that was taken: files that are open can be written long after they are gone."""
        held = os.fstat(self._metrics.fileno())
        try:
            found = (self.path / "metrics.jsonl").stat()
        except OSError:
            found = None
        if found is None or (found.st_ino, found.st_dev) != (held.st_ino, held.st_dev):
            raise FileNotFoundError(errno.ENOENT, "the folder of the run has vanished")

    def finish(self, result: dict[str, Any]) -> None:
        write_atomically(self.path / "result.json", to_json(result, indent=2) + "\n")

    def close(self) -> None:
        self._metrics.close()

    def _take(self) -> None:
        self._waiting, self._end, self.num_rows = [], 0, 0
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            remove_partial(self.path)
            self._metrics = io.FileIO(self.path / "metrics.jsonl", "a+")
        except OSError as error:
            raise UserError(f"Cannot write the run to {self.path}: {error.strerror}.") from None
        self._metrics.seek(0)
        try:
            fcntl.flock(self._metrics, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise UserError(f"{self.path} is being trained by another process; wait for it, or stop it.") from None
        except OSError:  # a file system without locks: whoever uses it must take care
            pass


def _foreign(file: Path) -> bool:
    begun = file.name == "metrics.jsonl" and not file.stat().st_size
    return not (begun or file.name.endswith(PARTIAL))
