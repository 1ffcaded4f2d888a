"""What a rollout holds, for people who look inside: `PPOTrainer.collect` and `evaluate_agent`."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from proximo import envs
from proximo.compiling import jit
from proximo.config import Config
from proximo.envs.team import teamed
from proximo.errors import UserError
from proximo.evaluate import make_evaluator
from proximo.policy.normalize import reward_scale
from proximo.policy.policy import Policy
from proximo.policy.team import AnyPolicy
from proximo.policy.team_agent import AnyAgent
from proximo.ppo.rollout import Rollout
from proximo.ppo.team import group_state, rollout_of
from proximo.ppo.update import TrainState, training_samples
from proximo.summary import as_rewards
from proximo.train.prepare import check_spaces

Tree = Any


def experience(train: TrainState, rollout: Rollout, policy: AnyPolicy, config: Config) -> dict[str, Any]:
    """A rollout as arrays [T, L, ...], in the environment's units; with many agents, a dictionary of these by group."""
    if isinstance(policy, Policy):
        told = jit(partial(_told, policy=policy, config=config))(train, rollout)
        return dict(jax.device_get(told))
    return {
        name: experience(group_state(train, name), rollout_of(policy, name, rollout), own, config)
        for name, own in policy.groups.items()
    }


def _told(train: TrainState, rollout: Rollout, policy: Policy, config: Config) -> dict[str, Tree]:
    stats, reward = train.reward_stats, rollout.reward
    unit = jnp.float32(1) if stats is None else reward_scale(stats)
    samples, _ = training_samples(train, rollout, reward / unit, policy, config)
    shape, ended = reward.shape, rollout.ended

    def following(obs: jax.Array, final: jax.Array, last: jax.Array) -> jax.Array:
        moved = jnp.concatenate([obs[1:], last[None]])
        return jnp.where(ended.reshape(*shape, *[1] * (obs.ndim - 2)), final, moved)

    return {
        "observations": rollout.obs,
        "actions": policy.distribution.to_env(rollout.action),
        "rewards": reward,
        "next_observations": jax.tree.map(following, rollout.obs, rollout.final_obs, rollout.last_obs),
        "dones": ended,
        "terminated": rollout.terminated,
        "truncated": rollout.truncated,
        "valid": rollout.valid,
        "log_probs": samples.log_prob.reshape(shape),
        "values": unit * samples.value.reshape(shape),
        "advantages": unit * samples.advantage.reshape(shape),
        "returns": unit * samples.target.reshape(shape),
    }


def evaluate_agent(
    agent: AnyAgent, env: Any, num_episodes: int = 10, *, deterministic: bool = True, seed: int = 0
) -> dict[str, float]:
    """Play `num_episodes` episodes of `env` (an id, an object or a factory, as for `PPOTrainer`) with an agent.

        evaluate_agent(PPOAgent.load("runs/NAME/models/final_actor"), "CartPole-v1")["avg_reward"]

    Returns `avg_reward`, `std_reward`, `min_reward`, `max_reward`, `avg_length`, and what else an evaluation says
    (`success_rate`, intervals). Actions are the most likely ones, or drawn where `deterministic` is false.
    """
    if num_episodes < 1:
        raise UserError(f"An evaluation takes at least 1 episode, not {num_episodes}.")
    config = agent.config
    source = envs.stacked(teamed(envs.make(env), config.agents), config.env.frame_stack)
    check_spaces(agent, source.spec)
    how = (config.env, seed, config.track.success_return, deterministic, config.eval.max_steps)
    evaluator = make_evaluator(source, agent.policy, num_episodes, *how)
    try:
        played = evaluator(agent.params, agent.obs_stats)
    finally:
        evaluator.close()
    assert played is not None, "nobody stopped it"
    summary: dict[str, Any] = played.summary()
    return summary | as_rewards(summary)
