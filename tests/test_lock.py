"""One holds a file for itself, or several together; who has gone holds nothing."""

from __future__ import annotations

import errno
import fcntl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proximo.run_dir.lock import take_lock


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[list[Any]]:
    """The same file, opened as three processes would."""
    (tmp_path / "file").touch()
    files = [(tmp_path / "file").open("rb") for _ in range(3)]
    yield files
    for file in files:
        file.close()


def test_one_at_a_time(opened: list[Any]) -> None:
    first, second, _ = opened
    assert take_lock(first)
    assert not take_lock(second)
    assert not take_lock(second, shared=True)
    first.close()
    assert take_lock(second)


def test_readers_share(opened: list[Any]) -> None:
    first, second, third = opened
    assert take_lock(first, shared=True)
    assert take_lock(second, shared=True)
    assert not take_lock(third)


def test_patience(opened: list[Any]) -> None:
    first, second, _ = opened
    assert take_lock(first)
    threading.Timer(0.3, first.close).start()
    assert not take_lock(second, patience=0.05)
    assert take_lock(second, patience=30.0)


@pytest.mark.slow
def test_a_file_system_without_locks_grants_them(opened: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuses)
    assert all(map(take_lock, opened))
