"""The gymnax adapter, on every environment that gymnax registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from contracts.compiled import ENVS, check_contract, lanes, random_actions
from made import jax_env
from proximo import PPOTrainer
from proximo.envs.api import JaxEnv, Transition
from proximo.envs.compiled.gymnax import GymnaxEnv, names
from proximo.envs.compiled.vectorize import VectorizedEnv
from proximo.envs.groups import ONE
from proximo.errors import UserError

DOWNLOADS = {"MNISTBandit-bsuite"}
IDS = [name for name in names() if name not in DOWNLOADS]
# One of each kind is enough for `make test-fast`, and, where it takes many seconds to compile them, for `make test`.
SOME = {"CartPole-v1", "Pendulum-v1", "Breakout-MinAtar", "FrozenLake-misc", "DeepSea-bsuite"}
EACH = [name if name in SOME else pytest.param(name, marks=pytest.mark.learning) for name in IDS]
TRAINED = [name if name == "CartPole-v1" else pytest.param(name, marks=pytest.mark.learning) for name in IDS]
PROBES = [probes.OneStep, probes.Delayed, probes.TruncatedForever, probes.Masked, probes.Counter]


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_contract(name: str) -> None:
    check_contract(jax_env(f"gymnax/{name}"))


@pytest.mark.parametrize("probe", PROBES)
def test_contract_of_our_own(probe: Callable[[], JaxEnv]) -> None:
    check_contract(probe())


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_copies_give_what_gymnax_itself_gives(name: str) -> None:
    """Bit for bit, with the same keys: observations, rewards, ends, and final observations; across resets."""
    steps = 120
    with jax.numpy_dtype_promotion("standard"):
        env, params = gymnax.make(name)
    # Shorten long episodes so that truncation and resets occur, whatever a random policy does.
    limit = params.max_steps_in_episode
    params = params.replace(max_steps_in_episode=min(limit, type(limit)(25)))
    ours = GymnaxEnv(env, params, name)
    vector = VectorizedEnv(ours, ENVS)
    actions = jnp.asarray(random_actions(ours, steps)[ONE])
    keys = jax.random.split(jax.random.key(5), steps)

    @jax.jit
    def our_run() -> tuple[Any, Any]:
        state, first = vector.reset(jax.random.key(3))
        given = (keys, {ONE: actions})
        rest = jax.lax.scan(lambda s, now: vector.step(now[0], s, now[1]), state, given)[1]
        return lanes(first).obs, lanes(rest)

    def their_step(state: Any, now: Any) -> tuple[Any, Any]:
        key, action = now
        obs, state, reward, terminated, truncated, info = jax.vmap(env.step, (0, 0, 0, None))(
            jax.random.split(key, ENVS), state, action, params
        )
        return state, (obs, reward, terminated, truncated, info["final_observation"])

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        obs, state = jax.vmap(env.reset, (0, None))(jax.random.split(jax.random.key(3), ENVS), params)
        kept = []
        step = jax.jit(their_step)
        for now in zip(keys, actions, strict=True):
            state, out = step(state, now)
            kept.append(jax.device_get(out))
    their_obs, reward, terminated, truncated, final = (np.stack(part) for part in zip(*kept, strict=True))

    first, rest = jax.device_get(our_run())
    assert (terminated | truncated).sum() >= ENVS, "episodes must end for this to say anything"
    np.testing.assert_array_equal(first, obs)
    np.testing.assert_array_equal(rest.terminated, terminated)
    np.testing.assert_array_equal(rest.truncated, truncated & ~terminated)  # where gymnax says both, it was an end
    # One program fuses where the other calls, which may change the last bits of a float.
    for mine, theirs in ((rest.obs, their_obs), (rest.final_obs, final), (rest.reward, reward)):
        np.testing.assert_allclose(np.float32(mine), np.float32(theirs), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_every_environment_trains(name: str, tmp_path: Path) -> None:
    trainer = PPOTrainer(
        env=f"gymnax/{name}",
        preset=False,
        out=tmp_path / "run",
        num_envs=4,
        rollout_length=16,
        minibatch_size=32,
        epochs_per_update=2,
        total_timesteps=192,
        eval_frequency=0,
        eval_episodes=2,
        max_steps_per_episode=20,
    )
    result = trainer.train()
    assert result["total_steps"] == 192
    assert result["final_eval"]["length_mean"] <= 20


@pytest.mark.slow
def test_images_get_a_cnn_and_vectors_do_not() -> None:
    def kernels(env_id: str) -> set[str]:
        env = jax_env(env_id)
        policy = PPOTrainer(env=env, preset=False).agent
        return {"/".join(map(str, path)) for path, _ in jax.tree_util.tree_leaves_with_path(policy.params["actor"])}

    assert any("CNN" in name for name in kernels("gymnax/Breakout-MinAtar"))
    assert not any("CNN" in name for name in kernels("gymnax/CartPole-v1"))


@pytest.mark.slow
def test_an_environment_with_an_auto_reset_of_its_own_is_respected() -> None:
    """DeepSea carries counters over its resets, in a `step` of its own."""
    env = jax_env("gymnax/DeepSea-bsuite")
    vector = VectorizedEnv(env, 2)
    state, _ = vector.reset(jax.random.key(0))
    for step in range(8):
        state, moved = jax.jit(vector.step)(jax.random.key(step), state, {ONE: jnp.zeros(2, jnp.int32)})
    assert moved.reset.all()
    assert lanes(moved).ended.all()
    assert not np.array_equal(lanes(moved).final_obs, lanes(moved).obs)
    assert (state.env.total_bad_episodes >= 0).all()
    assert (state.length == 0).all()


@pytest.mark.slow
def test_resets_are_only_computed_when_something_ended() -> None:
    """Counted by a callback in the environment's reset, under the same compiled step."""
    calls = []

    class Watched(probes.Counter):
        def reset(self, key: jax.Array) -> tuple[Any, Transition]:
            jax.debug.callback(lambda: calls.append(1))
            return super().reset(key)

    vector = VectorizedEnv(Watched(), 3, max_steps=10)
    still = {ONE: jnp.zeros(3, jnp.int32)}
    state, _ = vector.reset(jax.random.key(0))
    jax.effects_barrier()
    calls.clear()
    step = jax.jit(vector.step)
    for number in range(9):
        state, _ = step(jax.random.key(number), state, still)
    jax.effects_barrier()
    assert not calls
    state, moved = step(jax.random.key(9), state, still)
    jax.effects_barrier()
    assert calls
    assert moved.reset.all()
    assert lanes(moved).truncated.all()
    assert lanes(moved).final_obs.tolist() == [[10.0]] * 3
    assert lanes(moved).obs.tolist() == [[0.0]] * 3


class Graded(probes.Counter):
    """A task says from where it counts, and how much a step adds. It is cut at 4, which is a success, or beyond."""

    usual: ClassVar = {"start": 0, "stride": 1}

    def reset(self, key: jax.Array, task: Any = usual) -> tuple[Any, Transition]:
        state, first = super().reset(key)
        state = (jnp.int32(task["start"]), state[1])
        return state, replace(first, obs=self.observe(*state))

    def step(self, key: jax.Array, state: Any, action: Any, task: Any = usual) -> tuple[Any, Transition]:
        clock = state[0] + task["stride"]
        moved = Transition(obs=self.observe(clock, state[1]), reward=task["stride"], truncated=clock >= 4)
        return (clock, state[1]), replace(moved, success=clock == 4)


def test_a_task_reaches_every_reset_and_every_step() -> None:
    """Environment 0 counts 0, 1, 2, 3, 4 and begins again at 0; environment 1 counts 1, 4 and begins again at 1;
    environment 2 counts 3, 5, and 5 is no success."""
    vector = VectorizedEnv(Graded(), 3)
    task = {"start": jnp.array([0, 1, 3]), "stride": jnp.array([1, 3, 2])}
    state, first = vector.reset(jax.random.key(0), task)
    assert lanes(first).obs[:, 0].tolist() == [0, 1, 3]
    step, still, seen = jax.jit(vector.step), {ONE: jnp.zeros(3, jnp.int32)}, []
    for number in range(4):
        state, moved = step(jax.random.key(number), state, still, task)
        seen.append(jax.device_get(moved))
    assert [lanes(now).final_obs[:, 0].tolist() for now in seen] == [[1, 4, 5], [2, 4, 5], [3, 4, 5], [4, 4, 5]]
    assert [lanes(now).obs[:, 0].tolist() for now in seen] == [[1, 1, 3], [2, 1, 3], [3, 1, 3], [0, 1, 3]]
    assert [lanes(now).reward.tolist() for now in seen] == [[1, 3, 2]] * 4
    assert [now.reset.tolist() for now in seen] == [[False, True, True]] * 3 + [[True] * 3]
    assert seen[-1].success.tolist() == [1, 1, 0]


@pytest.mark.slow
def test_without_a_task_none_is_handed_over() -> None:
    """`Counter` takes none."""
    vector = VectorizedEnv(probes.Counter(), 2)
    state, _ = vector.reset(jax.random.key(0), None)
    _, moved = vector.step(jax.random.key(0), state, {ONE: jnp.zeros(2, jnp.int32)}, None)
    assert lanes(moved).obs[:, 0].tolist() == [1, 1]


def test_a_missing_environment_is_named() -> None:
    with pytest.raises(UserError, match="did you mean gymnax/CartPole-v1"):
        jax_env("gymnax/CartPol-v1")
    with pytest.raises(UserError, match="no environment family gymnex; did you mean gymnax/X"):
        jax_env("gymnex/X")


def test_data_that_cannot_be_downloaded_gives_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise OSError("no network")

    monkeypatch.setattr("proximo.envs.compiled.gymnax.make_gymnax", fail)
    with pytest.raises(UserError, match="MNISTBandit-bsuite needs data that it downloads"):
        jax_env("gymnax/MNISTBandit-bsuite")


def test_a_missing_extra_names_the_command_that_installs_it() -> None:
    from proximo.envs import Family

    family = Family("nowhere", "package_that_is_not_there", "proximo.envs.nowhere", "nothing", extra="nowhere")
    assert not family.installed
    with pytest.raises(UserError, match=r'pip install "proximo\[nowhere\]"'):
        family.module()


class Informed(probes.Counter):
    """Tells twice its clock, beside what cannot be tracked."""

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Transition]:
        state, moved = super().step(key, state, action)
        return state, replace(moved, info={"twice": 2 * state[0], "text": "no number", "two": jnp.zeros(2)})


def test_numbers_of_infos_are_reported() -> None:
    vector = VectorizedEnv(Informed(), 2, info=("twice", "nothing"))
    state, first = vector.reset(jax.random.key(0))
    assert np.isnan(np.asarray(first.info)).all()
    for number in range(2):
        state, moved = jax.jit(vector.step)(jax.random.key(number), state, {ONE: jnp.zeros(2, jnp.int32)})
    np.testing.assert_array_equal(moved.info, [[4, np.nan]] * 2)
    assert vector.info_names == ["twice", "text", "two"]
    assert VectorizedEnv(Informed(), 2).reset(jax.random.key(0))[1].info is None
    for name, came in (("text", "str"), ("two", "2 numbers")):
        with pytest.raises(
            UserError, match=rf"info\['{name}'\] must be a number to be tracked \(track.info\), not {came}"
        ):
            VectorizedEnv(Informed(), 2, info=(name,))
