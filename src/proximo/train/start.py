"""Starting from a saved policy: a run, a checkpoint, a policy file or an agent gives its parameters and statistics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proximo import settings
from proximo.config import Config
from proximo.envs.groups import ONE
from proximo.errors import UserError
from proximo.multi_agent.team_agent import as_agents
from proximo.policy.agent import PPOAgent
from proximo.policy.agents import Agents, group_file
from proximo.policy.custom_networks import Own, as_own
from proximo.policy.policy import Policy, part_of
from proximo.policy.spaces import LARGEST_ACTION, space_from_json
from proximo.run_dir import tensors
from proximo.run_dir.files import shown as shown_path
from proximo.run_dir.read import default_policy, find_run, policy_files
from proximo.run_dir.saved import HELD, policy_group_files, read_header, setting_of
from proximo.run_dir.tensors import Tensors
from proximo.seeding import network_key
from proximo.spaces import first_difference, form_key, shown, space_key
from proximo.train import checkpoint

PARTIAL = "`--partial`, in Python `start_partial=True`, takes the parts that fit"
START_FILE = "start.safetensors"
"""In the folder of models of a run that started from an agent in memory: that agent."""
MOST_NAMED = 4


@dataclass(frozen=True)
class SavedPolicy:
    """The arrays and the descriptions of a policy, by group, as files hold them."""

    name: str
    arrays: dict[str, Tensors]
    """Such as `params/actor/Dense_0/kernel`."""
    about: dict[str, dict[str, Any]]
    """As `PPOAgent.describe` gives it."""
    config: Config

    @property
    def digest(self) -> str:
        """The checksum of all arrays: the same wherever the policy lies."""
        flat = {f"{group}/{name}": array for group, own in self.arrays.items() for name, array in own.items()}
        return tensors.digest({name: flat[name] for name in sorted(flat)}, json.dumps(sorted(self.arrays)))

    def save(self, path: Path) -> None:
        """Write it, so that `load_start` finds it under this path."""
        for group, arrays in self.arrays.items():
            file = path if len(self.arrays) == 1 else group_file(path, group)
            tensors.write(file, "policy", arrays, self.about[group])


def start_of(agent: PPOAgent | Agents) -> SavedPolicy:
    """An agent in memory as it would be saved."""
    agents = as_agents(agent)
    parts = ("params", "obs_stats", "reward_stats")
    arrays = {name: tensors.named({part: getattr(one, part) for part in parts}) for name, one in agents.groups.items()}
    return SavedPolicy("the agent that was handed in", arrays, agents.describe(), agents.config)


def load_start(place: Path) -> SavedPolicy:
    """The policy in a run (its last state), a checkpoint, or the policy files that `place` names."""
    if place.is_dir():
        return _of_run(find_run(place))
    files = policy_group_files(place)
    if len(files) == 1 and read_header(files[0])[0].startswith("proximo-checkpoint-"):
        return _of_checkpoint(checkpoint.load(files[0]))
    return _of_files(files)


def _of_run(run: Path) -> SavedPolicy:
    saved, trouble = checkpoint.load_newest(run)
    if saved is not None:
        return _of_checkpoint(saved)
    if default_policy(run) != "final":
        raise UserError(f"{run} has no checkpoint and no policy to start from. {' '.join(trouble)}".rstrip())
    return _of_files(policy_files(run, "final"))


def _of_checkpoint(saved: checkpoint.Checkpoint) -> SavedPolicy:
    held = tensors.below(saved.program, "train/groups/")
    arrays = {
        group: {
            name: array for name, array in tensors.below(held, f"{group}/").items() if name.startswith(checkpoint.PARTS)
        }
        for group in saved.agent
    }
    return SavedPolicy(shown_path(saved.path), arrays, dict(saved.agent), saved.config)


def _of_files(files: list[Path]) -> SavedPolicy:
    arrays: dict[str, Tensors] = {}
    about: dict[str, dict[str, Any]] = {}
    for file in files:
        held, meta = tensors.read(file, "policy")
        try:
            group = str((meta.get("team") or {"group": ONE})["group"])
            config = settings.build(settings.from_mapping(meta["config"], "its settings"))
        except (LookupError, TypeError, UserError) as error:
            raise UserError(f"{file} cannot be used: {tensors.in_words(error)}.") from None
        arrays[group], about[group] = held, meta
    named = shown_path(files[0]) if len(files) == 1 else f"the policies {', '.join(map(shown_path, files))}"
    return SavedPolicy(named, arrays, about, config)


def check_digest(policy: SavedPolicy, wanted: str | None) -> None:
    """Refuse another policy than the one that the settings were recorded with."""
    if wanted is not None and wanted != policy.digest:
        raise UserError(
            f"{policy.name} is not what these settings started from: its checksum is {policy.digest[:12]}…, not "
            f"{wanted[:12]}… (train.start_digest). Leave out train.start_digest to start from it as it is."
        )


def start_agents(agents: Agents, policy: SavedPolicy, env_id: str, config: Config) -> list[str]:
    """Give fresh `agents` what `policy` holds: everything, or with `train.start_partial` what fits. What the user
    should know of it."""
    own = as_own(agents.network)
    if config.train.start_partial:
        return [*_take_parts(agents, policy), *_other_arguments(policy, config)]
    _check_settings(policy, config)
    pairs = _pairs(agents, policy)
    if pairs is None:
        ours, theirs = ", ".join(agents.groups), ", ".join(policy.about)
        raise UserError(f"{policy.name} has the groups {theirs}; {env_id} has {ours}. {PARTIAL}.")
    said = []
    for name, source in pairs.items():
        about = policy.about[source]
        _check_own(policy, about, own)
        said += _check_spaces(policy, about, agents.policies[name], env_id)
        _fill(agents.groups[name], policy, source)
    whole = all("critic" in one["networks"] for one in policy.about.values())
    new = "" if whole else " It holds no critic: a new one begins."
    return [f"Starting from {policy.name}.{new}", *dict.fromkeys(said), *_other_arguments(policy, config)]


def _other_arguments(policy: SavedPolicy, config: Config) -> list[str]:
    """A sentence for what the environment was made with when the policy was trained, where that is not so now."""
    if policy.config.env.id != config.env.id:
        return []
    return [
        f"{policy.name} was trained with {name}={_plain(then)}; this run has {_plain(now)}: a new run says for itself "
        f"how its environment is made."
        for name in ("env.kwargs", "env.wrappers")
        if (then := setting_of(policy.config, name)) != (now := setting_of(config, name))
    ]


def _check_settings(policy: SavedPolicy, config: Config) -> None:
    for name in HELD:
        asked, held = setting_of(config, name), setting_of(policy.config, name)
        if asked != held:
            raise UserError(
                f"{name} is {_plain(held)} in {policy.name}, and cannot become {_plain(asked)}; leave it out, or "
                f"{PARTIAL[0].lower()}{PARTIAL[1:]}."
            )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _pairs(agents: Agents, policy: SavedPolicy) -> dict[str, str] | None:
    """For each group its group in the policy: the one of the same name, or the only one."""
    if set(agents.groups) == set(policy.about):
        return {name: name for name in agents.groups}
    if len(agents.groups) == len(policy.about) == 1:
        return {next(iter(agents.groups)): next(iter(policy.about))}
    return None


def _check_own(policy: SavedPolicy, about: Mapping[str, Any], own: Own) -> None:
    """Networks and distributions of a user's own must be there again, and only where they were."""
    for part, given in own._asdict().items():
        if bool(about.get(f"own_{part}")) != (given is not None):
            lacks = f"was trained with a {part} that is not built in: hand it in again, as `{part}=` of PPOTrainer"
            more = f"has a built-in {part}: leave out `{part}`"
            raise UserError(f"{policy.name} {lacks if given is None else more}.")


def _check_spaces(policy: SavedPolicy, about: Mapping[str, Any], ours: Policy, env_id: str) -> list[str]:
    """Refuse spaces of another form, saying where they differ; of those that differ in bounds alone, a sentence."""
    wanted = {"observation_space": ours.observation_space, "action_space": ours.action_space}
    if "critic" in about["networks"]:
        if (about.get("critic_space") is None) != (ours.critic_space is None):
            has, lacks = ("shows it none", "sees one") if ours.critic_space is None else ("shows one", "sees none")
            raise UserError(f"The critic of {policy.name} {lacks} (critic_state), and {env_id} {has}. {PARTIAL}.")
        if ours.critic_space is not None:
            wanted["critic_space"] = ours.critic_space
    said = []
    for kind, here in wanted.items():
        try:
            there = space_from_json(about[kind], *([LARGEST_ACTION] if kind == "action_space" else []))
        except Exception as error:  # whatever nonsense can lead to
            raise UserError(f"{policy.name} describes no {kind} ({tensors.in_words(error)}).") from None
        if form_key(there) != form_key(here):
            path, one, other = first_difference(there, here)
            raise UserError(f"The {kind}{shown(path)} of {policy.name} is {one}; {env_id} has {other}. {PARTIAL}.")
        if space_key(there) != space_key(here):
            said.append(f"Its {kind} and that of {env_id} differ in bounds or precision alone.")
    return said


def _fill(agent: PPOAgent, policy: SavedPolicy, source: str) -> None:
    """Take all that the policy holds for a group; what it does not hold stays as it is."""
    given, networks = policy.arrays[source], policy.about[source]["networks"]
    if "actor" not in networks:
        raise UserError(f"{policy.name} holds a critic alone, and a run starts from an actor. {PARTIAL}.")
    rewards = any(name.startswith("reward_stats/") for name in given)
    held = {"params": part_of(agent.params, *networks), "obs_stats": agent.obs_stats}
    held |= {"reward_stats": agent.reward_stats} if rewards else {}
    parts = tensors.filled(held, given, Path(policy.name))
    agent.params = {**agent.params, **parts["params"]}
    agent.obs_stats = parts["obs_stats"]
    agent.reward_stats = parts.get("reward_stats", agent.reward_stats)


def _take_parts(agents: Agents, policy: SavedPolicy) -> list[str]:
    """Take the layers and statistics that fit, each whole."""
    pairs = _pairs(agents, policy) or {name: name for name in agents.groups if name in policy.about}
    taken, new = [], []
    for name, agent in agents.groups.items():
        held = {"params": agent.params, "obs_stats": agent.obs_stats, "reward_stats": agent.reward_stats}
        parts, fit, other = tensors.fitting(held, policy.arrays[pairs[name]] if name in pairs else {})
        agent.params, agent.obs_stats, agent.reward_stats = (parts[part] for part in held)
        whose = f"{name}/" if len(agents.groups) > 1 else ""
        taken += fit
        new += [f"{whose}{layer.removeprefix('params/')}" for layer in other]
    if not any(layer.startswith("params/") for layer in taken):
        raise UserError(f"No layer of {policy.name} fits these networks, so there is nothing to start from.")
    named = ", ".join(new[:MOST_NAMED]) + (f" and {len(new) - MOST_NAMED} more" if len(new) > MOST_NAMED else "")
    rest = f" New are {named}." if new else ""
    return [f"Starting from {policy.name}: {len(taken)} of {len(taken) + len(new)} layers and statistics fit.{rest}"]


def complete(agent: PPOAgent | Agents, seed: int) -> list[str]:
    """Give an agent that was saved without its critic a new one; what is said of it."""
    for one in as_agents(agent).groups.values():
        if "actor" not in one.params:
            raise UserError("This agent was saved with its critic only; training needs the actor.")
    lacking = {name: one for name, one in as_agents(agent).groups.items() if "critic" not in one.params}
    if not lacking:
        return []
    fresh = as_agents(agent).policies.init(network_key(seed))
    for name, one in lacking.items():
        one.params = {**fresh[name], **one.params}
    return ["The agent was saved without its critic: a new one begins."]
