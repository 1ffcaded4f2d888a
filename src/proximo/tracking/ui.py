"""The interface of MLflow on the store beside the runs, until Ctrl-C."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from proximo.errors import UserError
from proximo.processes import let_go_of_closed_terminal, signals_blocked
from proximo.tracking import embedded
from proximo.tracking.tied import END_SECONDS

HOST, PORT = "127.0.0.1", 5000
START_SECONDS = 120.0


def show(runs: Path, port: int | None, tell: Callable[[str], None]) -> None:
    """Serve the page at `port`, or at the first free one from 5000 on."""
    try:
        importlib.metadata.version("mlflow")
    except importlib.metadata.PackageNotFoundError:
        raise UserError('The web interface of MLflow is not installed: pip install "proximo[ui]"') from None
    if not (runs / embedded.DATABASE).is_file():
        raise UserError(f"There is no {runs / embedded.DATABASE} yet; `proximo train` makes it.")
    if port is not None and not _is_free(port):
        raise UserError(f"Port {port} is in use; choose another one with --port.")
    chosen = port or next(number for number in range(PORT, PORT + 1000) if _is_free(number))
    surroundings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    command = [sys.executable, "-P", "-m", "proximo.tracking.tied", sys.executable, "-P", "-m", "mlflow", "server"]
    command += ["--workers", "1", "--host", HOST, "--port", str(chosen)]
    command += ["--backend-store-uri", embedded.store_uri(runs)]
    command += ["--default-artifact-root", str(runs.absolute() / embedded.ARTIFACTS)]
    with tempfile.TemporaryFile() as output:
        with signals_blocked():  # they are for this process, which passes its end on, however it ends
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=os.environ | surroundings,
                start_new_session=True,
            )
        # Also where they were ignored, as in what a shell starts in the background; `nohup` is another matter.
        signal.signal(signal.SIGINT, _interrupt)
        signal.signal(signal.SIGTERM, _interrupt)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, _interrupt)
        try:
            deadline = time.monotonic() + START_SECONDS
            while process.poll() is None and _is_free(chosen) and time.monotonic() < deadline:
                time.sleep(0.1)
            if process.poll() is None:
                page = runs_page(runs / embedded.DATABASE)
                tell(f"http://{HOST}:{chosen}/{page} shows the runs in {runs}; Ctrl-C stops it.")
                process.wait()
            output.seek(0)
            last = output.read().decode(errors="replace").strip().splitlines()[-5:]
            raise UserError("The MLflow server stopped: " + " ".join(last))
        except KeyboardInterrupt:
            pass
        finally:
            _end(process)


def runs_page(database: Path) -> str:
    """MLflow's page of all runs in a store, after the address of the server: of one experiment, or of all that have
    runs. Its first page would show the experiment "Default", which is empty."""
    query = "SELECT DISTINCT experiment_id FROM runs JOIN experiments USING (experiment_id) "
    query += "WHERE runs.lifecycle_stage = 'active' AND experiments.lifecycle_stage = 'active'"
    try:
        with contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            ids = sorted(str(row[0]) for row in opened.execute(query))
    except sqlite3.Error:
        return ""
    if len(ids) == 1:
        return f"#/experiments/{ids[0]}/runs"
    listed = urllib.parse.quote(json.dumps(ids, separators=(",", ":")))
    return f"#/compare-experiments/s?experiments={listed}" if ids else ""


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) != 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """The server and whatever it started."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(END_SECONDS + 5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _interrupt(number: int, frame: FrameType | None) -> None:
    let_go_of_closed_terminal()
    raise KeyboardInterrupt
