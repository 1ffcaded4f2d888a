"""What learning changes: of each group of agents that share a policy, and of the run."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int32, Shaped

from proximo.policy.normalize import RunningStats
from proximo.seeding import Keys
from proximo.types import PyTree, Struct


class EnvSteps(Struct):
    """Environment steps that counted, as whole batches of `frames_per_batch` and the rest: compiled programs count
    in 32 bits, and long runs go beyond them."""

    batches: Int32[Array, ""]
    rest: Int32[Array, ""]
    """Less than a batch."""

    @classmethod
    def none(cls) -> EnvSteps:
        return cls(jnp.int32(0), jnp.int32(0))

    def after(self, steps: Int32[Array, ""], batch: int) -> EnvSteps:
        """The count after `steps` more, at most a `batch`."""
        rest = self.rest + steps
        return EnvSteps(self.batches + rest // batch, rest % batch)


class LearnerState(Struct):
    """What learning changes of one group."""

    params: PyTree[Float[Array, "..."]]
    opt_state: PyTree
    obs_stats: PyTree[Float[Array, "..."]]
    reward_stats: RunningStats | None
    learning_rate: Float32[Array, ""]
    """Moves only with the adaptive schedule."""


class TrainState(Struct):
    """Everything that learning changes."""

    groups: dict[str, LearnerState]
    keys: Keys
    update: Int32[Array, ""]
    """Updates done."""
    env_steps: EnvSteps
    """Taken; steps that do not count, such as EnvPool's fillers, are none."""
    opponents: PyTree[Shaped[Array, "..."]] = None
    """With self-play: [P, ...] earlier policies, and how many there were."""

    def of(self, part: str) -> dict[str, PyTree]:
        """A part of the state of each group, such as its `params`."""
        return {name: getattr(own, part) for name, own in self.groups.items()}


class LearnerLanes(Struct):
    """What the learner of one group carries from rollout to rollout, for each lane."""

    critic_carry: PyTree[Shaped[Array, "L ..."]]
    """The critic's memory."""
    discounted: Float32[Array, " L"]
    """Discounted rewards, for their statistics."""
