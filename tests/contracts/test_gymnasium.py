"""The Gymnasium adapter: the contract on environments of every kind, the pool's promises, ids, objects, factories."""

from __future__ import annotations

import itertools
import math
import re
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import host_probes
from contracts.host import ENVS, check_contract, exchange, lanes, play, received, same
from made import gymnasium_source
from proximo.config import EnvConfig
from proximo.envs.api import with_info
from proximo.envs.host.pool import split_parts
from proximo.envs.host.slot import without_limit
from proximo.errors import EnvError, UserError

IDS = ["CartPole-v1", "Pendulum-v1", "LunarLander-v3", "HalfCheetah-v5", "MiniGrid-Empty-Random-5x5-v0", "Taxi-v4"]


@pytest.mark.parametrize("env", [*IDS, host_probes.Noisy])
def test_contract(env: Any) -> None:
    check_contract(gymnasium_source(env), EnvConfig(workers=0, max_steps_per_episode=7), steps=40)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "ALE/Pong-v5", host_probes.Noisy])
def test_contract_with_workers(env: Any) -> None:
    # Pong's first frames are the same whatever the seed.
    check_contract(
        gymnasium_source(env), EnvConfig(workers=2, max_steps_per_episode=7), steps=16, seeded=env != "ALE/Pong-v5"
    )


@pytest.mark.slow
@pytest.mark.parametrize("env", [host_probes.Noisy, host_probes.Walk])
def test_the_same_bits_with_any_number_of_workers(env: Any) -> None:
    source = gymnasium_source(env)
    alone = play(source, EnvConfig(workers=0), steps=60)
    for workers in (1, 2, 5):
        assert same(alone, play(source, EnvConfig(workers=workers), steps=60)), workers
    assert same(alone, play(source, EnvConfig(workers=2, groups=3, start_method="spawn"), steps=60))


def test_environments_are_seeded_one_by_one_and_reset_without_a_seed() -> None:
    first, rest = map(lanes, play(gymnasium_source(host_probes.Noisy), EnvConfig(workers=0), steps=60, seed=100))
    np.testing.assert_array_equal(first.obs[:, 0], 10_100 + np.arange(ENVS))
    np.testing.assert_array_equal(rest.obs[-1, :, 0], first.obs[:, 0])
    resets = (rest.terminated | rest.truncated).sum(axis=0)
    assert resets.min() > 2
    np.testing.assert_array_equal(rest.obs[-1, :, 1], resets)


def test_the_final_observation_is_kept_apart() -> None:
    """Walk with action 0 only: 0.25, -0.25, -0.75, -1.25, -1.75, -2.25 terminates; with 1 and 0 by turns it is cut."""
    env = gymnasium_source(host_probes.Walk).open_envs(2, EnvConfig(workers=0))
    env.reset(0)
    for step in range(1, 6):
        exchange(env, np.array([0, step % 2]))
        timestep = env.recv(0)
    moved = lanes(timestep)
    assert moved.terminated.tolist() == timestep.reset.tolist() == [True, False]
    np.testing.assert_array_equal(moved.final_obs[0], [-2.25, 5])
    np.testing.assert_array_equal(moved.obs[0], [0.25, 0])
    np.testing.assert_array_equal(moved.obs[1], [0.25 + 3 * 0.75 - 2 * 0.5, 5])
    assert moved.reward.tolist() == [-2.25, 1.5]
    np.testing.assert_array_equal(moved.action_mask, [[False, True], [True, True]])
    for step in (6, 7):
        exchange(env, np.array([1, step % 2]))
        timestep = env.recv(0)
    moved = lanes(timestep)
    assert (moved.terminated.tolist(), moved.truncated.tolist()) == ([False, False], [False, True])
    assert timestep.reset.tolist() == [False, True]
    np.testing.assert_array_equal(moved.final_obs[1], [1.75, 7])
    env.close()


def test_a_limit_of_ones_own_cuts_and_does_not_terminate() -> None:
    _, moved = play(gymnasium_source(host_probes.Walk), EnvConfig(workers=0, max_steps_per_episode=2), steps=4)
    rest = lanes(moved)
    np.testing.assert_array_equal(rest.truncated[:, 0], [False, True, False, True])
    assert not rest.terminated.any()


def test_wrappers_that_only_count_are_taken_off() -> None:
    env, limit = without_limit(gymnasium.make("CartPole-v1", disable_env_checker=True))
    assert limit == 500
    assert env is env.unwrapped
    kept = gymnasium.wrappers.ClipReward(gymnasium.make("MountainCar-v0"), 0.0, 1.0)
    assert without_limit(kept) == (kept, None)


def test_success_is_what_the_environment_says() -> None:
    env = gymnasium_source(host_probes.Hybrid).open_envs(2, EnvConfig(workers=0))
    env.reset(0)
    action = {"move": np.array([1, 3]), "push": np.zeros((2, 2)), "talk": np.array([0, 1])}
    exchange(env, action)
    assert env.recv(0).success.tolist() == [0, 1]
    walk = gymnasium_source(host_probes.Walk).open_envs(1, EnvConfig(workers=0, max_steps_per_episode=1))
    walk.reset(0)
    exchange(walk, np.array([1]))
    assert walk.recv(0).success.tolist() == [-1]


def test_texts_and_masks_are_not_observations() -> None:
    source = gymnasium_source(host_probes.Hybrid)
    seen: Any = source.spec.observation_space
    assert list(seen) == ["grid", "inner", "pair"]
    assert list(seen["inner"]) == ["count"]
    assert source.mask_source == "obs"
    first = lanes(source.open_envs(2, EnvConfig(workers=0)).reset(0))
    np.testing.assert_array_equal(first.action_mask, [[1, 0, 1, 1, 1]] * 2)
    assert first.obs["grid"].dtype == np.uint8
    assert first.obs["pair"][1].dtype == np.float32


class OfThisScript(host_probes.Walk):
    pass


def test_worker_processes_know_what_was_registered_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have not imported the package, nor run the script, that registered it."""
    monkeypatch.setitem(
        gymnasium.registry,
        "OfThisScript-v0",
        gymnasium.envs.registration.EnvSpec("OfThisScript-v0", lambda **_: OfThisScript(), kwargs={"start": 3}),
    )
    for name in ("MiniGrid-Empty-5x5-v0", "OfThisScript-v0"):
        env = gymnasium_source(name).open_envs(2, EnvConfig(workers=1))
        assert lanes(env.reset(0)).valid.all()
        env.close()


class Optional(host_probes.Walk):
    """Shows the number that the options of its last reset had, and -1 where there were none, and how many resets had
    some. Every second step is the last."""

    told = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.number = -1 if options is None else options["number"]
        self.told += options is not None
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        super().step(action)
        obs, info = self._seen()
        return obs, 0.0, self.clock == 2, False, info

    def _seen(self) -> tuple[np.ndarray, dict[str, Any]]:
        return np.array([self.number, self.told], np.float32), {"action_mask": [True, True]}


@pytest.mark.parametrize("workers", [0, 2])
def test_options_reach_every_reset(workers: int) -> None:
    """Those of the pool, and those at the ends of episodes; until others are given, or none."""
    with gymnasium_source(Optional).open_envs(3, EnvConfig(workers=workers)) as env:

        def seen(options: dict[str, Any] | None, steps: int = 3) -> list[Any]:
            shown = [np.copy(lanes(env.reset(0, options)).obs)]
            for _ in range(steps):
                exchange(env, np.ones(3, int))
                shown.append(lanes(received(env)).obs)
            return [[rows[0].tolist(), rows[-1].tolist()] for rows in shown]

        assert seen(None) == [[[-1, 0]] * 2] * 4
        assert seen({"number": 5}) == [[[5, 1]] * 2] * 2 + [[[5, 2]] * 2] * 2
        assert seen({"number": 7}, 0) == [[[7, 3]] * 2]
        assert seen(None, 2) == [[[-1, 3]] * 2] * 3


class Judged(host_probes.Walk):
    """Tells its critic ten times its clock, and ends with the third step."""

    critic_state_space = spaces.Box(0.0, 100.0, (1,), np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, self.clock == 3, info

    def _seen(self) -> tuple[Any, Any]:
        obs, info = super()._seen()
        return obs, info | {"critic_state": np.array([10 * self.clock], np.float32)}


@pytest.mark.parametrize("workers", [0, 2])
def test_what_only_critics_see_belongs_to_the_environment(workers: int) -> None:
    source = gymnasium_source(Judged)
    assert source.spec.critic_state_space == Judged.critic_state_space
    with source.open_envs(2, EnvConfig(workers=workers)) as env:
        seen = [np.copy(env.reset(0).critic_state)]
        for _ in range(4):
            exchange(env, np.ones(2, int))
            moved = received(env)
            seen.append(moved.critic_state)
            if moved.reset.all():
                assert moved.final_critic_state.tolist() == [[30], [30]]
    assert [state[:, 0].tolist() for state in seen] == [[0, 0], [10, 10], [20, 20], [0, 0], [10, 10]]


class WithMethod(gymnasium.Env[Any, Any]):
    observation_space = spaces.Discrete(2)
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return 1, 0.0, False, False, {}

    def action_masks(self) -> list[list[bool]]:
        return [[True, False], [False, True, True]]


def test_a_mask_from_a_method() -> None:
    source = gymnasium_source(WithMethod)
    assert source.mask_source == "method"
    env = source.open_envs(1, EnvConfig(workers=0))
    np.testing.assert_array_equal(lanes(env.reset(0)).action_mask, [[True, False, False, True, True]])


@pytest.mark.parametrize(("envs", "num", "sizes"), [(8, 2, [4, 4]), (5, 2, [2, 3]), (1, 2, [1]), (3, 8, [1, 1, 1])])
def test_parts(envs: int, num: int, sizes: list[int]) -> None:
    parts = split_parts(envs, num)
    assert [part.stop - part.start for part in parts] == sizes
    assert parts[0].start == 0
    assert all(before.stop == after.start for before, after in itertools.pairwise(parts))


def test_objects_factories_and_classes() -> None:
    assert gymnasium_source(gymnasium.make("CartPole-v1")).spec.id == "CartPole-v1"
    assert gymnasium_source(lambda: gymnasium.make("CartPole-v1")).spec.id == "CartPole-v1"
    assert gymnasium_source(host_probes.Walk).spec.id == "Walk"
    assert gymnasium_source(host_probes.Walk()).spec.id == "Walk"
    given = host_probes.Noisy()
    given.reset(seed=1)
    before = given.np_random.bit_generator.state
    play(gymnasium_source(given), EnvConfig(workers=0), steps=3)
    assert given.np_random.bit_generator.state == before, "environments must be copies"


class Uncopyable(host_probes.Walk):
    def __deepcopy__(self, memo: Any) -> None:
        raise TypeError("a handle")


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ("CartPol-v1", "did you mean CartPole-v1"),
        ("CartPole", "did you mean CartPole-v1"),
        ("no_such_module:Env-v0", "cannot be made: there is no module no_such_module, neither"),
        ("gymnay/CartPole-v1", "did you mean gymnax/CartPole-v1"),
        (Uncopyable(), "hand in a factory instead"),
        (lambda: 5, "must return a gymnasium.Env, not builtins.int"),
        (5, "env must be an id"),
    ],
)
def test_what_is_no_environment(env: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        gymnasium_source(env)


def test_a_missing_extra_names_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "ale_py" else found(name, *rest)
    )
    with pytest.raises(UserError, match=r'pip install "proximo\[atari\]"'):
        gymnasium_source("ALE/Pong-v5")

    def absent(*_: Any, **__: Any) -> None:
        raise gymnasium.error.DependencyNotInstalled("Box2D is not installed")

    monkeypatch.setattr(gymnasium, "make", absent)
    with pytest.raises(UserError, match=r'pip install "proximo\[box2d\]"'):
        gymnasium_source("LunarLander-v3")


def test_auto_asks_how_long_a_step_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    from proximo.envs.host import num_workers

    monkeypatch.setattr(num_workers, "num_cores", lambda: 4)
    source = gymnasium_source(host_probes.Walk)
    for seconds, envs, workers in [
        ((2e-6, 2e-6), 8, 0),
        ((50e-6, 50e-6), 8, 3),
        ((50e-6, 50e-6), 2, 2),
        ((10e-3, 10e-3), 8, 4),
        ((2e-3, 1e-4), 16, 16),
        ((2e-3, 1e-4), 1, 0),
    ]:
        source.step_time.seconds = seconds
        chosen, why = source.step_time.choose_num_workers(envs, EnvConfig(workers="auto"))
        assert chosen == workers, seconds
        assert why[0].startswith(f"A step of Walk takes {seconds[0] * 1e6:,.0f} us")
    assert source.step_time.choose_num_workers(8, EnvConfig(workers=5)) == (5, [])


def test_measuring_survives_forbidden_actions() -> None:
    from proximo.envs.host.num_workers import measure

    class Strict(host_probes.Walk):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            raise RuntimeError("forbidden")

    assert measure(Strict()) == (0.0, 0.0)
    wall, busy = measure(gymnasium.make("CartPole-v1"))
    assert 1e-6 < wall < 1e-3
    assert busy <= 10 * wall


def test_jax_stays_out_of_worker_processes() -> None:
    import subprocess
    import sys

    modules = "proximo.envs.host.worker_main, proximo.envs.host.registered"
    code = f"import {modules}, sys; print([m for m in ('jax', 'flax', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


class Lying(host_probes.Hybrid):
    """Says that it gives a dictionary, and gives something else."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def _obs(self) -> Any:
        return self.given


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.zeros(2), "gave a ndarray for the observation, which should be a dictionary with ['action_mask', 'grid'"),
        (None, "gave a NoneType"),
        ({"grid": 1}, "gave a dictionary with ['grid']"),
        (host_probes.Hybrid.observation_space.sample() | {"inner": 3}, "gave a int for the observation['inner']"),
    ],
)
def test_an_observation_of_another_structure_is_named(given: Any, said: str) -> None:
    with pytest.raises(EnvError, match=re.escape(said)) as caught:
        gymnasium_source(lambda: Lying(given))
    assert "environment Lying " in str(caught.value)


class Objectives(host_probes.Walk):
    """Pays two rewards at each step, as the environments of mo-gymnasium do."""

    def __init__(self, declared: bool = True) -> None:
        super().__init__()
        if declared:
            self.reward_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, np.array([reward, 1.0]), *rest


class Weighed(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        obs, rewards, *rest = self.env.step(action)
        return obs, float(np.sum(np.asarray(rewards))), *rest


def test_several_rewards_are_refused_before_anything_is_trained() -> None:
    limited = partial(gymnasium.wrappers.TimeLimit, max_episode_steps=5)
    factories: list[Any] = [Objectives, lambda: limited(gymnasium.wrappers.FlattenObservation(Objectives()))]
    for factory in factories:
        with pytest.raises(UserError, match=r"gives 2 rewards at each step .* mo_gymnasium.wrappers:LinearReward does"):
            gymnasium_source(factory)
    weighed = gymnasium_source(lambda: Weighed(Objectives()))
    check_contract(weighed, EnvConfig(workers=0, max_steps_per_episode=7), steps=20, seeded=False)
    pool = gymnasium_source(lambda: Objectives(declared=False)).open_envs(2, EnvConfig(workers=0))
    pool.reset(0)
    exchange(pool, np.zeros(2, np.int64))
    with pytest.raises(EnvError, match=r"reward must be a number, not ndarray .*; a wrapper can weigh and add several"):
        pool.recv(0)
    pool.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_numbers_of_infos_are_reported(workers: int) -> None:
    """Going up, the third step is the last: at 2.5."""
    source = with_info(gymnasium_source(host_probes.Telling), ("clock", "went", "third", "nothing"))
    with source.open_envs(3, EnvConfig(workers=workers)) as env:
        env.reset(0)
        told = []
        for _ in range(4):
            exchange(env, np.ones(3, int))
            told.append(np.array(received(env).info))
        nan = math.nan
        each = [[1, nan, nan, nan], [2, nan, nan, nan], [3, 1, 3, nan], [1, nan, nan, nan]]
        np.testing.assert_array_equal(told, [[row] * 3 for row in each])
        assert env.info_names == ["action_mask", "clock", "third", "went"]


@pytest.mark.parametrize("value", ["7", {"a": 1}, np.zeros(2), None])
def test_infos_that_are_no_numbers(value: Any) -> None:
    class Odd(host_probes.Walk):
        def _seen(self) -> tuple[np.ndarray, dict[str, Any]]:
            obs, info = super()._seen()
            return obs, info | {"odd": value}

    with with_info(gymnasium_source(Odd), ("odd",)).open_envs(1, EnvConfig(workers=0)) as env:
        env.reset(0)
        exchange(env, np.ones(1, int))
        if value is None:  # as good as not there
            assert np.isnan(np.array(received(env).info)).all()
        else:
            with pytest.raises(EnvError, match=r"info\['odd'\] must be a number to be tracked \(track.info\), not "):
                received(env)
