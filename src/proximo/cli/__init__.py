"""The command line: `proximo train`, `check`, `resume`, `evaluate`, `experiment`, `compare`, `runs`, `sync`, `ui`,
`envs`, `settings`."""

from __future__ import annotations

import io
import signal
import sys
from typing import Annotated

import typer

from proximo._version import __version__
from proximo.cli import check, experiment, lists, runs, train  # noqa: F401 (they register their commands)
from proximo.cli.common import app, out
from proximo.display.printing import make_rich, safe, say
from proximo.errors import LACK_OF_MEMORY, ProximoError, is_lack_of_memory
from proximo.processes import end_with_signals, end_without_threads


def main() -> None:
    """The `proximo` command. A user's mistake ends in one sentence and exit code 2, never in a traceback."""
    end_with_signals()
    code = 1
    try:
        _run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        end_without_threads(code)


def _run() -> None:
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal that knows ASCII alone gets a ? for ±
        app()
    except (ProximoError, OSError) as error:
        _complain(error)
        sys.exit(error.exit_code if isinstance(error, ProximoError) else 1)
    except Exception as error:
        if not is_lack_of_memory(error):
            raise
        _complain(LACK_OF_MEMORY)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _complain(error: object) -> None:
    say(make_rich(stderr=True), f"[red]Error:[/red] {safe(error)}")


def show_version(wanted: bool) -> bool:
    if wanted:
        out.print(f"proximo {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    pass
