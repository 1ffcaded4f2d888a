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
from proximo.train.history import History, Record
from proximo.train.program import Program, ProgramState

LARGEST_SHARE = 0.01
"""Of the time of a run that checkpoints may take which are made by the clock."""
JUDGED = 20
"""How often the policy is judged by its training returns, where there are no evaluations."""


class Keeper:
    """Writes what is due after each update.

    Everything but the checkpoints by the clock is due at update numbers that the settings and the numbers of the run
    decide, so that a run which was stopped and resumed keeps the same policies as one that was not.
    """

    def __init__(
        self,
        store: RunDirectory,
        program: Program,
        agents: Agents,
        by_id: bool,
        note: Callable[[str], None],
        asked: Callable[[], bool] = bool,
    ):
        self.store = store
        self.program = program
        self.agents = agents
        self._by_id = by_id
        self.written: list[Path] = []
        """Checkpoints; whoever tells of them takes them away."""
        self._note = note
        self._asked = asked  # whether somebody wants a checkpoint now
        self._said: set[str] = set()
        self._trouble: str | None = None  # what could not be written first
        self._saved_step = 0
        self._saved: Any = None  # which state that was
        self._saved_at = time.monotonic()
        self._pause = 0.0

    def updates_until_due(self, history: History) -> int:
        """Updates to make before something is due; a chunk may be as long."""
        config, updates = history.config, history.updates
        every = config.eval.frequency or _judged_every(history)
        waits = [every - updates % every]
        waits += [at - updates for at in policy_updates(history) if at > updates]
        if config.checkpoint.every_steps is not None:
            left = config.checkpoint.every_steps - history.steps % config.checkpoint.every_steps
            waits.append(-(-left // config.frames_per_batch))
        return max(1, min(waits))

    def append(self, records: list[Record]) -> None:
        self.write(lambda: self.store.append(records))

    def begin(self, state: ProgramState, history: History) -> None:
        """The first checkpoint of this process: from here on, whatever happens, there is something to resume."""
        try:
            checkpoint.set_aside(self.store.path, history.steps)
            self._checkpoint(state, history)
            self.store.begin(history.config)
        except OSError as error:
            raise UserError(f"Cannot write the run to {shown(self.store.path)}: {error.strerror or error}.") from None

    def after_updates(self, state: ProgramState, history: History, score: float | None) -> None:
        """Keep what is due now. `score` is how well the policy does, where it was judged after these updates."""
        if history.is_best(score):
            self._keep_best(state, history)
        for number, update in enumerate(policy_updates(history), 1):
            if update == history.updates:
                self._save_policy(f"pi_ckpt{number}")
        asked = self._asked()
        if asked or self._checkpoint_due(history):
            self.write(lambda: self._checkpoint(state, history))
        if asked and self._saved == (history.updates, history.unfinished):
            self._note(f"A checkpoint was written after {history.steps:,} steps, as SIGUSR1 asked.")

    def judge(self, history: History, evaluated: float | None, last: bool = False) -> float | None:
        """How well the policy does, if it is to be judged now, as it is when the `last` update is made. By the mean
        return of its evaluation; without evaluations by the last training returns, once there are enough of them."""
        if history.config.eval.frequency:
            return evaluated
        due = last or history.updates % _judged_every(history) == 0
        return history.recent_score if due else None

    def finish(self, state: ProgramState, history: History) -> None:
        """The policy and the state at the end of the run, or of this part of it."""
        self._trouble = None  # what failed before may work now
        self.append([])
        rows = self.store.num_rows + (history.unfinished is not None)
        whole = int(state.train.update) == history.updates == rows  # an impatient user may have come between
        if whole and self._saved != (history.updates, history.unfinished):
            self.write(lambda: self._checkpoint(state, history))
        self._save_policy("final_actor")
        self.write(lambda: self.agents.save_value_net(self.store.path / "models" / "final_critic"))

    def keep_if_best(self, state: ProgramState, history: History, score: float | None) -> None:
        """At the end: the policy as it is now may be the best, and is if there was none before.

        A run that was cut short has no score: it is judged when it goes on, at the updates at which any run is.
        """
        if history.is_best(score):
            self._keep_best(state, history)
            if self._saved == (history.updates, history.unfinished):  # a run that goes on must know how good it was
                self.write(lambda: self._save(checkpoint.step_name(history.steps), state, history))
        elif history.best_score is None:
            self._keep_best(state, history)

    def complain(self) -> None:
        """If something could not be written to the end: save the policy elsewhere, and raise."""
        if self._trouble is None:
            return
        known = checkpoint.steps(self.store.path)
        last = f"The last checkpoint there is of step {known[-1]:,}." if known else "There is no checkpoint."
        elsewhere = Path(tempfile.mkdtemp(prefix="proximo-")) / "agent.safetensors"
        try:
            self.agents.save(elsewhere)
            last += f" What was trained is in {elsewhere}."
        except OSError as error:
            last += f" What was trained could not be saved as {elsewhere} either: {error.strerror}."
        raise TrainingError(f"{self._trouble} {last}")

    def _checkpoint_due(self, history: History) -> bool:
        steps, seconds = history.config.checkpoint.every_steps, history.config.checkpoint.every_seconds
        if steps is not None and history.steps // steps > self._saved_step // steps:
            return True
        return seconds is not None and time.monotonic() - self._saved_at >= max(seconds, self._pause)

    def _checkpoint(self, state: ProgramState, history: History) -> None:
        started = time.monotonic()
        self.store.append([])  # a checkpoint counts on the rows before it
        self.store.sync()
        name = checkpoint.step_name(history.steps)
        self._save(name, state, history)
        self._saved, self._saved_step = (history.updates, history.unfinished), history.steps
        self._saved_at = time.monotonic()
        self._pause = (self._saved_at - started) / LARGEST_SHARE
        checkpoint.prune(self.store.path, history.config.checkpoint.keep)
        self.written.append(checkpoint.newest(self.store.path))

    def _keep_best(self, state: ProgramState, history: History) -> None:
        self._save_policy("best_return_pi_ckpt")
        self.write(lambda: self._save(checkpoint.BEST, state, history))

    def _save(self, name: str, state: ProgramState, history: History) -> None:
        checkpoint.save(self.store.path, name, state, self.program.envs(state), history, self.agents, self._by_id)

    def _save_policy(self, name: str) -> None:
        self.write(lambda: self.agents.save_policy_net(self.store.path / "models" / name))

    def write(self, write: Callable[[], object]) -> None:
        """Write something. What fails is said once, and training goes on: the next time may be better."""
        try:
            self.store.check()
            write()
        except OSError as error:
            sentence = f"Cannot write to {shown(self.store.path)}: {error.strerror or error}."
            if sentence not in self._said:
                self._note(f"{sentence} Training goes on, and writing is tried again.")
            self._said.add(sentence)
            self._trouble = self._trouble or sentence


def policy_updates(history: History) -> list[int]:
    """The updates after which a policy is kept: evenly spaced over the run, the last one at its end."""
    number, total = history.config.checkpoint.num_checkpoints, history.config.num_updates
    return sorted({max(1, round(total * i / number)) for i in range(1, number + 1)})


def _judged_every(history: History) -> int:
    return max(1, history.config.num_updates // JUDGED)
