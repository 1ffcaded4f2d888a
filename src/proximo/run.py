"""A run directory, read back: its settings and its policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from proximo import settings
from proximo.config import Config
from proximo.errors import UserError, quoted
from proximo.run_dir.directory import RUNS
from proximo.run_dir.files import check_inside

if TYPE_CHECKING:
    from proximo.envs.api import HostSource, JaxEnv
    from proximo.policy.agents import Agents

POLICIES = {"best": "best_return_pi_ckpt", "final": "final_actor"}
SHORT_LIST = 5
QUOTES = "'\""


def find_run(name: Path) -> Path:
    """The run directory `name`, or the one of that name under `runs/`."""
    places = (name, RUNS / name)
    for path in places:
        if (path / "config.yaml").is_file():
            _check(path)
            return path
    for path in places:
        if path.is_dir():
            raise UserError(f"{path} is no run: it has no config.yaml.")
    known = sorted(RUNS.glob("*/config.yaml"), key=lambda file: file.stat().st_mtime, reverse=True)
    newest = ", ".join(file.parent.name for file in known[:SHORT_LIST])
    hint = f"the newest runs there: {newest}." if known else "which holds none yet."
    raise UserError(f"There is no run {name}, as a folder or under {RUNS}/; {hint}")


def _check(run: Path) -> None:
    try:
        check_inside(run)
    except OSError as error:
        raise UserError(f"{run} cannot be used: {error.strerror}.") from None


def read_config(run: Path) -> Config:
    """The settings that `run` was trained with."""
    return settings.read_run(run)


def make_environment(run: Path, config: Config) -> JaxEnv | HostSource:
    """The environment that `run` was trained on, by its id."""
    from proximo import envs
    from proximo.envs.grouping import with_groups

    try:
        return with_groups(envs.make(config.env.id), config.agents)
    except UserError as error:
        raise UserError(
            f"{run} was trained on {config.env.id}, which cannot be made by that name here: {error} An environment "
            f"that was handed in as a Python object is evaluated in Python, with what "
            f'PPOAgent.load("{policy_file(run, "final")}") gives.'
        ) from None


def open_run(run: Path, config: Config, which: str) -> tuple[Agents, JaxEnv | HostSource]:
    """The agents of `run`, and the environment that they were trained on."""
    from proximo.train.setup import check_spaces

    source = make_environment(run, config)
    agents = load_policy(run, which)
    check_spaces(agents, source.spec, config, critics=False)
    return agents, source


def default_policy(run: Path) -> str:
    """The one that is meant where none is named: the final one, or while there is none the last checkpoint."""
    return "final" if policy_files(run, "final") else "last"


def policy_file(run: Path, which: str) -> Path:
    return run / "models" / f"{POLICIES[which]}.safetensors"


def policy_files(run: Path, which: str) -> list[Path]:
    """Those that there are: one, or one for each group of many agents."""
    one = policy_file(run, which)
    return [one] if one.is_file() else sorted(one.parent.glob(f"{POLICIES[which]}.*.safetensors"))


def load_policy(run: Path, which: str) -> Agents:
    """The agents of `run`: `best`, `final`, the `last` checkpoint's, or of a checkpoint's step."""
    from proximo.multi_agent.team_agent import load_agents as load_files
    from proximo.train.checkpoint import load_agents, steps

    saved = [name for name in POLICIES if policy_files(run, name)]
    known = steps(run)
    if which in saved:
        return load_files(run / "models", POLICIES[which])
    if (which == "last" and known) or which in map(str, known):
        return load_agents(run, which)
    held = [*saved, *(["last", *map(str, known)] if known else [])]
    raise UserError(f"{run} has no policy {quoted(which).strip(QUOTES)}; it has {', '.join(held) or 'none'}.")
