"""Training on host environments: collect outside, learn in one compiled call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from proximo.collect.compiled import CollectState
from proximo.collect.host import Collected, HostCollector, tally
from proximo.compiling import compiled, jit, key_of, settings_key, shapes
from proximo.config import Config
from proximo.envs.api import HostEnv, HostSource
from proximo.policy.team import AnyPolicy
from proximo.ppo.rollout import Rollout
from proximo.ppo.team import broken_all, initial_state
from proximo.ppo.traced import Numbers, joined, split
from proximo.ppo.update import TrainState
from proximo.seeding import shared_with_evaluation
from proximo.settings import settle
from proximo.spaces import has_continuous
from proximo.train.program import Fill, ProgramState, UpdateReport, learn, unstacked

Tree = Any
GRACE_SECONDS = 2.0
"""How long a rollout may still take after Ctrl-C."""


class HostProgram:
    """Collect and update by turns over lanes of a host environment; with the interface of `CompiledProgram`.

    The environments cannot go back, so a call makes one update.
    """

    max_chunk = 1

    def __init__(self, source: HostSource, policy: AnyPolicy, config: Config):
        self.source = source
        self.policy = policy
        self.config = config = settle(config, has_continuous(policy.action_space))
        self.notices = shared_with_evaluation(config.env.num_envs, config.eval.episodes)
        self.seconds: dict[str, float] = {}
        self._env: HostEnv | None = None
        self._learn: Any = None
        self._standing: ProgramState | None = None  # the state that belongs to where the environments stand
        self._last: Collected | None = None
        self._shape, self._numbers = split(config)
        self._key = key_of(settings_key(self._shape), policy.key)

    def init(self, params: Tree, obs_stats: Tree, reward_stats: Tree = None) -> ProgramState:
        """Start the environments; the state before the first update."""
        given = (params, obs_stats, np.int32(self.config.seed), self._numbers, reward_stats)
        train = compiled(key_of("start", self._key, shapes(given)), self._initial, *given)(*given)
        self._standing = ProgramState(train, self._start(self.config.seed))
        return self._standing

    def resume(self, fill: Fill, lanes: list[bytes] | None, seed: int) -> tuple[ProgramState, bool]:
        """The state that was saved, with the environments put back; or, where they cannot be, all starting anew."""
        params = jax.eval_shape(self.policy.init, jax.random.key(0))
        stats = self.policy.initial_stats()
        train = jax.eval_shape(self._initial, params, stats, np.int32(0), self._numbers)
        first = self._start(self.config.seed)
        state = fill(ProgramState(train, first))
        assert self._env is not None
        exact = lanes is not None and self._env.set_states(lanes)
        if not exact:
            state = replace(state, collect=self._collector.start(seed))
        self._take_notices()
        self._standing = state
        return state, exact

    def lanes(self, state: ProgramState) -> list[bytes] | None:
        if state is not self._standing or self._env is None:
            return None
        states = [one for one in self._env.get_states() if one is not None]
        return states if len(states) == self._env.num_lanes else None

    def collect(self, state: ProgramState) -> Rollout:
        self._collector.warm_up(state.train, state.collect)
        self._standing = None
        collected = self._collector.collect(state.train, state.collect, bool)
        assert collected is not None, "nobody stopped it"
        rollout: Rollout = jax.tree.map(np.array, collected.rollout)  # the collector uses its memory again
        return rollout

    def diagnose(self, state: ProgramState) -> list[str]:
        assert self._last is not None
        find = jit(partial(broken_all, policy=self.policy, config=self.config))
        return [name for name, bad in find(state.train, self._last.rollout, state.collect.discounted).items() if bad]

    def compile(self, state: ProgramState) -> None:
        """Compile now, unless that was done before, so that the first rollout starts at once."""
        example = self._collector.warm_up(state.train, state.collect)
        if self._learn is None:
            given = (state.train, state.collect, example, self._numbers)
            learn = partial(learn_from, policy=self.policy, shape=self._shape)
            self._learn = compiled(key_of("learn", self._key, shapes(given)), learn, *given)

    def run(
        self, state: ProgramState, num_updates: int, stop: Callable[[], bool] = bool
    ) -> tuple[ProgramState, list[UpdateReport]]:
        """One update, and its report; none of either if `stop` became true during collection."""
        if self._learn is None:
            self.compile(state)
        self._standing = None
        collected = self._last = self._collector.collect(state.train, state.collect, Patience(stop))
        self._take_notices()
        if collected is None:
            return state, []
        began = time.perf_counter()
        train, lanes, report = self._learn(state.train, state.collect, collected, self._numbers)
        self._standing = ProgramState(train, lanes)
        on_host = unstacked(jax.device_get(report))
        self.seconds = {
            "environment": self._collector.env_seconds,
            "policy": self._collector.policy_seconds,
            "learning": time.perf_counter() - began,
        }
        return self._standing, [on_host]

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _initial(
        self, params: Tree, obs_stats: Tree, seed: jax.Array, numbers: Numbers, reward_stats: Tree = None
    ) -> TrainState:
        return initial_state(self.policy, params, obs_stats, joined(self._shape, numbers, seed), reward_stats)

    def _start(self, seed: int) -> CollectState:
        self.close()
        self._env = self.source.lanes(self.config.env.num_envs, self.config.env)
        self._collector = HostCollector(self._env, self.policy, self.config)
        state = self._collector.start(seed)
        self._take_notices()
        return state

    def _take_notices(self) -> None:
        assert self._env is not None
        self.notices += self._env.notices
        self._env.notices.clear()


class Patience:
    """Becomes true some time after `stop` did: a rollout that is nearly done can be resumed from exactly, and half
    of one cannot."""

    def __init__(self, stop: Callable[[], bool]):
        self._stop = stop
        self._until: float | None = None

    def __call__(self) -> bool:
        if not self._stop():
            return False
        self._until = self._until or time.monotonic() + GRACE_SECONDS
        return time.monotonic() > self._until


def learn_from(
    train: TrainState,
    state: CollectState,
    collected: Collected,
    numbers: Numbers,
    policy: AnyPolicy,
    shape: Config,
) -> tuple[TrainState, CollectState, UpdateReport]:
    """Count the episodes of a rollout, and learn from it."""
    config = joined(shape, numbers)
    lanes, episodes = tally(state, collected, config.track.success_return)
    following, report = learn(ProgramState(train, lanes), collected.rollout, episodes, policy, config)
    return following.train, following.collect, report
