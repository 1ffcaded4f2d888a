"""The walk of one update: which functions it passes, file by file, in the order in which it enters them.

    python tools/walk.py gymnax/CartPole-v1
    python tools/walk.py CartPole-v1 --set env.workers=2
    python tools/walk.py pettingzoo/mpe2.simple_spread_v3 --lines

Traced are the making of one update's program and its run: collecting, learning, and what the host does around it.
Of each file it tells how many lines its functions have that were entered, which is what somebody has to read; of the
whole also how many of them were executed, the packages in order, and the stages: the packages that the functions which
hold an update together go into, one after the other. What worker processes do is not seen from here.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["PROXIMO_MLFLOW"] = "0"

import proximo
from proximo import PPOTrainer, settings

ROOT = Path(proximo.__file__).parent
SMALL = {
    "env.num_envs": 4,
    "ppo.rollout_length": 8,
    "ppo.minibatch_size": 16,
    "ppo.epochs_per_update": 1,
    "network.hidden_sizes": [16],
}


UPDATE = ("train_step", "rollout", "learn_from", "learn")
STAGES, SETTINGS = ("rollout", "multi_agent", "ppo"), "ppo/static_config.py"


class Walk:
    """The functions of Proximo that were entered, in the order in which each was first, and the lines they ran."""

    def __init__(self) -> None:
        self.functions: dict[tuple[str, str], None] = {}
        self.read: dict[str, set[int]] = {}
        self.executed: dict[str, set[int]] = {}
        self.stages: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        file = frame.f_code.co_filename
        if not file.startswith(str(ROOT)):
            return None
        name = Path(file).relative_to(ROOT).as_posix()
        package = name.partition("/")[0]
        caller = "" if frame.f_back is None else frame.f_back.f_code.co_qualname
        stage = package in STAGES and name != SETTINGS
        if caller in UPDATE and stage and self.stages[-1:] != [package]:
            self.stages.append(package)
        self.functions.setdefault((name, frame.f_code.co_qualname.replace(".<locals>", "")))
        source, first = inspect.getsourcelines(frame.f_code)
        filled = (number for number, text in enumerate(source, first) if text.strip())
        self.read.setdefault(name, set()).update(filled)
        lines = self.executed.setdefault(name, set())

        def line(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            if event == "line":
                lines.add(frame.f_lineno)
            return line

        return line


def walk(env: str, given: dict[str, Any]) -> Walk:
    """Trace one update of a run on `env`."""
    with tempfile.TemporaryDirectory() as folder:
        config = settings.build({"env.id": env} | SMALL | given)
        trainer = PPOTrainer(config=config, out=Path(folder) / "run")
        program, found = trainer.program, Walk()
        with trainer:
            state = program.init(trainer._given())
            sys.settrace(found)
            try:
                program.run(state, 1)
            finally:
                sys.settrace(None)
    return found


def report(found: Walk, with_functions: bool) -> str:
    """The walk in words: file by file, in the order of the first function that was entered in each."""
    files = list(dict.fromkeys(file for file, _ in found.functions))
    rows = []
    for file in files:
        rows.append(f"{len(found.read[file]):5}  {file}")
        if with_functions:
            rows += [f"         {name}" for other, name in found.functions if other == file and "<" not in name]
    packages = list(dict.fromkeys(file.partition("/")[0] for file in files))
    read, executed = (sum(map(len, lines.values())) for lines in (found.read, found.executed))
    rows.append(f"{read:5}  lines in {len(files)} files, {executed} of them executed; in order: {', '.join(packages)}")
    rows.append(f"       stages: {', '.join(found.stages)}")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", help="the environment to walk through one update of")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting")
    parser.add_argument("--lines", action="store_true", help="files and lines alone, without functions")
    asked = parser.parse_args()
    print(report(walk(asked.env, settings.from_assignments(asked.set)), not asked.lines))


if __name__ == "__main__":
    main()
