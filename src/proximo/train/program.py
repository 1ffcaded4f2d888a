"""The compiled training program: any number of updates in one call, with the same bits however they are cut."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from proximo.compile import compiled, jit, key_of, settings_key, shapes
from proximo.config import Config
from proximo.envs.api import CompiledEnv, Groups
from proximo.multi_agent.prepare import prepare
from proximo.policy.behaviour import Behaviour, draw_noise
from proximo.policy.normalize import RunningStats
from proximo.ppo.loss import Metrics
from proximo.ppo.nonfinite import broken, is_finite
from proximo.ppo.recipe import BUILT_IN, Recipe
from proximo.ppo.static_config import DynamicConfig, merge, split_static
from proximo.ppo.types import LearnerLanes, TrainState
from proximo.ppo.update import initial_lanes, initial_train_state, update
from proximo.rollout.compiled import CompiledRunner, collect
from proximo.rollout.episodes import env_valid, lacks_info
from proximo.rollout.types import Episodes, Experience, RunnerState
from proximo.seeding import reset_key
from proximo.settings import settle
from proximo.shards import DIVIDED, SAME, divided, local, own_key, placed, side_by_side, sum_over_shards
from proximo.spaces import has_continuous
from proximo.types import AnyArray, PyTree, Struct

MAX_CHUNK = 64
MAX_CHUNK_EPISODES = 2**20


class ProgramState(Struct):
    """The whole state of a run on the device: what a checkpoint holds."""

    train: TrainState
    lanes: dict[str, LearnerLanes]
    runner: RunnerState


class UpdateReport(Struct):
    """What one update tells the host."""

    metrics: dict[Any, Any]  # by name on the host; `stacked` on the device
    episodes: Episodes
    num_valid: Int[AnyArray | np.generic, "*C"]
    """Environment steps that count."""
    mean_reward: Float[AnyArray | np.generic, "*C"]


Given = tuple[dict[str, PyTree], dict[str, PyTree], dict[str, RunningStats | None]]
"""Parameters, statistics of observations and of rewards, by group."""
Fill = Callable[[PyTree], Any]
"""From a tree of shapes and types to one of arrays."""


@runtime_checkable
class Program(Protocol):
    """What the trainer runs: updates, on either kind of environment."""

    behaviour: Behaviour
    """Who acts in it."""
    max_chunk: int
    notices: list[str]
    seconds: dict[str, float]
    """What an update's parts took in the last call, where they can be told apart."""

    def init(self, given: Given) -> ProgramState: ...

    def compile(self, state: ProgramState) -> None: ...

    def run(
        self, state: ProgramState, num_updates: int, stop: Callable[[], bool] = bool
    ) -> tuple[ProgramState, list[UpdateReport]]:
        """Make `num_updates` updates (at most `max_chunk`); the new state, and a report of each on the host.
        No report if `stop` became true before the first was made."""
        ...

    def resume(self, fill: Fill, envs: list[bytes] | None, seed: int) -> tuple[ProgramState, bool]:
        """The state that was saved, and whether the environments stand where they stood then.

        `fill` gives a tree of the given types the saved numbers. `envs` is what `envs` gave. Environments that cannot
        be put back start anew, from `seed`.
        """
        ...

    def envs(self, state: ProgramState) -> list[bytes] | None:
        """What is to be saved besides `state`: where each environment outside it stands. None if that is not known,
        because one cannot say it, or has moved on since."""
        ...

    def collect(self, state: ProgramState) -> Experience:
        """A rollout from `state`, which must be the one that `init` gave last; nothing is learned from it."""
        ...

    def diagnose(self, state: ProgramState) -> list[str]:
        """The tensors that are not finite in the update after `state`, which must be the last one that was run."""
        ...

    def close(self) -> None: ...


class CompiledProgram:
    """Collect and update as one program over JAX environments.

    The number of updates is an argument of the compiled loop, not part of its shape. One executable therefore
    serves every chunk, and cutting a run differently cannot change a bit of it. So are the numbers among the settings,
    from the learning rate to gamma: runs of one process that differ in these and their seeds share the executable.
    """

    def __init__(self, env: CompiledEnv, behaviour: Behaviour, config: Config, recipe: Recipe = BUILT_IN):
        self.behaviour = behaviour
        self.config = config = settled(config, behaviour.policies.groups)
        self.recipe = recipe
        self.runner = CompiledRunner(env, behaviour, config.env.frame_stack)
        self.max_chunk = max(1, min(MAX_CHUNK, MAX_CHUNK_EPISODES // config.frames_per_batch))
        missing = [name for name in env.info if name not in env.info_names]
        self.notices = lacks_info(missing, env.info_names, env.spec.id)
        self.seconds: dict[str, float] = {}
        self._run: Any = None
        self._shape, self._numbers = split_static(config)
        self._shards = config.train.shards

    def init(self, given: Given) -> ProgramState:
        """The state before the first update, from the policies' parameters and statistics."""
        told = (given, np.int32(self.config.seed), self._numbers)
        state: ProgramState = compiled(key_of("start", self._key, shapes(told)), self._first, *told)(*told)
        return state

    def resume(self, fill: Fill, envs: list[bytes] | None, seed: int) -> tuple[ProgramState, bool]:
        """The state that was saved: it holds the environments too."""
        told = (fresh(self.behaviour), np.int32(0), self._numbers)
        return placed_state(fill(jax.eval_shape(self._first, *told)), self._shards), True

    def envs(self, state: ProgramState) -> list[bytes] | None:
        return []

    def collect(self, state: ProgramState) -> Experience:
        experience: Experience = jit(lambda state: rollout(state, self.runner, self.config)[1])(state)
        return experience

    def diagnose(self, state: ProgramState) -> list[str]:
        def again(state: ProgramState) -> tuple[ProgramState, dict[str, jax.Array]]:
            prepared = prepare(rollout(state, self.runner, self.config)[1], self.behaviour)
            given = (state.train, state.lanes, *prepared, self.behaviour.policies, self.config, self.recipe)
            return state, broken(*given)

        return [name for name, bad in jit(in_shards(again, self._shards))(state)[1].items() if bad]

    def compile(self, state: ProgramState) -> None:
        """Compile now, unless that was done before, so that the first chunk starts at once."""
        if self._run is None:
            given = (state, np.int32(1), self._numbers)
            chunk = in_shards(self._chunk, self._shards, SAME, SAME)
            self._run = compiled(key_of("chunk", self._key, shapes(state)), chunk, *given)

    def run(
        self, state: ProgramState, num_updates: int, stop: Callable[[], bool] = bool
    ) -> tuple[ProgramState, list[UpdateReport]]:
        """Make `num_updates` updates (at most `max_chunk`); the new state, and a report of each on the host."""
        self.compile(state)
        state, reports = self._run(state, np.int32(num_updates), self._numbers)
        on_host = jax.device_get(local(reports))
        return state, [unstacked(jax.tree.map(lambda leaf, i=i: leaf[i], on_host)) for i in range(num_updates)]

    def close(self) -> None:
        """Nothing is held open."""

    @property
    def _key(self) -> Hashable | None:
        """What is compiled, as a value: asked for each time, since the environment may be changed meanwhile."""
        return key_of(settings_key(self._shape), self.runner.key, self.recipe.key)

    def _first(self, given: Given, seed: jax.Array, numbers: DynamicConfig) -> ProgramState:
        if self._shards == 1:
            return ProgramState(*self._initial(given, seed, numbers))
        return ProgramState(*divided(self._initial, self._shards, SAME, PARTS)(given, seed, numbers))

    def _initial(self, given: Given, seed: jax.Array, numbers: DynamicConfig) -> Parts:
        config = merge(self._shape, numbers, seed)
        train = first_train_state(given, self.behaviour, config, self.recipe)
        lanes = initial_lanes(self.behaviour.policies, config.envs_per_shard)
        return train, lanes, self.runner.start(own_key(reset_key(config.seed)))

    def _chunk(
        self, state: ProgramState, num_updates: jax.Array, numbers: DynamicConfig
    ) -> tuple[ProgramState, UpdateReport]:
        config = merge(self._shape, numbers)
        plain = partial(train_step, runner=self.runner, config=config, recipe=self.recipe)
        one = jax.jit(plain, inline=True)  # so that it is traced once, for its shapes and for the loop
        shapes = jax.eval_shape(one, state)[1]
        reports = jax.tree.map(lambda leaf: jnp.zeros((self.max_chunk, *leaf.shape), leaf.dtype), shapes)

        def step(i: jax.Array, loop: tuple[ProgramState, UpdateReport]) -> tuple[ProgramState, UpdateReport]:
            state, reports = loop
            state, report = one(state)
            return state, jax.tree.map(lambda all, new: all.at[i].set(new), reports, report)

        done: tuple[ProgramState, UpdateReport] = jax.lax.fori_loop(0, num_updates, step, (state, reports))
        return done


Parts = tuple[TrainState, dict[str, LearnerLanes], RunnerState]
"""Of a `ProgramState`."""
PARTS = (SAME, DIVIDED, DIVIDED)


def in_shards(function: Callable[..., Any], num: int, *more: Any) -> Callable[..., Any]:
    """A `function` from a shard's part of a `ProgramState`, and `more` (how each is divided), to that and something
    that is the same in every shard: as a program of `num` shards, over a whole `ProgramState`."""
    if num == 1:
        return function

    def of_parts(parts: Parts, *given: Any) -> tuple[Parts, Any]:
        state, told = function(ProgramState(*parts), *given)
        return (state.train, state.lanes, state.runner), told

    spread = divided(of_parts, num, (PARTS, *more), (PARTS, SAME))

    def of_whole(state: ProgramState, *given: Any) -> tuple[ProgramState, Any]:
        parts, told = spread((state.train, state.lanes, state.runner), *given)
        return ProgramState(*parts), told

    return of_whole


def placed_state(state: ProgramState, num: int) -> ProgramState:
    """A whole state on the devices of `num` shards."""
    parts = zip((state.train, state.lanes, state.runner), PARTS, strict=True)
    return ProgramState(*(placed(part, num, spec) for part, spec in parts))


def settled(config: Config, groups: Groups) -> Config:
    """`config` with what it leaves to the kind of actions and the number of agents."""
    continuous = any(has_continuous(group.action_space) for group in groups.values())
    return settle(config, continuous, [group.size for group in groups.values()])


def fresh(behaviour: Behaviour) -> Given:
    """Shapes and types of what `init` is given; statistics of rewards are added where they are kept."""
    policies = behaviour.policies
    return jax.eval_shape(policies.init, jax.random.key(0)), policies.initial_stats(), {}


def first_train_state(given: Given, behaviour: Behaviour, config: Config, recipe: Recipe) -> TrainState:
    """The state of training before the first update."""
    params, obs_stats, reward_stats = given
    train = initial_train_state(params, obs_stats, config, reward_stats, recipe)
    return replace(train, opponents=behaviour.initial_opponents(train))


def rollout(state: ProgramState, runner: CompiledRunner, config: Config) -> tuple[RunnerState, Experience]:
    """Step every environment `ppo.rollout_length` times as training does."""
    train, steps, num_envs = in_own_stream(state.train), config.ppo.rollout_length, config.envs_per_shard
    noise = rollout_noise(train, runner.behaviour, num_envs, steps)
    keys = jax.random.split(jax.random.fold_in(train.keys.env, train.update), steps)
    chosen = runner.behaviour.choose(train)
    return collect(runner, chosen, state.runner, noise, keys, config.track.success_return)


def in_own_stream(train: TrainState) -> TrainState:
    """With the keys that this shard draws from."""
    return replace(train, keys=jax.tree.map(own_key, train.keys))


def rollout_noise(train: TrainState, behaviour: Behaviour, num_envs: int, steps: int) -> PyTree:
    """What the actions of a rollout are drawn from."""
    key = jax.random.fold_in(train.keys.action, train.update)
    return draw_noise(behaviour.policies, key, num_envs, (steps,))


def train_step(
    state: ProgramState, runner: CompiledRunner, config: Config, recipe: Recipe = BUILT_IN
) -> tuple[ProgramState, UpdateReport]:
    """Collect one rollout and learn from it."""
    standing, experience = rollout(state, runner, config)
    return learn(replace(state, runner=standing), experience, runner.behaviour, config, recipe)


def learn(
    state: ProgramState, experience: Experience, behaviour: Behaviour, config: Config, recipe: Recipe = BUILT_IN
) -> tuple[ProgramState, UpdateReport]:
    """Learn from what was collected up to `state.runner`. Whatever kind of environment made it."""
    policies, standing = behaviour.policies, state.runner
    num_valid, mean_reward = counted(experience, config.envs_per_shard)
    prepared = prepare(experience, behaviour)
    train, lanes, metrics = update(state.train, state.lanes, *prepared, policies, config, recipe)
    if config.train.on_nonfinite == "skip":
        undone = replace(state.train, update=train.update)
        train = jax.lax.cond(is_finite(metrics), lambda: train, lambda: undone)
        # The environments have moved on, and so does what goes with them; it may hold what was not finite.
        lanes, standing = finite_part(lanes), replace(standing, carry=finite_part(standing.carry))
    train = replace(train, opponents=behaviour.updated_opponents(train))
    train = replace(train, env_steps=train.env_steps.after(num_valid, config.frames_per_batch))
    episodes = side_by_side(behaviour.scored(experience.episodes), axis=1)
    report = UpdateReport(stacked(metrics), episodes, num_valid, mean_reward)
    return ProgramState(train, lanes, standing), report


def counted(experience: Experience, num_envs: int) -> tuple[Int[Array, ""], Float[Array, ""]]:
    """How many steps of environments count, and what was paid in them in the mean over all agents."""
    each = [own.reward.reshape(*own.reward.shape[:-1], num_envs, -1) for own in experience.groups.values()]
    valid, reward = env_valid(experience.groups, num_envs), jnp.concatenate(each, axis=-1).mean(-1)
    num_valid, paid = sum_over_shards((valid.sum(dtype=jnp.int32), jnp.where(valid, reward, 0.0).sum()))
    return num_valid, paid / jnp.maximum(num_valid, 1).astype(jnp.float32)


def finite_part(tree: PyTree) -> PyTree:
    """`tree` with 0, as at the start of an episode, for every number that is not finite."""
    return jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, jnp.zeros_like(leaf)), tree)


def stacked(metrics: Metrics) -> dict[tuple[str, ...], jax.Array]:
    """Scalars of one type as one array, under all their names: reading back takes its time for each array."""
    names: dict[Any, list[str]] = {}
    for name, value in metrics.items():
        names.setdefault(value.dtype, []).append(name)
    return {tuple(group): jnp.stack([metrics[name] for name in group]) for group in names.values()}


def unstacked(report: UpdateReport) -> UpdateReport:
    """A report on the host with each metric under its own name."""
    metrics = {
        name: value for names, values in report.metrics.items() for name, value in zip(names, values, strict=True)
    }
    return replace(report, metrics=metrics)
