"""`proximo check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proximo import settings
from proximo.cli.common import EnvArguments, WithSettings, app, flag, given_settings, out, with_env_arguments
from proximo.cli.completion import assigned_settings, env_ids
from proximo.display.printing import make_rich, safe
from proximo.errors import UserError

CHECK_HELP = """Play ENV with random actions for some seconds, and say what will work in training and what will not.

Exit code 1: something would end training, or keep it from beginning.

Examples:

* `proximo check CartPole-v1`, `proximo check my_package:MyEnv-v0 --env-arg size=8`

* `proximo check gymnax/Breakout-MinAtar --steps 200` makes fewer steps

* `proximo check LunarLander-v3 --set normalize.rewards=false` judges with settings that training would have
"""
STYLES = {"ok": "green", "note": "yellow", "problem": "red"}


@app.command(cls=WithSettings, help=CHECK_HELP)
def check(
    env: Annotated[
        str | None,
        typer.Argument(
            metavar="ENV", help="An id, as `proximo train` takes it.", show_default=False, autocompletion=env_ids
        ),
    ] = None,
    steps: Annotated[str, typer.Option(metavar="N", help="Steps of each environment, at most.")] = "2_000",
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings as YAML.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="One setting, such as env.wrappers=[...]; repeatable.",
            autocompletion=assigned_settings,
        ),
    ] = None,
    env_arguments: EnvArguments = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else.")] = False,
) -> None:
    number = flag("--steps", "train.total_timesteps", steps)
    flags = given_settings(assignments, None, False, {"env.id": env})
    given = settings.from_file(config) if config else {}
    flags = with_env_arguments(flags, given, env_arguments)
    env_id = (given | flags).get("env.id")
    if env_id is None:
        raise UserError("Name an environment to check, as in `proximo check CartPole-v1`; `proximo envs` lists them.")
    # Progress goes to the standard error, so that what is printed can be read by others.
    with make_rich(stderr=True).status(f"loading {safe(env_id)}") as status:
        from proximo.compile import prepare_backend
        from proximo.run_dir.files import to_json
        from proximo.train.env_check import check_configured
        from proximo.train.preset import fitting_preset

        prepare_backend()
        tuned, _ = fitting_preset(True, env_id, given | flags)
        resolved = settings.build(tuned, given, flags)
        report = check_configured(
            resolved, steps=number, progress=lambda what: status.update(f"{safe(env_id)}: {safe(what)}")
        )
    if as_json:
        typer.echo(to_json(report.to_dict()))
    else:
        from proximo.display.tables import findings_table

        out.print(findings_table(report.findings, STYLES), soft_wrap=False)
        problems = sum(finding.kind == "problem" for finding in report.findings)
        end = f"It cannot be trained as it is: {problems} problem{'s' if problems > 1 else ''}."
        out.print(f"`proximo train {safe(env_id)}` can train it." if report.trainable else end)
    if not report.trainable:
        raise typer.Exit(1)
