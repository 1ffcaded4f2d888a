"""What every host environment must do, whoever wrote it. Used by the tests of each adapter."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from proximo.envs.api import HostEnv, HostSource, LaneStep, Timestep, envs_of, lanes_of
from proximo.envs.groups import ONE
from proximo.envs.host.shared_memory import stored_dtype
from proximo.spaces import leaves, pick

ENVS = 4


def sampled_actions(source: HostSource, steps: int) -> list[Any]:
    """Random actions for all environments, leaves [ENVS, ...], the same every time."""
    space = source.spec.action_space
    space.seed(0)
    return [
        jax.tree.map(lambda *leaves: np.stack(leaves), *[space.sample() for _ in range(ENVS)]) for _ in range(steps)
    ]


def lanes(timestep: Timestep) -> LaneStep:
    """What the only agent of each environment reports: lane i is that of environment i."""
    assert list(timestep.groups) == [ONE]
    return timestep.groups[ONE]


def exchange(env: HostEnv, action: Any) -> None:
    """Send the actions of all: of the only agents [E, ...], or of groups by name [L, ...]."""
    groups = env.spec.groups
    by_group = action if groups.many else {ONE: action}
    for part, slices in enumerate(env.parts):
        sent = {}
        for name, own in by_group.items():
            mine = lanes_of(envs_of(slices), groups[name].size)
            sent[name] = jax.tree.map(lambda leaf, mine=mine: leaf[mine], own)
        env.send(part, sent)


def received(env: HostEnv) -> Timestep:
    """What all environments report, copied, the parts side by side."""
    parts = [jax.tree.map(np.copy, env.recv(part)) for part in range(len(env.parts))]
    whole: Timestep = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    return whole


def play(source: HostSource, config: Any, steps: int, seed: int = 3) -> tuple[Timestep, Timestep]:
    """The first timestep and `steps` more, leaves [steps, ENVS, ...]."""
    env = source.open_envs(ENVS, config)
    try:
        first = jax.tree.map(np.copy, env.reset(seed))
        played = []
        for action in sampled_actions(source, steps):
            exchange(env, action)
            played.append(received(env))
    finally:
        env.close()
    return first, jax.tree.map(lambda *leaves: np.stack(leaves), *played)


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def check_contract(source: HostSource, config: Any, steps: int, seeded: bool = True) -> None:
    """Shapes and types, flags, the limit on steps (7 in `config`), fillers, success, seeding."""
    assert config.max_steps_per_episode == 7
    begun, moved = play(source, config, steps)
    first, rest = lanes(begun), lanes(moved)
    for path, leaf in leaves(source.spec.observation_space):
        for tree, lead in ((first.obs, (ENVS,)), (rest.obs, (steps, ENVS)), (rest.final_obs, (steps, ENVS))):
            array = pick(tree, path)
            assert leaf.shape is not None
            assert array.shape == (*lead, *leaf.shape)
            assert array.dtype == stored_dtype(leaf)
    assert rest.reward.dtype == np.float32
    assert np.isfinite(rest.reward).all()
    assert rest.terminated.dtype == rest.truncated.dtype == rest.valid.dtype == bool
    # Who is never absent is not said to be there.
    assert all(step.present is step.alive is step.acts is None for step in (first, rest))
    assert first.valid.all()
    assert not (first.terminated | first.truncated).any()
    ended = rest.terminated | rest.truncated
    assert ended.any(axis=0).all(), "with a limit of 7 steps every environment must see an end"
    assert not (rest.terminated & rest.truncated).any(), "what terminated was not truncated"
    assert moved.reset.dtype == bool
    assert not begun.reset.any()
    np.testing.assert_array_equal(moved.reset, ended)
    assert moved.success.dtype == np.int8
    assert moved.success.shape == (steps, ENVS)
    assert np.isin(moved.success[ended], [-1, 0, 1]).all()
    # A filler has nothing to tell, follows an end, and counts for nothing.
    assert (rest.reward[~rest.valid] == 0).all()
    assert not ended[~rest.valid].any()
    assert not (~rest.valid[1:] & ~ended[:-1]).any()
    length = np.zeros(ENVS, int)
    for flags, valid in zip(ended, rest.valid, strict=True):
        length += valid
        assert (length <= 7).all()
        length[flags] = 0
    assert same((begun, moved), play(source, config, steps))
    other, _ = play(source, config, 1, seed=4)
    assert not seeded or not same(first.obs, lanes(other).obs)


def record(env: HostEnv, steps: int, seed: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """Step all environments with random actions that are allowed; the actions, and what was reported, time first."""
    draw = np.random.default_rng(seed)
    space = env.spec.action_space
    space.seed(seed)
    actions = []
    masks = None

    def action() -> Any:
        if masks is not None:  # of a discrete space
            return np.array([draw.choice(np.flatnonzero(mask)) for mask in masks])
        return jax.tree.map(lambda *leaves: np.stack(leaves), *[space.sample() for _ in range(env.num_envs)])

    if env.spec.has_mask:
        masks = env._buffers.groups[ONE].action_mask  # type: ignore[attr-defined]
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
    timestep = received(env)
    moved = lanes(timestep)
    ended = moved.terminated | moved.truncated
    # The final observation is only written where an episode ended.
    final = jax.tree.map(lambda leaf: np.where(ended.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0), moved.final_obs)
    names = ("obs", "action_mask", "reward", "terminated", "truncated", "valid")
    return {name: getattr(moved, name) for name in names} | {"final_obs": final, "reset": timestep.reset}


def _stacked(seen: list[dict[str, Any]]) -> dict[str, Any]:
    stacked: dict[str, Any] = jax.tree.map(lambda *leaves: np.stack(leaves), *seen)
    return stacked


def check_restoring(source: HostSource, config: Any, other: Any = None, steps: int = 60) -> None:
    """Environments that are put back where others were do the same from there, through ends of episodes, as those do,
    which do not notice that they were asked; also with the settings `other`."""
    env, untouched, restored = (source.open_envs(ENVS, one) for one in (config, config, other or config))
    try:
        env.reset(3), untouched.reset(3), restored.reset(8)
        before, _ = record(env, 30)
        states: Any = env.get_states()
        assert all(type(state) is bytes for state in states)
        actions, seen = record(env, steps, seed=1)
        ended = seen["terminated"] | seen["truncated"]
        assert ended.any(axis=0).all(), "every environment must see an end"
        replay(untouched, before)
        assert same(replay(untouched, actions), seen)
        assert restored.set_states(states), restored.notices
        assert same(replay(restored, actions), seen)
    finally:
        for one in (env, untouched, restored):
            one.close()
