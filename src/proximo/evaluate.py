"""The one evaluator: a policy on environments of its own, every lane with its own quota of episodes.

A quota per lane keeps short episodes from being counted more often than long ones: the first N episodes to
finish would be mostly short ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from proximo.compiling import jit
from proximo.envs.api import JaxEnv
from proximo.envs.compiled.lanes import Lanes, where_lane
from proximo.policy.normalize import RunningStats
from proximo.policy.policy import Policy
from proximo.seeding import evaluation_key

Tree = Any
MAX_LANES = 64
STEPS_PER_CALL = 256
UNLIMITED = 10_000
"""Steps after which an episode is cut, for environments that set no limit: an evaluation must end."""


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of evaluated episodes."""

    returns: np.ndarray
    lengths: np.ndarray

    def summary(self) -> dict[str, float | int]:
        """As `result.json` names them."""
        return {
            "episodes": len(self.returns),
            "return_mean": float(self.returns.mean()),
            "return_std": float(self.returns.std()),
            "return_min": float(self.returns.min()),
            "return_max": float(self.returns.max()),
            "length_mean": float(self.lengths.mean()),
        }


@struct.dataclass
class EvalState:
    env: Tree
    obs: Tree
    action_mask: Tree
    carry: Tree
    returned: jax.Array  # [L] rewards of the running episode
    length: jax.Array  # [L] steps of the running episode
    done: jax.Array  # [L] episodes finished
    returns: jax.Array  # [L, Q] of the finished ones
    lengths: jax.Array  # [L, Q]
    step: jax.Array  # int32


class Evaluator:
    """Deterministic evaluation of `policy` on `env`; frozen statistics, and a random stream of its own."""

    def __init__(self, env: JaxEnv, policy: Policy, episodes: int, max_steps: int | None, seed: int):
        self.policy = policy
        lanes = min(episodes, MAX_LANES)
        self.quota = np.full(lanes, episodes // lanes) + (np.arange(lanes) < episodes % lanes)
        limit = max_steps or (None if env.spec.max_steps else UNLIMITED)
        self.env = Lanes(env, lanes, limit)
        self._key = evaluation_key(seed)
        self._start = jit(self._initial)
        self._run = jit(self._steps)

    def __call__(self, params: Tree, stats: RunningStats | None) -> Evaluation:
        """Evaluate; the same parameters always give the same result."""
        state = self._start()
        while (np.asarray(state.done) < self.quota).any():
            state = self._run(params, stats, state)
        counted = np.arange(self.quota.max())[None] < self.quota[:, None]
        returns, lengths = (np.asarray(part, np.float64)[counted] for part in (state.returns, state.lengths))
        return Evaluation(returns, lengths)

    def _initial(self) -> EvalState:
        lanes, most = self.env.num_lanes, int(self.quota.max())
        env_state, first = self.env.reset(self._key)
        return EvalState(
            env=env_state,
            obs=first.obs,
            action_mask=first.action_mask,
            carry=self.policy.initial_carry(lanes)["actor"],
            returned=jnp.zeros(lanes, jnp.float32),
            length=jnp.zeros(lanes, jnp.int32),
            done=jnp.zeros(lanes, jnp.int32),
            returns=jnp.zeros((lanes, most), jnp.float32),
            lengths=jnp.zeros((lanes, most), jnp.int32),
            step=jnp.int32(0),
        )

    def _steps(self, params: Tree, stats: RunningStats | None, state: EvalState) -> EvalState:
        """Up to STEPS_PER_CALL steps: few enough that Ctrl-C is answered, enough to keep Python out of the way."""
        end = state.step + STEPS_PER_CALL
        quota = jnp.asarray(self.quota, jnp.int32)

        def unfinished(state: EvalState) -> jax.Array:
            return (state.step < end) & (state.done < quota).any()

        return jax.lax.while_loop(unfinished, lambda now: self._step(params, stats, now), state)

    def _step(self, params: Tree, stats: RunningStats | None, state: EvalState) -> EvalState:
        distribution = self.policy.distribution
        memory, outputs = self.policy.act(params, stats, state.carry, state.obs)
        action = distribution.to_env(distribution.mode(outputs, state.action_mask))
        env_state, moved = self.env.step(jax.random.fold_in(self._key, state.step), state.env, action)
        returned = state.returned + jnp.where(moved.valid, moved.reward, 0.0)
        length = state.length + moved.valid.astype(jnp.int32)
        # Lanes that have met their quota write out of range, which JAX drops.
        slot = jnp.where(moved.ended, state.done, self.quota.max())
        lane = jnp.arange(self.env.num_lanes)
        empty = jax.tree.map(jnp.zeros_like, memory)
        return EvalState(
            env=env_state,
            obs=moved.obs,
            action_mask=moved.action_mask,
            carry=where_lane(moved.ended, empty, memory),
            returned=jnp.where(moved.ended, 0.0, returned),
            length=jnp.where(moved.ended, 0, length),
            done=state.done + moved.ended.astype(jnp.int32),
            returns=state.returns.at[lane, slot].set(returned, mode="drop"),
            lengths=state.lengths.at[lane, slot].set(length, mode="drop"),
            step=state.step + 1,
        )
