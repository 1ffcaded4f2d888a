"""`proximo tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from proximo import settings
from proximo.cli.common import (
    ClusterAddress,
    CpusPerRun,
    EnvArguments,
    GpusPerRun,
    Mlflow,
    NoMlflow,
    NoPreset,
    Preset,
    Quiet,
    RuntimeEnv,
    Shared,
    Trust,
    WithSettings,
    app,
    check_loudness,
    chosen_cluster,
    chosen_preset,
    flag,
    given_settings,
    out,
    with_env_arguments,
)
from proximo.cli.completion import assigned_settings, env_ids
from proximo.display.printing import safe
from proximo.errors import TrainingError, UserError

TUNE_HELP = """Search for settings of ENV, and say whether they are better than those there are.

Optuna chooses the settings of each trial. The search begins with the environment's preset, or the defaults, as trial 0;
the best three trials are trained again with fresh seeds, and the winner is compared with trial 0 on seeds by which
nothing was chosen. Ctrl-C stops it; `--resume DIR` goes on and repeats nothing (docs/tuning.md).

Examples:

* `proximo tune CartPole-v1 --trials 40 --steps 100_000`

* `proximo tune Pendulum-v1 --space space.yaml --dry-run` shows the space, the runs and how long they would take

* `proximo tune LunarLander-v3 --save-preset` keeps what is found: `proximo train LunarLander-v3` then uses it

* `proximo tune --resume runs/NAME`

* `proximo tune CartPole-v1 --cluster auto` trains on a Ray cluster (docs/cluster.md)
"""


@app.command(cls=WithSettings, help=TUNE_HELP)
def tune(
    env: Annotated[
        str | None,
        typer.Argument(metavar="ENV", help="An environment's id.", show_default=False, autocompletion=env_ids),
    ] = None,
    trials: Annotated[
        str | None, typer.Option(metavar="N", help="Number of trials, trial 0 included; 40 by default.")
    ] = None,
    steps: Annotated[str | None, typer.Option(metavar="N", help="Environment steps of each run.")] = None,
    space: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What is searched, as YAML; by default by the kind of ENV.")
    ] = None,
    sampler: Annotated[
        str | None, typer.Option(metavar="tpe|random|gp", help="How settings are chosen; tpe by default.")
    ] = None,
    pruner: Annotated[
        str | None,
        typer.Option(metavar="none|median|hyperband", help="What ends bad trials early; none by default."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="Runs trained in parallel; by default one per core.", min=1)
    ] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="A database of Optuna's, instead of a journal in the folder.")
    ] = None,
    seed: Annotated[str | None, typer.Option(metavar="N", help="The seed of the study; 0 by default.")] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the study; a new one under runs/.")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings to begin with, as YAML.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="One setting to begin with; repeatable.",
            autocompletion=assigned_settings,
        ),
    ] = None,
    env_arguments: EnvArguments = None,
    preset: Preset = None,
    no_preset: NoPreset = False,
    save_preset: Annotated[
        bool, typer.Option("--save-preset", help="Keep what is found as your own preset, which `train` then uses.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the space and the runs, and estimate their time; train nothing.")
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Continue a study that was interrupted.", show_default=False)
    ] = None,
    cluster: ClusterAddress = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    runtime_env: RuntimeEnv = None,
    shared: Shared = False,
    mlflow: Mlflow = None,
    no_mlflow: NoMlflow = False,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    check_loudness(quiet)
    where = chosen_cluster(cluster, cpus_per_run, gpus_per_run, runtime_env, shared)
    if dry_run and where is not None:
        raise UserError("--dry-run measures how fast this machine is, and says nothing of a cluster; leave one out.")
    from proximo.experiment.progress import Progress

    if resume is not None:
        others = (env, trials, steps, space, sampler, pruner, seed, out_dir, config, assignments, env_arguments)
        if any(given is not None for given in (*others, preset, mlflow)) or no_preset or no_mlflow or dry_run:
            raise UserError(
                "--resume continues a study as it was asked for; only --jobs, --storage, --save-preset, --trust and "
                "--quiet can be given with it, and where it is trained: --cluster and what belongs to it."
            )
        from proximo.tuning.progress import StudyDisplay
        from proximo.tuning.protocol import Protocol
        from proximo.tuning.search import carry_out

        progress = Progress() if quiet else StudyDisplay(out)
        how: dict[str, Any] = {"trust": trust, "storage": storage, "cluster": where, "save_preset": save_preset}
        summary = carry_out(Protocol.load(resume), resume, jobs, progress, **how)
    else:
        flags = given_settings(assignments, mlflow, no_mlflow, {"train.total_timesteps": steps, "seed": seed})
        given = settings.from_file(config) if config else {}
        flags = with_env_arguments(flags, given, env_arguments)
        values = given | flags | ({} if env is None else {"env.id": env})
        if "env.id" not in values:
            raise UserError("Name an environment, as in `proximo tune CartPole-v1 --trials 40`.")
        count = 40 if trials is None else flag("--trials", "env.num_envs", trials)
        asked = (space, count, sampler or "tpe", pruner or "none", storage)
        from proximo.tuning.progress import StudyDisplay
        from proximo.tuning.search import begin, carry_out, default_folder, make_protocol

        question = make_protocol(None, values, {}, chosen_preset(preset, no_preset), *asked, {}, "--no-preset")
        path = out_dir or default_folder(values["env.id"])
        if dry_run:
            show_study(question, path, jobs)
            return
        protocol = begin(question.protocol, path, storage, save_preset)
        progress = Progress() if quiet else StudyDisplay(out)
        how = {"trust": True, "storage": storage, "cluster": where, "save_preset": save_preset}
        how["remarks"] = question.remarks
        summary = carry_out(protocol, path, jobs, progress, **how)
    if progress.signal is not None:
        raise typer.Exit(128 + progress.signal)
    if summary["search"]["winner"] is None:
        raise TrainingError("No trial came to its end with a score; report.html says what went wrong with each.")


def show_study(question: Any, path: Path, jobs: int | None) -> None:
    """What would be searched and trained, and about how long that takes."""
    from proximo.display.console import duration
    from proximo.tuning.estimate import estimate
    from proximo.tuning.protocol import FINALISTS, SEEDS
    from proximo.tuning.space import num_shapes
    from proximo.tuning.tables import space_table

    protocol = question.protocol
    out.print(space_table(protocol.space), soft_wrap=False)
    for remark in question.remarks:
        out.print(f"[dim]{safe(remark)}[/dim]")
    shapes = num_shapes(protocol.space, protocol.base, question.groups_of)
    many = "nearly every trial has a program of its own" if shapes is None else f"{shapes:,} shapes of programs at most"
    steps = protocol.base.train.total_timesteps
    out.print(
        f"{protocol.num_runs} runs of {steps:,} steps at most: {protocol.trials} trials, the best "
        f"{min(FINALISTS, protocol.trials)} again with {SEEDS} seeds each, the winner and trial 0 with {SEEDS} seeds "
        f"each; {many}. They would go to {safe(str(path))}."
    )
    with out.status("measuring their speed"):
        seconds, used = estimate(protocol, question.groups_of, jobs)
    out.print(f"Estimated time: about [bold]{duration(seconds)}[/bold], with {used} at a time.")
