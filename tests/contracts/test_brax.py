"""The Brax adapter. Physics takes long to compile: what does not need it is tested on Brax's own toy, `Fast`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from contracts.compiled import check_contract, lanes, play
from made import jax_env
from proximo import PPOTrainer
from proximo.envs.api import Timestep
from proximo.envs.compiled.vectorize import VectorizedEnv
from proximo.envs.groups import ONE
from proximo.errors import UserError

EPISODES: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda env: adapter().training.VmapWrapper(env),
    "auto-reset": lambda env: adapter().training.AutoResetWrapper(env),
    "episode": lambda env: adapter().training.EpisodeWrapper(env, 1000, 1),
}


def adapter() -> Any:
    """It takes seconds to load, in every process of the tests: those that use it load it."""
    return importlib.import_module("proximo.envs.compiled.brax")


def fast(**named: Any) -> Any:
    return adapter().envs.fast.Fast(**named)


def test_contract_without_physics() -> None:
    check_contract(jax_env(fast()))


@pytest.mark.learning
def test_contract(subtests: pytest.Subtests) -> None:
    for name in adapter().names():
        with subtests.test(name):
            check_contract(jax_env(f"brax/{name}"))


@pytest.mark.slow
def test_every_episode_begins_anew() -> None:
    """Brax's own auto-reset would begin all of an environment's episodes with the same observation."""
    env = jax_env("brax/inverted_pendulum")
    assert env.spec.observation_space == spaces.Box(-np.inf, np.inf, (4,), np.float32)
    assert env.spec.action_space == spaces.Box(-1.0, 1.0, (1,), np.float32)
    assert env.spec.max_steps == 1000
    first, rest = map(lanes, play(env, max_steps=7))
    ended = rest.terminated | rest.truncated
    begun = np.concatenate([first.obs, rest.obs[ended]])
    assert len(begun) >= 4 * 9
    assert len(np.unique(begun, axis=0)) == len(begun)
    # The final observation is the fallen pendulum, beyond 0.2 rad; a new episode begins within 0.01 of upright.
    assert rest.terminated.any()
    assert (np.abs(rest.final_obs[rest.terminated][:, 1]) > 0.2).all()
    assert (np.abs(begun[:, 1]) <= 0.01).all()


def test_episodes_are_cut_after_a_thousand_steps() -> None:
    """Fast never ends. With thrust, velocity grows by 0.02 a step and position by 0.02 of that: the last observation
    has a velocity of 20 and a position of 0.02 * 0.02 * (1 + ... + 1000)."""
    vector, thrust = VectorizedEnv(jax_env(fast()), 2), {ONE: jnp.ones((2, 1))}

    @jax.jit
    def run(key: jax.Array) -> Timestep:
        state, _ = vector.reset(key)
        return jax.lax.scan(lambda s, k: vector.step(k, s, thrust), state, jax.random.split(key, 1001))[1]

    seen = lanes(jax.device_get(run(jax.random.key(0))))
    assert not seen.terminated.any()
    assert np.flatnonzero(seen.truncated[:, 0]).tolist() == [999]
    np.testing.assert_allclose(seen.final_obs[999], [[0.0004 * 500_500, 20.0]] * 2, rtol=1e-4)
    np.testing.assert_array_equal(seen.obs[999], np.zeros((2, 2)))
    np.testing.assert_allclose(seen.obs[1000], [[0.0004, 0.02]] * 2, rtol=1e-5)


def test_an_end_on_the_last_step_is_no_cut() -> None:
    class Falls(adapter().envs.fast.Fast):  # type: ignore[misc]
        def step(self, state: Any, action: Any) -> Any:
            state = super().step(state, action)
            return state.replace(done=jnp.float32(1.0))

    env = jax_env(Falls())
    (inner, _), _ = env.reset(jax.random.key(0))
    _, moved = env.step(jax.random.key(1), (inner, jnp.int32(999)), jnp.ones(1))
    assert bool(moved.terminated)
    assert not bool(moved.truncated)


def test_observations_that_are_dictionaries(tmp_path: Path) -> None:
    env = jax_env(fast(obs_mode=adapter().envs.fast.ObservationMode.DICT_PIXELS_STATE))
    assert isinstance(env.spec.observation_space, spaces.Dict)
    assert env.spec.observation_space["state"].shape == (2,)
    assert env.spec.observation_space["pixels/view_0"].shape == (4, 4, 3)
    check_contract(env)


@pytest.mark.learning
def test_it_trains(tmp_path: Path) -> None:
    trainer = PPOTrainer(
        env=fast(),
        out=tmp_path / "run",
        num_envs=4,
        rollout_length=16,
        minibatch_size=32,
        total_timesteps=192,
        eval_frequency=0,
        eval_episodes=2,
    )
    result = trainer.train()
    assert result["env"] == "brax/Fast"
    assert result["final_eval"]["length_mean"] == 1000


@pytest.mark.parametrize("wrapper", EPISODES.values(), ids=EPISODES)
def test_wrappers_of_brax_training_are_refused(wrapper: Callable[[Any], Any]) -> None:
    with pytest.raises(UserError, match="Hand in the environment without"):
        jax_env(adapter().envs.Wrapper(wrapper(fast())))


def test_wrappers_of_ones_own_are_kept() -> None:
    class Doubled(adapter().envs.Wrapper):  # type: ignore[misc]
        def step(self, state: Any, action: Any) -> Any:
            state = self.env.step(state, action)
            return state.replace(reward=2 * state.reward)

    _, plain = play(jax_env(fast()), steps=8)
    _, doubled = play(jax_env(Doubled(fast())), steps=8)
    np.testing.assert_allclose(lanes(doubled).reward, 2 * lanes(plain).reward)


@pytest.mark.slow
def test_missing_environments_are_named() -> None:
    with pytest.raises(UserError, match="did you mean brax/halfcheetah"):
        jax_env("brax/half_cheetah")
    with pytest.raises(UserError, match="brax/swimmer"):
        jax_env("brax/swimmer")
