"""One run of a fleet: trained from the start or gone on with, and reported on, whatever happens."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from proximo.config import Config
from proximo.display.console import Console
from proximo.errors import EnvError, ProximoError
from proximo.fleet.jobs import HandedIn
from proximo.fleet.worker import LET_GO_SECONDS, Message
from proximo.run_dir.directory import ERROR, METRICS
from proximo.run_dir.files import write_atomically
from proximo.run_dir.read import COMPLETE, is_running
from proximo.train.checkpoint import steps
from proximo.train.trainer import PPOTrainer


def run_single_experiment(
    config: Config | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    env: Any = None,
    console: Console | None = None,
    tracked: bool = True,
    loss: Any = None,
    optimizer: Any = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Train one run in `out`, or go on with the one that is there; returns what `result.json` holds.

    `config` is a `Config`, or, over the environment's preset, a mapping or a YAML file. Without `out`, a new folder
    under runs/ is made. `env` is an environment object or a factory, where `env.id` alone does not make it; `loss` and
    `optimizer` are as for `PPOTrainer`. `tracked` feeds MLflow, as far as the settings want that; `trust` is as for
    `PPOTrainer.resume`.
    """
    own = {"loss": loss, "optimizer": optimizer}
    if out is None:
        trainer = PPOTrainer(env, config=config, console=console, **own)
    elif let_go(Path(out)):
        trainer = PPOTrainer.resume(out, env, console=console, trust=trust, **own)
    else:
        trainer = PPOTrainer(env, config=config, out=out, console=console, **own)
    trainer.tracked = tracked
    return trainer.train()


def let_go(out: Path) -> bool:
    """Wait for a process that is still saving the run in `out`; whether there is one to go on with."""
    until = time.monotonic() + LET_GO_SECONDS + 1
    while (out / METRICS).exists() and is_running(out) and time.monotonic() < until:
        time.sleep(0.1)
    (out / ERROR).unlink(missing_ok=True)  # of an attempt before this one
    return bool(steps(out))


def attempt(config: Config, path: Path, given: HandedIn, note: Callable[[str], None]) -> Message:
    """Train one run, whatever happens; how it ended, as `jobs.Ended` says it."""
    own = {"trust": given.trust, **given.own}
    try:
        result = run_single_experiment(config, path, given.env, Notes(note), tracked=False, **own)
        ended = "complete" if result["stop_reason"] in COMPLETE else result["stop_reason"]
        return {"end": ended, "seconds": result["wall_seconds"]}
    except ProximoError as error:
        sentence, trace = (error.sentence, error.trace) if isinstance(error, EnvError) else (str(error), "")
        _write_down(path, f"{sentence}\n\n{trace}")
        return {"end": "failed", "sentence": sentence}
    except Exception as error:
        _write_down(path, traceback.format_exc())
        return {"end": "failed", "sentence": f"{type(error).__name__}: {error} (see {path / ERROR})."}


def _write_down(path: Path, text: str) -> None:
    """Keep what went wrong with the run; where not even that can be written, its end is reported all the same."""
    try:
        write_atomically(path / ERROR, text.rstrip() + "\n")
    except OSError:
        return


class Notes(Console):
    """The console of a run in a fleet: how far it is, is read from its folder."""

    def __init__(self, tell: Callable[[str], None]):
        self._tell = tell

    def note(self, sentence: str) -> None:
        self._tell(sentence)
