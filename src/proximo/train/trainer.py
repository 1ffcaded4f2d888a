"""PPOTrainer: the one loop."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proximo import envs
from proximo.compile import prepare_backend
from proximo.config import Config
from proximo.display.console import Console, make_console
from proximo.envs.grouping import with_groups
from proximo.errors import UserError
from proximo.hints import TRAINER_METHODS, HintsAtNames
from proximo.multi_agent.team_agent import TeamAgent, as_agents
from proximo.policy.agent import PPOAgent
from proximo.policy.agents import Agents
from proximo.policy.custom_networks import own_parts
from proximo.ppo.recipe import make_recipe
from proximo.presets import find_preset, without_preset
from proximo.rollout.summary import as_rewards
from proximo.rollout.video import check_drawable
from proximo.run_dir.directory import RUNS, default_directory
from proximo.run_dir.files import shown
from proximo.settings import build
from proximo.shards import need_devices
from proximo.train.active_run import ActiveRun
from proximo.train.callbacks import Callbacks
from proximo.train.evaluations import Evaluations
from proximo.train.experience import told
from proximo.train.finish import finish_run
from proximo.train.program import Given, settled
from proximo.train.progress import Progress
from proximo.train.setup import (
    HELD,
    Start,
    check_built_in,
    check_optimizer,
    check_read,
    check_spaces,
    extended,
    find_resumable,
    fit_agent,
    fresh_agents,
    given_by,
    is_complete,
    make_program,
    once_more,
    resolve,
    schedule_note,
    with_own,
    with_start,
    without_start,
)
from proximo.train.start import (
    START_FILE,
    SavedPolicy,
    check_digest,
    complete,
    load_start,
    start_agents,
    start_of,
)
from proximo.train.trust import check_trust

CHANGED = "Keywords change them, `proximo settings` lists them, proximo.tune searches for better ones."

RESTART = "--restart-schedules (`restart_schedules=True`)"
RESTART_LATER = "PPOTrainer.resume(run, steps=..., restart_schedules=True)"


class PPOTrainer(HintsAtNames):
    """Trains a policy with PPO, and leaves a run directory behind.

        trainer = PPOTrainer(env="CartPole-v1", target_reward=475.0)
        results = trainer.train()
        trainer.evaluate(num_episodes=100)
        trainer.agent.act(observation)

    `env` is an id, an environment of Gymnasium, gymnax, Jumanji or Brax, a factory of Gymnasium environments, or a
    `JaxEnv`; `env_kwargs={...}` is what it is made with, `env_wrappers=[...]` what is put around it. Any setting is a
    keyword by its own name (`gamma=0.9`) or with its section (`eval_episodes=20`). Settings are taken, later ones over
    earlier ones, from the defaults, the environment's preset (unless `preset=False`, or the name of another one:
    `preset="documents"`), `config` (a path, a mapping or a `Config`), and the keywords. `start_from` is a saved policy
    that training starts from: a run, a checkpoint, a policy file or an agent; `agent` is an agent that is itself
    trained, see docs/runs.md. `network` are networks of your own, see docs/networks.md, as is `distribution`; `loss`
    and `optimizer` are a function and a transformation of Optax, see docs/own-loss.md. `verbose` is how much
    is shown: 0 nothing, 1 progress, 2 a block of statistics after every update; by default progress in a terminal or a
    notebook, and elsewhere only what you should know.
    """

    _others = TRAINER_METHODS

    def __init__(
        self,
        env: Any = None,
        *,
        agent: PPOAgent | TeamAgent | None = None,
        start_from: str | Path | PPOAgent | TeamAgent | None = None,
        network: Any = None,
        distribution: Any = None,
        loss: Any = None,
        optimizer: Any = None,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        out: str | Path | None = None,
        preset: bool | str = True,
        verbose: bool | int | None = None,
        console: Console | None = None,
        **keywords: Any,
    ):
        prepare_backend()
        here = Path.cwd()  # an environment may change that
        by_id = env is None or isinstance(env, str)
        policy = start_of(start_from) if isinstance(start_from, PPOAgent | Agents) else None
        if start_from is not None and policy is None:
            keywords = keywords | {"start_from": start_from}
        given = resolve(env, config, preset, keywords, policy)
        self.config, remarks = given.config, given.remarks
        check_read(config, keywords, agent, network)
        if agent is not None and (policy is not None or self.config.train.start_from is not None):
            raise UserError("`agent` is what is trained, and starts from nothing else; hand in `start_from` alone.")
        self.recipe = make_recipe(loss, optimizer)
        self.config = with_own(self.config, {"loss": loss, "optimizer": optimizer})
        if agent is not None:
            self.config = dataclasses.replace(self.config, **{name: getattr(agent.config, name) for name in HELD})
        source = given.source if given.source is not None else envs.make_configured(self.config.env)
        source = with_groups(source, self.config.agents)
        for name, part in (("network", network), ("distribution", distribution)):
            if agent is not None and part is not None:
                raise UserError(f"The agent has its {name} already; hand in `agent` or `{name}`, not both.")
        self.config = settled(self.config, source.spec.groups)
        if given.unfit or (preset is True and config is None and agent is None and not find_preset(self.config.env.id)):
            remarks.append(without_preset(self.config, CHANGED, given.unfit))
        self.env = source
        fit_agent(agent, source.spec, self.config)
        own = own_parts(network, distribution)
        self.path = here / out if out is not None else default_directory(self.config, here / RUNS)
        self._start = Start(by_id, remarks)
        policy = self._recorded(policy)
        if agent is None:
            self._agents = fresh_agents(source.spec, self.config, own)
        else:
            remarks += complete(agent, self.config.seed)
            self._agents = as_agents(agent)
        check_spaces(self._agents, source.spec, self.config)
        if policy is not None:
            remarks += start_agents(self._agents, policy, source.spec.id, self.config)
        if optimizer is not None:
            check_optimizer(config, keywords, optimizer, self._agents)
        if self.config.track.video:
            check_drawable(source)
        self._make_program()
        if console is not None and verbose is not None:
            raise UserError("A console says for itself how much it shows; hand in `console` or `verbose`, not both.")
        self.console = console or make_console(verbose)
        self.tracked = True
        """Whether MLflow is fed from here, if it is to be; an experiment does that for all of its runs."""
        self.interrupted_by: int | None = None
        self._begun = False
        self._first_config = self.config

    def _recorded(self, policy: SavedPolicy | None) -> SavedPolicy | None:
        """What training starts from, if anything: `policy`, or what the settings name; which then say what it was."""
        train, place = self.config.train, self.path.absolute() / "models" / START_FILE
        if policy is not None:
            self._start.policy = policy
            train = dataclasses.replace(train, start_from=str(place))
        elif train.start_from is not None:
            policy = load_start(Path(train.start_from))
            check_digest(policy, train.start_digest)
        if policy is not None:
            train = dataclasses.replace(train, start_digest=policy.digest)
            self.config = dataclasses.replace(self.config, train=train)
        return policy

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
        restart_schedules: bool = False,
        tracking_uri: str | None = None,
        network: Any = None,
        distribution: Any = None,
        loss: Any = None,
        optimizer: Any = None,
        verbose: bool | int | None = None,
        console: Console | None = None,
        trust: bool = False,
    ) -> PPOTrainer:
        """A trainer that goes on where a run stopped, however it did; `train` does so, `agent` is the policy there.

        `steps` trains that many more steps from there, also after the goal or the end was reached; schedules then run
        towards the new end, or with `restart_schedules` begin again and end there. `env` is needed
        where the run's environment was handed in as an object; so are `network`, `distribution`, `loss` and
        `optimizer`. `tracking_uri` is another MLflow than the run's, or that one with user and password, which no file
        holds. `verbose` is as for a new trainer. `trust` imports Python modules that the settings of a run name which
        was not made here.
        """
        path = Path(run)
        saved, trouble = find_resumable(path, env is not None)
        need_devices(saved.config.train.shards)
        check_trust(path, [saved.config.env], trust, handed_in=env is not None)
        config = extended(saved.config, saved.progress.counters, steps, restart_schedules)
        if tracking_uri is not None:
            config = build({"track.tracking_uri": tracking_uri, "track.mlflow": True}, base=config)
        own = {"loss": loss, "optimizer": optimizer}
        check_built_in(saved, own)
        agents = saved.agents(own_parts(network, distribution))
        # What it started from is in the checkpoint; the settings go on to say where that came from.
        shown_by: dict[str, Any] = {"verbose": verbose, "console": console}
        trainer = cls(env, agent=agents.public, config=without_start(config), out=path, **shown_by, **own)
        trainer.config = trainer._first_config = with_start(trainer.config, config)
        trainer._start.checkpoint, trainer._start.more = saved, steps is not None
        trainer._start.restarts = restart_schedules
        for sentence in trouble:
            trainer.console.note(f"{sentence} The one before is used.")
        for sentence in schedule_note(saved.config, config, saved.progress.counters, RESTART):
            trainer.console.note(sentence)
        return trainer

    def train(self, callback: Any = None) -> dict[str, Any]:
        """Train to the goal or the end of the budget; returns what `result.json` holds.

        `callback(metrics)` is called for each episode, when the update in which it finished is made, with
        `trainer.agent` as it is then; False ends training. Objects with methods hear of more, see
        `proximo.train.callbacks`. Called again, it goes on in the same folder: to the end of a run that was cut short,
        else for as much training again.
        """
        callbacks = Callbacks(callback)
        if self._begun:
            self._train_again()
        self._begun = True
        with ActiveRun(self, self._agents, self._start, callbacks, finish_run) as run:
            run.start()  # fresh, or restored exactly, or seeded anew with a note
            while run.goes_on():
                before, size = run.state, run.chunk_size()
                run.progress.start_chunk()
                run.state, reports = self.program.run(before, size, run.stopping)
                if not reports:  # it was stopped within a rollout
                    break
                rows = run.progress.add(reports, self.program.seconds)  # counters, windows, stop rule
                if len(rows) < size:
                    run.state = run.cut(before, reports, rows)
                if run.record(rows):  # evaluation, callbacks, rows, checkpoints, console
                    run.tell_of_checkpoints()
            run.finish()  # checkpoint, models, final evaluation, result, plots
        return run.result

    def _train_again(self) -> None:
        """Begin where the last call of `train` ended."""
        saved, _ = find_resumable(self.path, True)
        done = Progress(saved.config, self.env.spec.groups, saved.progress)
        self._start.checkpoint, self._start.more = saved, is_complete(self.path, done)
        if self._start.more:
            self.config = once_more(saved.config, self._first_config, done.counters)
            self.console.note(f"{shown(self.path)} was complete; it is trained on for as long again.")
            for sentence in schedule_note(saved.config, self.config, done.counters, RESTART_LATER):
                self.console.note(sentence)
        self._make_program()

    def _make_program(self) -> None:
        self.program = make_program(self.env, self._agents, self.config, self.recipe)
        self.evaluations = Evaluations(self.env, self._agents, self.program.behaviour, self.config)

    def evaluate(self, num_episodes: int = 100, deterministic: bool | None = None) -> dict[str, float]:
        """Play `num_episodes` episodes with the current policy: with its most likely actions, or with drawn ones where
        `deterministic` is false; by default as `eval.actions` scores, which are the most likely ones."""
        with contextlib.closing(self.evaluations):  # not the environments of training: a callback may ask for this
            summary = self.evaluations.play(num_episodes, deterministic=deterministic)
        for notice in self.evaluations.notices:
            self.console.note(notice)
        self.evaluations.notices.clear()
        return as_rewards(summary)

    def collect(self) -> dict[str, Any]:
        """What one rollout of the current policy holds, from environments that are reset for it: arrays [T, L, ...] (T
        steps, L lanes) named observations, actions, rewards, next_observations, dones, log_probs, values, and
        terminated, truncated, valid, advantages, returns. With many agents, a dictionary of these by group.

        Nothing is learned from it, and training is not touched. Where an episode terminated, its next observation is
        not needed by anyone, and may be any.
        """
        alone = dataclasses.replace(self.config, train=dataclasses.replace(self.config.train, shards=1))
        with contextlib.closing(make_program(self.env, self._agents, alone, self.recipe)) as program:
            state = program.init(self._given())
            return told(state, program.collect(state), program.behaviour, alone)

    def close(self) -> None:
        """End the environments' processes. `train` and `evaluate` do so when they are done."""
        self.program.close()
        self.evaluations.close()

    def __enter__(self) -> PPOTrainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _given(self) -> Given:
        """What training begins with."""
        return given_by(self._agents)
