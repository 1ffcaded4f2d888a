"""Training on host environments: collect outside, learn in one compiled call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from proximo.collect.compiled import CollectState
from proximo.collect.host import Collected, HostCollector, tally
from proximo.compiling import jit
from proximo.config import Config
from proximo.envs.api import HostEnv, HostSource
from proximo.policy.normalize import RunningStats
from proximo.policy.policy import Policy
from proximo.ppo.update import TrainState, initial_train_state
from proximo.train.program import ProgramState, UpdateReport, learn

Tree = Any


class HostProgram:
    """Collect and update by turns over lanes of a host environment; with the interface of `CompiledProgram`.

    The environments cannot go back, so a call makes one update.
    """

    max_chunk = 1

    def __init__(self, source: HostSource, policy: Policy, config: Config):
        self.source = source
        self.policy = policy
        self.config = config
        self.notices: list[str] = []
        self._env: HostEnv | None = None
        self._learn: Any = None

    def init(self, params: Tree, obs_stats: RunningStats | None) -> ProgramState:
        """Start the environments; the state before the first update."""
        self.close()
        self._env = self.source.lanes(self.config.env.num_envs, self.config.env)
        self._collector = HostCollector(self._env, self.policy, self.config)
        train = jit(partial(initial_train_state, config=self.config))(params, obs_stats)
        state = ProgramState(train, self._collector.start(self.config.seed))
        self._take_notices()
        return state

    def compile(self, state: ProgramState) -> None:
        """Compile now, unless that was done before, so that the first rollout starts at once."""
        example = self._collector.warm_up(state.train, state.collect)
        if self._learn is None:
            learn = jit(partial(learn_from, policy=self.policy, config=self.config))
            self._learn = learn.lower(state.train, state.collect, example).compile()

    def run(
        self, state: ProgramState, num_updates: int, stop: Callable[[], bool] = bool
    ) -> tuple[ProgramState, list[UpdateReport]]:
        """One update, and its report; none of either if `stop` became true during collection."""
        if self._learn is None:
            self.compile(state)
        collected = self._collector.collect(state.train, state.collect, stop)
        self._take_notices()
        if collected is None:
            return state, []
        train, lanes, report = self._learn(state.train, state.collect, collected)
        return ProgramState(train, lanes), [jax.device_get(report)]

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _take_notices(self) -> None:
        assert self._env is not None
        self.notices += self._env.notices
        self._env.notices.clear()


def learn_from(
    train: TrainState, state: CollectState, collected: Collected, policy: Policy, config: Config
) -> tuple[TrainState, CollectState, UpdateReport]:
    """Count the episodes of a rollout, and learn from it."""
    lanes, episodes = tally(state, collected, config.track.success_return)
    following, report = learn(ProgramState(train, lanes), collected.rollout, episodes, policy, config)
    return following.train, following.collect, report
