"""What a rollout holds, for people who look inside: `PPOTrainer.collect` and `evaluate_agent`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from proximo import envs
from proximo.compile import jit
from proximo.config import Config
from proximo.envs.grouping import with_groups
from proximo.envs.groups import ONE
from proximo.errors import UserError
from proximo.multi_agent.prepare import prepare
from proximo.multi_agent.team_agent import as_agents
from proximo.policy.behaviour import Behaviour, Learners, actors
from proximo.policy.normalize import reward_scale
from proximo.policy.policy import Policy
from proximo.ppo.types import LearnerLanes, LearnerState
from proximo.ppo.update import training_samples
from proximo.rollout.evaluate import make_evaluator
from proximo.rollout.summary import as_rewards
from proximo.rollout.types import CriticState, Experience, Rollout
from proximo.train.program import ProgramState
from proximo.train.setup import check_spaces, fit_agent
from proximo.types import PyTree


def told(state: ProgramState, experience: Experience, behaviour: Behaviour, config: Config) -> dict[str, Any]:
    """A rollout as arrays [T, L, ...], in the environment's units; with many agents, a dictionary of these by group."""

    def each(state: ProgramState, experience: Experience) -> dict[str, Any]:
        rollouts, critic_state = prepare(experience, behaviour)
        return {
            name: _told(state.train.groups[name], state.lanes[name], rollouts[name], critic_state, policy, config)
            for name, policy in behaviour.policies.items()
        }

    found: dict[str, Any] = jax.device_get(jit(each)(state, experience))
    return {name: found[name] for name in behaviour.policies} if behaviour.policies.groups.many else found[ONE]


def _told(
    learner: LearnerState,
    lanes: LearnerLanes,
    rollout: Rollout,
    critic_state: CriticState | None,
    policy: Policy,
    config: Config,
) -> dict[str, PyTree]:
    stats, reward = learner.reward_stats, rollout.reward
    unit = jnp.float32(1) if stats is None else reward_scale(stats)
    samples, _ = training_samples(learner, lanes, rollout, critic_state, jnp.asarray(reward / unit), policy, config)
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
    agent: Any, env: Any, num_episodes: int = 10, *, deterministic: bool = True, seed: int = 0
) -> dict[str, float]:
    """Play `num_episodes` episodes of `env` (an id, an object or a factory, as for `PPOTrainer`) with an agent.

        evaluate_agent(PPOAgent.load("runs/NAME/models/final_actor"), "CartPole-v1")["avg_reward"]

    Returns `avg_reward`, `std_reward`, `min_reward`, `max_reward`, `avg_length`, and what else an evaluation says
    (`success_rate`, intervals). Actions are the most likely ones, or drawn where `deterministic` is false.
    """
    if num_episodes < 1:
        raise UserError(f"An evaluation takes at least 1 episode, not {num_episodes}.")
    config = agent.config
    source = with_groups(envs.make(env), config.agents)
    fit_agent(agent, source.spec, config)
    agents = as_agents(agent)
    check_spaces(agents, source.spec, config, critics=False)
    how = (config.env, seed, config.track.success_return, deterministic, config.eval.max_steps)
    evaluator = make_evaluator(source, Learners(agents.policies), num_episodes, *how)
    try:
        played = evaluator(actors(agents.groups))
    finally:
        evaluator.close()
    assert played is not None, "nobody stopped it"
    summary: dict[str, Any] = played.summary()
    return summary | as_rewards(summary)
