"""Between collecting and learning: the one place that looks across groups. After it nothing knows how many agents there
were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from proximo.policy.behaviour import Behaviour
from proximo.policy.policies import Policies
from proximo.rollout.types import CriticState, Experience, Rollout
from proximo.types import AnyArray


def prepare(experience: Experience, behaviour: Behaviour) -> tuple[dict[str, Rollout], CriticState | None]:
    """What each group learns from, and what critics see: rewards as `agents.reward` has them, only the actions of those
    who learn of which it is known what came of them, observations as networks see them."""
    policies, learns = behaviour.policies, behaviour.learns
    rewards = learned_rewards(experience, behaviour)
    found = {}
    for name, rollout in experience.groups.items():
        columns = policies.groups.columns[name]
        valid = rollout.valid
        if learns is not None:
            valid = valid & jnp.asarray(learns[:, columns].reshape(1, -1))
        found[name] = replace(
            rollout,
            obs=policies.seen(name, rollout.obs, 1),
            final_obs=policies.seen(name, rollout.final_obs, 1),
            last_obs=policies.seen(name, rollout.last_obs),
            reward=rewards[name],
            valid=valid,
            settled=None if rollout.acts is None else settled(rollout),
        )
    return found, judged(experience, policies)


def judged(experience: Experience, policies: Policies) -> CriticState | None:
    """What critics see besides: what the environment says, or what all agents see."""
    if not policies.everything:
        return experience.critic_state
    groups = experience.groups
    return CriticState(
        seen=policies.all_observations({name: own.obs for name, own in groups.items()}, 1),
        final=policies.all_observations({name: own.final_obs for name, own in groups.items()}, 1),
        last=policies.all_observations({name: own.last_obs for name, own in groups.items()}, 0),
    )


def settled(rollout: Rollout) -> Bool[Array, "T L"]:
    """Of which actions all is known that came of them: until the agent's next turn, or its end.

    In a game with turns, the last action before the cut of a rollout may not be: others have still to move, and pay the
    agent or end the game, and what the agent sees out of turn is nothing that its critic can judge. Such an action is
    not learned from; the ones before it are, from the value of what the agent saw on that turn.
    """
    assert rollout.acts is not None
    come = jnp.concatenate([rollout.valid | rollout.ended, rollout.acts[None]])
    later = jax.lax.cummax(come.astype(jnp.int8), axis=0, reverse=True)[1:].astype(bool)
    return later | rollout.ended


def learned_rewards(experience: Experience, behaviour: Behaviour) -> dict[str, Float[AnyArray, "T _"]]:
    """[T, L] by group, to learn from: each agent's own; or the mean over those who could be paid, being there when the
    step was taken: those of the team, or with self-play those of the agent's side, since what one side wins others
    lose."""
    groups, policies = experience.groups, behaviour.policies
    agents = policies.settings
    if agents.reward == "own":
        return {name: rollout.reward for name, rollout in groups.items()}

    def by_agent(flat: Mapping[str, Shaped[AnyArray, "T _"] | None]) -> Shaped[Array, "T E A"]:
        """What lanes have, for each agent: in the order of the groups, since JAX sorts dictionaries."""
        lanes = {name: jnp.asarray(own) for name, own in flat.items()}
        each = [lanes[name].reshape(lanes[name].shape[0], -1, group.size) for name, group in policies.groups.items()]
        return jnp.concatenate(each, axis=-1)

    reward = by_agent({name: own.reward for name, own in groups.items()})
    there = by_agent({name: own.present for name, own in groups.items()}).astype(jnp.float32)
    if behaviour.sides is None:
        mean = reward.sum(-1, keepdims=True) / jnp.maximum(there.sum(-1, keepdims=True), 1.0)
    else:
        flags = np.stack(list(behaviour.sides.values())).astype(np.float32)
        mates = flags.T @ flags  # [A, A] 1 for agents of one side
        mean = (reward @ mates) / jnp.maximum(there @ mates, 1.0)
    shared = mean * there
    return {
        name: shared[..., columns].reshape(shared.shape[0], -1) for name, columns in policies.groups.columns.items()
    }
