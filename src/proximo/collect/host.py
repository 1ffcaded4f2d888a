"""Collect a rollout from host environments: the policy and the environments take turns, group by group."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from proximo.collect.actor import (
    acting_types,
    aligned_zeros,
    at,
    compiled_actor,
    pack,
    reads_record,
    same_memory,
    spans,
)
from proximo.collect.compiled import CollectState, counted
from proximo.compiling import cached, jit, key_of
from proximo.config import Config
from proximo.envs.api import HostEnv, Timestep, lanes_of
from proximo.envs.host.bounds import outside
from proximo.errors import EnvError
from proximo.policy.team import AnyPolicy, TeamPolicy
from proximo.ppo.rollout import Episodes, Rollout
from proximo.ppo.update import TrainState
from proximo.spaces import Path, leaves, pick, shown

Tree = Any


@struct.dataclass
class Collected:
    """A rollout from host environments, and what is needed to go on after it."""

    rollout: Rollout
    success: np.ndarray  # [T, L] int8: 1 or 0 where an environment said it of an episode that ended, else -1
    over: np.ndarray | None  # [T, L] bool with many agents: the environment was reset
    action_mask: Tree  # [L, ...] bool of what the policy sees next, or None
    carry: Tree  # [L, ...] the actor's memory after the rollout


class Slot(NamedTuple):
    """Where one step of one batch of lanes is written down: views, made once."""

    seen: tuple[Tree, Tree]  # observation and action mask, as the actor takes them: of this step, or of all steps
    action: list[np.ndarray]
    outcome: list[np.ndarray]  # the observation and the mask after the step, reward, flags, success
    truncated: np.ndarray
    final_obs: list[np.ndarray]


class HostCollector:
    """Steps a `HostEnv` with the current policy, and records what happens.

    Only the actor runs here, on noise that was drawn beforehand; values and log-probabilities come later, in one
    batch. The record is written into arrays that are allocated once: it holds until the next `collect`.
    """

    def __init__(self, env: HostEnv, policy: AnyPolicy, config: Config):
        self.env = env
        self.policy = policy
        self.steps = config.ppo.rollout_length
        shape = (self.steps, env.num_lanes)
        draw = lambda key, update: policy.distribution.noise(jax.random.fold_in(key, update), shape)  # noqa: E731
        self._draw = cached(key_of("draw", policy.key, shape), lambda: jit(draw))
        # Handing over an array that is on the device already costs a fraction of handing over one of NumPy's.
        self._times = [jnp.int32(t) for t in range(self.steps)]
        self._pack = cached(("pack",), lambda: jit(pack))
        self._acting = policy.acting
        if isinstance(policy, TeamPolicy):
            self._acting = cached(key_of("acting", policy.key), lambda: jit(policy.acting))
        types = acting_types(policy, config)
        self._act = [
            cached(
                key_of("act", policy.key, spans(batch), reads_record()), partial(compiled_actor, policy, batch, types)
            )
            for batch in env.batches
        ]
        self._lanes = [lanes_of(batch) for batch in env.batches]
        self._told: set[Path] = set()
        # What a batch reports are views, mostly the same ones each time: taken apart only when they are not.
        self._moved: list[Timestep | None] = [None] * len(env.batches)
        self._reported: list[list[Any]] = [[] for _ in env.batches]
        self.policy_seconds = self.env_seconds = 0.0
        """What the last rollout took: the policy's calls, and the rest, which is the environments."""
        self._recurrent = bool(jax.tree.leaves(policy.initial_carry(1)["actor"]))

    def start(self, seed: int) -> CollectState:
        """All lanes reset."""
        first = self.env.reset(seed)
        self._allocate(first)
        lanes = self.env.num_lanes
        return CollectState(
            env=(),
            obs=jax.tree.map(np.copy, first.obs),
            action_mask=jax.tree.map(np.copy, first.action_mask),
            carry=self.policy.initial_carry(lanes),
            length=jnp.zeros(lanes, jnp.int32),
            returned=jnp.zeros(first.reward.shape, jnp.float32),
            discounted=jnp.zeros(first.reward.shape, jnp.float32),
        )

    def collect(self, train: TrainState, start: CollectState, stop: Callable[[], bool]) -> Collected | None:
        """Step every lane `ppo.rollout_length` times; None if `stop` became true on the way."""
        env, times, clock = self.env, self._times, time.perf_counter
        packed, noise = self._prepare(train, start)
        spent = 0.0
        began = clock()
        carry = [at(start.carry["actor"], lanes) for lanes in self._lanes]
        for t in range(self.steps):
            for b, act in enumerate(self._act):
                if t:
                    carry[b] = self._receive(b, t - 1, carry[b])
                slot = self._slots[t][b]
                before = clock()
                carry[b], action, to_env = act(packed, noise, times[t], carry[b], *slot.seen)
                action = _numpy(action)
                spent += clock() - before
                env.send(b, action if to_env is None else _numpy(to_env))
                _write(slot.action, action)
            if stop():
                for b in range(len(self._lanes)):
                    env.recv(b)
                return None
        for b in range(len(self._lanes)):
            carry[b] = self._receive(b, self.steps - 1, carry[b])
        self.policy_seconds, self.env_seconds = spent, clock() - began - spent
        record = self._record
        leave_out_voided(record.valid, record.ended if self._over is None else self._over)
        self._look_at_bounds()
        memory = jax.tree.map(lambda *parts: jnp.concatenate(parts), *carry)
        return self._collected(start, memory)

    def _look_at_bounds(self) -> None:
        """Say it, once, where observations leave their space. Numbers that code for choices must not: the run ends."""
        for path, leaf in leaves(self.env.spec.observation_space):
            values = pick(self._record.obs, path)
            wrong = None if path in self._told else outside(leaf, values)
            if wrong is None:
                continue
            self._told.add(path)
            t, lane, *index = wrong
            sentence = (
                f"The environment {self.env.spec.id} (lane {lane}, step {t + 1} of a rollout) gave an observation "
                f"outside its space: observation{shown(path)} is {values[wrong]} at the index {index}, in {leaf}."
            )
            if values.dtype.kind != "f":
                raise EnvError(sentence)
            self.env.notices.append(f"{sentence} It is used as it is; this is said once.")

    def warm_up(self, train: TrainState, start: CollectState) -> Collected:
        """Compile the actor without a step of the environments; a record of the right shapes."""
        packed, noise = self._prepare(train, start)
        for act, lanes, slot in zip(self._act, self._lanes, self._slots[0], strict=True):
            act(packed, noise, self._times[0], at(start.carry["actor"], lanes), *slot.seen)
        return self._collected(start, start.carry["actor"])

    def _prepare(self, train: TrainState, start: CollectState) -> tuple[list[jax.Array], Tree]:
        """Write the first observations; what the actor needs of `train`, packed, and all steps' noise."""
        _write(jax.tree.leaves(at((self._obs, self._mask), 0)), (start.obs, start.action_mask))
        noise = self._draw(train.keys.action, train.update)
        return self._pack((self._acting(train), train.obs_stats)), noise

    def _receive(self, b: int, t: int, carry: Tree) -> Tree:
        """Write down what step `t` led to in the lanes of batch `b`; the actor's memory, empty where one begins."""
        moved, slot = self.env.recv(b), self._slots[t][b]
        if moved is not self._moved[b]:
            self._moved[b], self._reported[b] = moved, jax.tree.leaves(_outcome(moved))
        for target, value in zip(slot.outcome, self._reported[b], strict=True):
            target[...] = value
        if np.count_nonzero(slot.truncated):
            _write(slot.final_obs, moved.final_obs)
        if self._recurrent and (anew := np.asarray(moved.forgotten)).any():
            carry = self.policy.forget(carry, jnp.asarray(anew))
        return carry

    def _collected(self, start: CollectState, memory: Tree) -> Collected:
        last_obs, last_mask = jax.tree.map(np.copy, at((self._obs, self._mask), self.steps))
        acts = None if self._acts is None else self._acts.copy()
        rollout = replace(self._record, last_obs=last_obs, carry=start.carry, acts=acts)
        return Collected(rollout, self._success, self._over, last_mask, memory)

    def _allocate(self, first: Timestep) -> None:
        """Arrays [T, L, ...]; observations and masks have one step more, for what the policy sees next."""
        distribution, lanes, steps = self.policy.distribution, self.env.num_lanes, self.steps
        key = jax.random.key(0)
        params, stats = jax.eval_shape(lambda key: (self.policy.init(key), self.policy.initial_stats()), key)
        carry = self.policy.initial_carry(lanes)["actor"]
        _, outputs = jax.eval_shape(self.policy.act, params, stats, carry, first.obs)
        noise = jax.eval_shape(lambda key: distribution.noise(key, (lanes,)), key)
        action = jax.eval_shape(distribution.sample, outputs, noise)

        def rows(tree: Tree, steps: int) -> Tree:
            return jax.tree.map(lambda leaf: aligned_zeros((steps, *leaf.shape), leaf.dtype), tree)

        self._obs, self._mask = rows((first.obs, first.action_mask), steps + 1)
        # On a CPU the actor reads the record itself: handing over an array at each step takes longer than that.
        self._whole = jax.tree.map(same_memory, (self._obs, self._mask)) if reads_record() else None
        self._success = np.zeros((steps, lanes), np.int8)
        self._over = None if first.over is None else np.zeros((steps, lanes), bool)
        self._acts = None if first.acts is None else np.array(first.acts)
        each = (steps, *first.reward.shape)
        self._record = Rollout(
            obs=at(self._obs, slice(0, steps)),
            action_mask=at(self._mask, slice(0, steps)),
            action=rows(action, steps),
            reward=np.zeros(each, np.float32),
            terminated=np.zeros(each, bool),
            truncated=np.zeros(each, bool),
            valid=np.zeros(each, bool),
            final_obs=rows(first.obs, steps),
            last_obs=None,
            carry=None,
            absent=None if first.absent is None else np.zeros(each, bool),
            there=None if first.there is None else np.zeros(each, bool),
        )
        self._slots = [[self._slot(t, lanes) for lanes in self._lanes] for t in range(steps)]

    def _slot(self, t: int, lanes: slice) -> Slot:
        record, here = self._record, (t, lanes)
        following = at((self._obs, self._mask), (t + 1, lanes))
        flags = (record.reward, record.terminated, record.truncated, record.valid, self._success)
        flags = (*at((*flags, self._over, record.absent, record.there), here), at(self._acts, lanes))
        return Slot(
            seen=self._whole or at((self._obs, self._mask), here),
            action=jax.tree.leaves(at(record.action, here)),
            outcome=jax.tree.leaves((following, flags)),
            truncated=record.truncated[here],
            final_obs=jax.tree.leaves(at(record.final_obs, here)),
        )


def tally(state: CollectState, collected: Collected, success_return: float | None) -> tuple[CollectState, Episodes]:
    """The episodes that finished, and the running sums after the rollout; those that count for nothing are left out."""
    rollout = collected.rollout
    said = jnp.asarray(collected.success)

    def step(running: tuple[jax.Array, jax.Array], now: tuple[Any, ...]) -> tuple[Any, Episodes]:
        reward, terminated, truncated, valid, over, code = now
        moved = Timestep(None, None, reward, terminated, truncated, None, valid, None, over)
        return counted(running, moved, code, success_return)

    now = (rollout.reward, rollout.terminated, rollout.truncated, rollout.valid, collected.over, said)
    (length, returned), episodes = jax.lax.scan(step, (state.length, state.returned), now, unroll=8)
    following = replace(
        state,
        obs=rollout.last_obs,
        action_mask=collected.action_mask,
        carry=state.carry | {"actor": collected.carry},
        length=length,
        returned=returned,
    )
    return following, episodes


def leave_out_voided(valid: np.ndarray, ended: np.ndarray) -> None:
    """Mark every step of an episode invalid whose last one is: its environment failed, and was started anew. With many
    agents, `valid` is [T, L, A], and that step is one in which nobody's action counted."""
    counted = valid if valid.ndim == ended.ndim else valid.any(-1)
    for t, lane in np.argwhere(ended & ~counted):
        before = np.flatnonzero(ended[:t, lane])
        valid[before[-1] + 1 if len(before) else 0 : t, lane] = False


def _outcome(moved: Timestep) -> Tree:
    """What is written down of a step, in the order of `Slot.outcome`."""
    flags = (moved.reward, moved.terminated, moved.truncated, moved.valid, moved.success)
    return (moved.obs, moved.action_mask), (*flags, moved.over, moved.absent, moved.there, moved.acts)


def _numpy(tree: Tree) -> Tree:
    return np.asarray(tree) if isinstance(tree, jax.Array) else jax.tree.map(np.asarray, tree)


def _write(targets: list[np.ndarray], source: Tree) -> None:
    if isinstance(source, np.ndarray):
        targets[0][...] = source
        return
    for array, value in zip(targets, jax.tree.leaves(source), strict=True):
        array[...] = value
