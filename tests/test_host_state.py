"""Where host environments are, as bytes, and back: exactly, or not at all."""

import math
import os
import random
import re
import signal
import subprocess
import sys
from collections import deque
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import stateful
from contracts.host import check_restoring, lanes, record
from proximo.config import EnvConfig
from proximo.envs import make
from proximo.envs.host.state import Unsupported, captured, decode, encode, restore
from proximo.envs.host.trial import obstacle
from proximo.errors import EnvError, UserError

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.text(st.characters(exclude_categories=[])),
    st.binary(),
    hnp.scalar_dtypes().flatmap(lambda dtype: hnp.arrays(dtype, ())).map(lambda array: array[()]),
)
KEYS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.tuples(inner, inner),
    max_leaves=4,
)
ARRAYS = hnp.arrays(
    st.one_of(hnp.scalar_dtypes(), hnp.array_dtypes(allow_subarrays=False)), hnp.array_shapes(min_dims=0, min_side=0)
)
TREES = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(KEYS, inner),
        st.sets(KEYS),
        st.frozensets(KEYS),
        st.builds(lambda entries, room: deque(entries, len(entries) + room), st.lists(inner), st.integers(0, 3)),
        st.lists(inner).map(deque),
    ),
    max_leaves=12,
)


def same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if isinstance(one, list | tuple | deque):
        limits = getattr(one, "maxlen", None) == getattr(other, "maxlen", None)
        return limits and len(one) == len(other) and all(map(same, one, other))
    return one == other


# Bytes.


@given(TREES)
def test_what_is_written_is_read(tree):
    assert same(decode(encode(tree)), tree)


def test_signs_and_bits_are_kept():
    assert math.copysign(1, decode(encode(-0.0))) == -1
    assert decode(encode(True)) is True
    assert type(decode(encode(np.bool_(True)))) is np.bool_
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    assert same(decode(encode(fortran)), np.ascontiguousarray(fortran))
    assert decode(encode(np.arange(3))).flags.writeable


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "the state is a object"),
        ({"a": [1, {2}, open]}, r"\['a'\]\[2\] is a builtin_function_or_method"),
        (np.array([None]), "the state is a numpy.ndarray, of object"),
        ({frozenset(): 1}, "cannot be a key"),
        (np.ma.array([1]), "MaskedArray"),
        (1j, "complex"),
    ],
)
def test_what_cannot_be_written_is_named(value, words):
    with pytest.raises(Unsupported, match=words):
        encode(value)


def test_circles_and_depths_are_refused():
    circle = []
    circle.append(circle)
    with pytest.raises(Unsupported, match="nested too deeply"):
        encode(circle)
    text = b"[" * 100_000
    for data in (text, b'["list",[' * 150 + b"1" + b"]]" * 150):
        with pytest.raises(ValueError, match="nested too deeply"):
            decode(b"PROXIMO1" + len(data).to_bytes(8, "little") + data)


@pytest.mark.parametrize(
    "text",
    [
        '["array","<f8",[1099511627776,1099511627776]]',
        '["array","<f8",[-1]]',
        '["array","|O8",[1]]',
        '["array","O",[1]]',
        '["array","|V0",[999999999]]',
        '["array","<f8,<f8",[0]]',
        '["array",[["a","<f8",[1073741824,1073741824]]],[0]]',
        '["array","<f8",[' + ",".join("1" * 99) + "]]",
        '["bytes",99999999999999]',
        '["bytes",-1]',
        '["bytes",true]',
        '["deque",-1,[]]',
        '["deque",1,[1,2]]',
        '["deque",99999999999999999999,[]]',
        '["set",[["list",[]]]]',
        '["dict",[[1,2],[1,3]]]',
        '["dict",[[["list",[]],2]]]',
        '["dict",[[1]]]',
        '["int","99_9"]',
        '["int","' + "g" * 9 + '"]',
        '["float","nan"]',
        "1.5",
        "NaN",
        "{}",
        "[]",
        '["no such thing",[]]',
        "1" * 9999,
    ],
)
def test_hostile_texts(text):
    with pytest.raises(ValueError, match=r".+"):
        decode(b"PROXIMO1" + len(text).to_bytes(8, "little") + text.encode())


def test_spoilt_bytes():
    """Bytes that are changed, cut or inserted anywhere: an error in words, or a value."""
    tree = {"a": np.arange(4), 3: [1.5, None, {2, 3}, deque([b"xy"], 3)], (1, "b"): 10**30, "r": np.float32(2)}
    good, draw, refused = encode(tree), random.Random(0), []
    for _ in range(600):
        data = bytearray(good)
        where = draw.randrange(len(data))
        match draw.randrange(4):
            case 0:
                del data[where:]
            case 1:
                data[where] = draw.randrange(256)
            case 2:
                data[where:where] = draw.choice([b"[", b"]", b"9", b'"', b"\0", b","])
            case 3:
                data[where] ^= 1 << draw.randrange(8)
        try:
            decode(bytes(data))
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 300
    assert all(refused)


# Environments.

RESTORABLE = ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", "Acrobot-v1", "FrozenLake-v1", "Taxi-v4"]
RESTORABLE += ["Blackjack-v1", "CliffWalking-v1", "MiniGrid-DoorKey-5x5-v0", "MiniGrid-Dynamic-Obstacles-5x5-v0"]


@pytest.mark.slow
@pytest.mark.parametrize("env_id", RESTORABLE)
def test_gymnasiums_own_go_on_to_the_bit(env_id):
    try:
        source = make(env_id)
    except UserError:
        pytest.skip(f"{env_id} is not installed")
    check_restoring(source, EnvConfig(workers=0, max_steps_per_episode=23))


def own(name):
    return partial(gymnasium.make, name, disable_env_checker=True)


WRAPPED = {
    "frames": lambda: wrappers.FrameStackObservation(own("CartPole-v1")(), 4),
    "normalized": lambda: wrappers.NormalizeObservation(own("CartPole-v1")()),
    "normalized reward": lambda: wrappers.NormalizeReward(own("Pendulum-v1")()),
    "statistics": lambda: wrappers.RecordEpisodeStatistics(own("CartPole-v1")(), buffer_length=5),
    "function": lambda: wrappers.TransformReward(own("CartPole-v1")(), lambda reward: 2 * reward),
    "rescaled": lambda: wrappers.RescaleAction(own("Pendulum-v1")(), np.float32(-1), np.float32(1)),
    "sticky": lambda: wrappers.StickyAction(own("CartPole-v1")(), 0.5),
    "delayed": lambda: wrappers.DelayObservation(own("CartPole-v1")(), 2),
    "time": lambda: wrappers.TimeAwareObservation(own("CartPole-v1")()),
    "around a hook": lambda: wrappers.NormalizeObservation(stateful.Hooked()),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_wrappers_with_state(name):
    check_restoring(make(WRAPPED[name]), EnvConfig(workers=0, max_steps_per_episode=23))


@pytest.mark.parametrize("env", [stateful.Base, stateful.Wanderer, stateful.Hooked], ids=lambda env: env.__name__)
def test_own_environments(env):
    check_restoring(make(env), EnvConfig(workers=0, max_steps_per_episode=9))


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("HalfCheetah-v5", "MjModel"),
        ("LunarLander-v3", "SwigPyObject"),
        ("CarRacing-v3", "pygame.time.Clock"),
        pytest.param("ALE/Pong-v5", "ALEInterface", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_simulators_cannot_be_restored(env_id, words):
    try:
        source = make(env_id)
    except UserError:
        pytest.skip(f"{env_id} is not installed")
    env = source.factory()
    env.reset(seed=0)
    with pytest.raises(Unsupported, match=words):
        captured(env)
    env.close()
    assert words in obstacle(source.factory, source.mask_source)
    assert obstacle(source.factory, source.mask_source) is not None


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (stateful.Locked, "Locked.lock is a _thread.lock"),
        (stateful.Shared, "Shared.part is a numpy.ndarray, which shares memory with another"),
        (stateful.Twins, "Twins.twin is a numpy.random._generator.Generator, which shares its numbers with another"),
        (stateful.Global, "keeps part of its state elsewhere"),
        (stateful.Closure, "keeps part of its state elsewhere"),
        (stateful.Unseeded, "keeps part of its state elsewhere"),
        (stateful.Forgetful, "keeps part of its state elsewhere"),
        (stateful.Heavy, None),
        (lambda: 3, "action_space"),
    ],
)
def test_what_hides_its_state_is_found_out(env, words):
    why_not = obstacle(env)
    assert (why_not is None) == (words is None)
    assert words is None or words in (why_not or "")


def test_what_is_held_twice_is_held_twice_again():
    one, other = stateful.Wanderer(), stateful.Wanderer()
    for env, seed in ((one, 0), (other, 5)):
        env.action_space.seed(seed)
        env.reset(seed=seed)
    for _ in range(4):
        one.step(1)
    grid = other.grid
    restore(other, captured(one))
    assert other.also_ordered is other.ordered["a"]
    assert any(enemy is other.chosen for enemy in other.enemies)
    assert all(enemy.world is other for enemy in other.enemies)
    assert len(other.enemies) == len(one.enemies)
    assert other.phase is one.phase
    assert type(other.spot) is stateful.Spot
    assert other.handler == other.gentle
    assert grid is not other.grid
    assert encode(decode(captured(other))) == captured(one)


def test_a_surface_is_taken_for_one_that_looks_the_same():
    pygame = pytest.importorskip("pygame")
    one, other = stateful.Base(), stateful.Base()
    for env in (one, other):
        env.reset(seed=0)
        env.screen = pygame.Surface((8, 8))
    screen, one.total = other.screen, 7.0
    restore(other, captured(one))
    assert other.total == 7.0
    assert other.screen is screen
    one.screen.fill((255, 0, 0))
    with pytest.raises(ValueError, match="the state has Surface"):
        restore(other, captured(one))


def test_attributes_come_and_go():
    one, other = stateful.Base(), stateful.Base()
    one.reset(seed=0), other.reset(seed=0)
    one.late, other.surplus = 3, 4
    restore(other, captured(one))
    assert other.late == 3
    assert not hasattr(other, "surplus")


def test_a_state_of_something_else_is_refused():
    one, other = stateful.Base(), stateful.Wanderer()
    one.reset(seed=0), other.reset(seed=0)
    with pytest.raises(ValueError, match="the state is of stateful:Wanderer, not of stateful:Base"):
        restore(one, captured(other))


def test_spoilt_drawings():
    """As spoilt bytes: nothing worse than ValueError comes of it."""
    draw, refused = random.Random(0), []
    env = stateful.Wanderer()
    env.reset(seed=0), env.step(1)
    good = captured(env)
    for _ in range(150):
        data = bytearray(good)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        target = stateful.Wanderer()
        target.reset(seed=1)
        try:
            restore(target, bytes(data))
        except ValueError as error:
            refused.append(str(error))
    assert refused
    assert all(refused)


@pytest.mark.parametrize("name", ["subprocess:Popen", "stateful:Path", "os:_Environ", "stateful:Closer", "no:such"])
def test_only_the_environments_own_classes_are_made(name, monkeypatch):
    class Closer:
        __qualname__ = "Closer"
        __module__ = "stateful"

        def __del__(self):
            raise AssertionError("must not be made")

    monkeypatch.setattr(stateful, "Closer", Closer, raising=False)
    env = stateful.Base()
    env.reset(seed=0)
    state = decode(captured(env))
    state["nodes"][0][2]["extra"] = ["node", len(state["nodes"])]
    state["nodes"].append(["object", name, {}])
    with pytest.raises(ValueError, match="does not take back its state"):
        restore(env, encode(state))


class Mujoco(stateful.Base):
    """Its `set_state` is something else."""

    def get_state(self):
        return self.total

    def set_state(self, positions, velocities):
        raise AssertionError


class Optional(stateful.Hooked):
    def get_state(self, detail=1):
        return super().get_state()

    def set_state(self, state, detail=1):
        return super().set_state(state)


def test_the_hook_is_known_by_its_arguments():
    env = Mujoco()
    env.reset(seed=0)
    assert "hook" not in decode(captured(env))
    env = Optional()
    env.reset(seed=0)
    assert decode(captured(env))["hook"] == {"total": 0.0, "clock": 0}


@pytest.mark.filterwarnings("ignore")
def test_the_hook_of_the_documentation():
    """Read from the page. It serves HalfCheetah; that it does not serve Ant is found out."""
    pytest.importorskip("mujoco")
    page = (Path(__file__).parent.parent / "docs" / "gymnasium.md").read_text(encoding="utf-8")
    found = {}
    exec(re.search(r"```py\n(.*?)```", page, re.DOTALL)[1], found)
    source = make(lambda: found["Exact"](gymnasium.make("HalfCheetah-v5", max_episode_steps=23)))
    check_restoring(source, EnvConfig(workers=0))
    assert "elsewhere" in obstacle(lambda: found["Exact"](gymnasium.make("Ant-v5")))


# Pools.


@pytest.mark.parametrize(
    ("env", "before", "after"),
    [
        ("CartPole-v1", 2, 0),
        (stateful.Hooked, 0, 2),
        (stateful.Wanderer, 1, 2),
        pytest.param(stateful.Heavy, 2, 1, marks=pytest.mark.slow),
    ],
)
def test_environments_go_on_with_another_number_of_workers(env, before, after):
    limit = dict(max_steps_per_episode=17)
    check_restoring(make(env), EnvConfig(workers=before, **limit), EnvConfig(workers=after, **limit))


def pool_of(env, workers=0, **settings):
    return make(env).open_envs(4, EnvConfig(workers=workers, **settings))


@pytest.mark.parametrize("workers", [0, 2])
def test_states_that_cannot_be_used_leave_the_environments_as_reset_did(workers):
    with pool_of(stateful.Base, workers) as pool, pool_of(stateful.Base) as fresh:
        first = np.copy(lanes(pool.reset(5)).obs)
        states = pool.get_states()
        fresh.reset(5)
        for wrong in (states[:3], [*states[:3], None], [*states[:3], b"nothing"], [*states[:3], states[3][:-4]]):
            assert not pool.set_states(wrong)
            assert "The environment Base cannot be restored: " in pool.notices.pop()
        np.testing.assert_array_equal(lanes(pool._all).obs, first)
        assert same(*(record(one, 20)[1] for one in (pool, fresh)))


def test_what_cannot_be_restored_says_so():
    with pool_of(stateful.Locked) as pool:
        pool.reset(0)
        assert pool.get_states() == [None] * 4
        assert not pool.set_states([b""] * 4)
        assert pool.notices == [
            "The environment Locked cannot be restored: Locked.lock is a _thread.lock.",
        ]
        record(pool, 5)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_error", ["stop", "restart"])
def test_hang_in_get_state(workers, on_error, tmp_path):
    env = partial(stateful.Trapped, str(tmp_path / "armed"), stateful.hang)
    with pool_of(env, workers, timeout=1.0, on_error=on_error) as pool:
        pool.reset(0)
        record(pool, 3)
        (tmp_path / "armed").touch()
        if on_error == "stop":
            with pytest.raises(EnvError, match=r"number 1, when its state was asked.*did not answer within 1 s"):
                pool.get_states()
            return
        states = pool.get_states()
        assert states[1] is None
        assert states[0] is not None
        assert "It was started anew" in pool.notices[0]
        (tmp_path / "armed").unlink()
        _, seen = record(pool, 2)
        # The lost environment starts anew with the next step, and the episode counts for nothing.
        assert seen["valid"][0].tolist() == [state is not None for state in states]
        assert seen["truncated"][0].tolist() == [state is None for state in states]
        assert seen["valid"][1].all()
        assert None not in pool.get_states()


@pytest.mark.parametrize("on_error", ["stop", "restart"])
def test_worker_that_ends_in_get_state(on_error, tmp_path):
    env = partial(stateful.Trapped, str(tmp_path / "armed"), stateful.die)
    with pool_of(env, 2, on_error=on_error) as pool:
        pool.reset(0)
        (tmp_path / "armed").touch()
        if on_error == "stop":
            with pytest.raises(EnvError, match=r"number 1, when its state was asked.*ended with exit code 3"):
                pool.get_states()
            return
        states = pool.get_states()
        assert [state is None for state in states] == [False, True, False, True]
        record(pool, 2)


@pytest.mark.parametrize("setting", [False, True])
def test_worker_that_is_killed(setting):
    with pool_of(stateful.Hooked, 2, on_error="restart") as pool:
        pool.reset(0)
        states = pool.get_states()
        os.kill(pool._engine._processes[1].pid, signal.SIGKILL)
        if setting:
            assert not pool.set_states(states)
        else:
            assert [state is None for state in pool.get_states()] == [False, True, False, True]
        _, seen = record(pool, 2)
        assert seen["valid"][1].all()


def test_a_failing_hook_does_not_end_the_run(tmp_path):
    env = partial(stateful.Trapped, str(tmp_path / "armed"), stateful.fail)
    with pool_of(env) as pool:
        pool.reset(0)
        (tmp_path / "armed").touch()
        assert [state is None for state in pool.get_states()] == [False, True, False, False]
        assert record(pool, 2)[1]["valid"].all()


def test_envpool_has_no_states():
    pytest.importorskip("envpool")
    env = make("envpool/CartPole-v1").open_envs(2, EnvConfig())
    env.reset(0)
    assert env.get_states() == [None, None]
    assert not env.set_states([b"", b""])
    env.close()


def test_workers_load_no_jax():
    code = "import sys, proximo.envs.host.worker; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "False"
