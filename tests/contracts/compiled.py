"""What every compiled environment must do, whoever wrote it. Used by the tests of each adapter."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from proximo.envs.api import JaxEnv
from proximo.envs.compiled.lanes import Lanes
from proximo.spaces import leaves, mask_shape, pick

LANES = 4
STEPS = 64


def random_actions(env: JaxEnv, steps: int) -> np.ndarray:
    """[steps, LANES, ...] actions of the space, the same every time."""
    env.spec.action_space.seed(0)
    return np.stack([[env.spec.action_space.sample() for _ in range(LANES)] for _ in range(steps)])


def play(env: JaxEnv, seed: int = 0, steps: int = STEPS, max_steps: int | None = None):
    """The first timestep and `steps` more, leaves [steps, LANES, ...], with random actions."""
    lanes = Lanes(env, LANES, max_steps)

    @jax.jit
    def run(key, actions):
        state, first = lanes.reset(key)
        keys = jax.random.split(key, steps)
        _, rest = jax.lax.scan(lambda state, now: lanes.step(now[0], state, now[1]), state, (keys, actions))
        return first, rest

    return jax.device_get(run(jax.random.key(seed), jnp.asarray(random_actions(env, steps))))


def check_contract(env: JaxEnv) -> None:
    """Shapes and types, masks, auto-reset, final observations, truncation, seeding."""
    first, rest = play(env, max_steps=7)

    for path, space in leaves(env.spec.observation_space):
        for leading, obs in (((LANES,), first.obs), ((STEPS, LANES), rest.obs), ((STEPS, LANES), rest.final_obs)):
            assert pick(obs, path).shape == (*leading, *space.shape), path
            assert pick(obs, path).dtype == space.dtype, path
    if first.action_mask is not None:
        for leading, mask in (((LANES,), first.action_mask), ((STEPS, LANES), rest.action_mask)):
            assert mask.shape == (*leading, *mask_shape(env.spec.action_space))
            assert mask.dtype == bool
        assert first.action_mask.any(-1).all()
    assert rest.reward.dtype == np.float32
    assert np.isfinite(rest.reward).all()
    assert rest.terminated.dtype == rest.truncated.dtype == rest.valid.dtype == bool
    assert rest.valid.all()

    ended = rest.terminated | rest.truncated
    assert ended.any(axis=0).all(), "with a limit of 7 steps every lane must see an end"
    assert not first.terminated.any()
    assert not first.truncated.any()
    # Where nothing ended, the next observation is the final one; no episode outlives the limit.
    for path, _ in leaves(env.spec.observation_space):
        same = (pick(rest.obs, path) == pick(rest.final_obs, path)).reshape(STEPS, LANES, -1).all(-1)
        assert same[~ended].all(), path
    length = np.zeros(LANES, int)
    for flags in ended:
        length += 1
        assert (length <= 7).all()
        length[flags] = 0

    again = play(env, max_steps=7)
    assert all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves((first, rest)), jax.tree.leaves(again), strict=True)
    )
