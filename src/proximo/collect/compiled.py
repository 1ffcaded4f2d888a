"""Collect a rollout from lanes inside a compiled program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from proximo.config import Config
from proximo.envs.api import Array, CompiledEnv, Timestep
from proximo.policy.team import AnyPolicy
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
    returned: jax.Array  # [L] float32 rewards in the running episode; with many agents [L, A]
    discounted: jax.Array  # [L], or [L, A], float32 discounted rewards, for the reward statistics


def initial_collect_state(env: CompiledEnv, policy: AnyPolicy, config: Config) -> CollectState:
    """All lanes reset."""
    env_state, first = env.reset(reset_key(config.seed))
    zeros = jnp.zeros_like(first.reward)
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
    train: TrainState, start: CollectState, env: CompiledEnv, policy: AnyPolicy, config: Config
) -> tuple[CollectState, Rollout, Episodes]:
    """Step every lane `ppo.rollout_length` times with the current policy.

    Only the actor runs here; values and log-probabilities come later, in one batch.
    """
    steps, lanes = config.ppo.rollout_length, env.num_lanes
    noise = policy.distribution.noise(jax.random.fold_in(train.keys.action, train.update), (steps, lanes))
    env_keys = jax.random.split(jax.random.fold_in(train.keys.env, train.update), steps)
    acting, everywhere = policy.acting(train), slice(0, lanes)

    def step(state: CollectState, now: tuple[Tree, jax.Array]) -> tuple[CollectState, tuple[Any, ...]]:
        noise_t, key = now
        memory, outputs = policy.explore(acting, train.obs_stats, state.carry["actor"], state.obs, everywhere)
        action = policy.distribution.sample(outputs, noise_t, state.action_mask)
        env_state, moved = env.step(key, state.env, policy.distribution.to_env(action))
        running = (state.length, state.returned)
        (length, returned), episodes = counted(running, moved, moved.success, config.track.success_return)
        record = (
            state.obs,
            state.action_mask,
            action,
            replace(moved, obs=None, action_mask=None, success=None, over=None),
            episodes,
        )
        following = replace(
            state,
            env=env_state,
            obs=moved.obs,
            action_mask=moved.action_mask,
            carry=state.carry | {"actor": policy.forget(memory, moved.forgotten)},
            length=length,
            returned=returned,
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
        absent=moved.absent,
        there=moved.there,
        acts=None if moved.acts is None else moved.acts[-1],
    )
    return end, rollout, episodes


def counted(
    running: tuple[Array, Array], moved: Timestep, said: Array | None, success_return: float | None
) -> tuple[tuple[Array, Array], Episodes]:
    """The length and the rewards of the running episodes after a step, and those that ended with it. `said` is what the
    environment says of their success. Of many agents, the return of an episode is the mean of theirs."""
    many = moved.valid.ndim > 1
    counts, finished = moved.valid.any(-1) if many else moved.valid, moved.finished
    length = running[0] + counts.astype(jnp.int32)
    alone = counts[:, None] if many else counts
    each = running[1] + jnp.where(alone, moved.reward, 0.0)
    returned = each.mean(-1) if many else each
    terminated = moved.terminated.any(-1) if many else moved.terminated
    episodes = Episodes(
        length=jnp.where(finished & counts, length, 0),
        returned=returned,
        success=succeeded(said, terminated, returned, success_return),
        agents=each if many else None,
    )
    ended = finished[:, None] if many else finished
    return (jnp.where(finished, 0, length), jnp.where(ended, 0.0, each)), episodes


def succeeded(said: Array | None, terminated: Array, returned: Array, success_return: float | None) -> Array:
    """Whether each ending episode was a success: as the environment says, else by `track.success_return`,
    else if it terminated. Where `said` is negative, the environment does not say."""
    reached = terminated if success_return is None else returned >= success_return
    if said is None:
        return reached
    code = said.astype("int8")
    return (code == 1) | ((code < 0) & reached)
