"""The command line: `proximo train`, `envs`, `settings`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console as RichConsole
from rich.markup import escape
from rich.table import Table

from proximo import settings
from proximo._version import __version__
from proximo.errors import ProximoError, UserError

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
SHORT_LIST = 40


def main() -> None:
    """The `proximo` command. A user's mistake ends in one sentence and exit code 2, never in a traceback."""
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


TRAIN_HELP = """Train a policy on ENV, and leave a run directory behind.

Settings come from the defaults, then the environment's preset, then `--config`, then the flags.

Examples:

* `proximo train CartPole-v1`, one of Gymnasium's; `proximo train my_package:MyEnv-v0`, one of your own

* `proximo train gymnax/Acrobot-v1 --steps 300_000 --seed 3`, one written in JAX

* `proximo train Pendulum-v1 --set ppo.gamma=0.95 --set "network.hidden_sizes=[128, 128]"`

* `proximo train --config runs/NAME/config.yaml` repeats a run, to the bit

`proximo envs` lists environments, `proximo settings` everything that `--set` takes.
"""


@app.command(help=TRAIN_HELP)
def train(
    env: Annotated[
        str | None,
        typer.Argument(
            metavar="ENV", help="An id such as CartPole-v1, gymnax/CartPole-v1 or envpool/Pong-v5.", show_default=False
        ),
    ] = None,
    steps: Annotated[str | None, typer.Option(metavar="N", help="Environment steps (train.total_timesteps).")] = None,
    seed: Annotated[str | None, typer.Option(metavar="N", help="The seed of every random stream.")] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the run; a new one under runs/ by default.")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings as YAML.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One setting, such as ppo.gamma=0.98; repeatable."),
    ] = None,
    preset: Annotated[bool, typer.Option(help="Start from the environment's tuned settings.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print a block of statistics after every update.")
    ] = False,
) -> None:
    if quiet and verbose:
        raise UserError("--quiet and --verbose exclude each other; give one of them.")
    flags = settings.from_assignments(assignments or [])
    for path, text in (("env.id", env), ("train.total_timesteps", steps), ("seed", seed)):
        if text is not None:
            flags[path] = settings.convert(settings.find_setting(path), text)
    given = settings.from_file(config) if config else {}
    env_id = (given | flags).get("env.id")
    if env_id is None:
        raise UserError(
            "Say what to train on, as in `proximo train gymnax/CartPole-v1`; `proximo envs` lists what there is."
        )
    # JAX loads from here on; mistakes above are answered without the wait.
    from proximo.presets import find_preset
    from proximo.track.console import Console, Display
    from proximo.train.trainer import PPOTrainer

    tuned = find_preset(env_id) if preset else {}
    resolved = settings.build(tuned, given, flags)
    if tuned and not quiet:
        shown = ", ".join(f"{path}={value}" for path, value in tuned.items())
        out.print(f"[dim]Preset for {env_id} (--no-preset leaves it out): {escape(shown)}[/dim]")
    trainer = PPOTrainer(config=resolved, out=out_dir, console=Console() if quiet else Display(verbose))
    trainer.train()
    if trainer.interrupted_by is not None:
        raise typer.Exit(128 + trainer.interrupted_by)


@app.command()
def envs(word: Annotated[str, typer.Argument(metavar="[WORD]", help="Only ids that contain this.")] = "") -> None:
    """List what can be trained on, by family, and what is missing."""
    from proximo.envs import FAMILIES
    from proximo.presets import find_preset

    found = 0
    for family in FAMILIES.values():
        title = f"[bold]{family.title}[/bold]  {family.about}"
        if not family.installed:
            out.print(f"{title}; not installed: {escape(family.install_command)}")
            continue
        ids = [env_id for env_id in family.ids() if word.lower() in f"{family.title} {env_id}".lower()]
        tuned = [env_id for env_id in ids if find_preset(env_id)]
        shown = ids if word or len(ids) <= SHORT_LIST else tuned
        if ids:
            out.print(title)
        for env_id in shown:
            out.print(f"  {env_id}" + ("  [dim]preset[/dim]" if env_id in tuned else ""))
        if len(shown) < len(ids):
            out.print(
                f"  [dim]and {len(ids) - len(shown):,} more: proximo envs {family.title}, or a part of a name[/dim]"
            )
        found += len(ids)
    if word and not found:
        raise UserError(f"No installed environment has {word!r} in its id; `proximo envs` lists what there is.")


@app.command("settings")
def list_settings(
    word: Annotated[str, typer.Argument(metavar="[WORD]", help="Only settings that mention this.")] = "",
) -> None:
    """List every setting: its name, its default and what it does."""
    table = Table(box=None, pad_edge=False)
    for title in ("setting", "default", "what it does"):
        table.add_column(title, overflow="fold")
    chosen = [s for s in settings.SETTINGS.values() if word.lower() in f"{s.path} {s.help}".lower()]
    if not chosen:
        raise UserError(f"No setting mentions {word!r}; `proximo settings` lists them all.")
    for setting in chosen:
        table.add_row(setting.path, plain(setting.default), setting.help)
    out.print(table, soft_wrap=False)


def plain(value: Any) -> str:
    """A value as YAML would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(list(value) if isinstance(value, tuple) else value)
