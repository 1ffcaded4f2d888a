"""`proximo experiment` and `compare`."""

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
from proximo.errors import TrainingError, UserError, printable

EXPERIMENT_HELP = """Train several trials with several seeds in parallel, and compare them statistically.

WHAT is an environment, trained with `--trials` seeds, or a YAML file with environments, named trials or a grid, and
seeds (docs/experiments.md). Ctrl-C stops it; `--resume DIR` trains what is missing, and repeats nothing.

Examples:

* `proximo experiment CartPole-v1 --trials 5` trains with five seeds: 0, 100000, ..., 400000

* `proximo experiment examples/clip.yaml --dry-run` shows the runs and how long they would take

* `proximo experiment --resume runs/NAME`

* `proximo experiment examples/clip.yaml --cluster auto` trains on a Ray cluster (docs/cluster.md)
"""


@app.command(cls=WithSettings, help=EXPERIMENT_HELP)
def experiment(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="WHAT", help="An environment's id, or a YAML file.", show_default=False, autocompletion=env_ids
        ),
    ] = None,
    trials: Annotated[
        str | None,
        typer.Option(metavar="N", help="Number of seeds per trial, 100,000 apart; by default 5."),
    ] = None,
    steps: Annotated[str | None, typer.Option(metavar="N", help="Environment steps per run.")] = None,
    seed: Annotated[str | None, typer.Option(metavar="N", help="The first seed; by default 0.")] = None,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The experiment's folder; by default a new one under runs/."),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings of all runs, as YAML.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="One setting of all runs; repeatable.", autocompletion=assigned_settings
        ),
    ] = None,
    env_arguments: EnvArguments = None,
    preset: Preset = None,
    no_preset: NoPreset = False,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="Runs trained in parallel; by default one per core.", min=1)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and estimate its time; train nothing.")
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Continue an experiment that was interrupted.", show_default=False),
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
    from proximo.experiment.plan import Plan, default_folder

    check_loudness(quiet)
    where = chosen_cluster(cluster, cpus_per_run, gpus_per_run, runtime_env, shared)
    if dry_run and where is not None:
        raise UserError("--dry-run measures how fast this machine is, and says nothing of a cluster; leave one out.")
    if resume is not None:
        others = (what, trials, steps, seed, out_dir, config, assignments, env_arguments, preset, mlflow)
        if any(given is not None for given in others) or no_preset or no_mlflow or dry_run:
            raise UserError(
                "--resume continues an experiment as it was planned; only --jobs, --trust and --quiet can be given "
                "with it, and where it is trained: --cluster and what belongs to it."
            )
        plan, path = Plan.load(resume), resume
    else:
        given = {"train.total_timesteps": steps, "seed": seed}
        flags = given_settings(assignments, mlflow, no_mlflow, given)
        count = None if trials is None else flag("--trials", "env.num_envs", trials)
        plan = make_plan(what, count, config, flags, chosen_preset(preset, no_preset), env_arguments)
        path = out_dir or default_folder(plan.name)
    if dry_run:
        show_plan(plan, path, jobs)
        return
    from proximo.experiment.progress import Progress, ProgressDisplay
    from proximo.experiment.runner import carry_out

    if resume is None:
        plan.save(path)
    progress = Progress() if quiet else ProgressDisplay(out)
    summary = carry_out(plan, path, jobs, progress, trust=trust or resume is None, cluster=where)
    if progress.signal is not None:
        raise typer.Exit(128 + progress.signal)
    failed = sum(run["state"] != "complete" for run in summary["runs"])
    if failed:
        raise TrainingError(
            f"{failed} of {len(plan.runs)} runs did not complete; `proximo experiment --resume {path}` tries "
            f"them again."
        )


def make_plan(
    what: str | None,
    count: int | None,
    config: Path | None,
    flags: Any,
    preset: bool | str,
    env_arguments: list[str] | None,
) -> Any:
    """The plan that the command line asks for."""
    from proximo.experiment.plan import make_plan, make_trials, read_plan

    given = settings.from_file(config) if config else {}
    if what is not None and Path(what).suffix in (".yaml", ".yml"):
        if given:
            raise UserError(f"{what} holds settings itself, under `base`; leave --config out.")
        return read_plan(Path(what), with_env_arguments(flags, {}, env_arguments), count, preset)
    flags = with_env_arguments(flags, given, env_arguments)
    env = what or (given | flags).get("env.id")
    if env is None:
        raise UserError("Name an environment, as in `proximo experiment CartPole-v1 --trials 5`, or a YAML file.")
    given.pop("env.id", None), flags.pop("env.id", None)
    first = flags.pop("seed", given.pop("seed", 0))
    return make_plan([env], make_trials(None, None, count or 5, first), given, flags, preset)


def show_plan(plan: Any, path: Path, jobs: int | None) -> None:
    """The runs of an experiment, and about how long they take."""
    from proximo.experiment.tables import plan_table

    out.print(plan_table(plan), soft_wrap=False)
    for sentence in plan.remarks:
        out.print(f"[dim]{safe(sentence)}[/dim]")
    steps = sum(run.config.train.total_timesteps for run in plan.runs)
    out.print(f"{len(plan.runs)} runs, at most {steps:,} steps; they would go to {safe(str(path))}.")
    with out.status("measuring their speed"):
        from proximo.display.console import duration
        from proximo.experiment.estimate import estimate

        seconds, used = estimate(plan, jobs)
    out.print(f"Estimated time: at most about [bold]{duration(seconds)}[/bold], with {used} at a time.")


@app.command("compare")
def compare_command(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_OR_DIR...", help="Runs, experiments, or folders of runs.", show_default=False),
    ],
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The report's folder; by default a new one under runs/."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="TRIAL", help="The trial that the others are compared with.")
    ] = None,
) -> None:
    """Compare runs: intervals over seeds, the probability of improvement, curves and profiles, on one page.

    Runs whose settings differ only in the seed are one trial. `proximo compare runs/A runs/B runs/C` compares single
    runs, `proximo compare runs/NAME` an experiment.
    """
    from proximo.experiment.compare import gather, write_comparison
    from proximo.experiment.plan import default_folder
    from proximo.experiment.tables import comparison_table
    from proximo.run_dir.directory import RUNS

    found = gather([path if path.exists() or not (RUNS / path).exists() else RUNS / path for path in paths])
    place = out_dir or default_folder("comparison")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UserError(f"{place} is not an empty folder; give --out a new or an empty one.")
    with out.status(f"comparing {len(found)} runs"):
        summary = write_comparison(found, place, ", ".join(printable(path.name) for path in paths), baseline)
    out.print(comparison_table(summary), soft_wrap=False)
    out.print(f"[dim]{safe(str(place / 'report.html'))}[/dim]")
