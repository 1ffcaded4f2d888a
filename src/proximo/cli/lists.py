"""`proximo envs` and `settings`."""

from __future__ import annotations

from typing import Annotated

import typer

from proximo import settings
from proximo.cli.common import app, out
from proximo.display.printing import safe
from proximo.errors import UserError, quoted

SHORT_LIST = 40


@app.command()
def envs(word: Annotated[str, typer.Argument(metavar="[WORD]", help="Only ids that contain this.")] = "") -> None:
    """List the environments to train on, by family, and which families are not installed."""
    from proximo.envs import families
    from proximo.presets import find_preset

    found = 0
    for family in families().values():
        title = f"[bold]{family.title}[/bold]  {family.about}"
        if not family.installed:
            out.print(f"{title}; not installed: {safe(family.install_command)}")
            continue
        ids = [env_id for env_id in family.ids() if word.lower() in f"{family.title} {env_id}".lower()]
        tuned = [env_id for env_id in ids if find_preset(env_id)]
        shown = ids if word or len(ids) <= SHORT_LIST else tuned
        if ids:
            out.print(title)
        for env_id in shown:
            out.print(f"  {safe(env_id)}" + ("  [dim]preset[/dim]" if env_id in tuned else ""))
        if len(shown) < len(ids):
            out.print(
                f"  [dim]and {len(ids) - len(shown):,} more: proximo envs {family.title}, or part of a name[/dim]"
            )
        found += len(ids)
    if word and not found:
        raise UserError(f"No installed environment has {quoted(word)} in its id; `proximo envs` lists what there is.")


@app.command("settings")
def list_settings(
    word: Annotated[str, typer.Argument(metavar="[WORD]", help="Only settings that mention this.")] = "",
) -> None:
    """List every setting: its name, its default and what it does."""
    from proximo.display.tables import settings_table

    chosen = [s for s in settings.SETTINGS.values() if word.lower() in f"{s.path} {s.help}".lower()]
    if not chosen:
        raise UserError(f"No setting mentions {quoted(word)}; `proximo settings` lists them all.")
    out.print(settings_table(chosen), soft_wrap=False)
