"""Every seed of a run, in one place. The offsets are fixed for ever: changing one changes every run.

    network initialisation   seed
    environments             seed + i for environment i (host); one stream from `seed` (compiled)
    first reset              seed + 10_000 (host: + i for environment i)
    later episodes           + 1_327_217_885 * n for episode n, modulo 2^31 (host, `host_seeds.episode_seed`): those
                             that begin at least 1,024 steps after the last seed was given
    evaluation               seed + 999 in the place of seed, for environments and sampled actions alike
    restart r of one         1_000_003 * r further on (host)
    resume r                 7_919 * r further on, modulo 2^30 (host, where environments cannot be put back)
    minibatch shuffle        seed ^ 0xA11CE
    action sampling          seed ^ 0xAC7
    shard k of several       of the streams env, shuffle and action, fold_in(key, 2^31 + k)

So seeds that are fewer than `num_envs` apart share host environments: an experiment's are 100,000 apart.

Streams are addressed, never consumed: the numbers of update `u` come from `fold_in(key, u)`, so a run
can be cut into chunks, stopped and resumed anywhere and still draw the same numbers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from proximo.host_seeds import RESET_OFFSET
from proximo.types import AnyArray, Struct

Seed = int | Int[AnyArray, ""]
"""As the settings have it, or as the argument of a compiled program."""
EVALUATION_OFFSET = 999
RESUME_STRIDE = 7_919
SHUFFLE_MASK = 0xA11CE
ACTION_MASK = 0xAC7
FIRST_SHARD = 2**31
"""Beyond the number of any update, which is folded into the same keys."""


class Keys(Struct):
    """The base key of each random stream of training; constant during a run."""

    env: Key[Array, ""]
    action: Key[Array, ""]
    shuffle: Key[Array, ""]


def network_key(seed: Seed) -> Key[Array, ""]:
    return jax.random.key(seed)


def group_key(key: Key[Array, ""], number: int) -> Key[Array, ""]:
    """Of the group of agents with this number: the first has the key itself, so that one agent and a team of one draw
    the same."""
    return key if number == 0 else jax.random.fold_in(key, number)


def shard_key(key: Key[Array, ""], number: int | Int[Array, ""]) -> Key[Array, ""]:
    """Of the shard with this number, where there are several."""
    return jax.random.fold_in(key, jnp.uint32(FIRST_SHARD) + jnp.asarray(number, jnp.uint32))


def training_keys(seed: Seed) -> Keys:
    # The environments' stream starts from `seed` as the networks do: the fold keeps the two apart.
    return Keys(
        env=jax.random.fold_in(jax.random.key(seed), 1),
        action=jax.random.key(seed ^ ACTION_MASK),
        shuffle=jax.random.key(seed ^ SHUFFLE_MASK),
    )


def reset_key(seed: Seed) -> Key[Array, ""]:
    return jax.random.key(seed + RESET_OFFSET)


def evaluation_key(seed: Seed) -> Key[Array, ""]:
    return jax.random.key(seed + EVALUATION_OFFSET)


def evaluation_action_key(seed: Seed) -> Key[Array, ""]:
    return jax.random.key((seed + EVALUATION_OFFSET) ^ ACTION_MASK)


def shared_with_evaluation(num_envs: int, episodes: int) -> list[str]:
    """A sentence about the host environments of training that start as those of the evaluation do, if there are any."""
    last = min(num_envs, EVALUATION_OFFSET + min(episodes, num_envs)) - 1
    if last < EVALUATION_OFFSET:
        return []
    which = "Environment 999 starts" if last == EVALUATION_OFFSET else f"Environments 999 to {last} start"
    return [
        f"{which} from the seeds that evaluations use, so evaluations are not entirely new to the policy; with up to "
        f"999 environments (env.num_envs) nothing is shared."
    ]


def resumed_seed(seed: int, resumes: int) -> int:
    """Of the environments that start again when a run is resumed for the `resumes`th time."""
    return (seed + RESUME_STRIDE * resumes) % 2**30
