"""Requests about the states of lanes that follow a command to a worker: eight bytes for the length, then plain data."""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import Any

from proximo.envs.host.codec import decode, encode

PIECE = 2**20


def send_request(fd: int, request: dict[int, Any], timeout: float) -> None:
    """Write what may be larger than a pipe holds; who does not read it in time is not waited for any longer."""
    data = encode(request)
    rest, until = memoryview(len(data).to_bytes(8, "big") + data), time.monotonic() + timeout
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    os.set_blocking(fd, False)
    try:
        while len(rest) and poll.poll(max(until - time.monotonic(), 0) * 1000):
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(fd, rest[:PIECE]) :]
    finally:
        os.set_blocking(fd, True)


def read_request(fd: int) -> dict[int, Any]:
    return decode(_read(fd, int.from_bytes(_read(fd, 8), "big")))


def _read(fd: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        parts.append(os.read(fd, min(size, PIECE)))
        size -= len(parts[-1])
        if not parts[-1]:
            raise OSError("the trainer is gone")
    return b"".join(parts)
