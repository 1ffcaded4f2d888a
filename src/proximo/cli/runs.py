"""`proximo runs`, `sync` and `ui`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proximo.cli.common import app, out
from proximo.cli.completion import run_names
from proximo.display.printing import safe


@app.command("runs")
def runs_command(
    best: Annotated[
        str | None, typer.Option(metavar="ENV", help="Only the best run of this environment.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list, and nothing else.")] = False,
) -> None:
    """List the runs under runs/, newest first, with their environment, steps, return and state."""
    from proximo.display.tables import runs_lines
    from proximo.run_dir.directory import RUNS
    from proximo.run_dir.files import to_json
    from proximo.run_dir.read import best_of, list_runs

    found = list_runs(RUNS)
    chosen = found if best is None else best_of(found, best)
    if as_json:
        typer.echo(to_json([run.as_json() for run in chosen]))
    elif chosen:
        for line in runs_lines(chosen, out.width if out.is_terminal else None):
            out.print(line)
    else:
        out.print(f"There are no runs under {RUNS}/ yet; `proximo train CartPole-v1` makes one.")


@app.command("sync")
def sync_command(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run, or an experiment.", show_default=False, autocompletion=run_names),
    ],
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="Where to send it; by default where the run was tracked.")
    ] = None,
) -> None:
    """Send MLflow what it is missing of RUN, after an outage or if the run was not tracked."""
    from proximo.experiment.plan import PLAN
    from proximo.experiment.track import sync as sync_experiment
    from proximo.run_dir.directory import RUNS
    from proximo.run_dir.read import check_folder, find_run, read_config
    from proximo.tracking.feed import sync

    experiment = next((path for path in (run, RUNS / run) if (path / PLAN).is_file()), None)
    if experiment is not None:
        check_folder(experiment)
        sent = sync_experiment(experiment, mlflow)
        out.print(f"{safe(sent.address)} has all {sent.sent:,} runs of {safe(str(experiment))}.")
        return
    path = find_run(run)
    done = sync(path, read_config(path), mlflow)
    out.print(f"{safe(done.address)} has everything of {safe(str(path))}, up to update {done.sent:,}.")


@app.command("ui")
def ui_command(
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Port of the server; by default the first free one from 5000.", min=1, max=65535
        ),
    ] = None,
) -> None:
    """Serve MLflow's web interface for the runs under runs/ until Ctrl-C."""
    from proximo.run_dir.directory import RUNS
    from proximo.tracking.ui import show

    show(RUNS, port, lambda sentence: out.print(safe(sentence)))
