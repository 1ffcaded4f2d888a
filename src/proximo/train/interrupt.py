"""Ctrl-C and SIGTERM end a run after the chunk at hand, with everything saved; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """A context in which the first SIGINT or SIGTERM is only noted, in `signal`; the second raises."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.impatient = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        # Only the main thread may install handlers; elsewhere whoever runs us decides.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None:
            self.impatient = True
            self.__exit__()
            raise KeyboardInterrupt
        self.signal = number
