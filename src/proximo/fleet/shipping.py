"""The folder of a run on its way from the machine that trains it to the one that wants it.

What comes is data: names are checked, and files are written as a run's own are, whole or not at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from proximo.errors import TrainingError
from proximo.run_dir.directory import METRICS, RunDirectory
from proximo.run_dir.files import PARTIAL, open_inside, write_atomically
from proximo.run_dir.origin import ORIGIN

NAME = re.compile(r"(?:[\w=+-][\w.=+-]*/){0,2}[\w=+-][\w.=+-]*")
TAIL = 2**10
Files = dict[str, bytes]


@dataclass(frozen=True)
class Parcel:
    """What is new in a folder since the last one."""

    number: int
    rows_at: int
    rows: bytes
    """Of `metrics.jsonl`: what stands from the place `rows_at` on."""
    files: Files = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Contents:
    """What a folder held: rows up to a place, the last bytes before it, and what tells one version of a file from
    another."""

    rows: int = 0
    tail: bytes = b""
    files: dict[str, tuple[int, int, int]] = field(default_factory=dict)


class Outbox:
    """What leaves a folder. Of what did not arrive, everything is sent again."""

    def __init__(self, folder: Path, arrived: Contents | None = None):
        self._folder, self._number = folder, 0
        self._arrived = self._sent = arrived or Contents()

    def pack(self, received: int) -> Parcel:
        """What is new since the parcel of the number `received`, which is the last or the one before."""
        if received == self._number:
            self._arrived = self._sent
        before, now = self._arrived, look(self._folder)
        files: Files = {}
        for name in [name for name, version in now.items() if before.files.get(name) != version]:
            try:
                with open_inside(self._folder / name) as file:
                    files[name] = file.read()
            except OSError:  # it is gone again
                del now[name]
        # Rows last, and unpacked first: a checkpoint counts on those before it.
        place, rows = self._rows(before)
        self._number += 1
        self._sent = Contents(place + len(rows), (before.tail + rows if place else rows)[-TAIL:], now)
        return Parcel(self._number, place, rows, files, sorted(before.files.keys() - now))

    def _rows(self, before: Contents) -> tuple[int, bytes]:
        """The rows that are new, and where they begin: at the very start if the run has written over some."""
        place = before.rows
        try:
            with open_inside(self._folder / METRICS) as file:
                file.seek(place - len(before.tail))
                if file.read(len(before.tail)) != before.tail:
                    place = file.seek(0)
                text = file.read()
        except OSError:
            return place, b""
        return place, text[: text.rfind(b"\n") + 1]


def look(folder: Path) -> dict[str, tuple[int, int, int]]:
    """The files of a run but for its rows, and for what only the machine that wrote it can read."""
    found: dict[str, tuple[int, int, int]] = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if name in (METRICS, ORIGIN) or name.endswith(PARTIAL):
            continue
        try:
            about = file.lstat()
        except OSError:
            continue
        if file.is_file() and not file.is_symlink():
            found[name] = (about.st_mtime_ns, about.st_size, about.st_ino)
    return found


def read_folder(folder: Path) -> Files:
    """All that a run needs to go on elsewhere."""
    files: Files = {}
    for name in (METRICS, *look(folder)):
        if (folder / name).exists():
            with open_inside(folder / name) as file:
                files[name] = file.read()
    return files


def write_folder(folder: Path, files: Files) -> Contents:
    """The other side of `read_folder`. Rows are sent back from the first on: a run that goes on cuts off the last."""
    for name, content in files.items():
        write_atomically(folder / name, content)
    return Contents(files=look(folder))


def unpack(parcel: Parcel, directory: RunDirectory) -> None:
    """Write down what has come. Whatever happens on the way, the folder is that of a run that can be resumed."""
    for name in (*parcel.files, *parcel.gone):
        if not NAME.fullmatch(name) or name in (METRICS, ORIGIN):
            raise TrainingError(f"A node has sent a file that no run has: {name!r}.")
    directory.splice(parcel.rows_at, parcel.rows)
    for name, content in parcel.files.items():
        write_atomically(directory.path / name, content)
    for name in parcel.gone:
        (directory.path / name).unlink(missing_ok=True)
