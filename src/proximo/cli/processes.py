"""Several processes of one run: who starts them, and how one of them joins the others."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from proximo.display.printing import make_rich, safe
from proximo.errors import TrainingError, UserError

END_SECONDS = 30.0
"""How long processes may take to end after one has failed."""

Processes = Annotated[
    int | None, typer.Option(metavar="N", help="Processes of this run, which divide its shards (train.shards).", min=1)
]
Coordinator = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Where process 0 is reached, if processes are started one by one."),
]
Process = Annotated[int | None, typer.Option(metavar="I", help="The number of this process, from 0.", min=0)]


def check_processes(coordinator: str | None, process: int | None, processes: int | None, shards: int) -> None:
    """Refuse flags that do not go together, or that do not fit `train.shards`."""
    if (coordinator is None) != (process is None):
        raise UserError("--coordinator HOST:PORT and --process I belong together.")
    if process is not None and (processes is None or process >= processes):
        raise UserError(f"--process {process} is one of --processes N, numbered from 0 to N - 1.")
    if processes is not None and shards % processes:
        raise UserError(
            f"--processes {processes} does not divide train.shards={shards}; each process has as many shards as the "
            f"others, as with --set train.shards={processes}."
        )


def begin(coordinator: str | None, process: int | None, processes: int | None, shards: int) -> None:
    """Before anything uses JAX: have it offer the devices of `shards`, here or with other processes; or start these,
    and end with them."""
    check_processes(coordinator, process, processes, shards)
    if process is None and (processes or 1) > 1:
        assert processes is not None
        raise typer.Exit(start_processes(processes))
    from proximo.shards import need_devices
    from proximo.train.peers import Peer, join

    if process is not None and coordinator is not None and processes is not None:
        join(Peer(coordinator, process, processes), shards)
    need_devices(shards)


def start_processes(processes: int) -> int:
    """Start this command `processes` times on this machine, as processes of one run; the exit code of the first, or of
    one that failed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = [sys.executable, "-m", "proximo", *sys.argv[1:], "--coordinator", f"127.0.0.1:{port}", "--process"]
    members = [subprocess.Popen([*started, str(number)]) for number in range(processes)]

    def pass_on(number: int, _: object) -> None:
        for member in members:
            with contextlib.suppress(ProcessLookupError):
                member.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, pass_on)
    failed: tuple[int, int] | None = None
    until = 0.0
    while any(member.poll() is None for member in members):
        time.sleep(0.1)
        codes = {number: member.poll() for number, member in enumerate(members)}
        if failed is None and (ended := [number for number, code in codes.items() if code]):
            failed, until = (ended[0], codes[ended[0]] or 0), time.monotonic() + END_SECONDS
        if failed is not None and time.monotonic() > until:
            pass_on(signal.SIGKILL, None)
    if failed is None:
        return 0
    which, code = failed
    if code < 0:
        how = signal.Signals(-code).name
        sentence = f"Process {which} of {processes} was ended by {how}, and so the others ended."
        make_rich(stderr=True).print(
            f"[red]Error:[/red] {safe(sentence)} `proximo resume RUN` goes on from the last checkpoint."
        )
        return 1
    return code


@contextlib.contextmanager
def lost_peers(process: int | None) -> Iterator[None]:
    """What JAX says where another process is gone, in a sentence."""
    if process is None:
        yield
        return
    from jax.errors import JaxRuntimeError

    try:
        yield
    except JaxRuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise TrainingError(
            f"Process {process} has lost another process of the run ({reason}), and ended. `proximo resume RUN` goes "
            f"on from the last checkpoint."
        ) from None


@contextlib.contextmanager
def folder_of(process: int | None, out: Path | None, resumed: Path | None = None) -> Iterator[Path | None]:
    """Where a process writes its run: the first one where the user wants it, the others where it is thrown away. A
    run that goes on is read by all."""
    if not process:
        yield resumed or out
        return
    with tempfile.TemporaryDirectory(prefix="proximo-process-") as scratch:
        place = Path(scratch) / "run"
        if resumed is not None:
            shutil.copytree(resumed, place)
        yield place
