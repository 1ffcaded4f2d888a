"""A run directory, read back: its settings and its policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from proximo import settings
from proximo.config import Config
from proximo.errors import UserError
from proximo.track.store import RUNS

if TYPE_CHECKING:
    from proximo.envs.api import HostSource, JaxEnv
    from proximo.policy.agent import PPOAgent

POLICIES = {"best": "best_return_pi_ckpt.safetensors", "final": "final_actor.safetensors"}
SHORT_LIST = 5


def find_run(name: Path) -> Path:
    """The run directory `name`, or the one of that name under `runs/`."""
    places = (name, RUNS / name)
    for path in places:
        if (path / "config.yaml").is_file():
            return path
    for path in places:
        if path.is_dir():
            raise UserError(f"{path} is no run: it has no config.yaml.")
    known = sorted(RUNS.glob("*/config.yaml"), key=lambda file: file.stat().st_mtime, reverse=True)
    newest = ", ".join(file.parent.name for file in known[:SHORT_LIST])
    hint = f"the newest runs there: {newest}." if known else "which holds none yet."
    raise UserError(f"There is no run {name}, as a folder or under {RUNS}/; {hint}")


def read_config(run: Path) -> Config:
    """The settings that `run` was trained with."""
    return settings.build(settings.from_file(run / "config.yaml"))


def make_environment(run: Path, config: Config) -> JaxEnv | HostSource:
    """The environment that `run` was trained on, by its id."""
    from proximo import envs

    try:
        return envs.stacked(envs.make(config.env.id), config.env.frame_stack)
    except UserError as error:
        raise UserError(
            f"{run} was trained on {config.env.id}, which cannot be made by that name here: {error} An environment "
            f"that was handed in as a Python object is evaluated in Python, with what "
            f'PPOAgent.load("{policy_file(run, "final")}") gives.'
        ) from None


def open_run(run: Path, config: Config, which: str) -> tuple[PPOAgent, JaxEnv | HostSource]:
    """A policy of `run`, and the environment that it was trained on."""
    from proximo.train.prepare import check_spaces

    agent, source = load_policy(run, which), make_environment(run, config)
    check_spaces(agent, source.spec)
    return agent, source


def default_policy(run: Path) -> str:
    """The one that is meant where none is named: the final one, or while there is none the last checkpoint."""
    return "final" if policy_file(run, "final").is_file() else "last"


def policy_file(run: Path, which: str) -> Path:
    return run / "models" / POLICIES[which]


def load_policy(run: Path, which: str) -> PPOAgent:
    """A policy of `run`: `best`, `final`, the `last` checkpoint's, or the one of a checkpoint's step."""
    from proximo.policy.agent import PPOAgent
    from proximo.train.checkpoint import load_agent, steps

    saved = [name for name in POLICIES if policy_file(run, name).is_file()]
    known = steps(run)
    if which in saved:
        return PPOAgent.load(policy_file(run, which))
    if (which == "last" and known) or (which.isdecimal() and int(which) in known):
        return load_agent(run, which)
    held = [*saved, *(["last", *map(str, known)] if known else [])]
    raise UserError(f"{run} has no policy {which}; it has {', '.join(held) or 'none'}.")
