"""Collect a rollout from lanes inside a compiled program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from proximo.config import Config
from proximo.envs.api import Array, CompiledEnv
from proximo.envs.compiled.lanes import where_lane
from proximo.policy.policy import Policy
from proximo.ppo.rollout import Episodes, Rollout
from proximo.ppo.update import TrainState
from proximo.seeding import reset_key

Tree = Any


@struct.dataclass
class CollectState:
    """Where the lanes stand between two rollouts."""

    env: Tree  # the environments' state
    obs: Tree  # [L, ...] what the policy sees next
    action_mask: Tree  # [L, ...] bool, or None
    carry: Tree  # [L, ...] the policy's memory
    length: jax.Array  # [L] int32 steps in the running episode
    returned: jax.Array  # [L] float32 rewards in the running episode
    discounted: jax.Array  # [L] float32 discounted rewards, for the reward statistics


def initial_collect_state(env: CompiledEnv, policy: Policy, config: Config) -> CollectState:
    """All lanes reset."""
    env_state, first = env.reset(reset_key(config.seed))
    zeros = jnp.zeros(env.num_lanes, jnp.float32)
    return CollectState(
        env=env_state,
        obs=first.obs,
        action_mask=first.action_mask,
        carry=policy.initial_carry(env.num_lanes),
        length=jnp.zeros(env.num_lanes, jnp.int32),
        returned=zeros,
        discounted=zeros,
    )


def collect(
    train: TrainState, start: CollectState, env: CompiledEnv, policy: Policy, config: Config
) -> tuple[CollectState, Rollout, Episodes]:
    """Step every lane `ppo.rollout_length` times with the current policy.

    Only the actor runs here; values and log-probabilities come later, in one batch.
    """
    steps, lanes = config.ppo.rollout_length, env.num_lanes
    noise = policy.distribution.noise(jax.random.fold_in(train.keys.action, train.update), (steps, lanes))
    env_keys = jax.random.split(jax.random.fold_in(train.keys.env, train.update), steps)
    empty = policy.initial_carry(lanes)["actor"]

    def step(state: CollectState, now: tuple[Tree, jax.Array]) -> tuple[CollectState, tuple[Any, ...]]:
        noise_t, key = now
        memory, outputs = policy.act(train.params, train.obs_stats, state.carry["actor"], state.obs)
        action = policy.distribution.sample(outputs, noise_t, state.action_mask)
        env_state, moved = env.step(key, state.env, policy.distribution.to_env(action))
        length = state.length + moved.valid.astype(jnp.int32)
        returned = state.returned + jnp.where(moved.valid, moved.reward, 0.0)
        success = succeeded(moved.success, moved.terminated, returned, config.track.success_return)
        episodes = Episodes(length=jnp.where(moved.ended, length, 0), returned=returned, success=success)
        record = (
            state.obs,
            state.action_mask,
            action,
            replace(moved, obs=None, action_mask=None, success=None),
            episodes,
        )
        following = replace(
            state,
            env=env_state,
            obs=moved.obs,
            action_mask=moved.action_mask,
            carry=state.carry | {"actor": where_lane(moved.ended | ~moved.valid, empty, memory)},
            length=jnp.where(moved.ended, 0, length),
            returned=jnp.where(moved.ended, 0.0, returned),
        )
        return following, record

    end, (obs, action_mask, action, moved, episodes) = jax.lax.scan(step, start, (noise, env_keys))
    rollout = Rollout(
        obs=obs,
        action_mask=action_mask,
        action=action,
        reward=moved.reward,
        terminated=moved.terminated,
        truncated=moved.truncated,
        valid=moved.valid,
        final_obs=moved.final_obs,
        last_obs=end.obs,
        carry=start.carry,
    )
    return end, rollout, episodes


def succeeded(said: Array | None, terminated: Array, returned: Array, success_return: float | None) -> Array:
    """Whether each ending episode was a success: as the environment says, else by `track.success_return`,
    else if it terminated. Where `said` is negative, the environment does not say."""
    reached = terminated if success_return is None else returned >= success_return
    if said is None:
        return reached
    code = said.astype("int8")
    return (code == 1) | ((code < 0) & reached)
