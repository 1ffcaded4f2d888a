"""What every compiled environment must do, whoever wrote it. Used by the tests of each adapter."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from proximo.envs.api import JaxEnv, LaneStep, Timestep
from proximo.envs.compiled.vectorize import VectorizedEnv
from proximo.envs.groups import ONE
from proximo.spaces import leaves, mask_shape, pick

ENVS = 4
STEPS = 64


def random_actions(env: JaxEnv, steps: int) -> dict[str, np.ndarray]:
    """[steps, ENVS, ...] actions of the space, the same every time."""
    env.spec.action_space.seed(0)
    return {ONE: np.stack([[env.spec.action_space.sample() for _ in range(ENVS)] for _ in range(steps)])}


def lanes(timestep: Timestep) -> LaneStep:
    """What the only agent of each environment reports: lane i is that of environment i."""
    assert list(timestep.groups) == [ONE]
    return timestep.groups[ONE]


def play(env: JaxEnv, seed: int = 0, steps: int = STEPS, max_steps: int | None = None) -> Any:
    """The first timestep and `steps` more, leaves [steps, ENVS, ...], with random actions."""
    vector = VectorizedEnv(env, ENVS, max_steps)

    @jax.jit
    def run(key: jax.Array, actions: Any) -> tuple[Timestep, Timestep]:
        state, first = vector.reset(key)
        keys = jax.random.split(key, steps)
        _, rest = jax.lax.scan(lambda state, now: vector.step(now[0], state, now[1]), state, (keys, actions))
        return first, rest

    actions = jax.tree.map(jnp.asarray, random_actions(env, steps))
    return jax.device_get(run(jax.random.key(seed), actions))


def check_contract(env: JaxEnv) -> None:
    """Shapes and types, masks, auto-reset, final observations, truncation, success, seeding."""
    begun, moved = play(env, max_steps=7)
    first, rest = lanes(begun), lanes(moved)

    for path, space in leaves(env.spec.observation_space):
        for leading, obs in (((ENVS,), first.obs), ((STEPS, ENVS), rest.obs), ((STEPS, ENVS), rest.final_obs)):
            assert space.shape is not None
            assert pick(obs, path).shape == (*leading, *space.shape), path
            assert pick(obs, path).dtype == space.dtype, path
    if first.action_mask is not None:
        for leading, mask in (((ENVS,), first.action_mask), ((STEPS, ENVS), rest.action_mask)):
            assert mask.shape == (*leading, *mask_shape(env.spec.action_space))
            assert mask.dtype == bool
        assert first.action_mask.any(-1).all()
    assert rest.reward.dtype == np.float32
    assert np.isfinite(rest.reward).all()
    assert rest.terminated.dtype == rest.truncated.dtype == rest.valid.dtype == bool
    assert rest.valid.all()
    # Who is never absent is not said to be there.
    assert all(step.present is step.alive is step.acts is None for step in (first, rest))

    ended = rest.terminated | rest.truncated
    assert ended.any(axis=0).all(), "with a limit of 7 steps every environment must see an end"
    assert not (rest.terminated & rest.truncated).any(), "what terminated was not truncated"
    assert not first.terminated.any()
    assert not first.truncated.any()
    assert moved.reset.shape == (STEPS, ENVS)
    assert moved.reset.dtype == begun.reset.dtype == bool
    assert not begun.reset.any()
    np.testing.assert_array_equal(moved.reset, ended)
    assert (begun.success.dtype, begun.success.tolist()) == (np.int8, [-1] * ENVS)
    assert (moved.success.dtype, moved.success.shape) == (np.int8, (STEPS, ENVS))
    assert np.isin(moved.success, [-1, 0, 1]).all()
    # Where nothing ended, the next observation is the final one; no episode outlives the limit.
    for path, _ in leaves(env.spec.observation_space):
        same = (pick(rest.obs, path) == pick(rest.final_obs, path)).reshape(STEPS, ENVS, -1).all(-1)
        assert same[~ended].all(), path
    length = np.zeros(ENVS, int)
    for flags in ended:
        length += 1
        assert (length <= 7).all()
        length[flags] = 0

    again = play(env, max_steps=7)
    assert all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves((begun, moved)), jax.tree.leaves(again), strict=True)
    )
