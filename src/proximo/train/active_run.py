"""A run while it is trained: the only place that knows of its folder, signals, trackers, console and callbacks."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp

from proximo.config import Config
from proximo.display.console import Console
from proximo.envs.api import HostSource, JaxEnv
from proximo.errors import EnvError, TrainingError, UserError
from proximo.policy.agents import Agents
from proximo.ppo.nonfinite import what_broke
from proximo.ppo.types import TrainState
from proximo.run_dir.directory import RunDirectory
from proximo.run_dir.files import shown
from proximo.seeding import resumed_seed
from proximo.shards import local, placed
from proximo.tracking.process import NoTracker, is_wanted, make_tracker
from proximo.train.callbacks import Callbacks
from proximo.train.checkpointing import Checkpoints, Writer
from proximo.train.counters import Row
from proximo.train.evaluations import Evaluations, is_whole, score
from proximo.train.hints import Hints, constant_in
from proximo.train.interrupt import Interrupt
from proximo.train.peers import check_alike, several, told_by_all
from proximo.train.program import Program, ProgramState, UpdateReport
from proximo.train.progress import Progress
from proximo.train.schedule import Schedule
from proximo.train.setup import Start, given_by, is_complete

RESEEDED = " The environments cannot be restored to where they were, so new episodes begin, with new seeds."
CHUNK_SECONDS = 0.25
COMPARE_UPDATES = 100
"""After so many, several processes see whether they still hold the same parameters."""
SIGNAL_SECONDS = 0.2
"""What ends all processes of a run may reach those of an environment first, and the trainer so much later."""


@runtime_checkable
class Trainer(Protocol):
    """What a run is made of; leaving it as a context ends the environments' processes."""

    config: Config
    path: Path
    console: Console
    env: JaxEnv | HostSource
    program: Program
    evaluations: Evaluations
    tracked: bool
    interrupted_by: int | None

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: object) -> None: ...


class Agreed(NamedTuple):
    """What several processes have agreed on before an update."""

    signal: int
    """That ends the run; 0: none."""
    save: bool
    """Somebody asked for a checkpoint."""
    chunk: int
    """Updates in the next call."""
    due: bool
    """It is time for a checkpoint."""


class ActiveRun:
    """A context: it takes the run's folder, listens to signals, and starts what shows and tracks the run. What fails in
    it once training has begun becomes the run's result, with everything saved, and is raised again."""

    state: ProgramState
    directory: RunDirectory
    interrupt: Interrupt
    checkpoints: Checkpoints
    _stack: contextlib.ExitStack

    def __init__(
        self,
        trainer: Trainer,
        agents: Agents,
        start: Start,
        callbacks: Callbacks,
        finish: Callable[[ActiveRun], Row],
    ):
        self.trainer = trainer
        self.config, self.path, self.console = trainer.config, trainer.path, trainer.console
        self.agents = agents
        self.callbacks = callbacks
        self.schedule = Schedule(self.config)
        self.result: Row = {}
        self.last: tuple[Row, list[Row]] | None = None
        """The update that ended the run, and its episodes: callbacks hear of it after the final evaluation."""
        self.failure = ""
        """Why training cannot go on, if an update was not finite."""
        self.training = False
        """Whether what fails now is a failure of the run: from the first update on, to its end."""
        saved = None if start.checkpoint is None else start.checkpoint.progress
        self.progress = Progress(self.config, trainer.env.spec.groups, saved)
        self.hints = Hints(self.config, trainer.env.spec)
        self._start, self._finish = start, finish
        self.several = several()
        self.agreed = Agreed(0, False, 1, False)
        self._compared = -1
        if self.several and self.config.train.max_seconds is not None:
            raise UserError("train.max_seconds does not go with several processes: their clocks differ.")

    def __enter__(self) -> ActiveRun:
        trainer = self.trainer
        with contextlib.ExitStack() as stack:
            self.directory = stack.enter_context(contextlib.closing(self._take_directory()))
            self.console.start(self.config, self.path)
            stack.enter_context(self.console)
            tracker = make_tracker(self.config, self.path, self.console.warn) if trainer.tracked else NoTracker()
            self.tracker = stack.enter_context(contextlib.closing(tracker))
            self.interrupt = stack.enter_context(Interrupt())
            stack.enter_context(trainer)
            stack.push(self._end_by)
            self.write = Writer(self.directory, self.console.note)
            kept = (trainer.program, self.agents, self._start.by_id, self.write)
            self.checkpoints = Checkpoints(self.directory, self.schedule, *kept)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if not self._stack.__exit__(kind, error, trace) and error is not None:
            return False
        self.checkpoints.raise_trouble()  # before anything says that all is saved
        self.console.finish(self.result, self.path)
        if self.failure:
            kept = f"The policy before that update is in {shown(self.path / 'models')}"
            raise TrainingError(f"{self.failure} {kept}; docs/troubleshooting.md says what helps.")
        return True

    def start(self) -> None:
        """Begin at the very start, or exactly where the part before stopped, or there with environments that were
        seeded anew, which a note says."""
        trainer, program = self.trainer, self.trainer.program
        self.console.phase("starting the environments")
        self.state = self._first_state()
        self.agents.adopt(local(self.state.train.groups))
        self.checkpoints.begin(self.state, self.progress.saved())
        if (policy := self._start.policy) is not None:
            self.write(lambda: policy.save(Path(str(self.config.train.start_from))))
            self._start.policy = None
        self.tracker.start()
        if self.progress.stop_reason is None and not self.stopping():
            self.console.phase("compiling the training program")
            program.compile(self.state)
            self.console.phase("making the first update")
        self.tell(program.notices)
        self.tell(trainer.env.spec.groups.in_words())
        self.progress.start_training()
        self.training = True
        self.callbacks.call("on_start", trainer)
        self.tell_of_checkpoints()
        if self.progress.counters.unfinished is not None:
            self.record([self.progress.counters.unfinished])

    def stopping(self) -> bool:
        """Whether a signal has asked for the end; with several processes, once all know."""
        return (self.agreed.signal if self.several else self.interrupt.signal or 0) > 0

    def goes_on(self) -> bool:
        """Whether another update is to be made."""
        if self.several:
            self._agree()
        if self.progress.stop_reason is not None or self.stopping():
            return False
        if self.callbacks.ended:
            self.progress.stop_reason = "callback"
        return not self.callbacks.ended

    def chunk_size(self) -> int:
        """Updates in the next call: about a quarter of a second, and never past what is due or the end."""
        return self.agreed.chunk if self.several else self._chunk_size()

    def _chunk_size(self) -> int:
        if self.callbacks.one_by_one or self.console.each_update:
            return 1
        took = self.progress.seconds_per_update
        wanted = max(1, math.floor(CHUNK_SECONDS / took)) if took else 1
        return min(wanted, self.schedule.updates_until_event(self.progress.counters), self.trainer.program.max_chunk)

    def _agree(self) -> None:
        """What all processes do next: they stop if one was told to, and the first one's clock is everybody's."""
        asked, due = self.interrupt.save_asked(), self.checkpoints.due_by_clock()
        own = Agreed(self.interrupt.signal or 0, asked, self._chunk_size(), due)
        said = told_by_all(own, self.config.train.shards)
        self.agreed = Agreed(int(said[:, 0].max()), bool(said[:, 1].any()), int(said[0, 2]), bool(said[0, 3]))

    def cut(self, before: ProgramState, reports: list[UpdateReport], rows: list[Row]) -> ProgramState:
        """The state after the last of `rows`, in a chunk that was to be longer."""
        program = self.trainer.program
        # Replay: the same program, stopped at the very update that ended the run.
        state = program.run(before, len(rows))[0] if rows else before
        if self.progress.stop_reason == "failed":  # what comes after a goal that was reached is of no concern
            self.failure = why_it_failed(program, state, reports[len(rows)])
        return state

    def record(self, rows: list[Row]) -> bool:
        """Evaluate if that is due, tell callbacks, write the rows, keep what is to be kept. False if the evaluation was
        stopped: then the last row waits for it, in the checkpoint."""
        progress, played = self.progress, {}
        self.tell(self.trainer.program.notices)
        self.tell(progress.notices)
        self.agents.adopt(local(self.state.train.groups))
        if self.several and progress.counters.updates // COMPARE_UPDATES > self._compared:
            check_alike(self.state.train, self.config.train.shards)
            self._compared = progress.counters.updates // COMPARE_UPDATES
        self.tell(self.hints.look(rows, lambda: constant_in(self.agents)))
        due = progress.stop_reason is None and self.schedule.evaluation_due(progress.counters.updates)
        if due or progress.claimed:
            self.append(rows[:-1])
            played = self._evaluate(rows)
            if not played:
                return False
        self._tell_callbacks(rows, written=len(rows) - 1 if played else 0)
        best = progress.note_score(self.score(played))
        self.checkpoints.keep_policies(self.state, progress.saved(), best)
        asked = self.agreed.save if self.several else self.interrupt.save_asked()
        by_clock = self.agreed.due if self.several else self.checkpoints.due_by_clock()
        self.checkpoints.keep_state(self.state, progress.saved(), asked or by_clock)
        if asked and self.checkpoints.hold(progress.saved()):
            self.console.note(f"A checkpoint was written after {progress.counters.steps:,} steps, as asked.")
        self.console.show(rows)
        return True

    def _evaluate(self, rows: list[Row]) -> Row:
        """Evaluate the policy as it is now, and add that to the last of `rows`; empty if it was stopped."""
        progress = self.progress
        progress.await_evaluation(rows[-1])
        played = self.evaluate("evaluating")
        if not is_whole(played):
            return {}
        evaluated = {f"eval/{name}": value for name, value in played.items()}
        self.callbacks.call("on_evaluation", played)
        rows[-1] = rows[-1] | evaluated | progress.add_evaluation(played)
        self.tell(progress.notices)
        return played

    def evaluate(self, what: str) -> Row:
        """The summary of an evaluation of the policy as it is now, which is called `what`; see `Evaluations` for one
        that was stopped."""
        evaluations = self.trainer.evaluations

        def stop() -> bool:
            self.console.phase(what, evaluations.played)
            return self.stopping()

        played = evaluations(local(self.state.train), stop)
        self.tell(evaluations.notices)
        return played

    def score(self, played: Row, last: bool = False) -> float | None:
        """How well the policy does, if it is to be judged now, as it is when the `last` update is made. By its
        evaluation; in a run without evaluations by the last training returns, once there are enough of them."""
        if self.config.eval.frequency:
            return score(played)
        due = last or self.schedule.score_due(self.progress.counters.updates)
        return self.progress.recent_score if due else None

    def append(self, rows: list[Row]) -> None:
        self.write(lambda: self.directory.append(rows))

    def tell(self, notices: list[str]) -> None:
        """Show what the user should know, and take it away."""
        for notice in notices:
            self.console.note(notice)
        notices.clear()

    def _tell_callbacks(self, rows: list[Row], written: int) -> None:
        """Tell callbacks of updates, and write the rows that are not `written`, with what they return; of the one that
        ends the run they hear later, with the final evaluation."""
        hear, progress = self.callbacks.hear_of_episodes, self.progress
        # Of a row that has waited for its evaluation since before a resume, the episodes are no longer known.
        told = [
            (row, progress.told_episodes(finished) if hear else [])
            for row, finished in zip(rows, progress.finished, strict=False)
        ]
        last = told.pop()[1] if told and progress.stop_reason is not None else None
        try:
            self.callbacks.updated(told)
        finally:  # they may fail: the updates are made
            returned = self.callbacks.take_returned()
            rows[-1:] = [row | returned for row in rows[-1:]]
            self.append(rows[written:])
            self.last = None if last is None else (rows[-1], last)

    def tell_of_the_last(self, played: Row | None, evaluated: bool) -> None:
        """Tell callbacks of the update that ended the run, and of its evaluation, if they have not heard of it; what
        they return is added to its row."""
        row: Row | None = None
        try:
            if self.last is not None:
                row, episodes = self.last
                final = {f"eval/{name}": value for name, value in (played or {}).items()}
                self.callbacks.updated([(row | final, episodes)])
            self.tell_of_checkpoints()
            if evaluated:
                self.callbacks.call("on_evaluation", played)
        finally:
            returned = self.callbacks.take_returned()
            if row is not None and returned:
                more = row | returned
                self.write(lambda: self.directory.amend(more))

    def tell_of_checkpoints(self) -> None:
        while self.checkpoints.written:
            self.callbacks.call("on_checkpoint", self.checkpoints.written.pop(0))

    def finish(self) -> None:
        """Checkpoint, models, final evaluation, result and plots."""
        trainer, self.training = self.trainer, False
        trainer.interrupted_by = self.agreed.signal or self.interrupt.signal
        self.tell(trainer.program.notices)
        self.agents.adopt(local(self.state.train.groups))
        self.tracker.hurry()
        self.result = self._finish(self)
        if self.trainer.tracked and is_wanted(self.config):
            self.console.phase("sending the rest to MLflow")
        trainer.interrupted_by = self.agreed.signal or self.interrupt.signal

    def _end_by(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        """Save everything if training has failed; whether that is only what the end of a run does to environments."""
        if error is None or not self.training or self.several:  # alone nothing can be saved of what all have
            return False
        if isinstance(error, EnvError):
            time.sleep(SIGNAL_SECONDS)
            if self.stopping():
                self.console.note(f"While the run was being stopped: {error.sentence}")
                self.finish()
                return True
        if isinstance(error, Exception):
            self.progress.stop_reason = "failed"
        self.finish()
        if isinstance(error, EnvError):
            models, name = shown(self.path / "models"), shown(self.path)
            kept = f"What was trained before is in {models}; `proximo resume {name}` goes on."
            raise EnvError(f"{error.sentence} {kept}", error.trace) from None
        return False

    def _take_directory(self) -> RunDirectory:
        """Take the folder of the run: a new one, or, where the run goes on, its own."""
        start, progress = self._start, self.progress
        if start.checkpoint is None:
            self.tell(start.remarks)
            return RunDirectory(self.path)
        if start.more:
            progress.train_on()
        elif is_complete(self.path, progress):
            raise UserError(
                f"{shown(self.path)} is complete ({progress.stop_reason}) after {progress.counters.steps:,} steps; "
                f"--steps N trains on."
            )
        counted = progress.counters
        return RunDirectory.reopen(self.path, counted.updates - (counted.unfinished is not None))

    def _first_state(self) -> ProgramState:
        program, progress, saved = self.trainer.program, self.progress, self._start.checkpoint
        if saved is None:
            return program.init(given_by(self.agents))
        seed = resumed_seed(self.config.seed, len(progress.counters.resumed) + 1)
        state, exact = program.resume(saved.fill, saved.envs, seed)
        if self._start.restarts:
            train = restarted(local(state.train), self.config.ppo.learning_rate)
            state = replace(state, train=placed(train, self.config.train.shards))
        self._start.checkpoint, self._start.restarts = None, False
        progress.note_resume(exact)
        self.console.note(f"Resumed after {progress.counters.steps:,} steps.{'' if exact else RESEEDED}")
        return state


def restarted(train: TrainState, learning_rate: float) -> TrainState:
    """With the learning rate that an adaptive schedule begins with; others follow the steps."""
    rate = jnp.float32(learning_rate)
    return replace(train, groups={name: replace(own, learning_rate=rate) for name, own in train.groups.items()})


def why_it_failed(program: Program, state: ProgramState, report: UpdateReport) -> str:
    """What was not finite in the update after `state`."""
    first = (program.diagnose(state) or ["something"])[0]
    number = int(state.train.update) + 1
    return f"In update {number:,} the {first} is not finite ({what_broke(report.metrics)}), so training stopped."
