"""Checkpoints: the whole state of a run in one file, the last few of them and the best."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proximo import settings, tensors
from proximo.config import Config
from proximo.errors import UserError
from proximo.policy.agent import PPOAgent
from proximo.train.history import History
from proximo.train.program import ProgramState

FOLDER = "checkpoints"
BEST = "best"
KIND = "checkpoint"
NAME = re.compile(r"step_(\d+)\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds: the program's state, where environments outside it stand, and the counters of the run."""

    path: Path
    config: Config
    agent: dict[str, Any]
    """The policy's description, as `PPOAgent.describe` gives it."""
    by_id: bool
    """Whether the environment can be made from its id; otherwise it was handed in."""
    program: tensors.Tensors
    lanes: list[bytes] | None
    history: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def policy(self) -> PPOAgent:
        """The policy as it was then."""
        held = {name.removeprefix("train/"): array for name, array in self.program.items()}
        kept = {name: array for name, array in held.items() if name.startswith(("params/", "obs_stats/"))}
        return PPOAgent.from_tensors(kept, self.agent, self.path)

    def fill(self, types: Any) -> ProgramState:
        """The program's state; `types` has its shapes and types."""
        state: ProgramState = tensors.filled(types, self.program, self.path)
        return state


def save(
    run: Path, name: str, state: ProgramState, lanes: list[bytes] | None, history: History, agent: PPOAgent, by_id: bool
) -> None:
    """Write a checkpoint of `history.config`'s run. The file is whole, or the one before is still there."""
    numbers, arrays = history.save()
    held = {"program": tensors.named(state), "history": arrays}
    held["lane"] = {str(i): np.frombuffer(one, np.uint8) for i, one in enumerate(lanes or [])}
    meta = {
        "config": settings.to_mapping(history.config),
        "agent": agent.describe(),
        "by_id": by_id,
        "history": numbers,
        "lanes": None if lanes is None else len(lanes),
    }
    flat = {f"{part}/{key}": array for part, group in held.items() for key, array in group.items()}
    tensors.write(run / FOLDER / f"{name}.safetensors", KIND, flat, meta)


def step_name(step: int) -> str:
    return f"step_{step:012}"


def steps(run: Path) -> list[int]:
    """Of the checkpoints that there are, in order; the best one is not among them."""
    folder = run / FOLDER
    found = (NAME.fullmatch(file.name) for file in (folder.iterdir() if folder.is_dir() else ()))
    return sorted(int(match[1]) for match in found if match)


def prune(run: Path, keep: int) -> None:
    """Remove all but the last `keep`."""
    for step in steps(run)[:-keep]:
        (run / FOLDER / f"{step_name(step)}.safetensors").unlink(missing_ok=True)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint; whatever is not one is refused in words."""
    held, meta = tensors.read(path, KIND)
    parts: dict[str, tensors.Tensors] = {"program": {}, "history": {}, "lane": {}}
    try:
        for name, array in held.items():
            part, _, key = name.partition("/")
            parts[part][key] = array
        config = settings.build(settings.from_mapping(meta["config"], str(path)))
        lanes = None if meta["lanes"] is None else [parts["lane"][str(i)].tobytes() for i in range(meta["lanes"])]
        History(config).load(meta["history"], parts["history"])  # can it be gone on from?
        return Checkpoint(
            path, config, meta["agent"], meta["by_id"], parts["program"], lanes, meta["history"], parts["history"]
        )
    except UserError as error:
        raise UserError(f"{path} cannot be used: {error}") from None
    except Exception as error:  # whatever nonsense can lead to
        raise UserError(f"{path} describes no checkpoint ({type(error).__name__}: {error}).") from None


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


def load_agent(run: Path, which: str) -> PPOAgent:
    """The policy in the `last` checkpoint, or in the one of a step."""
    path, known = newest(run), steps(run)
    if which != "last":
        if not which.isdecimal() or int(which) not in known:
            raise UserError(f"{run} has no checkpoint of step {which}; it has: {', '.join(map(str, known))}.")
        path = path.with_name(f"{step_name(int(which))}.safetensors")
    return load(path).policy()
