"""PPOTrainer: the one loop."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from proximo import envs
from proximo.config import Config
from proximo.display.console import Console, Display, Messages
from proximo.envs.grouping import with_groups
from proximo.errors import EnvError, TrainingError, UserError
from proximo.multi_agent.matches import make_matches
from proximo.multi_agent.team_agent import TeamAgent, as_agents
from proximo.policy.agent import PPOAgent
from proximo.policy.behaviour import Learners, actors
from proximo.policy.custom_networks import own_parts
from proximo.ppo.nonfinite import what_broke
from proximo.ppo.recipe import make_recipe
from proximo.presets import find_preset, without_preset
from proximo.rollout.evaluate import Evaluator, make_evaluator
from proximo.rollout.summary import as_rewards
from proximo.rollout.video import check_drawable
from proximo.run_dir.directory import RUNS, RunDirectory, default_directory, versions
from proximo.run_dir.files import shown
from proximo.seeding import resumed_seed
from proximo.settings import build
from proximo.tracking.process import NoTracker, make_tracker
from proximo.train.callbacks import Callbacks
from proximo.train.checkpoint import Checkpoint
from proximo.train.experience import told
from proximo.train.history import History, Record
from proximo.train.illustrate import illustrate
from proximo.train.interrupt import Interrupt
from proximo.train.keeper import Keeper
from proximo.train.program import Given, ProgramState, UpdateReport, settled
from proximo.train.setup import (
    HELD,
    check_built_in,
    check_optimizer,
    check_read,
    check_spaces,
    extended,
    find_resumable,
    fit_agent,
    fresh_agents,
    is_complete,
    make_program,
    once_more,
    resolve,
    with_own,
)

RESEEDED = " The environments cannot be put back where they stood, so new episodes begin, from another seed."
CHANGED = "Keywords change them, `proximo settings` lists them, run_multiple_experiments compares."
CHUNK_SECONDS = 0.25
SIGNAL_SECONDS = 0.2
"""What ends all processes of a run may reach those of an environment first, and the trainer so much later."""


class PPOTrainer:
    """Trains a policy with PPO, and leaves a run directory behind.

        trainer = PPOTrainer(env="CartPole-v1", target_reward=475.0)
        results = trainer.train()
        trainer.evaluate(num_episodes=100)
        trainer.agent.act(observation)

    `env` is an id, an environment of Gymnasium, gymnax, Jumanji or Brax, a factory of Gymnasium environments, or a
    `JaxEnv`. Any setting is a keyword by its own name (`gamma=0.9`) or with its section (`eval_episodes=20`). Settings
    are taken, later ones over earlier ones, from the defaults, the environment's preset (unless `preset=False`, or the
    name of another one: `preset="documents"`), `config` (a path, a mapping or a `Config`), and the keywords. `network`
    are networks of your own, see docs/networks.md, as is `distribution`; `loss` and `optimizer` are a function and a
    transformation of Optax, see docs/own-loss.md. `verbose` prints the whole block of statistics after every update.
    """

    def __init__(
        self,
        env: Any = None,
        *,
        agent: PPOAgent | TeamAgent | None = None,
        network: Any = None,
        distribution: Any = None,
        loss: Any = None,
        optimizer: Any = None,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        out: str | Path | None = None,
        preset: bool | str = True,
        verbose: bool = False,
        console: Console | None = None,
        **keywords: Any,
    ):
        here = Path.cwd()  # an environment may change that
        self._by_id = env is None or isinstance(env, str)
        given = env if self._by_id else envs.make(env)
        self.config, self._remarks = resolve(given, config, preset, keywords)
        check_read(config, keywords, agent, network)
        self.recipe = make_recipe(loss, optimizer)
        self.config = with_own(self.config, {"loss": loss, "optimizer": optimizer})
        if agent is not None:
            self.config = dataclasses.replace(self.config, **{name: getattr(agent.config, name) for name in HELD})
        source = envs.make(self.config.env.id) if given is None or isinstance(given, str) else given
        source = with_groups(source, self.config.agents)
        for name, part in (("network", network), ("distribution", distribution)):
            if agent is not None and part is not None:
                raise UserError(f"The agent has its {name} already; hand in `agent` or `{name}`, not both.")
        self.config = settled(self.config, source.spec.groups)
        if preset is True and config is None and agent is None and not find_preset(self.config.env.id):
            self._remarks.append(without_preset(self.config, CHANGED))
        self.env = source
        fit_agent(agent, source.spec, self.config)
        own = own_parts(network, distribution)
        self._agents = fresh_agents(source.spec, self.config, own) if agent is None else as_agents(agent)
        check_spaces(self._agents, source.spec, self.config)
        if optimizer is not None:
            check_optimizer(config, keywords, optimizer, self._agents)
        if self.config.track.video:
            check_drawable(source)
        self.program, self._behaviour = make_program(source, self._agents, self.config, self.recipe)
        self.path = here / out if out is not None else default_directory(self.config, here / RUNS)
        if console is not None and verbose:
            raise UserError("A console says for itself how much it shows; hand in `console` or `verbose`, not both.")
        self.console = console or (Display(verbose=True) if verbose else Messages())
        self.tracked = True
        """Whether MLflow is fed from here, if it is to be; an experiment does that for all of its runs."""
        self.interrupted_by: int | None = None
        self._evaluators: dict[int, Evaluator] = {}
        self._matches = make_matches(source, self._behaviour, self.config)
        self._start: Checkpoint | None = None
        self._more = self._begun = False
        self._first_config = self.config

    @property
    def agent(self) -> Any:
        """What is trained: a `PPOAgent`; of many agents, a `TeamAgent`."""
        return self._agents.public

    @classmethod
    def resume(
        cls,
        run: str | Path,
        env: Any = None,
        *,
        steps: int | None = None,
        tracking_uri: str | None = None,
        network: Any = None,
        distribution: Any = None,
        loss: Any = None,
        optimizer: Any = None,
        console: Console | None = None,
    ) -> PPOTrainer:
        """A trainer that goes on where a run stopped, however it did; `train` does so, `agent` is the policy there.

        `steps` trains that many more steps from there, also after the goal or the end was reached. `env` is needed
        where the run's environment was handed in as an object; so are `network`, `distribution`, `loss` and
        `optimizer`. `tracking_uri` is another MLflow than the run's, or that one with user and password, which no file
        holds.
        """
        path = Path(run)
        saved, trouble = find_resumable(path, env is not None)
        config = saved.config if steps is None else extended(saved.config, saved.history, steps)
        if tracking_uri is not None:
            config = build({"track.tracking_uri": tracking_uri, "track.mlflow": True}, base=config)
        own = {"loss": loss, "optimizer": optimizer}
        check_built_in(saved, own)
        agents = saved.agents(own_parts(network, distribution))
        trainer = cls(env, agent=agents.public, config=config, out=path, console=console, **own)
        trainer._start, trainer._more = saved, steps is not None
        for sentence in trouble:
            trainer.console.note(f"{sentence} The one before is used.")
        return trainer

    def train(self, callback: Any = None) -> dict[str, Any]:
        """Train to the goal or the end of the budget; returns what `result.json` holds.

        `callback(metrics)` is called for each episode, when the update in which it finished is made, with
        `trainer.agent` as it is then; False ends training. Objects with methods hear of more, see
        `proximo.train.callbacks`. Called again, it goes on in the same folder: to the end of a run that was cut short,
        else for as much training again.
        """
        self._callbacks = callbacks = Callbacks(callback)
        if self._begun:
            self._go_on()
        self._begun = True
        self._last: tuple[Record, np.ndarray] | None = None  # the update that ended the run, and its episodes
        history = History(self.config, self.env.spec.groups)
        store = self._open(history)
        tracker = make_tracker(self.config, self.path, self.console.warn) if self.tracked else NoTracker()
        self._failure = ""
        self.console.start(self.config, self.path)
        with contextlib.closing(store), contextlib.closing(tracker), Interrupt() as interrupt, self.console, self:
            stopped = lambda: interrupt.signal is not None  # noqa: E731
            keeper = Keeper(store, self.program, self._agents, self._by_id, self.console.note, interrupt.save_asked)
            state = self._first_state(history)
            self._adopt(state)
            keeper.begin(state, history)
            tracker.start()
            if history.stop_reason is None and not stopped():
                self.program.compile(state)
            self._tell(self.program.notices)
            self._tell(self.env.spec.groups.in_words())
            history.start_training()
            try:
                callbacks.call("on_start", self)
                self._tell_of_checkpoints(keeper)
                if history.unfinished:
                    self._judge(keeper, state, [history.unfinished], history, stopped)
                while history.stop_reason is None and not stopped():
                    if callbacks.ended:
                        history.stop_reason = "callback"
                        break
                    single = callbacks.see_updates or self.console.each_update
                    before, size = state, 1 if single else self._chunk_size(history, keeper)
                    history.start_chunk()
                    state, reports = self.program.run(before, size, stopped)
                    self._tell(self.program.notices)
                    if not reports:
                        break
                    records = history.add_chunk(reports, self.program.seconds)
                    self._tell(history.notices)
                    if len(records) < size:
                        state = self._cut(before, reports, records, history)
                    self._adopt(state)
                    if self._judge(keeper, state, records, history, stopped):
                        self._tell_of_updates(records, history)
                    self._tell_of_checkpoints(keeper)
            except EnvError as error:
                time.sleep(SIGNAL_SECONDS)
                name = shown(self.path)
                kept = f"What was trained before is in {shown(self.path / 'models')}; `proximo resume {name}` goes on."
                if not stopped():
                    history.stop_reason = "failed"
                    raise EnvError(f"{error.sentence} {kept}", error.trace) from None
                self.console.note(f"While the run was being stopped: {error.sentence}")
            except Exception:
                history.stop_reason = "failed"
                raise
            finally:
                self.interrupted_by = interrupt.signal
                self._adopt(state)
                tracker.hurry()
                result = self._finish(keeper, state, history, interrupt)
                self.interrupted_by = interrupt.signal
        keeper.complain()  # before anything says that all is saved
        self.console.finish(result, self.path)
        if self._failure:
            raise TrainingError(f"{self._failure} The policy before that update is in {shown(self.path / 'models')}.")
        return result

    def _go_on(self) -> None:
        """Begin where the last call of `train` ended."""
        self._start, _ = find_resumable(self.path, True)
        history = History(self._start.config, self.env.spec.groups)
        history.load(self._start.history, self._start.arrays)
        self._more = is_complete(self.path, history)
        if self._more:
            self.config = once_more(self._start.config, self._first_config, self._start.history)
            self.console.note(f"{shown(self.path)} was complete; it is trained on for as long again.")
        self.program, self._behaviour = make_program(self.env, self._agents, self.config, self.recipe)
        self._evaluators, self._matches = {}, make_matches(self.env, self._behaviour, self.config)

    def _open(self, history: History) -> RunDirectory:
        """Take the folder of the run; where it goes on, `history` does so too."""
        if self._start is None:
            self._tell(self._remarks)
            return RunDirectory(self.path)
        history.load(self._start.history, self._start.arrays)
        if self._more:
            history.go_on()
        elif is_complete(self.path, history):
            raise UserError(
                f"{shown(self.path)} is complete ({history.stop_reason}) after {history.steps:,} steps; "
                f"--steps N trains on."
            )
        return RunDirectory.reopen(self.path, history.updates - (history.unfinished is not None))

    def evaluate(self, num_episodes: int = 100) -> dict[str, float]:
        """Play `num_episodes` deterministic episodes with the current policy."""
        with self:
            summary = self._evaluation(num_episodes)
        return as_rewards(summary)

    def collect(self) -> dict[str, Any]:
        """What one rollout of the current policy holds, from environments that are reset for it: arrays [T, L, ...] (T
        steps, L lanes) named observations, actions, rewards, next_observations, dones, log_probs, values, and
        terminated, truncated, valid, advantages, returns. With many agents, a dictionary of these by group.

        Nothing is learned from it, and training is not touched. Where an episode terminated, its next observation is
        not needed by anyone, and may be any.
        """
        program, behaviour = make_program(self.env, self._agents, self.config, self.recipe)
        with contextlib.closing(program):
            state = program.init(self._given())
            return told(state, program.collect(state), behaviour, self.config)

    def close(self) -> None:
        """End the environments' processes. `train` and `evaluate` do so when they are done."""
        self.program.close()
        for evaluator in self._evaluators.values():
            evaluator.close()
        if self._matches is not None:
            self._matches.close()

    def __enter__(self) -> PPOTrainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, notices: list[str]) -> None:
        for notice in notices:
            self.console.note(notice)
        notices.clear()

    def _adopt(self, state: ProgramState) -> None:
        self._agents.adopt(state.train.groups)

    def _given(self) -> Given:
        """What training begins with."""
        agents = self._agents
        return agents.part("params"), agents.part("obs_stats"), agents.part("reward_stats")

    def _first_state(self, history: History) -> ProgramState:
        """Where this part of the run begins: at the very start, or where the one before stopped."""
        if self._start is None:
            return self.program.init(self._given())
        seed = resumed_seed(self.config.seed, len(history.resumed) + 1)
        state, exact = self.program.resume(self._start.fill, self._start.envs, seed)
        self._start = None
        history.resumed.append({"step": history.steps, "exact": exact})
        self.console.note(f"Resumed after {history.steps:,} steps.{'' if exact else RESEEDED}")
        return state

    def _chunk_size(self, history: History, keeper: Keeper) -> int:
        """Updates in the next call: about a quarter of a second, and never past what is due or the end."""
        size = max(1, self.config.num_updates - history.updates)  # filler steps may leave some to do
        wanted = max(1, math.floor(CHUNK_SECONDS / history.seconds_per_update)) if history.seconds_per_update else 1
        return min(size, wanted, keeper.updates_until_due(history), self.program.max_chunk)

    def _cut(
        self, before: ProgramState, reports: list[UpdateReport], records: list[Record], history: History
    ) -> ProgramState:
        """The state after the last of `records`, in a chunk that was to be longer."""
        # Replay: the same program, stopped at the very update that ended the run.
        state = self.program.run(before, len(records))[0] if records else before
        if history.stop_reason == "failed":  # what comes after a goal that was reached is of no concern
            seen = what_broke(reports[len(records)].metrics)
            first = (self.program.diagnose(state) or ["something"])[0]
            number = int(state.train.update) + 1
            self._failure = f"In update {number:,} the {first} is not finite ({seen}), so training stopped."
        return state

    def _evaluation_due(self, history: History) -> bool:
        frequency = self.config.eval.frequency
        scheduled = history.stop_reason is None and bool(frequency) and history.updates % frequency == 0
        return scheduled or history.claimed

    def _judge(
        self, keeper: Keeper, state: ProgramState, records: list[Record], history: History, stop: Callable[[], bool]
    ) -> bool:
        """Evaluate if that is due, write the rows, keep what is to be kept. False if the evaluation was stopped: then
        the last row waits for it, in the checkpoint."""
        evaluated, unwritten = None, records
        if self._evaluation_due(history):
            keeper.append(records[:-1])
            history.unfinished = last = records[-1]
            summary = self._full_evaluation(state, stop)
            if not summary:
                return False
            last |= {f"eval/{name}": value for name, value in summary.items()}
            evaluated = score(summary)
            self._callbacks.call("on_evaluation", summary)
            last |= history.add_evaluation(summary)
            history.unfinished = None
            self._tell(history.notices)
            unwritten = [last]
        keeper.append(unwritten)
        keeper.after_updates(state, history, keeper.judge(history, evaluated))
        self.console.show(records)
        return True

    def _full_evaluation(self, state: ProgramState, stop: Callable[[], bool]) -> dict[str, Any]:
        """The summary of an evaluation, with self-play also of games against earlier policies; empty if stopped."""
        summary = self._evaluation(self.config.eval.episodes, stop)
        if not summary or self._matches is None:
            return summary
        won = self._matches(state.train, stop)
        self._tell(self._matches.notices)
        return summary | won if won else {}

    def _evaluation(self, episodes: int, stop: Callable[[], bool] = bool) -> dict[str, Any]:
        """The summary of an evaluation; empty if it was stopped."""
        if episodes < 1:
            raise UserError(f"An evaluation takes at least 1 episode, not {episodes}.")
        if episodes not in self._evaluators:
            self._evaluators[episodes] = make_evaluator(
                self.env,
                Learners(self._agents.policies),
                episodes,
                self.config.env,
                self.config.seed,
                self.config.track.success_return,
                max_steps=self.config.eval.max_steps,
            )
        evaluator = self._evaluators[episodes]
        played = evaluator(actors(self._agents.groups), stop)
        for notice in evaluator.notices:
            self.console.note(f"In an evaluation: {notice}")
        evaluator.notices.clear()
        return played.summary() if played else {}

    def _tell_of_updates(self, records: list[Record], history: History) -> None:
        """Tell callbacks of updates; of the one that ends the run later, with the final evaluation."""
        told = list(zip(records, history.finished, strict=True))
        if told and history.stop_reason is not None:
            self._last = told.pop()
        for record, finished in told:
            self._callbacks.updated(record, finished)

    def _tell_of_checkpoints(self, keeper: Keeper) -> None:
        while keeper.written:
            self._callbacks.call("on_checkpoint", keeper.written.pop(0))

    def _final_evaluation(self, state: ProgramState, stop: Callable[[], bool]) -> dict[str, Any] | None:
        try:
            return self._full_evaluation(state, stop) or None
        except EnvError as error:
            self.console.note(f"There is no final evaluation: {error}")
            return None

    def _finish(self, keeper: Keeper, state: ProgramState, history: History, interrupt: Interrupt) -> dict[str, Any]:
        """Checkpoint, models, final evaluation, summary and pictures. A run that was cut short is not evaluated."""
        reason = history.stop_reason or "interrupted"
        if history.unfinished and reason != "failed":  # its evaluation was stopped, and may decide how the run ends
            reason = "interrupted"
        try:
            keeper.finish(state, history)
        except EnvError as error:  # they cannot say where they stand: the checkpoint does without
            self.console.note(f"At the end of the run: {error.sentence}")
            self.program.close()
            keeper.finish(state, history)
        stopped = lambda: interrupt.signal is not None  # noqa: E731
        complete = reason not in ("interrupted", "failed")
        known = history.final_eval if complete else None  # the one that ended the run
        played = known or (self._final_evaluation(state, stopped) if complete else None)
        if complete and played is None and stopped():  # a resume makes up for it
            reason, complete = "interrupted", False
        judged = keeper.judge(history, score(played or {}), last=True)
        keeper.keep_if_best(state, history, judged if complete else None)
        result = {
            "env": self.config.env.id,
            "seed": self.config.seed,
            "algorithm": "PPO",
            **history.summary(played),
            "stop_reason": reason,
            "final_eval": played,
            "versions": versions(),
        }
        if not interrupt.impatient:
            self._tell(illustrate(self.path, self.config, result, self.env, self._agents, stopped))
        # The last that is written: whoever finds it finds the whole run, and without it a resume makes up for the rest.
        keeper.write(lambda: keeper.store.finish(result))
        # All is saved: now they may fail.
        if self._last is not None:
            record, finished = self._last
            self._callbacks.updated(
                record | {f"eval/{name}": value for name, value in (played or {}).items()}, finished
            )
        self._tell_of_checkpoints(keeper)
        if played and not known:
            self._callbacks.call("on_evaluation", played)
        self._callbacks.call("on_end", result)
        return result


def score(evaluated: Mapping[str, Any]) -> float | None:
    """What chooses the best policy: the mean return of an evaluation, with self-play the share of games won, since
    what one side wins the other loses."""
    return evaluated.get("win_rate", evaluated.get("return_mean"))
