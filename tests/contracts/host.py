"""What every host environment must do, whoever wrote it. Used by the tests of each adapter."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from proximo.envs.api import HostEnv, HostSource, lanes_of
from proximo.envs.host.buffers import stored_dtype
from proximo.spaces import leaves, pick

LANES = 4


def sampled_actions(source: HostSource, steps: int) -> list[Any]:
    """Random actions for all lanes, leaves [LANES, ...], the same every time."""
    space = source.spec.action_space
    space.seed(0)
    return [
        jax.tree.map(lambda *leaves: np.stack(leaves), *[space.sample() for _ in range(LANES)]) for _ in range(steps)
    ]


def exchange(env: HostEnv, action: Any) -> None:
    for batch, groups in enumerate(env.batches):
        env.send(batch, jax.tree.map(lambda leaf, groups=groups: leaf[lanes_of(groups)], action))


def play(source: HostSource, config: Any, steps: int, seed: int = 3) -> tuple[Any, Any]:
    """The first timestep and `steps` more, leaves [steps, LANES, ...]."""
    env = source.lanes(LANES, config)
    try:
        first = jax.tree.map(np.copy, env.reset(seed))
        played = []
        for action in sampled_actions(source, steps):
            exchange(env, action)
            parts = [jax.tree.map(np.copy, env.recv(batch)) for batch in range(len(env.batches))]
            played.append(jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts))
    finally:
        env.close()
    return first, jax.tree.map(lambda *leaves: np.stack(leaves), *played)


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def check_contract(source: HostSource, config: Any, steps: int, seeded: bool = True) -> None:
    """Shapes and types, flags, the limit on steps (7 in `config`), fillers, seeding."""
    assert config.max_steps_per_episode == 7
    first, rest = play(source, config, steps)
    for path, leaf in leaves(source.spec.observation_space):
        for tree, lead in ((first.obs, (LANES,)), (rest.obs, (steps, LANES)), (rest.final_obs, (steps, LANES))):
            array = pick(tree, path)
            assert array.shape == (*lead, *leaf.shape)
            assert array.dtype == stored_dtype(leaf)
    assert rest.reward.dtype == np.float32
    assert np.isfinite(rest.reward).all()
    assert rest.terminated.dtype == rest.truncated.dtype == rest.valid.dtype == bool
    assert first.valid.all()
    assert not (first.terminated | first.truncated).any()
    ended = rest.terminated | rest.truncated
    assert ended.any(axis=0).all(), "with a limit of 7 steps every lane must see an end"
    assert not (rest.terminated & rest.truncated).any()
    # A filler has nothing to tell, follows an end, and counts for nothing.
    assert (rest.reward[~rest.valid] == 0).all()
    assert not ended[~rest.valid].any()
    assert not (~rest.valid[1:] & ~ended[:-1]).any()
    length = np.zeros(LANES, int)
    for flags, valid in zip(ended, rest.valid, strict=True):
        length += valid
        assert (length <= 7).all()
        length[flags] = 0
    assert same((first, rest), play(source, config, steps))
    other, _ = play(source, config, 1, seed=4)
    assert not seeded or any(
        not np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first.obs), jax.tree.leaves(other.obs), strict=True)
    )
