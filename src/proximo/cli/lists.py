"""`proximo envs` and `settings`."""

from __future__ import annotations

from typing import Annotated

import typer

from proximo import settings
from proximo.cli.common import app, out
from proximo.display.printing import safe
from proximo.errors import UserError, quoted

FEW = 5


@app.command()
def envs(
    word: Annotated[str, typer.Argument(metavar="[WORD]", help="A family, a package, or part of an id.")] = "",
) -> None:
    """List the families of environments; with WORD, all ids of a family or a package, or all that contain WORD."""
    from proximo.envs import families
    from proximo.envs.installed import plugins

    if not word:
        list_families()
        return
    if word in plugins():
        list_package(word)
        return
    known = families()
    named = [family for family in known.values() if family.title.lower() == word.lower() and family.installed]
    found = 0
    for family in named or [family for family in known.values() if family.installed]:
        title = f"[bold]{family.title}[/bold]  {safe(family.about)}"
        with out.status(f"looking through {family.title}"):  # a family is imported for its ids
            ids = family.ids()
        found += list_ids(title, [i for i in ids if named or word.lower() in f"{family.title} {i}".lower()])
    for module, ids in {} if named else plugins().items():
        chosen = [i for i in ids if word.lower() in f"{module}:{i}".lower()]
        found += list_ids(f"[bold]{safe(module)}[/bold]  {BY_SOURCE}", [f"{module}:{env_id}" for env_id in chosen])
    if not found:
        raise UserError(f"No installed environment has {quoted(word)} in its id; `proximo envs` lists the families.")


ABOUT = "a package that registers with Gymnasium when it is imported"
BY_SOURCE = f"{ABOUT}; as its source says"


def list_package(module: str) -> None:
    """What a package registers: it is imported for that, as its source need not say so plainly."""
    from proximo.envs.host.gymnasium import registered_by

    with out.status(f"importing {module}"):
        ids = registered_by(module)
    if not list_ids(f"[bold]{safe(module)}[/bold]  {ABOUT}", [f"{module}:{env_id}" for env_id in ids]):
        raise UserError(f"{module} was imported, and registers no environment with Gymnasium.")


def list_ids(title: str, ids: list[str]) -> int:
    """Print ids, if there are any; how many."""
    from proximo.presets import find_preset

    if ids:
        out.print(title)
    for env_id in ids:
        out.print(f"  {safe(env_id)}" + ("  [dim]preset[/dim]" if find_preset(env_id) else ""))
    return len(ids)


def list_families() -> None:
    """What there is, without importing any of it."""
    from proximo.envs import families
    from proximo.envs.installed import plugins
    from proximo.presets import preset_ids

    tuned = preset_ids()
    for family in families().values():
        title = f"[bold]{family.title}[/bold]  {safe(family.about)}"
        if not family.installed:
            out.print(f"{title}; not installed: {safe(family.install_command)}")
            continue
        out.print(title)
        names = {prefix for prefix in families() if prefix}
        own = [i for i in tuned if i.partition("/")[0] == family.prefix or (not family.prefix and not_of(i, names))]
        for env_id in own:
            out.print(f"  {safe(env_id)}  [dim]preset[/dim]")
    for module, ids in plugins().items():
        out.print(f"[bold]{safe(module)}[/bold]  {BY_SOURCE}")
        for env_id in ids[:FEW]:
            out.print(f"  {safe(f'{module}:{env_id}')}")
        if len(ids) > FEW:
            out.print(f"  [dim]and {len(ids) - FEW:,} more[/dim]")
        if not ids:
            out.print(f"  [dim]`proximo envs {safe(module)}` imports it, and lists them[/dim]")
    out.print(
        "[dim]These are the families, and the environments with a preset. `proximo envs gymnax` lists a whole family "
        "or package, and `proximo envs pong` every id that contains this word. Every id that Gymnasium knows can be "
        "trained on; `module:Id` imports the module first.[/dim]"
    )


def not_of(env_id: str, prefixes: set[str]) -> bool:
    return env_id.partition("/")[0] not in prefixes


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
