"""The agents of a run that was trained before, and its environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from proximo.config import Config
from proximo.errors import UserError, quoted
from proximo.run_dir.read import POLICIES, policy_file, policy_files

if TYPE_CHECKING:
    from proximo.envs.api import HostSource, JaxEnv
    from proximo.policy.agents import Agents

QUOTES = "'\""


def make_environment(run: Path, config: Config) -> JaxEnv | HostSource:
    """The environment that `run` was trained on, by its id."""
    from proximo import envs
    from proximo.compile import prepare_backend
    from proximo.envs.grouping import with_groups

    prepare_backend()
    try:
        return with_groups(envs.make_configured(config.env), config.agents)
    except UserError as error:
        raise UserError(
            f"{run} was trained on {config.env.id}, which cannot be made by that name here: {error} An environment "
            f"that was handed in as a Python object is evaluated in Python, with what "
            f'PPOAgent.load("{policy_file(run, "final")}") gives.'
        ) from None


def open_run(run: Path, config: Config, which: str, trust: bool = False) -> tuple[Agents, JaxEnv | HostSource]:
    """The agents of `run`, and the environment that they were trained on. Modules that a run names which was not made
    here are imported only with `trust`."""
    from proximo.train.setup import check_spaces
    from proximo.train.trust import check_trust

    check_trust(run, [config.env], trust)
    source = make_environment(run, config)
    agents = load_policy(run, which)
    check_spaces(agents, source.spec, config, critics=False)
    return agents, source


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
