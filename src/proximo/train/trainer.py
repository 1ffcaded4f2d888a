"""PPOTrainer: the one loop."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from proximo import envs, settings
from proximo.config import Config
from proximo.envs.compiled.lanes import Lanes
from proximo.errors import EnvError, TrainingError, UserError
from proximo.evaluate import Evaluator, make_evaluator
from proximo.policy.agent import PPOAgent
from proximo.presets import find_preset
from proximo.track.console import Console
from proximo.track.plots import plot_learning_curve
from proximo.track.store import RunStore, default_directory, versions
from proximo.train.callbacks import as_callables, for_callback
from proximo.train.history import History, Record
from proximo.train.host_program import HostProgram
from proximo.train.interrupt import Interrupt
from proximo.train.program import CompiledProgram, Program, ProgramState

CHUNK_SECONDS = 0.25


class PPOTrainer:
    """Trains a policy with PPO, and leaves a run directory behind.

        trainer = PPOTrainer(env="CartPole-v1", target_reward=475.0)
        results = trainer.train()
        trainer.evaluate(num_episodes=100)
        trainer.agent.act(observation)

    `env` is an id, an environment of Gymnasium or gymnax, a factory of Gymnasium environments, or a `JaxEnv`. Any
    setting is a keyword by its own name (`gamma=0.9`) or with its section (`eval_episodes=20`). Settings are taken,
    later ones over earlier ones, from the defaults, the environment's preset (unless `preset=False`), `config` (a
    path, a mapping or a `Config`), and the keywords.
    """

    def __init__(
        self,
        env: Any = None,
        *,
        agent: PPOAgent | None = None,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        out: str | Path | None = None,
        preset: bool = True,
        console: Console | None = None,
        **keywords: Any,
    ):
        given = env if env is None or isinstance(env, str) else envs.make(env)
        self.config = resolve(given, config, preset, keywords)
        source = envs.make(self.config.env.id) if given is None or isinstance(given, str) else given
        if agent is not None:
            self.config = dataclasses.replace(
                self.config, network=agent.config.network, normalize=agent.config.normalize
            )
        self.env = source
        self.agent = agent or PPOAgent(source.spec.observation_space, source.spec.action_space, self.config)
        check_spaces(self.agent, source.spec)
        self.program = make_program(source, self.agent, self.config)
        self.path = Path(out) if out is not None else default_directory(self.config)
        self.console = console or Console()
        self.interrupted_by: int | None = None
        self._evaluators: dict[int, Evaluator] = {}

    def train(self, callback: Any = None) -> dict[str, Any]:
        """Train to the goal or the end of the budget; returns what `result.json` holds.

        `callback(metrics)` is called after each update, with `trainer.agent` as it is then; False ends training.
        """
        callbacks = as_callables(callback)
        store = RunStore(self.path, self.config)
        self.console.start(self.config, self.path)
        with Interrupt() as interrupt, self.console, self:
            history = History(self.config)
            stopped = lambda: interrupt.signal is not None  # noqa: E731
            state = self.program.init(self.agent.params, self.agent.obs_stats)
            self.program.compile(state)
            self._tell()
            history.start_training()
            try:
                while history.stop_reason is None and not stopped():
                    before, size = state, 1 if callbacks else self._chunk_size(history)
                    history.start_chunk()
                    state, reports = self.program.run(before, size, stopped)
                    self._tell()
                    if not reports:
                        break
                    records = history.add_chunk(reports)
                    if len(records) < size:
                        # Replay: the same program, stopped at the very update that ended the run.
                        state = self.program.run(before, len(records))[0] if records else before
                    if self._evaluation_due(history):
                        records[-1] |= self._periodic_evaluation(state, stopped)
                    store.append(records)
                    self.console.show(records)
                    self._call(callbacks, state, records, history)
            except EnvError as error:
                history.stop_reason = "failed"
                kept = f"What was trained before is in {self.path / 'models'}."
                raise EnvError(f"{error.sentence} {kept}", error.trace) from None
            except Exception:
                history.stop_reason = "failed"
                raise
            finally:
                self.interrupted_by = interrupt.signal
                self._adopt(state)
                result = self._finish(store, history)
        self.console.finish(result, self.path)
        if history.failure:
            raise TrainingError(f"{history.failure} The policy before that update is in {self.path / 'models'}.")
        return result

    def evaluate(self, num_episodes: int = 100) -> dict[str, float]:
        """Play `num_episodes` deterministic episodes with the current policy."""
        with self:
            summary = self._evaluation(num_episodes)
        return {
            "avg_reward": summary["return_mean"],
            "std_reward": summary["return_std"],
            "min_reward": summary["return_min"],
            "max_reward": summary["return_max"],
            "avg_length": summary["length_mean"],
        }

    def close(self) -> None:
        """End the environments' processes. `train` and `evaluate` do so when they are done."""
        self.program.close()
        for evaluator in self._evaluators.values():
            evaluator.close()

    def __enter__(self) -> PPOTrainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self) -> None:
        for notice in self.program.notices:
            self.console.note(notice)
        self.program.notices.clear()

    def _adopt(self, state: ProgramState) -> None:
        self.agent.params, self.agent.obs_stats = state.train.params, state.train.obs_stats

    def _chunk_size(self, history: History) -> int:
        """Updates in the next call: about a quarter of a second, and never past an evaluation or the end."""
        size = max(1, self.config.num_updates - history.updates)  # filler steps may leave some to do
        if self.config.eval.frequency:
            size = min(size, self.config.eval.frequency - history.updates % self.config.eval.frequency)
        wanted = 1 if history.updates == 0 else max(1, math.floor(CHUNK_SECONDS / history.seconds_per_update))
        return min(size, wanted, self.program.max_chunk)

    def _evaluation_due(self, history: History) -> bool:
        frequency = self.config.eval.frequency
        return history.stop_reason is None and bool(frequency) and history.updates % frequency == 0

    def _call(self, callbacks: list[Any], state: ProgramState, records: list[Record], history: History) -> None:
        if callbacks:
            self._adopt(state)
        for record in records:
            wishes = [function(for_callback(record)) for function in callbacks]
            if any(wish is False for wish in wishes):
                history.stop_reason = history.stop_reason or "callback"

    def _periodic_evaluation(self, state: ProgramState, stop: Callable[[], bool]) -> Record:
        self._adopt(state)
        summary = self._evaluation(self.config.eval.episodes, stop)
        return {f"eval/{name}": value for name, value in summary.items()}

    def _evaluation(self, episodes: int, stop: Callable[[], bool] = bool) -> dict[str, Any]:
        """The summary of an evaluation; empty if it was stopped."""
        if episodes < 1:
            raise UserError(f"An evaluation takes at least 1 episode, not {episodes}.")
        if episodes not in self._evaluators:
            self._evaluators[episodes] = make_evaluator(
                self.env, self.agent.policy, episodes, self.config.env, self.config.seed
            )
        evaluator = self._evaluators[episodes]
        played = evaluator(self.agent.params, self.agent.obs_stats, stop)
        for notice in evaluator.notices:
            self.console.note(f"In an evaluation: {notice}")
        evaluator.notices.clear()
        return played.summary() if played else {}

    def _final_evaluation(self) -> dict[str, Any] | None:
        try:
            return self._evaluation(self.config.eval.episodes)
        except EnvError as error:
            self.console.note(f"There is no final evaluation: {error}")
            return None

    def _finish(self, store: RunStore, history: History) -> dict[str, Any]:
        """Models, final evaluation, summary and picture. A run that was cut short is not evaluated."""
        self.agent.save_policy_net(self.path / "models" / "final_actor")
        self.agent.save_value_net(self.path / "models" / "final_critic")
        reason = history.stop_reason or "interrupted"
        complete = reason not in ("interrupted", "failed")
        result = {
            "env": self.config.env.id,
            "seed": self.config.seed,
            "algorithm": "PPO",
            **history.summary(),
            "stop_reason": reason,
            "final_eval": self._final_evaluation() if complete else None,
            "versions": versions(),
        }
        store.finish(result)
        plot_learning_curve(self.path)
        return result


def make_program(source: envs.JaxEnv | envs.HostSource, agent: PPOAgent, config: Config) -> Program:
    """The training program for an environment of either kind."""
    if isinstance(source, envs.HostSource):
        return HostProgram(source, agent.policy, config)
    lanes = Lanes(source, config.env.num_envs, config.env.max_steps_per_episode)
    return CompiledProgram(lanes, agent.policy, config)


def resolve(
    env: str | envs.JaxEnv | envs.HostSource | None, config: Any, preset: bool, keywords: Mapping[str, Any]
) -> Config:
    """The configuration of a run from everything a user may give."""
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
    tuned = find_preset(env_id) if preset and base is None else {}
    return settings.build(tuned, given, keyed, base=base)


def check_spaces(agent: PPOAgent, spec: envs.EnvSpec) -> None:
    """Refuse an agent that was made for another environment."""
    for name in ("observation_space", "action_space"):
        ours, theirs = getattr(agent.policy, name), getattr(spec, name)
        if ours != theirs:
            raise UserError(f"The agent's {name} is {ours}; {spec.id} has {theirs}.")
