"""Requests about the states of environments, which follow a command to a worker: eight bytes for the length, then the
request, pickled."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
from typing import Any

PIECE, WAITS = 2**20, 4


def send_request(fd: int, request: dict[int, Any], timeout: float) -> None:
    """Write what may be larger than a pipe holds; who does not read it in time is not waited for any longer.

    The time is taken in pieces, of which one in which this process was stopped is just one.
    """
    data = pickle.dumps(request)
    rest, idle = memoryview(len(data).to_bytes(8, "big") + data), 0
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    os.set_blocking(fd, False)
    try:
        while len(rest) and idle < WAITS:
            if not poll.poll(timeout * 1000 / WAITS):
                idle += 1
                continue
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(fd, rest[:PIECE]) :]
    finally:
        os.set_blocking(fd, True)


def read_request(fd: int) -> dict[int, Any]:
    """What the trainer's process sent; nobody else can write there."""
    request: dict[int, Any] = pickle.loads(_read(fd, int.from_bytes(_read(fd, 8), "big")))
    return request


def _read(fd: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        parts.append(os.read(fd, min(size, PIECE)))
        size -= len(parts[-1])
        if not parts[-1]:
            raise OSError("the trainer is gone")
    return b"".join(parts)
