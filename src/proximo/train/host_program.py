"""Training on host environments: collect outside, learn in one compiled call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from proximo.compile import cached, compiled, jit, key_of, settings_key, shapes
from proximo.config import Config
from proximo.envs.api import HostEnv, HostSource, with_info
from proximo.errors import UserError
from proximo.multi_agent.prepare import prepare
from proximo.packing import pack
from proximo.policy.behaviour import Behaviour
from proximo.ppo.nonfinite import broken
from proximo.ppo.recipe import BUILT_IN, Recipe
from proximo.ppo.static_config import DynamicConfig, merge, split_static
from proximo.ppo.types import LearnerLanes, TrainState
from proximo.ppo.update import initial_lanes
from proximo.rollout.host import HostRollout, HostRunner, make_experience
from proximo.rollout.types import Experience, RunnerState
from proximo.seeding import shard_key, shared_with_evaluation
from proximo.shards import DIVIDED, DIVIDED_LATER, SAME, local, own_shards, placed, spread
from proximo.train.peers import told_by_all
from proximo.train.program import (
    Fill,
    Given,
    ProgramState,
    UpdateReport,
    first_train_state,
    fresh,
    in_shards,
    learn,
    placed_state,
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
        self._shards = num = config.train.shards
        self._own = range(1) if num == 1 else own_shards(num)  # the shards whose environments are stepped here
        if num > 1 and behaviour.sides is not None:
            raise UserError(
                f"train.shards={num} does not go with agents.selfplay on {source.spec.id}: environments that are not "
                f"written in JAX play against earlier policies with one shard alone."
            )
        num_envs, steps = config.envs_per_shard, config.ppo.rollout_length
        begin = partial(before_rollout, behaviour=behaviour, num_envs=num_envs, steps=steps, own=self._own, shards=num)
        self._prepare = cached(
            key_of("before a rollout", behaviour.key, num_envs, steps, self._own, num), lambda: jit(begin, small=True)
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
        state = placed_state(fill(ProgramState(train, *self._parts(first))), self._shards)
        assert self._env is not None
        exact = envs is not None and self._env.set_states(self._own_part(envs))
        if self._shards > 1:
            exact = bool(told_by_all([exact], self._shards).all())
        if not exact:
            state = self._begun(local(state.train), self._reset(seed))
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

        def again(state: ProgramState, played: HostRollout) -> tuple[ProgramState, Any]:
            prepared = prepare(make_experience(state.runner, played, None)[1], self.behaviour)
            given = (state.train, state.lanes, *prepared, self.behaviour.policies, self.config, self.recipe)
            return state, broken(*given)

        found = jit(in_shards(again, self._shards, lane_specs(self._last)))(state, self._last)[1]
        return [name for name, bad in found.items() if bad]

    def compile(self, state: ProgramState) -> None:
        """Compile now, unless that was done before, so that the first rollout starts at once."""
        example = self._spread(self._runner.warm_up(*self._acting(state), local(state.runner)))
        if self._learn is None:
            given = (state, example, self._numbers)
            plain = partial(learn_from, behaviour=self.behaviour, shape=self._shape, recipe=self.recipe)
            learn = in_shards(plain, self._shards, lane_specs(example), SAME)
            self._learn = compiled(key_of("learn", self._key, shapes(given)), learn, *given)

    def run(
        self, state: ProgramState, num_updates: int, stop: Callable[[], bool] = bool
    ) -> tuple[ProgramState, list[UpdateReport]]:
        """One update, and its report; none of either if `stop` became true during collection."""
        if self._learn is None:
            self.compile(state)
        self._standing = None
        packed, noise = self._acting(state)
        start = local(state.runner)
        done = self._runner.run(packed, start, noise, Patience(stop))
        self._take_notices()
        if done < self.config.ppo.rollout_length:
            return state, []
        began = time.perf_counter()
        self._last = self._spread(self._runner.rollout(start))
        self._standing, report = self._learn(state, self._last, self._numbers)
        on_host = unstacked(jax.tree.map(np.asarray, local(report)))
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
        packed, noise = self._prepare(local(state.train))
        return packed, noise

    def _initial(self, given: Given, seed: jax.Array, numbers: DynamicConfig) -> TrainState:
        return first_train_state(given, self.behaviour, merge(self._shape, numbers, seed), self.recipe)

    def _begun(self, train: TrainState, standing: RunnerState) -> ProgramState:
        return ProgramState(placed(train, self._shards), *self._parts(standing))

    def _parts(self, standing: RunnerState) -> tuple[dict[str, LearnerLanes], RunnerState]:
        """Of a state, what is divided: with what learners carry before the first rollout."""
        lanes = initial_lanes(self.behaviour.policies, len(self._own) * self.config.envs_per_shard)
        own = jax.tree.map(lambda _: DIVIDED, (lanes, standing))
        parts: tuple[dict[str, LearnerLanes], RunnerState] = spread((lanes, standing), self._shards, own)
        return parts

    def _spread(self, played: HostRollout) -> HostRollout:
        """A rollout of the environments here as part of the one of all shards."""
        rollout: HostRollout = spread(played, self._shards, lane_specs(played))
        return rollout

    def _start(self, train: TrainState, seed: int) -> RunnerState:
        self.close()
        config = self.config
        env, per_shard = config.env, config.envs_per_shard
        if self._shards > 1:
            env = replace(env, groups=len(self._own) * shard_groups(per_shard, env.groups))
        self._env = self.source.open_envs(len(self._own) * per_shard, env)
        check_parts(self._env, per_shard)
        chosen = jax.eval_shape(self.behaviour.choose, train)
        steps = config.ppo.rollout_length
        self._runner = HostRunner(self._env, self.behaviour, steps, chosen, config.env.frame_stack)
        standing = self._reset(seed)
        self._take_notices()
        return standing

    def _own_part(self, envs: list[bytes]) -> list[bytes]:
        """Of the states of all environments, those that are stepped here."""
        per_shard = self.config.envs_per_shard
        return envs[self._own.start * per_shard : self._own.stop * per_shard]

    def _reset(self, seed: int) -> RunnerState:
        """All environments reset, with the seeds that their numbers among all environments give them."""
        return self._runner.start(seed + self._own.start * self.config.envs_per_shard)

    def _take_notices(self) -> None:
        assert self._env is not None
        self.notices += self._env.notices
        self._env.notices.clear()


def before_rollout(
    train: TrainState, behaviour: Behaviour, num_envs: int, steps: int, own: range, shards: int
) -> tuple[list[jax.Array], PyTree]:
    """What the behaviour chooses for a rollout, packed, and what the actions are drawn from in the environments of the
    `own` shards, `num_envs` of each."""
    chosen = pack(behaviour.choose(train))
    if shards == 1:
        return chosen, rollout_noise(train, behaviour, num_envs, steps)
    keys = [replace(train.keys, action=shard_key(train.keys.action, number)) for number in own]
    noise = [rollout_noise(replace(train, keys=each), behaviour, num_envs, steps) for each in keys]
    return chosen, jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *noise)


def shard_groups(num_envs: int, most: int) -> int:
    """Groups in which the environments of a shard are stepped: equal ones, so that they are the same ones whatever
    else a process steps. The last bits of a policy's answers depend on how many it is asked for at once."""
    return next(number for number in range(min(most, num_envs), 0, -1) if num_envs % number == 0)


def check_parts(env: HostEnv, per_shard: int) -> None:
    """Refuse environments that are stepped in parts which do not belong to one shard."""
    for envs in (envs for part in env.parts for envs in part):
        if envs.start // per_shard != (envs.stop - 1) // per_shard:
            raise UserError(
                f"{env.spec.id} steps the environments {envs.start} to {envs.stop - 1} together, and they belong to "
                f"several shards (train.shards) of {per_shard}; use train.shards=1."
            )


BEFORE_TIME = ("last_obs", "carry", "acts", "last")
"""Fields of a rollout that have no axis of time."""


def lane_specs(played: HostRollout) -> PyTree:
    """How a rollout is divided over shards: by environments and lanes."""

    def spec(path: tuple[Any, ...], _: Any) -> Any:
        names = [getattr(key, "name", None) for key in path]
        timeless = names[0] == "action_mask" or any(name in BEFORE_TIME for name in names)
        return DIVIDED if timeless else DIVIDED_LATER

    return jax.tree_util.tree_map_with_path(spec, played)


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
