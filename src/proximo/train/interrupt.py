"""Signals to a run: SIGINT (Ctrl-C), SIGTERM and SIGHUP end it after the chunk at hand, with everything saved; a second
one ends it at once. SIGUSR1 asks for a checkpoint."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

from proximo.processes import do_nothing, let_go_of_closed_terminal

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_SECONDS = 0.3
"""A signal that comes so soon after another is the same: `timeout` sends it to its child, and then to the group."""


class Interrupt:
    """A context in which the first signal that ends a run is only noted, in `signal`; the second raises.

    Only the main thread can receive signals. In other threads, and inside another `Interrupt`, this one tells what the
    outer one was sent. One that is `deaf` is sent nothing. Any of them, and those inside it, is told by `end` and
    `save` as well.
    """

    _active: Interrupt | None = None
    _innermost = threading.local()

    def __init__(self, deaf: bool = False) -> None:
        self._deaf = deaf
        self._signal: int | None = None
        self._noted_at = 0.0
        self._impatient = False
        self._saves = 0
        self._saved = 0
        self._outer: Interrupt | None = None
        self._previous: dict[int, Any] = {}

    @property
    def signal(self) -> int | None:
        """What ended the run."""
        return self._signal if self._signal is not None or self._outer is None else self._outer.signal

    @property
    def impatient(self) -> bool:
        return self._impatient or (self._outer is not None and self._outer.impatient)

    @property
    def saves(self) -> int:
        """How often a checkpoint was asked for."""
        return self._saves + (0 if self._outer is None else self._outer.saves)

    def save_asked(self) -> bool:
        """Whether a checkpoint was asked for since this was last true."""
        asked, self._saved = self._saved < self.saves, self.saves
        return asked

    def end(self, number: int) -> None:
        """As if the signal `number` had come; from any thread."""
        self._signal = self._signal or number

    def save(self) -> None:
        """As if SIGUSR1 had come; from any thread."""
        self._saves += 1

    def __enter__(self) -> Interrupt:
        self._outer = getattr(Interrupt._innermost, "of_thread", None) or Interrupt._active
        self._saved = self.saves
        if self._outer is None and threading.current_thread() is threading.main_thread():
            Interrupt._active = self
            if not self._deaf:
                self._listen()
        Interrupt._innermost.of_thread = self
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        if Interrupt._active is self:
            Interrupt._active = None
        Interrupt._innermost.of_thread = self._outer

    def _listen(self) -> None:
        for number in ENDING:
            if number != signal.SIGHUP or signal.getsignal(number) not in (signal.SIG_IGN, None):  # as by `nohup`
                self._previous[number] = signal.signal(number, self._note)
        if signal.getsignal(signal.SIGUSR1) in (signal.SIG_DFL, signal.SIG_IGN, do_nothing):  # and not the user's own
            self._previous[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._note_save)

    def _note_save(self, *_: object) -> None:
        self.save()

    def _note(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            let_go_of_closed_terminal()
        if self._signal is None:
            self._noted_at = time.monotonic()
            self.end(number)
        # A terminal that closes may say so twice.
        elif number != signal.SIGHUP and time.monotonic() - self._noted_at >= SAME_SECONDS:
            self._impatient = True
            self.__exit__()
            raise KeyboardInterrupt
