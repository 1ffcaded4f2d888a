"""The JaxMARL adapter: what it reports is what JaxMARL does, lifetimes and ends, masks, auto-reset, seeding."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from contracts.host import same
from contracts.team import agents_of, by_env, check_lifetimes
from made import jax_env, jax_team
from proximo import PPOTrainer
from proximo.config import AgentsConfig
from proximo.envs.api import Timestep
from proximo.envs.compiled.foreign import lenient
from proximo.envs.compiled.vectorize import VectorizedEnv
from proximo.errors import UserError

ENVS = 4
SOME = ("MPE_simple_spread_v3", "MPE_simple_tag_v3", "HeuristicEnemySMAX-3m")


def adapter() -> Any:
    """It takes seconds to load, in every process of the tests: those that use it load it."""
    return importlib.import_module("proximo.envs.compiled.jaxmarl")


def legal(env: VectorizedEnv, key: jax.Array, now: Timestep) -> dict[str, Any]:
    """Random actions [L, ...] of all groups, of those that the masks allow."""
    actions = {}
    for name, group in env.spec.groups.items():
        mask = now.groups[name].action_mask
        if mask is None:
            rows = stacked([group.action_space.sample() for _ in range(ENVS * group.size)])
            actions[name] = jax.tree.map(jnp.asarray, rows)
        else:
            actions[name] = jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf)).astype(jnp.int32)
    return actions


def stacked(samples: list[Any]) -> Any:
    return jax.tree.map(lambda *rows: np.stack(rows), *samples)


def play(env: Any, steps: int, seed: int = 0, max_steps: int | None = None) -> tuple[Any, Any]:
    """The first timestep, and all after it [steps, ...], with random actions."""
    vector = VectorizedEnv(env, ENVS, max_steps)
    for group in env.spec.groups.values():
        group.action_space.seed(0)
    step = jax.jit(vector.step)
    state, first = jax.jit(vector.reset)(jax.random.key(seed))
    now, seen = first, []
    for number in range(steps):
        key = jax.random.fold_in(jax.random.key(seed), number)
        state, now = step(key, state, legal(env, key, now))
        seen.append(jax.device_get(now))
    return jax.device_get(first), stacked(seen)


@pytest.mark.slow
@pytest.mark.parametrize("env_name", SOME)
def test_contract(env_name: str) -> None:
    first, other = check_contract(env_name)
    seen, others = ({name: step.obs for name, step in one.groups.items()} for one in (first, other))
    assert not same(seen, others)


@pytest.mark.learning
def test_contract_of_the_others(subtests: pytest.Subtests) -> None:
    for name in adapter().names():
        if name not in SOME and ("SMAX-" not in name or name.endswith("-3m")):
            with subtests.test(name):
                check_contract(name)


def check_contract(env_name: str) -> tuple[Timestep, Timestep]:
    """What is seen first, with one seed and with another."""
    env = jax_env(f"jaxmarl/{env_name}")
    first, rest = play(env, 16, max_steps=5)
    groups = env.spec.groups
    assert rest.reset.any(0).all(), "with a limit of 5 steps every environment must see an end"
    check_lifetimes(first, rest, groups)
    for name, group in groups.items():
        assert jax.tree.leaves(rest.groups[name].obs)[0].shape[:2] == (16, ENVS * group.size)
    # In the first step of an episode all are there.
    assert agents_of(first, "alive", groups).all()
    again = play(env, 16, max_steps=5)[1]
    np.testing.assert_array_equal(agents_of(rest, "reward", groups), agents_of(again, "reward", groups))
    return first, play(env, 16, seed=1, max_steps=5)[0]


@pytest.mark.slow
def test_it_is_what_jaxmarl_does() -> None:
    """Step by step beside JaxMARL itself, without its reset."""
    theirs, ours = adapter().jaxmarl.make("MPE_simple_tag_v3"), jax_team("jaxmarl/MPE_simple_tag_v3")
    key = jax.random.key(3)
    with lenient():
        obs, their_state = theirs.reset(key)
    state, first = ours.reset(key)
    np.testing.assert_array_equal(first.groups["agent"].obs[0], obs["agent_0"])
    groups, adversaries = ours.spec.groups, ours.spec.groups["adversary"].members
    ours.spec.action_space.seed(0)
    for number in range(26):
        named = {agent: jnp.asarray(action) for agent, action in ours.spec.action_space.sample().items()}
        action = {name: jnp.stack([named[agent] for agent in group.members]) for name, group in groups.items()}
        with lenient():
            obs, their_state, reward, done, _ = theirs.step_env(key, their_state, named)
        state, moved = ours.step(key, state, action)
        for i, agent in enumerate(adversaries):
            np.testing.assert_array_equal(moved.groups["adversary"].obs[i], obs[agent])
        for name, group in groups.items():
            theirs_paid = [reward[agent] for agent in group.members]
            np.testing.assert_allclose(moved.groups[name].reward, theirs_paid, rtol=1e-6)
        assert bool(moved.over) == bool(done["__all__"]) == (number == 25)
    # Its only end is that of time.
    for members in moved.groups.values():
        assert members.truncated.all()
        assert not members.terminated.any()


@pytest.mark.slow
def test_the_dead_of_a_battle_count_for_nothing() -> None:
    """In SMAX units die one by one, and a battle that is won or lost is a termination for those who are left."""
    env = jax_env("jaxmarl/HeuristicEnemySMAX-3m")
    _, rest = play(env, 60)
    ((group, about),) = env.spec.groups.items()
    own, over = rest.groups[group], rest.reset
    terminated, valid, reward = (by_env(part, about.size, 1) for part in (own.terminated, own.valid, own.reward))
    died = terminated & ~over[..., None]
    assert died.any(), "in 60 steps some unit must die before its battle is over"
    t, number, agent = np.argwhere(died)[0]
    end = t + np.flatnonzero(over[t:, number])[0]
    assert not valid[t + 1 : end + 1, number, agent].any()
    assert not reward[t + 1 : end + 1, number, agent].any()
    assert valid[end + 1, number, agent]
    assert terminated[over[..., None] & valid].any()


@pytest.mark.slow
def test_a_state_for_central_critics() -> None:
    env = jax_team("jaxmarl/HeuristicEnemySMAX-3m").with_groups(AgentsConfig(critic="central"))
    space = env.spec.groups.critic_state_space
    assert space is not None
    assert space.shape == env.reset(jax.random.key(0))[1].critic_state.shape


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("MPE_simple_spred_v3", "did you mean jaxmarl/MPE_simple_spread_v3"),
        ("storm", "cannot be used by its name: it does not report by agent"),
        ("LearnedPolicyEnemySMAX", "needs a policy"),
    ],
)
def test_names_that_cannot_be(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        jax_env(f"jaxmarl/{name}")


@pytest.mark.learning
def test_smax_trains(tmp_path: Path) -> None:
    trainer = PPOTrainer(
        adapter().make("HeuristicEnemySMAX"),
        out=tmp_path / "run",
        console=probes.Notes(),
        num_envs=4,
        rollout_length=16,
        minibatch_size=32,
        epochs_per_update=2,
        total_timesteps=192,
        eval_episodes=2,
        max_steps_per_episode=20,
        critic="central",
        memory="gru",
        reward="team",
    )
    result = trainer.train()
    assert result["total_steps"] == 192
    assert result["final_eval"]["length_mean"] <= 20
