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


def record(env: HostEnv, steps: int, seed: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """Step all lanes with random actions that are allowed; the actions, and what was reported, time first."""
    draw = np.random.default_rng(seed)
    space = env.spec.action_space
    space.seed(seed)
    actions = []
    masks = None

    def action() -> Any:
        if masks is not None:  # of a discrete space
            return np.array([draw.choice(np.flatnonzero(mask)) for mask in masks])
        return jax.tree.map(lambda *leaves: np.stack(leaves), *[space.sample() for _ in range(env.num_lanes)])

    if env.spec.has_mask:
        masks = env._buffers.action_mask  # type: ignore[attr-defined]
    seen = []
    for _ in range(steps):
        actions.append(action())
        seen.append(_one_step(env, actions[-1]))
    return actions, _stacked(seen)


def replay(env: HostEnv, actions: list[Any]) -> dict[str, Any]:
    """As `record`, with actions that were recorded."""
    return _stacked([_one_step(env, action) for action in actions])


def _one_step(env: HostEnv, action: Any) -> dict[str, Any]:
    exchange(env, action)
    parts = [jax.tree.map(np.copy, env.recv(batch)) for batch in range(len(env.batches))]
    moved = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    ended = moved.terminated | moved.truncated
    # The final observation is only written where an episode ended.
    final = jax.tree.map(lambda leaf: np.where(ended.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0), moved.final_obs)
    names = ("obs", "action_mask", "reward", "terminated", "truncated", "valid")
    return {name: getattr(moved, name) for name in names} | {"final_obs": final}


def _stacked(seen: list[dict[str, Any]]) -> dict[str, Any]:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *seen)


def check_restoring(source: HostSource, config: Any, other: Any = None, steps: int = 60) -> None:
    """Lanes that are put back where others were do the same from there, through ends of episodes, as those do, which
    do not notice that they were asked; also with the settings `other`."""
    env, untouched, restored = (source.lanes(LANES, one) for one in (config, config, other or config))
    try:
        env.reset(3), untouched.reset(3), restored.reset(8)
        before, _ = record(env, 30)
        states = env.get_states()
        assert all(type(state) is bytes for state in states)
        actions, seen = record(env, steps, seed=1)
        ended = seen["terminated"] | seen["truncated"]
        assert ended.any(axis=0).all(), "every lane must see an end"
        replay(untouched, before)
        assert same(replay(untouched, actions), seen)
        assert restored.set_states(states), restored.notices
        assert same(replay(restored, actions), seen)
    finally:
        for one in (env, untouched, restored):
            one.close()
