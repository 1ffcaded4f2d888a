"""What all commands share."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer
from rich.console import Console as RichConsole

from proximo import settings
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
out = RichConsole(highlight=False, soft_wrap=True)
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print a block of statistics after every update.")]


def check_loudness(quiet: bool, verbose: bool) -> None:
    if quiet and verbose:
        raise UserError("--quiet and --verbose exclude each other; give one of them.")


def flag(name: str, path: str, text: str) -> Any:
    """The value of the flag `name`, which takes what the setting `path` takes."""
    return settings.convert(dataclasses.replace(settings.find_setting(path), path=name), text)
