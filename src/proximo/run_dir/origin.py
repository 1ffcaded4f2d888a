"""Who made a folder: what its runs train on is signed with a key that never leaves this user's account.

A signature is an HMAC of a text, one in each line of the file `origin`. It says that the owner of the key has trained
on just that before, wherever the folder has been since then.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Iterable
from pathlib import Path

from proximo.run_dir.files import read_inside, write_atomically

ORIGIN = "origin"
PURPOSE = b"proximo: an environment that was trained on here\n"
KEY_BYTES = 32
LARGEST = 2**20


def sign(folder: Path, texts: Iterable[str]) -> None:
    """Write down that this user stands for `texts`. Where no key can be kept, nothing is written."""
    key = _key(make=True)
    if key is not None:
        write_atomically(folder / ORIGIN, "".join(f"{_signature(key, text)}\n" for text in dict.fromkeys(texts)))


def is_signed(folder: Path, text: str) -> bool:
    """Whether this user has stood for `text`."""
    key = _key(make=False)
    if key is None:
        return False
    try:
        lines = read_inside(folder / ORIGIN, LARGEST).split()
    except OSError:
        return False
    wanted = _signature(key, text).encode()
    return any(hmac.compare_digest(line, wanted) for line in lines)


def _signature(key: bytes, text: str) -> str:
    return hmac.new(key, PURPOSE + text.encode(errors="backslashreplace"), hashlib.sha256).hexdigest()


def _key(make: bool) -> bytes | None:
    """This user's key; None if there is none, and none can be made."""
    try:
        place = _state_folder() / "key"
        if make and not place.exists():
            _make_key(place)
        key = place.read_bytes()
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return None
    return key if len(key) == KEY_BYTES else None


def _state_folder() -> Path:
    given = os.environ.get("XDG_STATE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state") / "proximo"


def _make_key(place: Path) -> None:
    """All at once, and once: of processes that do so at the same time, the first makes it."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=place.parent)  # which nobody else can read
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, place)
    finally:
        os.unlink(temporary)
