"""The one evaluator: a policy on environments of its own, every lane with its own quota of episodes.

A quota per lane keeps short episodes from being counted more often than long ones: the first N episodes to
finish would be mostly short ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from proximo.collect.compiled import counted, succeeded
from proximo.compiling import cached, compiled, jit, key_of, shapes
from proximo.config import EnvConfig, EvalConfig
from proximo.envs.api import Array, HostEnv, HostSource, JaxEnv, Timestep, lanes_of
from proximo.envs.compiled.lanes import Lanes
from proximo.envs.keys import env_key
from proximo.policy.team import AnyPolicy
from proximo.ppo.rollout import Episodes
from proximo.seeding import EVALUATION_OFFSET, evaluation_action_key, evaluation_key
from proximo.summary import Evaluation
from proximo.teams import Team

Tree = Any
MAX_LANES = 64
STEPS_PER_CALL = 256


@struct.dataclass
class EvalState:
    env: Tree
    obs: Tree
    action_mask: Tree
    carry: Tree
    returned: jax.Array  # [L] rewards of the running episode; with many agents [L, A]
    length: jax.Array  # [L] steps of the running episode
    done: jax.Array  # [L] episodes finished
    episodes: Episodes  # [L, Q] the finished ones
    cut: jax.Array  # [L, Q] bool: which of them the limit cut
    step: jax.Array  # int32


Keys = tuple[jax.Array, jax.Array | None]
"""Of the environments, and of drawn actions."""


class Evaluator(Protocol):
    """Evaluation of a policy; frozen statistics, environments and random streams of its own."""

    notices: list[str]
    """What the user should know; whoever shows them takes them away."""
    played: int
    """Episodes that the running call has finished: for `stop`, which is asked again and again."""

    def __call__(self, params: Tree, stats: Tree, stop: Callable[[], bool] = bool) -> Evaluation | None:
        """Evaluate; the same parameters always give the same result. None if `stop` became true on the way."""
        ...

    def close(self) -> None: ...


def make_evaluator(
    source: JaxEnv | HostSource,
    policy: AnyPolicy,
    episodes: int,
    env: EnvConfig,
    seed: int,
    success_return: float | None = None,
    deterministic: bool = True,
    max_steps: int = EvalConfig.max_steps,
) -> Evaluator:
    """The evaluator for `episodes` episodes of an environment, of either kind. Actions are the most likely ones, or
    drawn where `deterministic` is false; `success_return` is the setting of `track`, `max_steps` that of `eval`."""
    limit = step_limit(source, env, max_steps)
    own = None if source.spec.max_steps or env.max_steps_per_episode else limit
    env = replace(env, max_steps_per_episode=limit)
    actions = Actions(policy, None if deterministic else evaluation_action_key(seed))
    if isinstance(source, HostSource):
        return HostEvaluator(source, actions, episodes, env, seed, success_return, Cuts(own))
    return CompiledEvaluator(source, actions, episodes, limit, seed, success_return, Cuts(own))


def step_limit(source: JaxEnv | HostSource, env: EnvConfig, max_steps: int) -> int | None:
    """Steps after which an evaluated episode is cut; None where the environment sees to that. Without any limit an
    evaluation might not end."""
    return env.max_steps_per_episode or (None if source.spec.max_steps else max_steps)


class Cuts:
    """Which episodes `eval.max_steps` has cut, `limit` being that where it is what limits them, else None."""

    def __init__(self, limit: int | None):
        self.limit = limit
        self._told = False

    def are(self, moved: Timestep, steps: Array) -> Array:
        """[L] where an episode was cut in its step `steps` [L]."""
        cut = moved.truncated if moved.over is None else moved.truncated.any(-1) & moved.over
        return cut & (steps >= self.limit) if self.limit else cut & False

    def in_words(self, cut: int, episodes: int) -> list[str]:
        """What the user should know, the first time that any were."""
        if not cut or self._told:
            return []
        self._told = True
        said = f"{cut} of {episodes} episodes were cut after {self.limit:,} steps"
        return [f"{said}: the environment names no limit, and eval.max_steps sets one."]


@dataclass(frozen=True)
class Actions:
    """What a policy does: the most likely, or with a `key` a draw that the step and the lane address."""

    policy: AnyPolicy
    key: jax.Array | None

    def __call__(self, params: Tree, stats: Tree, carry: Tree, obs: Tree, mask: Tree, noise: Tree) -> tuple[Tree, Tree]:
        """The actor's memory, and actions as the environment takes them."""
        distribution = self.policy.distribution
        memory, outputs = self.policy.act(params, stats, carry, obs)
        action = distribution.mode(outputs, mask) if self.key is None else distribution.sample(outputs, noise, mask)
        return memory, distribution.to_env(action)

    def at(self, step: jax.Array, params: Tree, stats: Tree, carry: Tree, obs: Tree, mask: Tree) -> tuple[Tree, Tree]:
        """The same for all lanes there are, at a step."""
        noise = self.noise(step, jax.tree.leaves(obs)[0].shape[0])
        return self(params, stats, carry, obs, mask, noise)

    def noise(self, step: jax.Array, lanes: int) -> Tree:
        """What the draws of a step are made of, [L, ...]."""
        return (
            None if self.key is None else self.policy.distribution.noise(jax.random.fold_in(self.key, step), (lanes,))
        )


def quotas(episodes: int, lanes: int) -> np.ndarray:
    """[L] episodes that each lane plays: `episodes` in all, as equal as they can be."""
    return np.full(lanes, episodes // lanes) + (np.arange(lanes) < episodes % lanes)


def evaluation(
    returns: np.ndarray,
    lengths: np.ndarray,
    successes: np.ndarray,
    cut: np.ndarray,
    agents: np.ndarray | None,
    team: Team | None,
) -> Evaluation:
    """What was played; of many agents, with the returns [N, A] of each."""
    each = {} if agents is None or team is None else team.by_name(agents.astype(np.float64))
    found = (returns.astype(np.float64), lengths.astype(np.float64), successes, int(cut.sum()), each)
    return Evaluation(*found, by_agent=agents)


class CompiledEvaluator:
    """An `Evaluator` on lanes of a JAX environment."""

    def __init__(
        self,
        env: JaxEnv,
        actions: Actions,
        episodes: int,
        limit: int | None,
        seed: int,
        success_return: float | None,
        cuts: Cuts,
    ):
        self.actions = actions
        self.notices: list[str] = []
        self.played = 0
        self.cuts = cuts
        self.env = Lanes(env, min(episodes, MAX_LANES), limit)
        self.quota = quotas(episodes, self.env.num_lanes)
        self._key = evaluation_key(seed)
        self._success_return = success_return
        self._start: Any = None
        self._run: Any = None

    def close(self) -> None:
        """Nothing is held open."""

    def __call__(self, params: Tree, stats: Tree, stop: Callable[[], bool] = bool) -> Evaluation | None:
        keys = (self._key, self.actions.key)
        state = self._first_state()
        self._compile(keys, params, stats, state)
        while ((done := np.asarray(state.done)) < self.quota).any():
            self.played = int(np.minimum(done, self.quota).sum())
            if stop():
                return None
            state = self._run(keys, params, stats, state)
        counts = np.arange(self.quota.max())[None] < self.quota[:, None]
        played, cut = jax.tree.map(lambda leaf: np.asarray(leaf)[counts], (state.episodes, state.cut))
        self.notices += self.cuts.in_words(int(cut.sum()), len(cut))
        return evaluation(played.returned, played.length, played.success, cut, played.agents, self.env.spec.team)

    def _first_state(self) -> EvalState:
        if self._start is None:
            self._start = compiled(key_of("evaluation begins", self._program_key), self._initial, self._key)
        state: EvalState = self._start(self._key)
        return state

    def _compile(self, keys: Keys, params: Tree, stats: Tree, state: EvalState) -> None:
        if self._run is None:
            key = key_of("evaluation", self._program_key, shapes((params, stats)))
            self._run = compiled(key, self._steps, keys, params, stats, state)

    @property
    def _program_key(self) -> Hashable | None:
        settings = (self.actions.key is None, int(self.quota.sum()), self._success_return, self.cuts.limit)
        return key_of(env_key(self.env), self.actions.policy.key, settings)

    def _initial(self, key: jax.Array) -> EvalState:
        lanes, most = self.env.num_lanes, int(self.quota.max())
        env_state, first = self.env.reset(key)
        return EvalState(
            env=env_state,
            obs=first.obs,
            action_mask=first.action_mask,
            carry=self.actions.policy.initial_carry(lanes)["actor"],
            returned=jnp.zeros_like(first.reward),
            length=jnp.zeros(lanes, jnp.int32),
            done=jnp.zeros(lanes, jnp.int32),
            episodes=Episodes(
                length=jnp.zeros((lanes, most), jnp.int32),
                returned=jnp.zeros((lanes, most), jnp.float32),
                success=jnp.zeros((lanes, most), bool),
                agents=None if first.over is None else jnp.zeros((lanes, most, first.reward.shape[1]), jnp.float32),
            ),
            cut=jnp.zeros((lanes, most), bool),
            step=jnp.int32(0),
        )

    def _steps(self, keys: Keys, params: Tree, stats: Tree, state: EvalState) -> EvalState:
        """Up to STEPS_PER_CALL steps: few enough that Ctrl-C is answered, enough to keep Python out of the way."""
        end = state.step + STEPS_PER_CALL
        quota = jnp.asarray(self.quota, jnp.int32)

        def unfinished(state: EvalState) -> jax.Array:
            return (state.step < end) & (state.done < quota).any()

        return jax.lax.while_loop(unfinished, lambda now: self._step(keys, params, stats, now), state)

    def _step(self, keys: Keys, params: Tree, stats: Tree, state: EvalState) -> EvalState:
        env_key, action_key = keys
        actions = replace(self.actions, key=action_key)
        memory, action = actions.at(state.step, params, stats, state.carry, state.obs, state.action_mask)
        env_state, moved = self.env.step(jax.random.fold_in(env_key, state.step), state.env, action)
        running = (state.length, state.returned)
        (length, returned), episodes = counted(running, moved, moved.success, self._success_return)
        finished = moved.finished
        # Lanes that have met their quota write out of range, which JAX drops.
        slot = jnp.where(finished, state.done, self.quota.max())
        lane = jnp.arange(self.env.num_lanes)
        write = lambda all, new: all.at[lane, slot].set(new, mode="drop")  # noqa: E731
        return EvalState(
            env=env_state,
            obs=moved.obs,
            action_mask=moved.action_mask,
            carry=self.actions.policy.forget(memory, moved.forgotten),
            returned=returned,
            length=length,
            done=state.done + finished.astype(jnp.int32),
            episodes=jax.tree.map(write, state.episodes, episodes),
            cut=write(state.cut, self.cuts.are(moved, state.env.length + 1)),
            step=state.step + 1,
        )


class HostEvaluator:
    """An `Evaluator` on lanes of a host environment; they are started when first needed."""

    def __init__(
        self,
        source: HostSource,
        actions: Actions,
        episodes: int,
        env: EnvConfig,
        seed: int,
        success_return: float | None,
        cuts: Cuts,
    ):
        self.source = source
        self.cuts = cuts
        self.actions = actions
        self.played = 0
        self._config = env
        self._seed = seed + EVALUATION_OFFSET
        self._success_return = success_return
        self.quota = quotas(episodes, min(episodes, env.num_envs))
        self.notices: list[str] = []
        self._env: HostEnv | None = None
        key = key_of("evaluation's actor", actions.policy.key, actions.key is None, len(self.quota))
        self._act = cached(key, lambda: jit(partial(_host_actions, actions.policy, len(self.quota))))

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def __call__(self, params: Tree, stats: Tree, stop: Callable[[], bool] = bool) -> Evaluation | None:
        lanes = len(self.quota)
        if self._env is None:
            self._env = self.source.lanes(lanes, self._config)
            self._env.notices.clear()  # how they are stepped was said when training began
        env = self._env
        now = env.reset(self._seed)
        parts = [lanes_of(batch) for batch in env.batches]
        carry = [self.actions.policy.initial_carry(part.stop - part.start)["actor"] for part in parts]
        seen = [jax.tree.map(lambda leaf, part=part: leaf[part], (now.obs, now.action_mask)) for part in parts]
        returned, length, steps = np.zeros(now.reward.shape), np.zeros(lanes, int), np.zeros(lanes, int)
        finished: list[list[tuple[Any, int, bool, bool]]] = [[] for _ in range(lanes)]
        for step in itertools.count():
            counts = np.minimum([len(played) for played in finished], self.quota)
            self.played = int(counts.sum())
            if (counts == self.quota).all():
                break
            if stop():
                return None
            for b, part in enumerate(parts):
                carry[b], action = self._act(
                    self.actions.key, params, stats, carry[b], *seen[b], np.int32(step), np.int32(part.start)
                )
                env.send(b, jax.tree.map(np.asarray, action))
            for b, part in enumerate(parts):
                moved = env.recv(b)
                seen[b] = (moved.obs, moved.action_mask)
                many, over = moved.over is not None, moved.finished
                counts = moved.valid.any(-1) if many else moved.valid
                returned[part] += np.where(counts[:, None] if many else counts, moved.reward, 0)
                length[part] += counts
                steps[part] += 1
                cut = self.cuts.are(moved, steps[part])
                team = returned[part].mean(-1) if many else returned[part]
                terminated = moved.terminated.any(-1) if many else moved.terminated
                success = succeeded(moved.success, terminated, team, self._success_return)
                for lane in np.flatnonzero(over) + part.start:
                    if counts[row := lane - part.start]:
                        finished[lane].append((returned[lane].copy(), length[lane], success[row], cut[row]))
                    returned[lane], length[lane], steps[lane] = 0, 0, 0
                if self.actions.policy.recurrent and (anew := moved.forgotten).any():
                    carry[b] = self.actions.policy.forget(carry[b], jnp.asarray(anew))
        self.notices += env.notices
        env.notices.clear()
        played = [episode for played, quota in zip(finished, self.quota, strict=True) for episode in played[:quota]]
        returns, lengths, successes, cuts = (np.array(each, np.float64) for each in zip(*played, strict=True))
        self.notices += self.cuts.in_words(int(cuts.sum()), len(cuts))
        agents = None if returns.ndim == 1 else returns
        returns = returns if agents is None else returns.mean(-1)
        return evaluation(returns, lengths, successes == 1, cuts, agents, self.source.spec.team)


def _host_actions(
    policy: AnyPolicy,
    num_lanes: int,
    key: jax.Array | None,
    params: Tree,
    stats: Tree,
    carry: Tree,
    obs: Tree,
    mask: Tree,
    step: jax.Array,
    first: jax.Array,
) -> tuple[Tree, Tree]:
    """For the lanes from `first` on. Noise is drawn for all lanes, however they are split into batches."""
    size, actions = jax.tree.leaves(obs)[0].shape[0], Actions(policy, key)
    noise = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, size), actions.noise(step, num_lanes))
    return actions(params, stats, carry, obs, mask, noise)
