"""Training on host environments: collect outside, learn in one compiled call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from proximo.compile import cached, compiled, jit, key_of, settings_key, shapes
from proximo.config import Config
from proximo.envs.api import HostEnv, HostSource, with_info
from proximo.multi_agent.prepare import prepare
from proximo.policy.behaviour import Behaviour
from proximo.ppo.nonfinite import broken
from proximo.ppo.recipe import BUILT_IN, Recipe
from proximo.ppo.static_config import DynamicConfig, merge, split_static
from proximo.ppo.types import TrainState
from proximo.ppo.update import initial_lanes
from proximo.rollout.host import HostRollout, HostRunner, make_experience
from proximo.rollout.host_actor import pack
from proximo.rollout.types import Experience, RunnerState
from proximo.seeding import shared_with_evaluation
from proximo.train.program import (
    Fill,
    Given,
    ProgramState,
    UpdateReport,
    first_train_state,
    fresh,
    learn,
    rollout_noise,
    settled,
    unstacked,
)
from proximo.types import PyTree

GRACE_SECONDS = 2.0
"""How long a rollout may still take after Ctrl-C."""


class HostProgram:
    """Collect and update by turns over host environments; with the interface of `CompiledProgram`.

    The environments cannot go back, so a call makes one update.
    """

    max_chunk = 1

    def __init__(self, source: HostSource, behaviour: Behaviour, config: Config, recipe: Recipe = BUILT_IN):
        self.source = with_info(source, config.track.info)
        self.behaviour = behaviour
        self.config = config = settled(config, behaviour.policies.groups)
        self.recipe = recipe
        self.notices = shared_with_evaluation(config.env.num_envs, config.eval.episodes)
        self.seconds: dict[str, float] = {}
        self._env: HostEnv | None = None
        self._learn: Any = None
        self._standing: ProgramState | None = None  # the state that belongs to where the environments stand
        self._last: HostRollout | None = None
        self._shape, self._numbers = split_static(config)
        self._key = key_of(settings_key(self._shape), behaviour.key, recipe.key)
        num_envs, steps = config.env.num_envs, config.ppo.rollout_length
        begin = lambda train: (pack(behaviour.choose(train)), rollout_noise(train, behaviour, num_envs, steps))  # noqa: E731
        self._prepare = cached(
            key_of("before a rollout", behaviour.key, num_envs, steps), lambda: jit(begin, small=True)
        )

    def init(self, given: Given) -> ProgramState:
        """Start the environments; the state before the first update."""
        told = (given, np.int32(self.config.seed), self._numbers)
        train = compiled(key_of("start", self._key, shapes(told)), self._initial, *told)(*told)
        self._standing = self._begun(train, self._start(train, self.config.seed))
        return self._standing

    def resume(self, fill: Fill, envs: list[bytes] | None, seed: int) -> tuple[ProgramState, bool]:
        """The state that was saved, with the environments put back; or, where they cannot be, all starting anew."""
        train = jax.eval_shape(self._initial, fresh(self.behaviour), np.int32(0), self._numbers)
        first = self._start(train, self.config.seed)
        state = fill(self._begun(train, first))
        assert self._env is not None
        exact = envs is not None and self._env.set_states(envs)
        if not exact:
            state = self._begun(state.train, self._runner.start(seed))
        self._take_notices()
        self._standing = state
        return state, exact

    def envs(self, state: ProgramState) -> list[bytes] | None:
        if state is not self._standing or self._env is None:
            return None
        states = [one for one in self._env.get_states() if one is not None]
        return states if len(states) == self._env.num_envs else None

    def collect(self, state: ProgramState) -> Experience:
        packed, noise = self._acting(state)
        self._runner.warm_up(packed, noise, state.runner)
        self._standing = None
        self._runner.run(packed, state.runner, noise, bool)
        played = self._runner.rollout(state.runner)
        count = jit(partial(make_experience, success_return=self.config.track.success_return))
        experience: Experience = jax.tree.map(np.array, count(state.runner, played)[1])
        return experience

    def diagnose(self, state: ProgramState) -> list[str]:
        assert self._last is not None

        def again(state: ProgramState, played: HostRollout) -> Any:
            prepared = prepare(make_experience(state.runner, played, None)[1], self.behaviour)
            return broken(state.train, state.lanes, *prepared, self.behaviour.policies, self.config, self.recipe)

        return [name for name, bad in jit(again)(state, self._last).items() if bad]

    def compile(self, state: ProgramState) -> None:
        """Compile now, unless that was done before, so that the first rollout starts at once."""
        example = self._runner.warm_up(*self._acting(state), state.runner)
        if self._learn is None:
            given = (state, example, self._numbers)
            learn = partial(learn_from, behaviour=self.behaviour, shape=self._shape, recipe=self.recipe)
            self._learn = compiled(key_of("learn", self._key, shapes(given)), learn, *given)

    def run(
        self, state: ProgramState, num_updates: int, stop: Callable[[], bool] = bool
    ) -> tuple[ProgramState, list[UpdateReport]]:
        """One update, and its report; none of either if `stop` became true during collection."""
        if self._learn is None:
            self.compile(state)
        self._standing = None
        packed, noise = self._acting(state)
        done = self._runner.run(packed, state.runner, noise, Patience(stop))
        self._take_notices()
        if done < self.config.ppo.rollout_length:
            return state, []
        self._last = self._runner.rollout(state.runner)
        began = time.perf_counter()
        self._standing, report = self._learn(state, self._last, self._numbers)
        on_host = unstacked(jax.tree.map(np.asarray, report))
        self.seconds = {
            "environment": self._runner.env_seconds,
            "policy": self._runner.policy_seconds,
            "learning": time.perf_counter() - began,
        }
        assert self._standing is not None
        return self._standing, [on_host]

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _acting(self, state: ProgramState) -> tuple[list[jax.Array], PyTree]:
        """What the behaviour chooses for a rollout, packed, and what its actions are drawn from."""
        packed, noise = self._prepare(state.train)
        return packed, noise

    def _initial(self, given: Given, seed: jax.Array, numbers: DynamicConfig) -> TrainState:
        return first_train_state(given, self.behaviour, merge(self._shape, numbers, seed), self.recipe)

    def _begun(self, train: TrainState, standing: RunnerState) -> ProgramState:
        return ProgramState(train, initial_lanes(self.behaviour.policies, self.config.env.num_envs), standing)

    def _start(self, train: TrainState, seed: int) -> RunnerState:
        self.close()
        config = self.config
        self._env = self.source.open_envs(config.env.num_envs, config.env)
        chosen = jax.eval_shape(self.behaviour.choose, train)
        steps = config.ppo.rollout_length
        self._runner = HostRunner(self._env, self.behaviour, steps, chosen, config.env.frame_stack)
        standing = self._runner.start(seed)
        self._take_notices()
        return standing

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
    state: ProgramState,
    played: HostRollout,
    numbers: DynamicConfig,
    behaviour: Behaviour,
    shape: Config,
    recipe: Recipe,
) -> tuple[ProgramState, UpdateReport]:
    """Count the episodes of a rollout, and learn from it."""
    config = merge(shape, numbers)
    standing, experience = make_experience(state.runner, played, config.track.success_return)
    return learn(replace(state, runner=standing), experience, behaviour, config, recipe)
