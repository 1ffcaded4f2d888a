"""What learning changes: of each group of agents that share a policy, and of the run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from proximo.policy.normalize import RunningStats
from proximo.seeding import Keys

PyTree = Any


@struct.dataclass
class EnvSteps:
    """Environment steps that counted, as whole batches of `frames_per_batch` and the rest: compiled programs count
    in 32 bits, and long runs go beyond them."""

    batches: jax.Array  # int32
    rest: jax.Array  # int32, less than a batch

    @classmethod
    def none(cls) -> EnvSteps:
        return cls(jnp.int32(0), jnp.int32(0))

    def after(self, steps: jax.Array, batch: int) -> EnvSteps:
        """The count after `steps` more, at most a `batch`."""
        rest = self.rest + steps
        return EnvSteps(self.batches + rest // batch, rest % batch)


@struct.dataclass
class LearnerState:
    """What learning changes of one group."""

    params: PyTree
    opt_state: PyTree
    obs_stats: PyTree
    reward_stats: RunningStats | None
    learning_rate: jax.Array  # float32; moves only with the adaptive schedule


@struct.dataclass
class TrainState:
    """Everything that learning changes."""

    groups: dict[str, LearnerState]
    keys: Keys
    update: jax.Array  # int32 updates done
    env_steps: EnvSteps  # taken; steps that do not count, such as EnvPool's fillers, are none
    opponents: PyTree = None  # with self-play: [P, ...] earlier policies, and how many there were

    def of(self, part: str) -> dict[str, PyTree]:
        """A part of the state of each group, such as its `params`."""
        return {name: getattr(own, part) for name, own in self.groups.items()}


@struct.dataclass
class LearnerLanes:
    """What the learner of one group carries from rollout to rollout, for each lane."""

    critic_carry: PyTree  # [L, ...] the critic's memory
    discounted: jax.Array  # [L] float32 discounted rewards, for their statistics
