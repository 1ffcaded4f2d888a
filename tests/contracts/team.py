"""What every environment of many agents must do, whoever wrote it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from gymnasium import spaces

from contracts.host import ENVS, exchange, received, same
from proximo.envs.api import Groups, HostEnv, HostSource, Timestep
from proximo.envs.host.bounds import outside
from proximo.envs.host.shared_memory import stored_dtype
from proximo.spaces import leaves, pick


def agents_of(timestep: Timestep, name: str, groups: Groups) -> np.ndarray:
    """A field of all agents, group by group, [..., E, A]: lane = env * K + member, so that a reshape is enough."""
    return np.concatenate(
        [
            by_env(getattr(timestep.groups[group], name), about.size, timestep.reset.ndim - 1)
            for group, about in groups.items()
        ],
        axis=-1,
    )


def by_env(array: np.ndarray, size: int, lead: int = 0) -> np.ndarray:
    """[..., E * K, ...] as [..., E, K, ...], after `lead` axes."""
    return array.reshape(*array.shape[:lead], -1, size, *array.shape[lead + 1 :])


def drawn(env: HostEnv, masks: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
    """Random actions for all lanes, of those that are allowed where the space is discrete."""
    actions = {}
    for name, group in env.spec.groups.items():
        space, mask = group.action_space, masks[name]
        space.seed(int(random.integers(1 << 30)))
        if mask is not None and isinstance(space, spaces.Discrete):
            rows = [space.start + random.choice(np.flatnonzero(row)) for row in mask]
        else:
            rows = [space.sample() for _ in range(env.num_envs * group.size)]
        actions[name] = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    return actions


def masks_of(timestep: Timestep) -> dict[str, Any]:
    return {name: step.action_mask for name, step in timestep.groups.items()}


def one_step(env: HostEnv, action: Any) -> Timestep:
    exchange(env, action)
    moved = received(env)
    # Final observations are only written where somebody's episode ended.
    groups = env.spec.groups
    blank = ~(moved.reset | agents_of(moved, "truncated", groups).any(-1))
    for name, group in groups.items():
        lanes = np.repeat(blank, group.size)
        jax.tree.map(lambda leaf, lanes=lanes: leaf.__setitem__(lanes, 0), moved.groups[name].final_obs)
    jax.tree.map(lambda leaf: leaf.__setitem__(blank, 0), moved.final_critic_state)
    return moved


def play(source: HostSource, config: Any, steps: int, seed: int = 3) -> tuple[Timestep, Timestep]:
    """The first timestep and `steps` more, leaves [steps, ...]."""
    env, random = source.open_envs(ENVS, config), np.random.default_rng(0)
    try:
        first = jax.tree.map(np.copy, env.reset(seed))
        played, masks = [], masks_of(first)
        for _ in range(steps):
            played.append(one_step(env, drawn(env, masks, random)))
            masks = masks_of(played[-1])
    finally:
        env.close()
    return first, jax.tree.map(lambda *leaves: np.stack(leaves), *played)


def check_lifetimes(first: Timestep, rest: Timestep, groups: Groups, turns: bool = False) -> None:
    """Who is there and when, of timesteps [T, ...] of E environments. Every episode begins with the same agents."""
    steps, num_envs = rest.reset.shape
    assert rest.reset.dtype == first.reset.dtype == bool
    assert not first.reset.any()
    assert rest.success.shape == (steps, num_envs)
    assert rest.success.dtype == np.int8
    for name, group in groups.items():
        step = rest.groups[name]
        lanes = (steps, num_envs * group.size)
        for field in ("reward", "terminated", "truncated", "valid", "present", "alive", "acts"):
            array = getattr(step, field)
            assert array.shape == lanes, (name, field)
            assert array.dtype == (np.float32 if field == "reward" else bool), (name, field)
    of = {
        field: agents_of(rest, field, groups)
        for field in ("reward", "terminated", "truncated", "valid", "present", "alive", "acts")
    }
    at_first = {field: agents_of(first, field, groups) for field in ("alive", "acts", "terminated", "truncated")}
    ended = of["terminated"] | of["truncated"]
    assert np.isfinite(of["reward"]).all()
    assert not (at_first["terminated"] | at_first["truncated"]).any()
    over = np.broadcast_to(rest.reset[..., None], ended.shape)
    # Who is there after a step is there in the next one, whose action counts if it is its turn.
    before = np.concatenate([at_first["alive"][None], of["alive"][:-1]])
    acting = np.concatenate([at_first["acts"][None], of["acts"][:-1]])
    np.testing.assert_array_equal(of["present"], before)
    np.testing.assert_array_equal(of["valid"], acting)
    assert not (acting & ~before).any()
    assert (of["valid"].sum(-1) == 1).all() if turns else (of["valid"] == before).all()
    # After an end, those are there with whom every episode begins.
    assert (of["alive"][rest.reset] == at_first["alive"][0]).all()
    assert (of["reward"][~before] == 0).all()
    assert not ended[~before].any(), "only those have an end who were there"
    assert not (of["terminated"] & of["truncated"]).any()
    assert ended[over & before].all(), "whoever is there at the end has one"
    gone = ~of["alive"] & ~over
    assert (gone[~over & before] == ended[~over & before]).all(), "and whoever is gone before"


def check_contract(source: HostSource, config: Any, steps: int, seeded: bool = True, turns: bool = False) -> None:
    """Shapes and types, who is there and when, the limit on steps (7 in `config`), seeding."""
    assert config.max_steps_per_episode == 7
    groups = source.spec.groups
    assert groups.many
    first, rest = play(source, config, steps)
    for name, group in groups.items():
        start, moved, lanes = first.groups[name], rest.groups[name], ENVS * group.size
        for path, leaf in leaves(group.observation_space):
            for tree, lead in ((start.obs, (lanes,)), (moved.obs, (steps, lanes)), (moved.final_obs, (steps, lanes))):
                array = pick(tree, path)
                assert leaf.shape is not None
                assert array.shape == (*lead, *leaf.shape)
                assert array.dtype == stored_dtype(leaf)
            assert outside(leaf, pick(moved.obs, path)) is None
        assert start.valid.all()
        np.testing.assert_array_equal(start.present, start.alive)
    check_lifetimes(first, rest, groups, turns)
    assert rest.reset.any(axis=0).all(), "with a limit of 7 steps every environment must see an end"
    assert np.isin(rest.success[rest.reset], [-1, 0, 1]).all()
    length = np.zeros(ENVS, int)
    for flags in rest.reset:
        length += 1
        assert (length <= 7).all()
        length[flags] = 0
    assert same((first, rest), play(source, config, steps))
    other, _ = play(source, config, 1, seed=4)
    seen, others = ({name: step.obs for name, step in one.groups.items()} for one in (first, other))
    assert not seeded or not same(seen, others)


def check_restoring(source: HostSource, config: Any, other: Any, steps: int = 60) -> None:
    """Environments that are put back where others were do the same from there, through ends of episodes."""
    env, restored = source.open_envs(ENVS, config), source.open_envs(ENVS, other)
    try:
        masks, restored_masks, random = masks_of(env.reset(3)), masks_of(restored.reset(8)), np.random.default_rng(0)
        for _ in range(10):
            masks = masks_of(one_step(env, drawn(env, masks, random)))
            restored_masks = masks_of(one_step(restored, drawn(restored, restored_masks, random)))
        states: Any = env.get_states()
        assert all(type(state) is bytes for state in states)
        assert restored.set_states(states), restored.notices
        over = np.zeros(ENVS, bool)
        for _ in range(steps):
            action = drawn(env, masks, random)
            moved = one_step(env, action)
            assert same(moved, one_step(restored, action))
            over |= moved.reset
            masks = masks_of(moved)
        assert over.all(), "every environment must see an end"
    finally:
        env.close()
        restored.close()
