"""From what a user gives to what a trainer needs: the settings, the program, and where a run goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from proximo import envs, settings
from proximo.config import Config
from proximo.envs.compiled.vectorize import VectorizedEnv
from proximo.envs.groups import Groups
from proximo.errors import UserError
from proximo.multi_agent.self_play import make_behaviour
from proximo.multi_agent.team_agent import make_agents
from proximo.policy.agent import PPOAgent
from proximo.policy.agents import Agents
from proximo.ppo.optimizer import scheduled
from proximo.ppo.recipe import BUILT_IN, Recipe, follows_rates
from proximo.ppo.static_config import MOVING
from proximo.presets import remarks
from proximo.rollout.frame_stack import FrameStack
from proximo.run_dir.directory import CONFIG
from proximo.run_dir.read import check_folder, read_result
from proximo.run_dir.saved import held_layer, held_values, located
from proximo.shards import need_devices
from proximo.spaces import space_key
from proximo.train.checkpoint import Checkpoint, load_newest
from proximo.train.counters import Counters
from proximo.train.host_program import HostProgram
from proximo.train.needs import check_needs
from proximo.train.preset import fitting_preset
from proximo.train.program import CompiledProgram, Given, Program
from proximo.train.progress import Progress
from proximo.train.start import SavedPolicy


@dataclass
class Start:
    """Where a run begins."""

    by_id: bool
    """Whether the environment can be made from its id; otherwise it was handed in."""
    remarks: list[str]
    """What is said of the settings of a new run."""
    checkpoint: Checkpoint | None = None
    more: bool = False
    """Whether it is trained beyond the end that it had."""
    restarts: bool = False
    """Whether schedules begin again there."""
    policy: SavedPolicy | None = None
    """What it starts from, where that lies in no file: it is saved with the run."""


def given_by(agents: Agents) -> Given:
    """What training begins with."""
    return agents.part("params"), agents.part("obs_stats"), agents.part("reward_stats")


def seen_groups(spec: envs.EnvSpec, config: Config) -> Groups:
    """The groups of an environment as policies see them, with stacked frames."""
    return FrameStack(spec.groups, config.env.frame_stack).groups


def fresh_agents(spec: envs.EnvSpec, config: Config, network: Any) -> Agents:
    """Agents that know nothing yet."""
    groups = seen_groups(spec, config)
    check_needs(spec.id, groups, config)
    return make_agents(groups, config, network)


def make_program(
    source: envs.JaxEnv | envs.HostSource, agents: Agents, config: Config, recipe: Recipe = BUILT_IN
) -> Program:
    """The training program for an environment of either kind."""
    policies = agents.policies
    if policies.has_torso and config.ppo.optimizers == "separate":
        raise UserError(
            "The agent's networks share a torso, so that one optimizer moves them all; ppo.optimizers=shared."
        )
    if config.ppo.sequence_length is not None and not policies.recurrent:
        raise UserError(
            f"ppo.sequence_length={config.ppo.sequence_length} has no effect on networks without memory; leave it out, "
            f"or set network.memory to gru or lstm."
        )
    behaviour = make_behaviour(policies, config.envs_per_shard)
    if isinstance(source, envs.HostSource):
        return HostProgram(source, behaviour, config, recipe)
    limit = config.env.max_steps_per_episode
    vector = VectorizedEnv(source, config.envs_per_shard, limit, info=config.track.info)
    return CompiledProgram(vector, behaviour, config, recipe)


@dataclass(frozen=True)
class Resolved:
    """What a user gave, put together."""

    config: Config
    source: envs.JaxEnv | envs.HostSource | None
    """The environment, where it was handed in."""
    remarks: list[str]
    """What is to be said of the settings."""
    unfit: str | None
    """Why the environment's own preset is not used, if it does not fit."""


def resolve(
    env: Any,
    config: Any,
    preset: bool | str,
    keywords: Mapping[str, Any],
    start: SavedPolicy | None = None,
    leave_out: str = "preset=False",
) -> Resolved:
    """The configuration of a run from everything a user may give. `start` is the agent that it starts from, where that
    lies in no file; `leave_out` is how the user does without the preset."""
    base = config if isinstance(config, Config) else None
    given: settings.Values = {}
    if isinstance(config, str | Path):
        given = settings.from_file(Path(config))
    elif base is None and config is not None:
        given = settings.from_mapping(config, "config")
    keyed = settings.from_keywords(keywords)
    known, source = given | keyed, None
    need_devices(known.get("train.shards", (base or Config()).train.shards))  # before an environment may use JAX
    if env is not None and not isinstance(env, str):
        before = (base or Config()).env
        made_with = known.get("env.kwargs", before.kwargs), known.get("env.wrappers", before.wrappers)
        source = envs.make(env, *made_with)
    if env is not None:
        keyed["env.id"] = env if source is None else source.spec.id
    known = given | keyed
    env_id = known.get("env.id", (base or Config()).env.id)
    tuned, unfit = fitting_preset(preset, env_id, known, source) if base is None else ({}, None)
    fixed = of_its_size(source, known, base)
    if fixed:  # other sizes than the preset was made for
        tuned = {path: value for path, value in tuned.items() if path not in ("env.num_envs", "ppo.minibatch_size")}
    said = remarks(env_id if preset is True else str(preset), tuned, known, leave_out)
    held = held_layer(known) if start is None else held_values(start.config)
    built = settings.build(tuned, {} if base is not None else held, fixed, given, keyed, base=base)
    return Resolved(located(built), source, said, unfit)


def of_its_size(source: Any, known: settings.Values, base: Config | None = None) -> settings.Values:
    """The number of environments of a vector environment that was handed in, as a setting; another one is refused where
    a user has named it."""
    size = getattr(source, "num_envs", None) if isinstance(source, envs.HostSource) else None
    if size is None:
        return {}
    plain = Config().env.num_envs
    named = known.get("env.num_envs", plain if base is None else base.env.num_envs)
    if named not in (size, plain) or known.get("env.num_envs", size) != size:
        raise UserError(
            f"The vector environment {source.spec.id} has {size} environments, and env.num_envs={named} asks for "
            f"others; leave that out, or hand in a factory, env=lambda num_envs: ..., that makes as many as asked for."
        )
    return {"env.num_envs": size}


READ_BY_OWN = {"network.embed", "network.continuous", "network.std", "network.initial_std"}
"""The settings of networks that still mean something where a user's own networks are trained."""
HELD = ("network", "normalize", "agents")
"""The sections that an agent brings with it."""


def check_read(config: Any, keywords: Mapping[str, Any], agent: PPOAgent | Agents | None, network: Any) -> None:
    """Refuse settings that a user named and that nothing would read: of the built-in networks beside own ones, and
    others than those of an agent that was handed in. A file or a preset may say such things; it says everything."""
    named = settings.from_keywords(keywords)
    if isinstance(config, Mapping):
        named = settings.from_mapping(config, "config") | named
    for name, asked in named.items():
        section, _, field = name.partition(".")
        if network is not None and section == "network" and name not in READ_BY_OWN:
            raise UserError(
                f"{name} has no effect on networks of your own, which are as you made them; leave out one of the two."
            )
        if agent is not None and section in HELD:
            held = getattr(getattr(agent.config, section), field)
            if asked != held:
                raise UserError(f"{name} is {held} in the agent that was handed in, and cannot become {asked}.")


NOT_ADAM = {"ppo.adam_epsilon", "ppo.max_grad_norm"}
"""What a user's own optimizer does not read."""
RATES = {f"ppo.{name}" for name in ("learning_rate", "learning_rate_schedule", "learning_rate_end", "adaptive_kl")}
RATES |= {"ppo.critic_learning_rate", "ppo.optimizers"}
"""What it reads if `scale_by_rates` is part of it."""


def check_optimizer(config: Any, keywords: Mapping[str, Any], optimizer: Any, agents: Agents) -> None:
    """Refuse settings of the built-in optimizer that a user named beside one of their own, which does not read them."""
    named = settings.from_keywords(keywords)
    if isinstance(config, Mapping):
        named = settings.from_mapping(config, "config") | named
    params = next(iter(agents.part("params").values()))
    unread = NOT_ADAM if follows_rates(optimizer, params) else NOT_ADAM | RATES
    for name in named:
        if name in unread:
            last = " Let proximo.scale_by_rates() be the last of its chain, and it follows." if name in RATES else ""
            raise UserError(f"{name} has no effect on an optimizer of your own, which is as you made it.{last}")


START = ("start_from", "start_partial", "start_digest")


def without_start(config: Config) -> Config:
    """`config` of a run that starts from nothing, or goes on from a checkpoint."""
    return with_start(config, Config())


def with_start(config: Config, other: Config) -> Config:
    """`config`, saying of where it started what `other` says."""
    said = {name: getattr(other.train, name) for name in START}
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **said))


def with_own(config: Config, handed_in: Mapping[str, Any]) -> Config:
    """`config`, saying which parts of the algorithm were handed in; those that it names must have been."""
    for name in config.ppo.own:
        if handed_in[name] is None:
            raise UserError(
                f"The {name} is not a built-in one (ppo.own), and no file holds it; hand it in again, as `{name}=` of "
                f"PPOTrainer or PPOTrainer.resume."
            )
    return dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, own=named_own(handed_in)))


def named_own(handed_in: Mapping[str, Any]) -> tuple[Any, ...]:
    """As the setting `ppo.own` names it."""
    return tuple(name for name, part in handed_in.items() if part is not None)


def fit_agent(agent: Any, spec: envs.EnvSpec, config: Config) -> None:
    """Let an agent that was made for sizes alone take over the spaces of an environment."""
    if isinstance(agent, PPOAgent) and not spec.groups.many:
        (group,) = seen_groups(spec, config).values()
        agent.fit(group.observation_space, group.action_space)


def check_spaces(agents: Agents, spec: envs.EnvSpec, config: Config, critics: bool = True) -> None:
    """Refuse agents that were made for another environment; also ones whose agents or entries are in another order,
    which rewards and masks follow. What `critics` see is nothing that acting needs."""
    ours, theirs = agents.policies.groups, seen_groups(spec, config)
    who = [{name: group.members for name, group in groups.items()} if groups.many else {} for groups in (ours, theirs)]
    if who[0] != who[1] or list(ours) != list(theirs):
        raise UserError(f"The agent's groups are {who[0] or 'none'}; {spec.id} has {who[1] or 'none'}.")
    for name in ours:
        whose = f" (group {name})" if ours.many else ""
        for kind in ("observation_space", "action_space"):
            _check_space(f"The agent's {kind}{whose}", getattr(ours[name], kind), getattr(theirs[name], kind), spec.id)
    if critics and (ours.critic_state_space is not None or theirs.critic_state_space is not None):
        seen = (ours.critic_state_space, theirs.critic_state_space)
        _check_space("The agent's critic_state_space", *seen, spec.id)


def _check_space(what: str, ours: Any, theirs: Any, env_id: str) -> None:
    if ours is None or theirs is None or space_key(ours) != space_key(theirs):
        unseen = " They differ in what is not shown, such as single bounds." if str(ours) == str(theirs) else ""
        raise UserError(f"{what} is {ours}; {env_id} has {theirs}.{unseen}")


SCHEDULED = ("learning_rate", "clip_epsilon", "entropy_coef")
SPENT = 0.9
"""The share of a schedule after which little of it is left."""


def find_resumable(run: Path, has_env: bool) -> tuple[Checkpoint, list[str]]:
    """Where a run goes on, and a sentence for each newer checkpoint that cannot be read."""
    if not (run / CONFIG).is_file():
        raise UserError(f"{run} is not the folder of a run: it has no {CONFIG}.")
    check_folder(run)
    saved, trouble = load_newest(run)
    if saved is None:
        raise UserError(f"{run} has no checkpoint to resume from. {' '.join(trouble)}".rstrip())
    if not (saved.by_id or has_env):
        raise UserError(
            f"{run} was trained on an environment that was handed in as a Python object; hand it in again, with "
            f"PPOTrainer.resume(run, env)."
        )
    return saved, trouble


def check_built_in(saved: Checkpoint, handed_in: Mapping[str, Any]) -> None:
    """Refuse another loss or optimizer where a run had the built-in ones."""
    for name, part in handed_in.items():
        if part is not None and name not in saved.config.ppo.own:
            raise UserError(
                f"{saved.path} was trained with the built-in {name}, and goes on with that; leave out `{name}`. A new "
                f"run, PPOTrainer(agent=..., {name}=...), can begin from its policy."
            )


def is_complete(run: Path, progress: Progress) -> bool:
    """Whether a run has reached its end, and everything was written that is written then."""
    try:
        result = read_result(run) or {}
        ended = result["stop_reason"] != "interrupted"  # a stop in the final evaluation is one before the end
        return ended and progress.stop_reason is not None and result["total_steps"] == progress.counters.steps
    except (OSError, ValueError, LookupError, TypeError):
        return False


def extended(config: Config, done: Counters, steps: int | None, restart_schedules: bool = False) -> Config:
    """Settings that train `steps` more than were `done`, if any are asked for; other budgets that are used up are
    lifted. With `restart_schedules`, schedules begin again now and end at the new end."""
    if restart_schedules:
        if steps is None:
            raise UserError("Schedules begin again with --steps N (`steps=`), which says how long they take.")
        if not any(getattr(config.ppo, f"{name}_schedule") != "constant" for name in SCHEDULED):
            raise UserError("No schedule can begin again: learning rate, clip range and entropy bonus are constant.")
    if steps is None:
        return config
    if steps < 1:
        raise UserError(f"Training on takes at least 1 step more, not {steps}.")
    train = config.train
    if train.max_episodes is not None and done.episodes >= train.max_episodes:
        train = dataclasses.replace(train, max_episodes=None)
    if train.max_seconds is not None and done.elapsed_seconds >= train.max_seconds:
        train = dataclasses.replace(train, max_seconds=None)
    began = done.steps if restart_schedules else train.schedule_start
    train = dataclasses.replace(train, total_timesteps=done.steps + steps, schedule_start=began)
    return dataclasses.replace(config, train=train)


def schedule_note(before: Config, after: Config, done: Counters, how: str) -> list[str]:
    """What is said where a run is trained beyond its end, by `after` instead of `before`, when the schedule of its
    learning rate was all but spent; `how` begins it again."""
    ppo = before.ppo
    if ppo.learning_rate_schedule not in MOVING or "optimizer" in ppo.own:
        return []
    if after.train.schedule_start == done.steps or progress_of(before, done.steps) < SPENT:
        return []
    old, new = (
        float(scheduled(ppo.learning_rate_schedule, ppo.learning_rate, ppo.learning_rate_end, jnp.float32(share)))
        for share in (progress_of(config, done.steps) for config in (before, after))
    )
    return [
        f"The {ppo.learning_rate_schedule} schedule of its learning rate was spent, {old:.2g} of "
        f"{ppo.learning_rate:g}; stretched to the new end it goes on from {new:.2g} to {ppo.learning_rate_end:g}. "
        f"{how} begins it again from {ppo.learning_rate:g}."
    ]


def progress_of(config: Config, steps: int) -> float:
    """How far schedules are after so many steps, as `ppo.update.current_rates` has it."""
    start, whole = config.train.schedule_start, config.num_updates * config.frames_per_batch
    return min(max(steps - start, 0) / (whole - start), 1.0)


def once_more(config: Config, first: Config, done: Counters) -> Config:
    """Settings for as much training again as `first` allowed, after what was `done`."""
    spent = {"total_timesteps": done.steps, "max_episodes": done.episodes, "max_seconds": done.elapsed_seconds}
    budgets = {name: getattr(first.train, name) for name in spent}
    more = {name: budget + spent[name] for name, budget in budgets.items() if budget is not None}
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **more))
