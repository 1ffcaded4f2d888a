"""The compiled training program: any number of updates in one call, with the same bits however they are cut."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from proximo.collect.compiled import CollectState, collect, initial_collect_state
from proximo.compiling import compiled, jit, key_of, settings_key, shapes
from proximo.config import Config
from proximo.envs.api import CompiledEnv
from proximo.envs.keys import env_key
from proximo.policy.team import AnyPolicy, TeamPolicy
from proximo.ppo.finite import is_finite
from proximo.ppo.loss import Metrics
from proximo.ppo.rollout import Episodes, Rollout
from proximo.ppo.team import broken_all, initial_state, update_all, with_scores
from proximo.ppo.traced import Numbers, joined, split
from proximo.ppo.update import TrainState
from proximo.settings import settle
from proximo.spaces import has_continuous

Tree = Any
MAX_CHUNK = 64
MAX_CHUNK_EPISODES = 2**20


@struct.dataclass
class ProgramState:
    """The whole state of a run on the device: what a checkpoint holds."""

    train: TrainState
    collect: CollectState


@struct.dataclass
class UpdateReport:
    """What one update tells the host."""

    metrics: dict[Any, Any]  # by name on the host; `stacked` on the device
    episodes: Episodes
    num_valid: jax.Array  # int32 environment steps that count
    mean_reward: jax.Array


Fill = Callable[[Tree], Any]
"""From a tree of shapes and types to one of arrays."""


class Program(Protocol):
    """What the trainer runs: updates, on either kind of environment."""

    max_chunk: int
    notices: list[str]
    seconds: dict[str, float]
    """What an update's parts took in the last call, where they can be told apart."""

    def init(self, params: Tree, obs_stats: Tree, reward_stats: Tree = None) -> ProgramState: ...

    def compile(self, state: ProgramState) -> None: ...

    def run(
        self, state: ProgramState, num_updates: int, stop: Callable[[], bool] = bool
    ) -> tuple[ProgramState, list[UpdateReport]]:
        """Make `num_updates` updates (at most `max_chunk`); the new state, and a report of each on the host.
        No report if `stop` became true before the first was made."""
        ...

    def resume(self, fill: Fill, lanes: list[bytes] | None, seed: int) -> tuple[ProgramState, bool]:
        """The state that was saved, and whether the environments stand where they stood then.

        `fill` gives a tree of the given types the saved numbers. `lanes` is what `lanes` gave. Environments that
        cannot be put back start anew, from `seed`.
        """
        ...

    def lanes(self, state: ProgramState) -> list[bytes] | None:
        """What is to be saved besides `state`: where each environment outside it stands. None if that is not known,
        because one cannot say it, or has moved on since."""
        ...

    def collect(self, state: ProgramState) -> Rollout:
        """A rollout from `state`, which must be the one that `init` gave last; nothing is learned from it."""
        ...

    def diagnose(self, state: ProgramState) -> list[str]:
        """The tensors that are not finite in the update after `state`, which must be the last one that was run."""
        ...

    def close(self) -> None: ...


class CompiledProgram:
    """Collect and update as one program over lanes of a JAX environment.

    The number of updates is an argument of the compiled loop, not part of its shape. One executable therefore
    serves every chunk, and cutting a run differently cannot change a bit of it. So are the numbers among the settings,
    from the learning rate to gamma: runs of one process that differ in these and their seeds share the executable.
    """

    def __init__(self, env: CompiledEnv, policy: AnyPolicy, config: Config):
        self.env = env
        self.policy = policy
        self.config = config = settle(config, has_continuous(policy.action_space))
        lanes = config.ppo.rollout_length * env.num_lanes
        self.max_chunk = max(1, min(MAX_CHUNK, MAX_CHUNK_EPISODES // lanes))
        self.notices: list[str] = []
        self.seconds: dict[str, float] = {}
        self._run: Any = None
        self._shape, self._numbers = split(config)

    def init(self, params: Tree, obs_stats: Tree, reward_stats: Tree = None) -> ProgramState:
        """The state before the first update, from a policy's parameters and statistics."""
        given = (params, obs_stats, np.int32(self.config.seed), self._numbers, reward_stats)
        return compiled(key_of("start", self._key, shapes(given)), self._initial, *given)(*given)

    def resume(self, fill: Fill, lanes: list[bytes] | None, seed: int) -> tuple[ProgramState, bool]:
        """The state that was saved: it holds the environments too."""
        params = jax.eval_shape(self.policy.init, jax.random.key(0))
        stats = self.policy.initial_stats()
        return fill(jax.eval_shape(self._initial, params, stats, np.int32(0), self._numbers)), True

    def lanes(self, state: ProgramState) -> list[bytes] | None:
        return []

    def collect(self, state: ProgramState) -> Rollout:
        def once(state: ProgramState) -> Rollout:
            return collect(state.train, state.collect, self.env, self.policy, self.config)[1]

        rollout: Rollout = jit(once)(state)
        return rollout

    def diagnose(self, state: ProgramState) -> list[str]:
        def again(state: ProgramState) -> OrderedDict[str, jax.Array]:
            _, rollout, _ = collect(state.train, state.collect, self.env, self.policy, self.config)
            return broken_all(state.train, rollout, state.collect.discounted, self.policy, self.config)

        return [name for name, bad in jit(again)(state).items() if bad]

    def compile(self, state: ProgramState) -> None:
        """Compile now, unless that was done before, so that the first chunk starts at once."""
        if self._run is None:
            self._run = compiled(key_of("chunk", self._key), self._chunk, state, np.int32(1), self._numbers)

    def run(
        self, state: ProgramState, num_updates: int, stop: Callable[[], bool] = bool
    ) -> tuple[ProgramState, list[UpdateReport]]:
        """Make `num_updates` updates (at most `max_chunk`); the new state, and a report of each on the host."""
        self.compile(state)
        state, reports = self._run(state, np.int32(num_updates), self._numbers)
        on_host = jax.device_get(reports)
        return state, [unstacked(jax.tree.map(lambda leaf, i=i: leaf[i], on_host)) for i in range(num_updates)]

    def close(self) -> None:
        """Nothing is held open."""

    @property
    def _key(self) -> Hashable | None:
        """What is compiled, as a value: asked for each time, since the environment may be changed meanwhile."""
        return key_of(settings_key(self._shape), env_key(self.env), self.policy.key)

    def _initial(
        self, params: Tree, obs_stats: Tree, seed: jax.Array, numbers: Numbers, reward_stats: Tree = None
    ) -> ProgramState:
        config = joined(self._shape, numbers, seed)
        train = initial_state(self.policy, params, obs_stats, config, reward_stats)
        return ProgramState(train, initial_collect_state(self.env, self.policy, config))

    def _chunk(
        self, state: ProgramState, num_updates: jax.Array, numbers: Numbers
    ) -> tuple[ProgramState, UpdateReport]:
        one = partial(train_step, env=self.env, policy=self.policy, config=joined(self._shape, numbers))
        shapes = jax.eval_shape(one, state)[1]
        reports = jax.tree.map(lambda leaf: jnp.zeros((self.max_chunk, *leaf.shape), leaf.dtype), shapes)

        def step(i: jax.Array, loop: tuple[ProgramState, UpdateReport]) -> tuple[ProgramState, UpdateReport]:
            state, reports = loop
            state, report = one(state)
            return state, jax.tree.map(lambda all, new: all.at[i].set(new), reports, report)

        return jax.lax.fori_loop(0, num_updates, step, (state, reports))


def train_step(
    state: ProgramState, env: CompiledEnv, policy: AnyPolicy, config: Config
) -> tuple[ProgramState, UpdateReport]:
    """Collect one rollout and learn from it."""
    lanes, rollout, episodes = collect(state.train, state.collect, env, policy, config)
    return learn(ProgramState(state.train, lanes), rollout, episodes, policy, config)


def learn(
    state: ProgramState, rollout: Rollout, episodes: Episodes, policy: AnyPolicy, config: Config
) -> tuple[ProgramState, UpdateReport]:
    """Learn from a rollout that was collected up to `state.collect`. Whatever kind of environment made it."""
    lanes = state.collect
    train, discounted, critic_carry, metrics = update_all(state.train, rollout, lanes.discounted, policy, config)
    lanes = replace(lanes, discounted=discounted, carry=lanes.carry | {"critic": critic_carry})
    if config.train.on_nonfinite == "skip":
        undone = replace(state.train, update=train.update)
        train = jax.lax.cond(is_finite(metrics), lambda: train, lambda: undone)
        # The environments have moved on, and so does what goes with them; it may hold what was not finite.
        lanes = replace(lanes, discounted=finite_part(lanes.discounted), carry=finite_part(lanes.carry))
    valid, reward = rollout.valid, rollout.reward
    if isinstance(policy, TeamPolicy):
        valid, reward = valid.any(-1), reward.mean(-1)
        episodes = with_scores(policy, episodes)
    num_valid = valid.sum(dtype=jnp.int32)
    train = replace(train, env_steps=train.env_steps.after(num_valid, config.frames_per_batch))
    mean_reward = jnp.where(valid, reward, 0.0).sum() / jnp.maximum(num_valid, 1).astype(jnp.float32)
    return ProgramState(train, lanes), UpdateReport(stacked(metrics), episodes, num_valid, mean_reward)


def finite_part(tree: Tree) -> Tree:
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
