"""What all commands share."""

from __future__ import annotations

import dataclasses
import os
import warnings
from typing import Annotated, Any

import typer

from proximo import settings
from proximo.display.printing import make_rich
from proximo.errors import UserError

app = typer.Typer(
    name="proximo",
    help="Train reinforcement-learning agents with PPO.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = make_rich()
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print a block of statistics after every update.")]

Preset = Annotated[
    str | None, typer.Option(metavar="NAME", help="Start from the preset of this name, such as documents.")
]
NoPreset = Annotated[
    bool, typer.Option("--no-preset", help="Start from the defaults, not from the environment's preset.")
]


def chosen_preset(name: str | None, none: bool) -> bool | str:
    """What `--preset NAME` and `--no-preset` ask for; neither: the environment's own."""
    if name is not None and none:
        raise UserError("--preset and --no-preset cannot be used together.")
    return name if name is not None else not none


def check_loudness(quiet: bool, verbose: bool = False) -> None:
    """Refuse both; and with `quiet`, have libraries say nothing either, also in the processes of environments."""
    if quiet and verbose:
        raise UserError("--quiet and --verbose cannot be used together.")
    if quiet:
        warnings.simplefilter("ignore")
        os.environ["PYTHONWARNINGS"] = "ignore"


def flag(name: str, path: str, text: str) -> Any:
    """The value of the flag `name`, which takes what the setting `path` takes."""
    return settings.convert(dataclasses.replace(settings.find_setting(path), path=name), text)
