"""What a rollout holds, for people who look inside: `PPOTrainer.collect` and `evaluate_agent`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from proximo import envs
from proximo.compile import jit, prepare_backend
from proximo.config import Config, EnvConfig
from proximo.envs import named_modules
from proximo.envs.grouping import with_groups
from proximo.envs.groups import ONE
from proximo.errors import UserError
from proximo.multi_agent.prepare import prepare
from proximo.multi_agent.team_agent import as_agents
from proximo.policy.agent import PPOAgent
from proximo.policy.agents import Agents
from proximo.policy.behaviour import Behaviour, Learners, actors
from proximo.policy.normalize import reward_scale
from proximo.policy.policy import Policy
from proximo.ppo.types import LearnerLanes, LearnerState
from proximo.ppo.update import training_samples
from proximo.rollout.actions import BOTH, DRAWN, LIKELY, under
from proximo.rollout.any_agent import any_agent_evaluator
from proximo.rollout.evaluate import make_evaluator
from proximo.rollout.summary import as_rewards
from proximo.rollout.types import CriticState, Experience, Rollout
from proximo.settings import build, convert, find_setting
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


def evaluate_policy(
    agent: Any,
    env: Any,
    episodes: int = 10,
    *,
    actions: str = LIKELY,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    env_wrappers: Sequence[Any] | None = None,
    info: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Play `episodes` episodes of `env` (an id, an object or a factory, as for `PPOTrainer`) with any agent.

        evaluate_policy(PPOAgent.load("runs/NAME/models/final_actor"), "CartPole-v1", 100)["return_mean"]
        evaluate_policy(lambda obs: int(obs[2] > 0), "CartPole-v1")

    The agent is one of Proximo's, an object with `act(obs)`, or a function; of an environment with many agents it takes
    and gives dictionaries by agent. One that is not Proximo's is asked for one action at a time, with the keywords
    `deterministic` and `action_mask` (`action_masks`) where it has them, and its `reset()` is called where episodes
    begin, if there is one.

    An id is made with `env_kwargs`, inside of `env_wrappers`. Where they are not given, and the agent is one of
    Proximo's that was trained on this very id, it is made as it was then. `info` names numbers of its info to report,
    by default those of the agent's run (`track.info`).

    `actions` are deterministic, stochastic (drawn), or both: then the numbers of the drawn ones are beside the others,
    as `stochastic/return_mean`. Returns what an evaluation says: `return_mean`, `return_std`, `return_low` and
    `return_high` (of the mean's 95 % interval), `length_mean`, `success_rate`, ..., and `avg_reward`, ... as
    `PPOTrainer.evaluate` has them.
    """
    kind = convert(replace(find_setting("eval.actions"), path="actions"), actions)
    if kind == BOTH:
        given: dict[str, Any] = {"seed": seed, "env_kwargs": env_kwargs, "env_wrappers": env_wrappers, "info": info}
        again = partial(evaluate_policy, agent, env, episodes, **given)
        return again(actions=LIKELY) | under(DRAWN, again(actions=DRAWN))
    if episodes < 1:
        raise UserError(f"An evaluation takes at least 1 episode, not {episodes}.")
    ours = isinstance(agent, PPOAgent | Agents)
    config = agent.config if ours else Config()
    made_as = remade(env, config.env if ours else Config().env, env_kwargs, env_wrappers)
    source = with_groups(envs.make_configured(made_as, env), config.agents)
    tracked = config.track.info if info is None else convert(find_setting("track.info"), list(info))
    if ours:
        fit_agent(agent, source.spec, config)
        agents = as_agents(agent)
        check_spaces(agents, source.spec, config, critics=False)
        how = (config.env, seed, config.track.success_return, kind == LIKELY, config.eval.max_steps, tracked)
        evaluator, chosen = make_evaluator(source, Learners(agents.policies), episodes, *how), actors(agents.groups)
    else:
        prepare_backend()
        evaluator = any_agent_evaluator(source, agent, episodes, seed, kind == LIKELY, config.eval.max_steps, tracked)
        chosen = None
    try:
        played = evaluator(chosen)
    finally:
        evaluator.close()
    assert played is not None, "nobody stopped it"
    summary: dict[str, Any] = played.summary()
    return summary | as_rewards(summary)


def remade(env: Any, trained: EnvConfig, kwargs: Mapping[str, Any] | None, wrappers: Sequence[Any] | None) -> EnvConfig:
    """How `env` is made: with what is given or, where it is the id that an agent was `trained` on, as it was then."""
    here = trained if isinstance(env, str) and env == trained.id else EnvConfig()
    if wrappers is None and (unknown := named_modules(here, handed_in=True)):
        raise UserError(
            f"The agent was trained inside of {', '.join(unknown)}, and nothing is imported because a policy names it; "
            f"hand in `env_wrappers`: {list(here.wrappers)} for the same ones, [] for none."
        )
    given = {"env.kwargs": kwargs, "env.wrappers": wrappers}
    values = {name: convert(find_setting(name), value) for name, value in given.items() if value is not None}
    return build({"env.kwargs": here.kwargs, "env.wrappers": here.wrappers} | values).env


def evaluate_agent(
    agent: Any, env: Any, num_episodes: int = 10, *, deterministic: bool = True, seed: int = 0, **given: Any
) -> dict[str, float]:
    """As `evaluate_policy`, under the names that this has elsewhere.

        evaluate_agent(PPOAgent.load("runs/NAME/models/final_actor"), "CartPole-v1")["avg_reward"]

    Returns `avg_reward`, `std_reward`, `min_reward`, `max_reward`, `avg_length`, and what else an evaluation says
    (`success_rate`, intervals). Actions are the most likely ones, or drawn where `deterministic` is false.
    `env_kwargs`, `env_wrappers` and `info` are as there.
    """
    return evaluate_policy(agent, env, num_episodes, actions=LIKELY if deterministic else DRAWN, seed=seed, **given)
