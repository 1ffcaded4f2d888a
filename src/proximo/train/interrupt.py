"""Ctrl-C and SIGTERM end a run after the chunk at hand, with everything saved; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """A context in which the first SIGINT or SIGTERM is only noted, in `signal`; the second raises.

    Only the main thread can receive signals. In others, this tells what the one that is active there was sent.
    """

    _active: Interrupt | None = None

    def __init__(self) -> None:
        self._signal: int | None = None
        self._impatient = False
        self._leader: Interrupt = self
        self._previous: dict[int, Any] = {}

    @property
    def signal(self) -> int | None:
        return self._leader._signal

    @property
    def impatient(self) -> bool:
        return self._leader._impatient

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
            Interrupt._active = self
        else:
            self._leader = Interrupt._active or self
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        if Interrupt._active is self:
            Interrupt._active = None

    def _note(self, number: int, _: FrameType | None) -> None:
        if self._signal is not None:
            self._impatient = True
            self.__exit__()
            raise KeyboardInterrupt
        self._signal = number
