"""What all commands share."""

from __future__ import annotations

import dataclasses
import os
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from proximo import settings
from proximo.cli.completion import preset_names, run_names
from proximo.display.printing import make_rich
from proximo.errors import UserError
from proximo.fleet.cluster import Cluster
from proximo.hints import ELSEWHERE

COMMANDS = ("train", "resume", "evaluate", "experiment", "compare", "runs", "envs", "check", "settings", "ui", "sync")
OTHER_COMMANDS = {"learn": "train", "continue": "resume", "predict": "evaluate", "enjoy": "evaluate", "list": "runs"}
FLAGS = {"train.total_timesteps": "--steps", "seed": "--seed", "env.kwargs": "--env-arg", "track.video": "--video"}
"""Settings that have an option of their own, where the command has it."""


class Commands(TyperGroup):
    """The commands in the order in which people need them."""

    def list_commands(self, ctx: Any) -> list[str]:
        known = super().list_commands(ctx)
        return [*COMMANDS, *(name for name in known if name not in COMMANDS)]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in OTHER_COMMANDS:
            raise UserError(f"There is no command {args[0]}; `proximo {OTHER_COMMANDS[args[0]]}` does that.")
        return super().resolve_command(ctx, args)


class WithSettings(TyperCommand):
    """A command that takes settings by `--set`, and says so where one is given as an option of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)  # which the parser eats up
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = str(getattr(error, "option_name", None))
            known = {flag: getattr(one, "is_flag", False) for one in self.params for flag in one.opts}
            hint = type(error).__name__ == "NoSuchOption" and option_hint(option, given, known)
            if not hint:
                raise
            raise UserError(f"There is no option {option}; {hint}.") from None


def option_hint(option: str, given: list[str], known: dict[str, bool]) -> str | None:
    """What to write instead of an `option` that there is not, and that was `given` with a value or without one; `known`
    are those of the command, and whether they are switches."""
    path = option.lstrip("-")
    name = settings.plain_name(path)
    foreign = settings.FOREIGN_NAMES.get("env_id" if name == "env" else name)
    meant = [path] if path in settings.SETTINGS else [foreign] if foreign else settings.meant_settings(path)
    if meant == ["env.id"]:
        return "the environment's id stands alone, as in `proximo train CartPole-v1`"
    if not meant:
        return ELSEWHERE.get(name)
    following = dict(pairwise(given)).get(option, "--")
    value = dict(text.split("=", 1) for text in given if "=" in text).get(option, following)
    told = "VALUE" if value.startswith("--") else value
    forms = [f"--set {one}={told}" for one in meant]
    if (own := FLAGS.get(meant[0], "")) in known:
        forms = [own if known[own] else f"{own} {told}"]
    return f"write {' or '.join(forms)}{settings.difference(name)}"


app = typer.Typer(
    cls=Commands,
    name="proximo",
    help="Train reinforcement-learning agents with PPO.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = make_rich()
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print a block of statistics after every update.")]

Preset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Start from the preset with this name, such as documents.", autocompletion=preset_names
    ),
]
NoPreset = Annotated[
    bool, typer.Option("--no-preset", help="Start from the defaults, not from the environment's preset.")
]

Mlflow = Annotated[
    str | None, typer.Option("--mlflow", metavar="URI", help="MLflow's address; by default runs/mlflow.db.")
]
NoMlflow = Annotated[bool, typer.Option("--no-mlflow", help="Do not track in MLflow.")]

EnvArguments = Annotated[
    list[str] | None,
    typer.Option(
        "--env-arg",
        metavar="NAME=VALUE",
        help="An argument passed to the environment, such as gravity=-5 (env.kwargs); repeatable.",
    ),
]

Run = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="A run directory, or its name under runs/.", show_default=False, autocompletion=run_names
    ),
]

Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Import the Python modules that the settings name, in a folder that you did not make."
    ),
]


ClusterAddress = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Train on a Ray cluster: auto (this machine's, started if there is none), HOST:PORT or ray://HOST:PORT.",
    ),
]
CpusPerRun = Annotated[
    int | None, typer.Option(metavar="N", help="CPUs that each run gets on the cluster; 1 by default.", min=1)
]
GpusPerRun = Annotated[
    float | None, typer.Option(metavar="N", help="GPUs that each run gets on the cluster; none by default.", min=0)
]
RuntimeEnv = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="YAML with Ray's runtime_env: how packages and files get to the nodes."),
]
Shared = Annotated[
    bool, typer.Option("--shared", help="The nodes see this machine's folders; nothing is sent over the network.")
]


def chosen_cluster(
    address: str | None, cpus: int | None, gpus: float | None, runtime_env: Path | None, shared: bool
) -> Cluster | None:
    """What `--cluster` and the options about it ask for."""
    if address is not None:
        return Cluster(address, cpus or 1, gpus or 0.0, runtime_env, shared)
    for name, given in {"cpus-per-run": cpus, "gpus-per-run": gpus, "runtime-env": runtime_env}.items():
        if given is not None:
            raise UserError(f"--{name} is for runs on a cluster: give --cluster as well.")
    if shared:
        raise UserError("--shared is for runs on a cluster: give --cluster as well.")
    return None


def with_env_arguments(flags: settings.Values, given: settings.Values, texts: list[str] | None) -> settings.Values:
    """`flags` with those of `--env-arg`, over what a file has `given`."""
    if not texts:
        return flags
    named = settings.from_env_arguments(texts)
    return flags | {"env.kwargs": ((given | flags).get("env.kwargs") or {}) | named}


def given_settings(
    assignments: list[str] | None, mlflow: str | None, no_mlflow: bool, flags: dict[str, Any]
) -> settings.Values:
    """The values that the command line sets: by `--set`, by flags of their own, and by those about MLflow."""
    if mlflow is not None and no_mlflow:
        raise UserError("--mlflow and --no-mlflow cannot be used together.")
    values = settings.from_assignments(assignments or [])
    switch = False if no_mlflow else None if mlflow is None else True
    for path, text in (flags | {"track.tracking_uri": mlflow, "track.mlflow": switch}).items():
        if text is not None:
            values[path] = settings.convert(settings.find_setting(path), text)
    return values


def chosen_preset(name: str | None, none: bool) -> bool | str:
    """What `--preset NAME` and `--no-preset` ask for; neither: the environment's own."""
    if name is not None and none:
        raise UserError("--preset and --no-preset cannot be used together.")
    return name if name is not None else not none


def check_loudness(quiet: bool, verbose: bool = False) -> int:
    """How much is shown, as `verbose` of PPOTrainer; both are refused. With `quiet`, libraries say nothing either, also
    in the processes of environments."""
    if quiet and verbose:
        raise UserError("--quiet and --verbose cannot be used together.")
    if quiet:
        warnings.simplefilter("ignore")
        os.environ["PYTHONWARNINGS"] = "ignore"
    return 0 if quiet else 2 if verbose else 1


def flag(name: str, path: str, text: str) -> Any:
    """The value of the flag `name`, which takes what the setting `path` takes."""
    return settings.convert(dataclasses.replace(settings.find_setting(path), path=name), text)
