"""Step environments inside a compiled program: for training, for evaluations, for the log or the film of an episode."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Shaped

from proximo.compile import key_of
from proximo.envs.api import CompiledEnv, Timestep
from proximo.envs.keys import env_key
from proximo.policy.behaviour import Behaviour, ByGroup, draw_actions
from proximo.policy.recurrent import forget
from proximo.rollout.episodes import SuccessReturn, count_episodes, no_info
from proximo.rollout.frame_stack import FrameStack
from proximo.rollout.types import CriticState, Episodes, Experience, Rollout, RunnerState
from proximo.types import PyTree, Struct


class StepView(Struct):
    """One step: what was seen and done, what came of it, and where the environments stand then."""

    before: RunnerState
    action: ByGroup
    """In the distributions' own coordinates."""
    taken: ByGroup
    """As the environment took them."""
    outcome: Timestep
    episodes: Episodes
    after: RunnerState


class CompiledRunner:
    """Steps a `CompiledEnv` as a `Behaviour` says. Everything here is traced: nothing is kept."""

    def __init__(self, env: CompiledEnv, behaviour: Behaviour, frame_stack: int = 1):
        self.env = env
        self.behaviour = behaviour
        self._frames = FrameStack(env.spec.groups, frame_stack)

    @property
    def key(self) -> Hashable | None:
        """What it is, as part of the keys of programs: asked for each time, since the environment may be changed."""
        return key_of(env_key(self.env), self.behaviour.key, self._frames.num)

    def start(self, key: Key[Array, ""], task: PyTree[Shaped[Array, "E ..."]] = None) -> RunnerState:
        """All environments reset."""
        env_state, first = self.env.reset(key, task)
        sizes = {name: group.size for name, group in self.env.spec.groups.items()}
        num_envs = self.env.num_envs
        return RunnerState(
            env=env_state,
            task=task,
            obs={name: self._frames.first(name, step.obs, jnp) for name, step in first.groups.items()},
            action_mask={name: step.action_mask for name, step in first.groups.items()},
            carry=self.behaviour.policies.initial_carry("actor", num_envs),
            critic_state=first.critic_state,
            episode_length=jnp.zeros(num_envs, jnp.int32),
            episode_return={name: jnp.zeros((num_envs, size), jnp.float32) for name, size in sizes.items()},
            episode_info=no_info(num_envs, len(self.env.info)),
        )

    def run(
        self,
        chosen: PyTree,
        start: RunnerState,
        noise: dict[str, PyTree[Float[Array, "T _ ..."]]] | None,
        keys: Key[Array, " T"],
        keep: Callable[[StepView], PyTree],
        success_return: SuccessReturn = None,
    ) -> tuple[RunnerState, PyTree[Shaped[Array, "T ..."]]]:
        """A step for each of the `keys`, with actions drawn from `noise` or the most likely ones (None); what `keep`
        keeps of each of them."""

        def step(state: RunnerState, now: tuple[PyTree, Key[Array, ""]]) -> tuple[RunnerState, PyTree]:
            view = self._step(chosen, state, *now, success_return)
            return view.after, keep(view)

        return jax.lax.scan(step, start, (noise, keys))

    def _step(
        self,
        chosen: PyTree,
        state: RunnerState,
        noise: dict[str, PyTree[Float[Array, "_ ..."]]] | None,
        key: Key[Array, ""],
        success_return: SuccessReturn,
    ) -> StepView:
        """Only the actors run here; values and log-probabilities come later, in one batch."""
        everywhere, policies = slice(0, self.env.num_envs), self.behaviour.policies
        memory, outputs = self.behaviour.act(chosen, state.carry, state.obs, everywhere)
        action, taken = draw_actions(policies, outputs, state.action_mask, noise)
        env_state, moved = self.env.step(key, state.env, taken, state.task)
        running = (state.episode_length, state.episode_return, state.episode_info)
        (length, returns, told), episodes = count_episodes(running, moved, success_return)
        seen = {name: self._frames.following(name, state.obs[name], step, jnp) for name, step in moved.groups.items()}
        groups = {name: replace(step, final_obs=seen[name][1]) for name, step in moved.groups.items()}
        after = replace(
            state,
            env=env_state,
            obs={name: obs for name, (obs, _) in seen.items()},
            action_mask={name: step.action_mask for name, step in moved.groups.items()},
            carry={name: forget(memory[name], step.reset_mask) for name, step in moved.groups.items()},
            critic_state=moved.critic_state,
            episode_length=length,
            episode_return=returns,
            episode_info=told,
        )
        return StepView(state, action, taken, replace(moved, groups=groups), episodes, after)


def collect(
    runner: CompiledRunner,
    chosen: PyTree,
    start: RunnerState,
    noise: dict[str, PyTree[Float[Array, "T _ ..."]]] | None,
    keys: Key[Array, " T"],
    success_return: SuccessReturn,
) -> tuple[RunnerState, Experience]:
    """Step every environment once for each of the `keys`, and record what happens."""

    def keep(view: StepView) -> tuple[PyTree, ...]:
        before, outcome = view.before, view.outcome
        steps = {
            name: replace(step, obs=before.obs[name], action_mask=before.action_mask[name])
            for name, step in outcome.groups.items()
        }
        return steps, view.action, before.critic_state, outcome.final_critic_state, view.episodes

    end, (steps, action, seen, final, episodes) = runner.run(chosen, start, noise, keys, keep, success_return)
    groups = {
        name: Rollout(
            obs=step.obs,
            action_mask=step.action_mask,
            action=action[name],
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            valid=step.valid,
            final_obs=step.final_obs,
            last_obs=end.obs[name],
            carry=start.carry[name],
            present=step.present,
            alive=step.alive,
            acts=None if step.acts is None else step.acts[-1],
        )
        for name, step in steps.items()
    }
    critic_state = None if seen is None else CriticState(seen, final, end.critic_state)
    return end, Experience(groups, critic_state, episodes)
