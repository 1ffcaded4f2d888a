"""Checkpoints: the whole state of a run in one file, the last few of them and the best."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proximo import settings
from proximo.config import Config
from proximo.errors import UserError
from proximo.multi_agent.team_agent import agents_from
from proximo.policy.agents import Agents
from proximo.run_dir import tensors
from proximo.train.counters import Counters, unfit
from proximo.train.program import ProgramState
from proximo.train.progress import SavedProgress

FOLDER = "checkpoints"
BEST = "best"
KIND = "checkpoint"
PARTS = ("params/", "obs_stats/", "reward_stats/")
"""What an agent is, of the state of its learner."""
NAME = re.compile(r"step_([0-9]{12,19})\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds: the program's state, where environments outside it stand, and the counters of the run."""

    path: Path
    config: Config
    agent: dict[str, Any]
    """The agents' description, as `Agents.describe` gives it."""
    by_id: bool
    """Whether the environment can be made from its id; otherwise it was handed in."""
    program: tensors.Tensors
    envs: list[bytes] | None
    progress: SavedProgress

    def agents(self, network: Any = None) -> Agents:
        """The agents as they were then; `network` as in `PPOAgent.load`."""
        held = tensors.below(self.program, "train/groups/")
        kept = {
            f"{group}/{name}": array
            for group in self.agent
            for name, array in tensors.below(held, f"{group}/").items()
            if name.startswith(PARTS)
        }
        return agents_from(kept, self.agent, self.path, network)

    def fill(self, types: Any) -> ProgramState:
        """The program's state; `types` has its shapes and types."""
        if "optimizer" in self.config.ppo.own:
            self._check_optimizer(types.train.of("opt_state"))
        state: ProgramState = tensors.filled(types, self.program, self.path)
        return state

    def _check_optimizer(self, types: Any) -> None:
        """Refuse an optimizer that was handed in and keeps another state than the one whose state was saved."""
        try:
            for group, own in types.items():
                tensors.filled(own, tensors.below(self.program, f"train/groups/{group}/opt_state/"), self.path)
        except UserError:
            raise UserError(
                f"The optimizer that was handed in is not the one that {self.path} was trained with: it keeps another "
                f"state. Hand in the same again."
            ) from None


def save(
    run: Path,
    name: str,
    config: Config,
    state: ProgramState,
    envs: list[bytes] | None,
    progress: SavedProgress,
    agents: Agents,
    by_id: bool,
) -> None:
    """Write a checkpoint. The file is whole, or the one before is still there."""
    held = {"program": tensors.named(state), "history": progress.windows}
    held["env"] = {str(i): np.frombuffer(one, np.uint8) for i, one in enumerate(envs or [])}
    meta = {
        "config": settings.to_mapping(config),
        "agents": agents.describe(),
        "by_id": by_id,
        "history": progress.counters.to_json(),
        "envs": None if envs is None else len(envs),
    }
    flat = {f"{part}/{key}": array for part, group in held.items() for key, array in group.items()}
    tensors.write(run / FOLDER / f"{name}.safetensors", KIND, flat, meta)


def step_name(step: int) -> str:
    return f"step_{step:012}"


def steps(run: Path) -> list[int]:
    """Of the checkpoints that there are, in order; the best one is not among them."""
    folder = run / FOLDER
    found = (NAME.fullmatch(file.name) for file in (folder.iterdir() if folder.is_dir() else ()))
    return sorted(int(match[1]) for match in found if match and step_name(int(match[1])) == f"step_{match[1]}")


def prune(run: Path, keep: int) -> None:
    """Remove all but the last `keep`."""
    for step in steps(run)[:-keep]:
        (run / FOLDER / f"{step_name(step)}.safetensors").unlink(missing_ok=True)


def set_aside(run: Path, step: int) -> None:
    """Rename those after `step`, which could not be read: they must not pass for the last ones."""
    for later in steps(run):
        if later > step:
            file = run / FOLDER / f"{step_name(later)}.safetensors"
            file.rename(file.with_suffix(".unreadable"))


def load(path: Path) -> Checkpoint:
    """Read a checkpoint; whatever is not one is refused in words."""
    held, meta = tensors.read(path, KIND)
    parts: dict[str, tensors.Tensors] = {"program": {}, "history": {}, "env": {}}
    try:
        for name, array in held.items():
            part, _, key = name.partition("/")
            parts[part][key] = array
        config = settings.build(settings.from_mapping(meta["config"], "its settings"))
        by_id, agents = meta["by_id"], meta["agents"]
        if not isinstance(agents, dict) or not agents or type(by_id) is not bool:
            raise UserError("Its description is not that of a run.")
        progress = SavedProgress(Counters.from_json(meta["history"]), parts["history"])
        _check_windows(progress.windows, config)
        envs = _envs(meta["envs"], parts["env"])
        num_envs = config.env.num_envs
        if parts["program"]["runner/episode_length"].shape != (num_envs,) or len(envs or ()) not in (0, num_envs):
            raise UserError(f"It does not hold the state of {num_envs} environments.")
        return Checkpoint(path, config, agents, by_id, parts["program"], envs, progress)
    except UserError as error:
        raise UserError(f"{path} cannot be used: {tensors.in_words(error)}.") from None
    except Exception as error:  # whatever nonsense can lead to
        words = tensors.in_words(error)
        raise UserError(f"{path} describes no checkpoint ({type(error).__name__}: {words}).") from None


def _envs(count: Any, held: tensors.Tensors) -> list[bytes] | None:
    """Where environments outside the program stand."""
    envs = [held[str(number)] for number in range(len(held))]
    if any(env.dtype != np.uint8 or env.ndim != 1 for env in envs):
        raise UserError("Where its environments stand is not known.")
    if (count is not None or envs) and (type(count) is not int or count != len(envs)):
        raise UserError(f"It should hold the state of {count} environments, not of {len(envs)}.")
    return None if count is None else [env.tobytes() for env in envs]


def _check_windows(windows: tensors.Tensors, config: Config) -> None:
    """Refuse what no run has averaged."""
    recent = windows["recent"]
    rows = recent.shape[0] if recent.ndim else 0  # one for each agent, and with self-play one more
    limits = {"recent": (max(4, rows), config.track.recent_episodes), "window": (config.stop.convergence_window,)}
    for name, limit in limits.items():
        array = windows[name]
        fits = array.ndim == len(limit) and array.shape[:-1] == limit[:-1] and array.shape[-1] <= limit[-1]
        if not fits or array.dtype != np.float64:
            raise unfit(name)
    if windows.keys() != limits.keys():
        raise unfit(min(windows.keys() - limits.keys()))


def load_newest(run: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that can be read, if there is one; and a sentence for each newer one that cannot."""
    trouble: list[str] = []
    for step in reversed(steps(run)):
        try:
            return load(run / FOLDER / f"{step_name(step)}.safetensors"), trouble
        except UserError as error:
            trouble.append(str(error))
    return None, trouble


def newest(run: Path) -> Path:
    """The file of the last checkpoint."""
    known = steps(run)
    if not known:
        raise UserError(f"{run} has no checkpoint.")
    return run / FOLDER / f"{step_name(known[-1])}.safetensors"


def load_agents(run: Path, which: str) -> Agents:
    """The agents in the `last` checkpoint, or in the one of a step."""
    path, known = newest(run), steps(run)
    if which != "last":
        if which not in map(str, known):
            raise UserError(f"{run} has no checkpoint of step {which}; it has: {', '.join(map(str, known))}.")
        path = path.with_name(f"{step_name(int(which))}.safetensors")
    return load(path).agents()
