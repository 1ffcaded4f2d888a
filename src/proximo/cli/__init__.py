"""The command line: `proximo train`, `resume`, `evaluate`, `experiment`, `compare`, `runs`, `sync`, `ui`, `envs`,
`settings`."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer
from rich.console import Console as RichConsole
from rich.markup import escape

from proximo._version import __version__
from proximo.cli import experiment, lists, runs, train  # noqa: F401 (they register their commands)
from proximo.cli.common import app, out
from proximo.errors import ProximoError
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
        app()
    except (ProximoError, OSError) as error:
        RichConsole(stderr=True, highlight=False, soft_wrap=True).print(f"[red]Error:[/red] {escape(str(error))}")
        sys.exit(error.exit_code if isinstance(error, ProximoError) else 1)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"proximo {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    pass
