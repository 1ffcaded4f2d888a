"""Loaded in multiprocessing's fork server, which begins with signals blocked: they are the trainer's. So do Proximo's
workers, until `leave_signals`; processes that others start from the same server get their signals back."""

from __future__ import annotations

import signal
from collections.abc import Callable
from multiprocessing import current_process, util

from proximo.envs.host.worker_main import PROCESS_NAME
from proximo.processes import SIGNALS


def give_back(_: Callable[..., None]) -> None:
    """Called in each process that the server starts, before what it is for."""
    if not current_process().name.startswith(PROCESS_NAME):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


util.register_after_fork(give_back, give_back)
