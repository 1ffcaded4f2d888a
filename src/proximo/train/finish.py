"""The end of a run: its last checkpoint, its models, the final evaluation, the result, plots and a video."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from proximo.config import Config
from proximo.envs.api import HostSource, JaxEnv
from proximo.errors import EnvError
from proximo.plots.write import draw_pictures
from proximo.rollout.actions import final_note
from proximo.rollout.episode_log import LoggedAgents, episode_log
from proximo.rollout.video import render_video
from proximo.run_dir.directory import versions
from proximo.run_dir.files import shown
from proximo.train.active_run import ActiveRun
from proximo.train.counters import Row
from proximo.train.evaluations import is_whole
from proximo.train.peers import leads

_drawing = threading.Lock()
"""Matplotlib is not made for threads, of which an experiment has several."""


def finish_run(run: ActiveRun) -> Row:
    """Write everything that is written at the end, and tell of it; what `result.json` holds. A run that was cut short
    is not evaluated; of a final evaluation that was stopped the result has what was played, and a resume plays it
    again, to its end."""
    progress = run.progress
    _keep_the_end(run)
    reason = progress.stop_reason or "interrupted"
    if progress.counters.unfinished and reason != "failed":  # its evaluation was stopped, and may decide how it ends
        reason = "interrupted"
    complete = reason not in ("interrupted", "failed")
    known = progress.counters.final_eval if complete else None  # the one that ended the run
    played = known or (final_evaluation(run) if complete else None)
    whole = played if played and is_whole(played) else None
    if complete and whole is None and run.stopping():
        reason, complete = "interrupted", False
    # A run that was cut short has no score: it is judged when it goes on, at the updates at which any run is.
    best = progress.note_score(run.score(whole or {}, last=True) if complete else None)
    run.checkpoints.finish_best(run.state, progress.saved(), best)
    failed = _tell_callbacks(run, whole, evaluated=whole is not None and not known)
    result = {
        "env": run.config.env.id,
        "seed": run.config.seed,
        "algorithm": "PPO",
        **progress.summary(whole),
        "stop_reason": reason,
        "final_eval": played,
        "versions": versions(),
    }
    run.tell(final_note(whole or {}, run.config, progress.recent_returns, shown(run.path)))
    if not run.interrupt.impatient and leads():
        run.console.phase("drawing the plots and recording a video" if run.config.track.video else "drawing the plots")
        run.tell(write_plots(run.path, run.config, result, run.trainer.env, run.agents, run.stopping))
    # The last that is written: whoever finds it finds the whole run, and without it a resume makes up for the rest.
    run.write(lambda: run.directory.finish(result))
    if failed is not None:
        raise failed
    run.callbacks.call("on_end", result)
    return result


def _keep_the_end(run: ActiveRun) -> None:
    """The last checkpoint and the models."""
    try:
        run.checkpoints.finish(run.state, run.progress.saved())
    except EnvError as error:  # they cannot say where they stand: the checkpoint does without
        run.console.note(f"At the end of the run: {error.sentence}")
        run.trainer.program.close()
        run.checkpoints.finish(run.state, run.progress.saved())


def final_evaluation(run: ActiveRun) -> Row | None:
    """The evaluation of the last policy; None if it failed, or was stopped before an episode was played."""
    try:
        return run.evaluate("final evaluation") or None
    except EnvError as error:
        run.console.note(f"There is no final evaluation: {error}")
        return None


def _tell_callbacks(run: ActiveRun, played: Row | None, evaluated: bool) -> Exception | None:
    """Tell callbacks of the end, before pictures are drawn of what they return; one that fails does so when all is
    saved."""
    try:
        run.tell_of_the_last(played, evaluated)
    except Exception as error:
        return error
    return None


def write_plots(
    path: Path,
    config: Config,
    result: Row,
    env: JaxEnv | HostSource,
    agents: LoggedAgents,
    stop: Callable[[], bool] = bool,
) -> list[str]:
    """Draw the run in `path`, and, if its policy was evaluated, an episode of that. What fails becomes a sentence:
    a plot is never worth a run."""
    trouble: list[str] = []
    played = None
    try:
        if result["final_eval"] and not stop():
            played = episode_log(env, agents, config.env, config.seed, stop, config.eval.max_steps)
    except Exception as error:
        trouble.append(f"The final episode could not be traced: {type(error).__name__}: {error}")
    try:
        with _drawing:
            trouble += draw_pictures(path, config, result, played)
    except Exception as error:
        trouble.append(f"There are no pictures: {type(error).__name__}: {error}")
    try:
        if config.track.video and result["final_eval"] and not stop():
            limit = config.eval.max_steps
            trouble += render_video(path / "videos" / "final", env, agents, config.env, config.seed, max_steps=limit)[1]
    except Exception as error:
        trouble.append(f"There is no video: {error}")
    return trouble
