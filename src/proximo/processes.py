"""How Proximo's processes begin and end: signals are the trainer's to answer, and nothing keeps one that is done."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import signal
import sys
import termios
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""What a terminal, `timeout`, systemd or Slurm may send to all processes of a run at once."""
GRACE_SECONDS = 5.0
"""How long threads that the user's code started may keep a process that is done."""


def block_signals() -> set[signal.Signals]:
    """Those of this thread, and of what it starts; what was blocked before."""
    return {signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)}


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """A process that is started meanwhile has signals blocked until it calls `leave_signals`: there is no moment at
    which one could end it."""
    before = block_signals()
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals() -> None:
    """From now on this process does nothing about signals: the one that started it tells it when to end.

    A handler, because "ignored" would be inherited by the programs that an environment starts, and then these could
    not be terminated.
    """
    for number in SIGNALS:
        signal.signal(number, do_nothing)
        signal.siginterrupt(number, False)  # nor shall it disturb what waits in a system call
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def let_go_of_closed_terminal() -> None:
    """After SIGHUP the terminal may be gone. Writing to it would fail; from here on it goes nowhere."""
    for stream in (0, 1, 2):
        try:
            termios.tcgetattr(stream)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, stream)
                os.close(nowhere)


def end_with_signals() -> None:
    """Until training listens, SIGTERM and SIGHUP end this process in good order, and SIGUSR1 does nothing."""
    for number, handler in ((signal.SIGTERM, _end), (signal.SIGHUP, _end), (signal.SIGUSR1, do_nothing)):
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` has SIGHUP ignored
            signal.signal(number, handler)


def end_without_threads(code: int) -> None:
    """Have this process end with `code` some time after its main thread has, whatever other threads do."""
    over = threading.Event()
    atexit.register(over.set)  # runs when all threads have ended
    threading.Thread(target=_end_after_main, args=[over, code], daemon=True).start()


def _end_after_main(over: threading.Event, code: int) -> None:
    main = threading.main_thread()
    main.join()
    if over.wait(GRACE_SECONDS):
        return
    left = {thread.name for thread in threading.enumerate() if not thread.daemon and thread is not main}
    with contextlib.suppress(OSError, ValueError):
        print(f"These threads did not end, and were abandoned: {', '.join(sorted(left))}.", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    atexit._run_exitfuncs()
    os._exit(code)


def do_nothing(number: int, frame: FrameType | None) -> None:
    """A handler of signals."""


def _end(number: int, frame: FrameType | None) -> None:
    let_go_of_closed_terminal()
    sys.exit(128 + number)
