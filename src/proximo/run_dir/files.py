"""Files that are either whole or not there, and the files of runs, which may come from a stranger.

A run's folder may be reached through a link. Inside of it there are regular files and folders and nothing else: a link
would have us write elsewhere, a FIFO would have us wait for ever, a device would fill all memory.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any, BinaryIO

PARTIAL = ".partial"
START = Path(os.environ.get("PWD", "/"))
with contextlib.suppress(OSError):  # it may be gone
    START = Path.cwd()
"""Where the program was started; environments may change the working directory."""
LARGEST_JSON = 2**24
LARGEST_PLAN = 2**30  # of an experiment: a hundred thousand runs take a third of that
LARGEST_ROW = 2**20
CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
KINDS = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}


@cache
def cache_folder() -> Path:
    """Where this user's things are kept that can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "proximo"


def umask() -> int:
    """What this process leaves out of the permissions of new files. Linux says it; where asking is the only way, that
    sets it for a moment, and for all threads."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write under a temporary name beside `path`, then rename: a reader, or a crash, never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL)
    try:
        with os.fdopen(handle, "wb") as file:
            # A name that is no UTF-8 may stand in the text: it must not cost the file.
            file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; give the new one the permissions that open() would have.
        os.chmod(temporary, 0o666 & ~umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def remove_partial(folder: Path) -> None:
    """Remove what writers left behind that were killed on the way."""
    for file in folder.rglob(f".*{PARTIAL}"):
        with contextlib.suppress(OSError):
            file.unlink()


def total_memory() -> int:
    """Bytes that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def shown(path: Path) -> str:
    """A path as people know it: by its short name where it lies below the folder that the program was started in."""
    return str(Path(path).relative_to(START) if Path(path).is_relative_to(START) else path)


def open_inside(path: Path) -> BinaryIO:
    """Open a file of a run for reading, if it is a regular one; OSError otherwise."""
    return open(path, "rb", opener=regular)


def regular(path: str | Path, flags: int) -> int:
    """An opener, as `open` takes one: of regular files alone, and without ever waiting."""
    try:
        file = os.open(path, flags | CAREFULLY, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a FIFO that nobody reads, or a socket
            raise _not_regular(path, os.lstat(path)) from None
        raise
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        os.close(file)
        raise _not_regular(path, found)
    return file


def _not_regular(path: object, found: os.stat_result) -> OSError:
    kind = KINDS.get(stat.S_IFMT(found.st_mode), "a device")
    return OSError(errno.EINVAL, f"{Path(str(path)).name} is {kind} where a regular file is expected", str(path))


def read_inside(path: Path, largest: int) -> bytes:
    """All of a file of a run, if it is a regular one and not larger than it may be; OSError otherwise."""
    with open_inside(path) as file:
        return read_up_to(file, largest)


def read_up_to(file: IO[bytes], largest: int) -> bytes:
    """The rest of a file; OSError if that is more than `largest` bytes."""
    content = file.read(largest + 1)
    if len(content) > largest:
        raise OSError(errno.EFBIG, f"it is larger than {largest:,} bytes")
    return content


def read_json(path: Path, largest: int = LARGEST_JSON) -> Any:
    """What a JSON file of a run holds; OSError or ValueError otherwise."""
    try:
        return json.loads(read_inside(path, largest))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_mapping(path: Path, largest: int = LARGEST_JSON) -> dict[str, Any]:
    """What a JSON file holds that may be missing or damaged: then nothing."""
    try:
        found = read_json(path, largest)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of `metrics.jsonl`, one at a time; the last may lack its end. ValueError if one is longer than any."""
    while line := file.readline(LARGEST_ROW + 1):
        if len(line) > LARGEST_ROW:
            raise ValueError(f"a row is longer than {LARGEST_ROW:,} bytes")
        yield line


def check_inside(folder: Path) -> None:
    """Refuse a folder that holds, at any depth, anything but regular files and folders: OSError says what."""
    for place, folders, files in os.walk(folder):  # which does not go into links
        for name in (*folders, *files):
            path = Path(place, name)
            with contextlib.suppress(FileNotFoundError):  # a run at work renames and removes
                found = path.lstat()
                if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                    kind = KINDS.get(stat.S_IFMT(found.st_mode), "a device")
                    inner = path.relative_to(folder)
                    raise OSError(errno.EINVAL, f"{inner} in it is {kind}; a run holds regular files and folders only")


def to_json(value: Any, **options: Any) -> str:
    """JSON that every reader takes: numbers that are not finite become null."""

    def plain(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: plain(inner) for key, inner in item.items()}
        if isinstance(item, list | tuple):
            return [plain(inner) for inner in item]
        return None if isinstance(item, float) and not math.isfinite(item) else item

    return json.dumps(plain(value), allow_nan=False, **options)
