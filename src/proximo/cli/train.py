"""`proximo train`, `resume` and `evaluate`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from proximo import settings
from proximo.cli.common import (
    EnvArguments,
    Mlflow,
    NoMlflow,
    NoPreset,
    Preset,
    Quiet,
    Run,
    Trust,
    Verbose,
    WithSettings,
    app,
    check_loudness,
    chosen_preset,
    flag,
    given_settings,
    out,
    with_env_arguments,
)
from proximo.cli.completion import assigned_settings, env_ids, run_names
from proximo.cli.processes import Coordinator, Process, Processes, begin, folder_of, lost_peers
from proximo.display.printing import make_rich, safe, say
from proximo.errors import UserError
from proximo.run_dir.directory import CONFIG
from proximo.run_dir.files import shown
from proximo.run_dir.saved import held_layer

TRAIN_HELP = """Train a policy on ENV and save it in a run directory.

Settings come from the defaults, the environment's preset, `--config` and the flags; later ones override earlier ones.

Examples:

* `proximo train CartPole-v1` trains on a Gymnasium environment, `proximo train my_package:MyEnv-v0` on one of your own

* `proximo train gymnax/Acrobot-v1 --steps 300_000 --seed 3` trains on an environment written in JAX

* `proximo train Pendulum-v1 --set ppo.gamma=0.95 --set "network.hidden_sizes=[128, 128]"`

* `proximo train LunarLander-v3 --env-arg continuous=true --env-arg gravity=-5` passes arguments to the environment

* `proximo train CartPole-v1 --from runs/NAME` starts from the policy of a run, with new schedules

* `proximo train --config runs/NAME/config.yaml` repeats a run, to the bit

`proximo envs` lists the environments, and `proximo settings` everything that `--set` accepts.
"""


CHANGED = "--set changes them, `proximo settings` lists them, `proximo tune {}` searches for better ones."


@app.command(cls=WithSettings, help=TRAIN_HELP)
def train(
    env: Annotated[
        str | None,
        typer.Argument(
            metavar="ENV",
            help="An id such as CartPole-v1, gymnax/CartPole-v1 or envpool/Pong-v5.",
            show_default=False,
            autocompletion=env_ids,
        ),
    ] = None,
    steps: Annotated[str | None, typer.Option(metavar="N", help="Steps to train for (train.total_timesteps).")] = None,
    seed: Annotated[str | None, typer.Option(metavar="N", help="Seed of every random stream.")] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the run; a new one under runs/ by default.")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="A YAML file with settings.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="One setting, such as ppo.gamma=0.98; repeatable.",
            autocompletion=assigned_settings,
        ),
    ] = None,
    env_arguments: EnvArguments = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="RUN|FILE", help="Start from a saved policy (train.start_from).", autocompletion=run_names
        ),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="With --from: load only the layers that fit (train.start_partial).")
    ] = False,
    preset: Preset = None,
    no_preset: NoPreset = False,
    mlflow: Mlflow = None,
    no_mlflow: NoMlflow = False,
    video: Annotated[
        bool, typer.Option("--video", help="Record an episode of the final policy (track.video).")
    ] = False,
    processes: Processes = None,
    coordinator: Coordinator = None,
    process: Process = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    loudness = check_loudness(quiet, verbose)
    which = chosen_preset(preset, no_preset)
    named = {"env.id": env, "train.total_timesteps": steps, "seed": seed, "track.video": video or None}
    named |= {"train.start_from": start, "train.start_partial": partial or None}
    flags = given_settings(assignments, mlflow, no_mlflow, named)
    given = settings.from_file(config) if config else {}
    flags = with_env_arguments(flags, given, env_arguments)
    env_id = (given | flags).get("env.id")
    if env_id is None:
        raise UserError(
            "Name an environment to train on, as in `proximo train gymnax/CartPole-v1`; `proximo envs` lists them."
        )
    held = held_layer(given | flags)
    # JAX loads from here on; mistakes above are answered without the wait.
    begin(coordinator, process, processes, (given | flags).get("train.shards", 1))
    from proximo.display.console import make_console
    from proximo.presets import remarks, without_preset
    from proximo.train.preset import fitting_preset
    from proximo.train.trainer import PPOTrainer

    tuned, unfit = fitting_preset(which, env_id, given | flags)
    resolved = settings.build(tuned, held, given, flags)
    said = remarks(env_id if which is True else str(which), tuned, given | flags, "--no-preset")
    quiet = quiet or bool(process)
    with folder_of(process, out_dir) as folder:
        trainer = PPOTrainer(config=resolved, out=folder, console=make_console(0 if process else loudness))
        if unfit or (not isinstance(which, str) and not tuned and config is None):
            said.append(without_preset(trainer.config, CHANGED.format(env_id), unfit))
        for sentence in () if quiet else said:
            say(out, safe(sentence), "dim")
        run_to_end(trainer, quiet, process)


def run_to_end(trainer: Any, quiet: bool, process: int | None = None) -> None:
    """Train, and say what can be done next with the run."""
    trainer.tracked = not process
    with lost_peers(process):
        trainer.train()
    if not quiet:
        command = "evaluate" if trainer.interrupted_by is None else "resume"
        out.print(f"[bold]{'next':<12}[/bold]proximo {command} {safe(shlex.quote(shown(trainer.path)))}")
    if trainer.interrupted_by is not None:
        raise typer.Exit(128 + trainer.interrupted_by)


RESUME_HELP = """Continue RUN where it stopped: after Ctrl-C, a crash or a power cut.

Everything continues: schedules, counters, random streams, statistics, `metrics.jsonl`. With environments written in
JAX, and with others whose state can be restored (docs/gymnasium.md), the result is the same, to the bit, as if the run
had never stopped. With the rest, new episodes begin, and `result.json` says so.

Examples:

* `proximo resume runs/NAME`

* `proximo resume runs/NAME --steps 100_000` trains 100,000 more steps from there, even if the run was complete

* `proximo resume runs/NAME --steps 100_000 --restart-schedules` also restarts the learning rate's schedule
"""


@app.command(help=RESUME_HELP)
def resume(
    run: Run,
    steps: Annotated[
        str | None,
        typer.Option(metavar="MORE", help="Train this many more steps instead of to the run's original end."),
    ] = None,
    restart_schedules: Annotated[
        bool,
        typer.Option("--restart-schedules", help="With --steps: restart the learning rate and other schedules."),
    ] = False,
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="MLflow's address, including user and password if needed.")
    ] = None,
    trust: Trust = False,
    processes: Processes = None,
    coordinator: Coordinator = None,
    process: Process = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    loudness = check_loudness(quiet, verbose)
    from proximo.run_dir.read import find_run

    more = None if steps is None else flag("--steps", "train.total_timesteps", steps)
    path = find_run(run)
    shards = settings.from_file(path / CONFIG).get("train.shards", 1) if (path / CONFIG).is_file() else 1
    begin(coordinator, process, processes, shards)
    from proximo.display.console import make_console
    from proximo.train.peers import told_by_all
    from proximo.train.trainer import PPOTrainer
    from proximo.train.trust import check_trust

    address = None if mlflow is None else settings.convert(settings.find_setting("track.tracking_uri"), mlflow)
    console = make_console(0 if process else loudness)
    wishes: dict[str, Any] = {"steps": more, "restart_schedules": restart_schedules, "tracking_uri": address}
    with folder_of(process, None, path) as folder:
        if process:
            check_trust(path, [settings.build(settings.from_file(path / CONFIG)).env], trust, handed_in=False)
        if process is not None:
            told_by_all([0], shards)  # all have read the run before the first one changes it
        trainer = PPOTrainer.resume(folder or path, console=console, trust=trust or bool(process), **wishes)
        run_to_end(trainer, quiet or bool(process), process)


EVALUATE_HELP = """Play episodes with a trained policy of RUN and print their statistics.

Episodes are played in environments and with random streams that training has not used.

Examples:

* `proximo evaluate runs/NAME` plays 100 episodes with the final policy, which always takes its most likely action

* `proximo evaluate runs/NAME --checkpoint best --actions both --seed 7` plays 100 with its most likely actions, and 100
with sampled ones

* `proximo evaluate runs/NAME --video` also records an episode as RUN/videos/final.mp4 and .gif
"""


ACTIONS = {"deterministic": "always the most likely action", "stochastic": "actions sampled from the policy"}


@app.command(help=EVALUATE_HELP)
def evaluate(
    run: Run,
    episodes: Annotated[str, typer.Option(metavar="N", help="Episodes to play.")] = "100",
    seed: Annotated[str | None, typer.Option(metavar="N", help="The seed; by default the run's own.")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="best|final|last|STEP",
            help="Which policy; by default the final one, or the last checkpoint if there is none yet.",
        ),
    ] = None,
    actions: Annotated[
        str | None,
        typer.Option(
            metavar="deterministic|stochastic|both",
            help="Most likely actions, sampled ones, or both in turn; by default as in the run (eval.actions).",
        ),
    ] = None,
    stochastic: Annotated[bool, typer.Option("--stochastic", help="The same as --actions stochastic.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else.")] = False,
    video: Annotated[bool, typer.Option("--video", help="Record one episode as MP4 and GIF.")] = False,
    trust: Trust = False,
) -> None:
    from proximo.run_dir.files import to_json
    from proximo.run_dir.read import default_policy, find_run, read_config

    num_episodes = flag("--episodes", "eval.episodes", episodes)
    path = find_run(run)
    config = read_config(path)
    which, used = checkpoint or default_policy(path), config.seed if seed is None else flag("--seed", "seed", seed)
    if stochastic and actions is not None:
        raise UserError("--stochastic and --actions cannot be used together.")
    asked = "stochastic" if stochastic else actions
    chosen = config.eval.actions if asked is None else flag("--actions", "eval.actions", asked)
    messages = make_rich(stderr=True, quiet=as_json)
    with messages.status("loading") as status:
        from proximo.display.tables import evaluation_table
        from proximo.policy.behaviour import Learners, actors
        from proximo.rollout.actions import BOTH, DRAWN, LIKELY, OTHER, Returns, difference_in_words, scoring, under
        from proximo.rollout.evaluate import make_evaluator
        from proximo.rollout.video import render_video
        from proximo.train.load import open_run

        first = scoring(config) if config.eval.actions == BOTH else LIKELY
        kinds = (first, OTHER[first]) if chosen == BOTH else (chosen,)
        agents, source = open_run(path, config, which, trust)
        videos: list[str] = []
        notices: list[str] = []
        limit = config.eval.max_steps
        if video:
            status.update("recording one episode")
            given = (source, agents, config.env, used, kinds[0] == LIKELY, limit)
            videos, notices = render_video(path / "videos" / which, *given)
        summaries: dict[str, dict[str, Any]] = {}
        for kind in kinds:
            how = (config.env, used, config.track.success_return, kind == LIKELY, limit, config.track.info)
            evaluator = make_evaluator(source, Learners(agents.policies), num_episodes, *how)

            def tell(evaluator: Any = evaluator, kind: str = kind) -> bool:
                status.update(f"{evaluator.played} of {num_episodes} episodes, {ACTIONS[kind]}")
                return False

            try:
                outcome = evaluator(actors(agents.groups), tell)
            finally:
                evaluator.close()
            assert outcome is not None, "nobody stopped it"
            notices += evaluator.notices
            summaries[kind] = outcome.summary()
    if len(kinds) > 1:
        found = (Returns.of(summaries[LIKELY]), Returns.of(summaries[DRAWN]))
        notices += difference_in_words(*found, str(path))
    for notice in notices:
        say(messages, safe(notice), "dim")
    if as_json:
        about = {"run": str(path), "checkpoint": which, "env": config.env.id, "seed": used}
        about |= {"deterministic": kinds[0] == LIKELY, "actions": chosen}
        other = under(kinds[1], summaries[kinds[1]]) if len(kinds) > 1 else {}
        typer.echo(to_json(about | summaries[kinds[0]] | other | ({"videos": videos} if video else {})))
        return
    for kind, summary in summaries.items():
        out.print(
            f"The policy [bold]{safe(which)}[/bold] of {safe(str(path))} on [bold]{safe(config.env.id)}[/bold]: "
            f"{num_episodes} episode{'s' if num_episodes > 1 else ''}, seed {used}, {ACTIONS[kind]}."
        )
        out.print(evaluation_table(summary))
    goal = config.track.success_return
    meant = "terminates (track.success_return sets a return instead)" if goal is None else f"returns at least {goal:g}"
    out.print(f"[dim]An episode is a success if the environment says so; where it does not say, if it {meant}.[/dim]")
    for file in videos:
        out.print(f"[dim]{safe(file)}[/dim]")
