"""What is kept of a run while it goes on: checkpoints, and policies. A disk that fails does not end the run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proximo.errors import TrainingError, UserError
from proximo.policy.agents import Agents
from proximo.run_dir.directory import RunDirectory
from proximo.run_dir.files import shown
from proximo.train import checkpoint
from proximo.train.peers import all_envs, whole_state
from proximo.train.program import Program, ProgramState
from proximo.train.progress import SavedProgress
from proximo.train.schedule import Schedule
from proximo.train.trust import vouch_for

LARGEST_SHARE = 0.01
"""Of the time of a run that checkpoints may take which are made by the clock."""


class Writer:
    """Writes to the folder of a run. What fails is said once, and training goes on: the next time may be better."""

    def __init__(self, directory: RunDirectory, note: Callable[[str], None]):
        self.trouble: str | None = None
        """What could not be written first."""
        self._directory, self._note = directory, note
        self._said: set[str] = set()

    def __call__(self, write: Callable[[], object]) -> None:
        try:
            self._directory.check()
            write()
        except OSError as error:
            sentence = f"Cannot write to {shown(self._directory.path)}: {error.strerror or error}."
            if sentence not in self._said:
                self._note(f"{sentence} Training goes on, and writing is tried again.")
            self._said.add(sentence)
            self.trouble = self.trouble or sentence


class Checkpoints:
    """Writes checkpoints and policies when they are due, and removes checkpoints that are not to be kept."""

    def __init__(
        self, directory: RunDirectory, schedule: Schedule, program: Program, agents: Agents, by_id: bool, write: Writer
    ):
        self.written: list[Path] = []
        """Whoever tells of them takes them away."""
        self._directory, self._path = directory, directory.path
        self._schedule = schedule
        self._program = program
        self._agents = agents
        self._by_id = by_id
        self._write = write
        self._saved_steps = 0
        self._saved: Any = None  # what the last one is of
        self._saved_at = time.monotonic()
        self._pause = 0.0

    def begin(self, state: ProgramState, progress: SavedProgress) -> None:
        """The first checkpoint of this process: from here on, whatever happens, there is something to resume."""
        try:
            checkpoint.set_aside(self._path, progress.counters.steps)
            self._checkpoint(state, progress)
            vouch_for(self._path, [self._schedule.config.env])
            self._directory.begin(self._schedule.config)
        except OSError as error:
            raise UserError(f"Cannot write the run to {shown(self._path)}: {error.strerror or error}.") from None

    def keep_policies(self, state: ProgramState, progress: SavedProgress, best: bool) -> None:
        """Keep the policy if it is due now, or if it is the `best` so far."""
        if best:
            self._keep_best(state, progress)
        for name in self._schedule.policies_due(progress.counters.updates):
            self._save_policy(name)

    def keep_state(self, state: ProgramState, progress: SavedProgress, asked: bool) -> None:
        """Write a checkpoint if one is due by the steps made, or `asked` for: by somebody, or by the clock."""
        if asked or self._schedule.checkpoint_due(progress.counters.steps, self._saved_steps):
            self._write(lambda: self._checkpoint(state, progress))

    def hold(self, progress: SavedProgress) -> bool:
        """Whether the last checkpoint is of `progress`."""
        return bool(self._saved == _place(progress))

    def finish(self, state: ProgramState, progress: SavedProgress) -> None:
        """The state and the policy at the end of the run, or of this part of it."""
        self._write.trouble = None  # what failed before may work now
        self._write(lambda: self._directory.append([]))
        updates, unfinished = _place(progress)
        rows = self._directory.num_rows + (unfinished is not None)
        whole = int(state.train.update) == updates == rows  # an impatient user may have come between
        if whole and not self.hold(progress):
            self._write(lambda: self._checkpoint(state, progress))
        self._save_policy("final_actor")
        self._write(lambda: self._agents.save_value_net(self._path / "models" / "final_critic"))

    def finish_best(self, state: ProgramState, progress: SavedProgress, best: bool) -> None:
        """At the end: the policy as it is now may be the best, and is if there was none before."""
        if best or progress.counters.best_score is None:
            self._keep_best(state, progress)
        if best and self.hold(progress):  # a run that goes on must know how good it was
            self._write(lambda: self._save(checkpoint.step_name(progress.counters.steps), state, progress))

    def raise_trouble(self) -> None:
        """If something could not be written to the end: save the policy elsewhere, and raise."""
        if self._write.trouble is None:
            return
        known = checkpoint.steps(self._path)
        last = f"The last checkpoint there is of step {known[-1]:,}." if known else "There is no checkpoint."
        elsewhere = Path(tempfile.mkdtemp(prefix="proximo-")) / "agent.safetensors"
        try:
            self._agents.save(elsewhere)
            last += f" What was trained is in {elsewhere}."
        except OSError as error:
            last += f" What was trained could not be saved as {elsewhere} either: {error.strerror}."
        raise TrainingError(f"{self._write.trouble} {last}")

    def due_by_clock(self) -> bool:
        seconds = self._schedule.config.checkpoint.every_seconds
        return seconds is not None and time.monotonic() - self._saved_at >= max(seconds, self._pause)

    def _checkpoint(self, state: ProgramState, progress: SavedProgress) -> None:
        started, steps = time.monotonic(), progress.counters.steps
        self._directory.append([])  # a checkpoint counts on the rows before it
        self._directory.sync()
        self._save(checkpoint.step_name(steps), state, progress)
        self._saved, self._saved_steps, self._saved_at = _place(progress), steps, time.monotonic()
        self._pause = (self._saved_at - started) / LARGEST_SHARE
        checkpoint.prune(self._path, self._schedule.config.checkpoint.keep)
        self.written.append(checkpoint.newest(self._path))

    def _keep_best(self, state: ProgramState, progress: SavedProgress) -> None:
        self._save_policy("best_return_pi_ckpt")
        self._write(lambda: self._save(checkpoint.BEST, state, progress))

    def _save(self, name: str, state: ProgramState, progress: SavedProgress) -> None:
        config = self._schedule.config
        envs = all_envs(self._program.envs(state), config.train.shards)
        whole = whole_state(state, config.train.shards)
        checkpoint.save(self._path, name, config, whole, envs, progress, self._agents, self._by_id)

    def _save_policy(self, name: str) -> None:
        self._write(lambda: self._agents.save_policy_net(self._path / "models" / name))


def _place(progress: SavedProgress) -> tuple[int, dict[str, Any] | None]:
    """What tells a place of a run from all others."""
    return progress.counters.updates, progress.counters.unfinished
