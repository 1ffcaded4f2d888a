"""What every host environment of many agents must do, whoever wrote it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from gymnasium import spaces

from contracts.host import LANES, exchange, same
from proximo.envs.api import HostEnv, HostSource
from proximo.envs.host.bounds import outside
from proximo.envs.host.buffers import stored_dtype
from proximo.spaces import leaves, pick


def drawn(env: HostEnv, masks: np.ndarray | None, random: np.random.Generator) -> Any:
    """Random actions for all lanes, of those that are allowed where the space is discrete."""
    team, actions, start = env.spec.team, {}, 0
    assert team is not None
    for name, members in team.groups.items():
        space, size = team.action_spaces[name], team.mask_sizes[name]
        space.seed(int(random.integers(1 << 30)))
        stop = start + size * len(members)
        if masks is not None and isinstance(space, spaces.Discrete):
            flags = masks[:, start:stop].reshape(-1, size)
            rows = [space.start + random.choice(np.flatnonzero(row)) for row in flags]
        else:
            rows = [space.sample() for _ in range(env.num_lanes * len(members))]
        batch = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
        shape = (env.num_lanes, len(members))
        actions[name] = jax.tree.map(lambda leaf, shape=shape: leaf.reshape(*shape, *leaf.shape[1:]), batch)
        start = stop
    return actions


def one_step(env: HostEnv, action: Any) -> Any:
    exchange(env, action)
    parts = [jax.tree.map(np.copy, env.recv(batch)) for batch in range(len(env.batches))]
    moved = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    # Final observations are only written where somebody's episode ended.
    blank = ~(moved.over | moved.truncated.any(-1))
    jax.tree.map(lambda leaf: leaf.__setitem__(blank, 0), moved.final_obs)
    return moved


def play(source: HostSource, config: Any, steps: int, seed: int = 3) -> tuple[Any, Any]:
    """The first timestep and `steps` more, leaves [steps, LANES, ...]."""
    env, random = source.lanes(LANES, config), np.random.default_rng(0)
    try:
        first = jax.tree.map(np.copy, env.reset(seed))
        played, mask = [], first.action_mask
        for _ in range(steps):
            played.append(one_step(env, drawn(env, mask, random)))
            mask = played[-1].action_mask
    finally:
        env.close()
    return first, jax.tree.map(lambda *leaves: np.stack(leaves), *played)


def check_contract(source: HostSource, config: Any, steps: int, seeded: bool = True, turns: bool = False) -> None:
    """Shapes and types, who is there and when, the limit on steps (7 in `config`), seeding. Every episode begins with
    the same agents."""
    assert config.max_steps_per_episode == 7
    team = source.spec.team
    assert team is not None
    first, rest = play(source, config, steps)
    for path, leaf in leaves(source.spec.observation_space):
        for tree, lead in ((first.obs, (LANES,)), (rest.obs, (steps, LANES)), (rest.final_obs, (steps, LANES))):
            array = pick(tree, path)
            assert array.shape == (*lead, *leaf.shape)
            assert array.dtype == stored_dtype(leaf)
        assert outside(leaf, pick(rest.obs, path)) is None
    each, ended = (steps, LANES, len(team.agents)), rest.terminated | rest.truncated
    assert rest.reward.shape == rest.terminated.shape == rest.truncated.shape == rest.valid.shape == each
    assert rest.absent.shape == each
    assert rest.over.shape == (steps, LANES)
    assert rest.reward.dtype == np.float32
    assert np.isfinite(rest.reward).all()
    assert first.valid.all()
    assert not (first.terminated | first.truncated).any()
    assert not first.over.any()
    over = np.broadcast_to(rest.over[..., None], each)
    assert rest.absent[over].all()
    following = np.where(over, ~first.absent, ~rest.absent)
    before = np.concatenate([~first.absent[None], following[:-1]])
    assert (rest.reward[~before] == 0).all()
    assert not ended[~before].any(), "only those have an end who were there"
    assert not rest.valid[~before].any()
    assert (rest.valid.sum(-1) == 1).all() if turns else (rest.valid == before).all()
    assert not (rest.terminated & rest.truncated).any()
    assert ended[over & before].all(), "whoever is there at the end has one"
    assert (rest.absent[~over & before] == ended[~over & before]).all(), "and whoever is gone before"
    assert rest.over.any(axis=0).all(), "with a limit of 7 steps every lane must see an end"
    length = np.zeros(LANES, int)
    for flags in rest.over:
        length += 1
        assert (length <= 7).all()
        length[flags] = 0
    assert same((first, rest), play(source, config, steps))
    other, _ = play(source, config, 1, seed=4)
    assert not seeded or not same(first.obs, other.obs)


def check_restoring(source: HostSource, config: Any, other: Any, steps: int = 60) -> None:
    """Lanes that are put back where others were do the same from there, through ends of episodes."""
    env, restored = source.lanes(LANES, config), source.lanes(LANES, other)
    try:
        mask, restored_mask, random = env.reset(3).action_mask, restored.reset(8).action_mask, np.random.default_rng(0)
        for _ in range(10):
            mask = one_step(env, drawn(env, mask, random)).action_mask
            restored_mask = one_step(restored, drawn(restored, restored_mask, random)).action_mask
        states = env.get_states()
        assert all(type(state) is bytes for state in states)
        assert restored.set_states(states), restored.notices
        over = np.zeros(LANES, bool)
        for _ in range(steps):
            action = drawn(env, mask, random)
            moved = one_step(env, action)
            assert same(moved, one_step(restored, action))
            over |= moved.over
            mask = moved.action_mask
        assert over.all(), "every lane must see an end"
    finally:
        env.close(), restored.close()
