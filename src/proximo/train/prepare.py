"""From what a user gives to what a trainer needs: the settings, the program, and where a run goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proximo import envs, settings
from proximo.config import Config
from proximo.envs.compiled.lanes import Lanes
from proximo.errors import UserError
from proximo.files import check_inside, read_json
from proximo.policy.agent import PPOAgent
from proximo.policy.team_agent import AnyAgent, TeamAgent
from proximo.presets import choose_preset, remarks
from proximo.spaces import space_key
from proximo.teams import Team
from proximo.train.checkpoint import Checkpoint, load_newest
from proximo.train.history import History
from proximo.train.host_program import HostProgram
from proximo.train.needs import check_needs
from proximo.train.program import CompiledProgram, Program


def make_agent(spec: envs.EnvSpec, config: Config, network: Any) -> AnyAgent:
    """A fresh agent, or a team of them."""
    check_needs(spec, config)
    if spec.team is not None:
        return TeamAgent(spec.team, config, network=network)
    return PPOAgent(spec.observation_space, spec.action_space, config, network=network)


def make_program(source: envs.JaxEnv | envs.HostSource, agent: AnyAgent, config: Config) -> Program:
    """The training program for an environment of either kind."""
    if agent.policy.torso is not None and config.ppo.optimizers == "separate":
        raise UserError(
            "The agent's networks share a torso, so that one optimizer moves them all; ppo.optimizers=shared."
        )
    if isinstance(agent, TeamAgent) and agent.policy.selfplay is not None:
        made_for = len(agent.policy.selfplay.learns)
        if made_for != config.env.num_envs:
            raise UserError(f"The agent's self-play was set up for {made_for} environments; env.num_envs={made_for}.")
    if config.ppo.sequence_length is not None and not agent.policy.recurrent:
        raise UserError(
            f"ppo.sequence_length={config.ppo.sequence_length} has no effect on networks without memory; leave it out, "
            f"or set network.memory to gru or lstm."
        )
    if isinstance(source, envs.HostSource):
        return HostProgram(source, agent.policy, config)
    lanes = Lanes(source, config.env.num_envs, config.env.max_steps_per_episode)
    return CompiledProgram(lanes, agent.policy, config)


def resolve(
    env: str | envs.JaxEnv | envs.HostSource | None, config: Any, preset: bool | str, keywords: Mapping[str, Any]
) -> tuple[Config, list[str]]:
    """The configuration of a run from everything a user may give, and what is to be said of it."""
    base = config if isinstance(config, Config) else None
    given: settings.Values = {}
    if isinstance(config, str | Path):
        given = settings.from_file(Path(config))
    elif base is None and config is not None:
        given = settings.from_mapping(config, "config")
    keyed = settings.from_keywords(keywords)
    if env is not None:
        keyed["env.id"] = env if isinstance(env, str) else env.spec.id
    env_id = (given | keyed).get("env.id", (base or Config()).env.id)
    tuned = choose_preset(preset, env_id) if base is None else {}
    said = remarks(env_id if preset is True else str(preset), tuned, given | keyed, "preset=False")
    return settings.build(tuned, given, keyed, base=base), said


READ_BY_OWN = {"network.embed", "network.continuous", "network.std", "network.initial_std"}
"""The settings of networks that still mean something where a user's own networks are trained."""
HELD = ("network", "normalize", "agents")
"""The sections that an agent brings with it."""


def check_read(config: Any, keywords: Mapping[str, Any], agent: AnyAgent | None, network: Any) -> None:
    """Refuse settings that a user named and that nothing would read: of the built-in networks beside own ones, and
    others than those of an agent that was handed in. A file or a preset may say such things; it says everything."""
    named = settings.from_keywords(keywords)
    if isinstance(config, Mapping):
        named = settings.from_mapping(config, "config") | named
    for name, asked in named.items():
        section, _, field = name.partition(".")
        if network is not None and section == "network" and name not in READ_BY_OWN:
            raise UserError(
                f"{name} has no effect on networks of your own, which are as you made them; leave out one of both."
            )
        if agent is not None and section in HELD:
            held = getattr(getattr(agent.config, section), field)
            if asked != held:
                raise UserError(f"{name} is {held} in the agent that was handed in, and cannot become {asked}.")


def check_spaces(agent: AnyAgent, spec: envs.EnvSpec) -> None:
    """Refuse an agent that was made for another environment; also one whose agents or entries are in another order,
    which rewards and masks follow."""
    ours, theirs = (None if held is None else dict(held.groups) for held in (agent_team(agent), spec.team))
    if ours != theirs or list(ours or ()) != list(theirs or ()):
        raise UserError(f"The agent's groups are {ours or 'none'}; {spec.id} has {theirs or 'none'}.")
    if isinstance(agent, PPOAgent):
        agent.fit(spec.observation_space, spec.action_space)
    for name in ("observation_space", "action_space"):
        space, other = getattr(agent.policy, name), getattr(spec, name)
        if space_key(space) != space_key(other):
            unseen = " They differ in what is not shown, such as single bounds." if str(space) == str(other) else ""
            raise UserError(f"The agent's {name} is {space}; {spec.id} has {other}.{unseen}")


def find_resumable(run: Path, has_env: bool) -> tuple[Checkpoint, list[str]]:
    """Where a run goes on, and a sentence for each newer checkpoint that cannot be read."""
    if not (run / "config.yaml").is_file():
        raise UserError(f"{run} is not the folder of a run: it has no config.yaml.")
    try:
        check_inside(run)
    except OSError as error:
        raise UserError(f"Cannot resume {run}: {error.strerror}.") from None
    saved, trouble = load_newest(run)
    if saved is None:
        raise UserError(f"{run} has no checkpoint to resume from. {' '.join(trouble)}".rstrip())
    if not (saved.by_id or has_env):
        raise UserError(
            f"{run} was trained on an environment that was handed in as a Python object; hand it in again, with "
            f"PPOTrainer.resume(run, env)."
        )
    return saved, trouble


def is_complete(run: Path, history: History) -> bool:
    """Whether a run has reached its end, and everything was written that is written then."""
    try:
        result = read_json(run / "result.json")
        ended = result["stop_reason"] != "interrupted"  # a stop in the final evaluation is one before the end
        return ended and history.stop_reason is not None and result["total_steps"] == history.steps
    except (OSError, ValueError, LookupError, TypeError):
        return False


def extended(config: Config, history: Mapping[str, Any], steps: int) -> Config:
    """Settings that train `steps` more than `history` has made; other budgets that are used up are lifted."""
    if steps < 1:
        raise UserError(f"Training on takes at least 1 step more, not {steps}.")
    train = config.train
    if train.max_episodes is not None and history["episodes"] >= train.max_episodes:
        train = dataclasses.replace(train, max_episodes=None)
    if train.max_seconds is not None and history["elapsed_seconds"] >= train.max_seconds:
        train = dataclasses.replace(train, max_seconds=None)
    return dataclasses.replace(config, train=dataclasses.replace(train, total_timesteps=history["steps"] + steps))


def once_more(config: Config, first: Config, history: Mapping[str, Any]) -> Config:
    """Settings for as much training again as `first` allowed, after what `history` has counted."""
    done = {"total_timesteps": "steps", "max_episodes": "episodes", "max_seconds": "elapsed_seconds"}
    budgets = {name: getattr(first.train, name) for name in done}
    more = {name: budget + history[done[name]] for name, budget in budgets.items() if budget is not None}
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **more))


def agent_team(agent: AnyAgent) -> Team | None:
    return agent.policy.team if isinstance(agent, TeamAgent) else None
