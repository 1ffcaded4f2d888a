"""Environments go on where they were, to the bit, or say that they cannot."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import msgpack
import numpy as np
import pytest
from gymnasium import wrappers

import faulty
import restorable
from contracts.host import check_restoring, lanes, record, same
from made import host_source
from proximo.config import EnvConfig
from proximo.envs import make
from proximo.envs.host import slot
from proximo.envs.host.pool import AsyncEnvPool
from proximo.envs.host.snapshot import REASONS, Snapshot, decode, encode, find_hook, has_hook, pack, unpack
from proximo.envs.host.workers import ProcessBackend
from proximo.errors import EnvError, UserError

# Plain data.

PLAIN = [
    None,
    True,
    0,
    -1,
    2**63,
    -(2**200),
    0.1,
    float("inf"),
    "text",
    b"bytes",
    [1, [2, []]],
    {"a": 1, 2: [3], b"c": {"d": []}},
    np.arange(6).reshape(2, 3),
    np.zeros((0, 3), np.float32),
    np.array(3.5),
    np.float32(0.1),
    np.bool_(True),
    np.array([True, False]),
    np.array(["ab", "c"]),
]


def same_value(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray | np.generic):
        return type(one) is type(other) and one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("tree", PLAIN, ids=repr)
def test_what_is_written_is_read(tree: Any) -> None:
    found = decode(encode(tree))
    if isinstance(tree, list | dict):
        assert found == tree
        assert type(found) is type(tree)
    else:
        assert same_value(found, tree)


def test_signs_and_bits_are_kept() -> None:
    numbers = np.array([-0.0, np.nan, 5e-324], "<f8")
    numbers.view(np.uint64)[1] |= 1
    assert decode(encode(numbers)).tobytes() == numbers.tobytes()
    assert str(decode(encode(-0.0))) == "-0.0"


@pytest.mark.parametrize(
    "value",
    [{1, 2}, object(), np.array([object()]), len, 1 + 2j, np.zeros(2, "i4,f4")],
    ids=["set", "object", "objects", "function", "complex", "record"],
)
def test_what_is_no_plain_data_cannot_be_written(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode([value])


def test_circles_cannot_be_written() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(ValueError, match="recursion limit"):
        encode(circle)


HOSTILE = {
    "nothing": b"",
    "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
    "a list of 2**32 - 1": b"\xdd\xff\xff\xff\xff",
    "10,000 lists, each of the length of all": b"".join(b"\xdd" + (50_000).to_bytes(4, "big") for _ in range(10_000)),
    "an array in an array, 3,000 times": encode(None),
    "more after the end": encode(1) + b"\x00",
    "an unknown kind": msgpack.packb(msgpack.ExtType(77, b"")),
    "an array of objects": msgpack.packb(msgpack.ExtType(1, msgpack.packb(["|O", [1], b"12345678"]))),
    "an array that is too long": msgpack.packb(msgpack.ExtType(1, msgpack.packb(["<f8", [2**40, 2**40], b""]))),
    "an array of a negative length": msgpack.packb(msgpack.ExtType(1, msgpack.packb(["<f8", [-1], b""]))),
    "an integer that is none": msgpack.packb(msgpack.ExtType(3, b"0x")),
    "a text that is none": b"\xa2\xff\xff",
}
nested = b"\xc0"
for _ in range(3_000):
    nested = msgpack.packb(msgpack.ExtType(1, b"\x93" + 3 * nested if len(nested) < 9 else b"\x91" + nested))
HOSTILE["an array in an array, 3,000 times"] = nested


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no plain data"):
        decode(HOSTILE[name])


def test_spoilt_bytes_are_refused_or_read() -> None:
    tree = {"a": np.arange(4), 3: [1.5, None, {2: 3}, b"xy"], "b": 10**30, "r": np.float32(2)}
    good, draw, refused = encode(tree), random.Random(0), 0
    for _ in range(600):
        data = bytearray(good)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        del data[len(data) - draw.choice([0, 0, 1, 9]) :]
        try:
            decode(bytes(data))
        except ValueError:
            refused += 1
    assert refused > 200


# Snapshots.

GOOD: dict[str, Any] = dict(
    seed=3, episode=2, length=1, total=9, restarts=0, shown=[np.zeros(3)], replay=[3, 10_003, 2, b"\0" * 8, 0.5]
)
GOOD |= dict(hook=None, reason=None)


def test_a_snapshot_is_read_as_it_was_written() -> None:
    found = unpack(pack(Snapshot(**GOOD)))
    np.testing.assert_array_equal(found.shown[0], np.zeros(3))
    assert (found.seed, found.episode, found.replay) == (3, 2, GOOD["replay"])


WRONG: dict[str, dict[str, Any]] = {
    "a text as a seed": {"seed": "3"},
    "a negative count": {"length": -1},
    "a huge count": {"total": 2**70},
    "a truth as a count": {"restarts": True},
    "no list of what was shown": {"shown": 5},
    "a text among what was shown": {"shown": ["a"]},
    "too few parts of a replay": {"replay": [3, 4, b""]},
    "a list as actions": {"replay": [3, 10_003, 2, [1], 0.5]},
    "a text as rewards": {"replay": [3, 10_003, 2, b"", "0.5"]},
    "two ways at once": {"hook": b""},
    "no way": {"replay": None},
    "an unknown reason": {"replay": None, "reason": "\x1b[2J"},
    "an unhashable reason": {"replay": None, "reason": []},
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.usefixtures("unchecked")
def test_a_snapshot_with_a_wrong_part_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be right"):
        unpack(encode(GOOD | WRONG[name]))


@pytest.mark.parametrize("tree", [5, [1], {}, GOOD | {"more": 1}, {key: GOOD[key] for key in list(GOOD)[1:]}])
def test_what_is_no_snapshot_is_refused(tree: Any) -> None:
    with pytest.raises(ValueError, match="is no snapshot"):
        unpack(encode(tree))


# Environments that can be replayed.

EXACT: list[Any] = [
    "CartPole-v1",
    "Pendulum-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "FrozenLake-v1",
    "Blackjack-v1",
    "Taxi-v4",
]
EXACT += ["CliffWalking-v1", "LunarLander-v3", "Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "Ant-v5"]
EXACT += ["MiniGrid-DoorKey-5x5-v0", "MiniGrid-Dynamic-Obstacles-5x5-v0"]
EXACT += [pytest.param(name, marks=pytest.mark.slow) for name in ("Humanoid-v5", "CarRacing-v3", "ALE/Pong-v5")]


@pytest.fixture
def seeded_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds are given often enough for a replay to start at a later episode; only in this process."""
    monkeypatch.setattr(slot, "SEED_INTERVAL", 20)


def source_of(env: Any) -> Any:
    try:
        return make(env)
    except UserError:
        pytest.skip(f"{env} is not installed")


@pytest.mark.parametrize("env_id", EXACT)
def test_these_go_on_to_the_bit(env_id: str, seeded_often: None) -> None:
    check_restoring(source_of(env_id), EnvConfig(workers=0, max_steps_per_episode=13), steps=40)


def own(name: str) -> Callable[[], Any]:
    return partial(gymnasium.make, name, disable_env_checker=True)


WRAPPED = {
    "frames": lambda: wrappers.FrameStackObservation(own("CartPole-v1")(), 4),
    "statistics": lambda: wrappers.RecordEpisodeStatistics(own("CartPole-v1")(), buffer_length=5),
    "function": lambda: wrappers.TransformReward(own("CartPole-v1")(), lambda reward: 2 * float(reward)),
    "rescaled": lambda: wrappers.RescaleAction(own("Pendulum-v1")(), np.float32(-1), np.float32(1)),
    "sticky": lambda: wrappers.StickyAction(own("CartPole-v1")(), 0.5),
    "delayed": lambda: wrappers.DelayObservation(own("CartPole-v1")(), 2),
    "time": lambda: wrappers.TimeAwareObservation(own("CartPole-v1")()),
    "around a hook": lambda: wrappers.FrameStackObservation(restorable.Hooked(), 3),
    "sampling": restorable.Sampling,
    "plain": restorable.Base,
}


@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_and_own_environments_go_on_to_the_bit(name: str, seeded_often: None) -> None:
    check_restoring(host_source(WRAPPED[name]), EnvConfig(workers=0, max_steps_per_episode=9))


@pytest.mark.parametrize(
    ("env", "before", "after"),
    [("CartPole-v1", 2, 0), ("CartPole-v1", 0, 1), (restorable.Hooked, 1, 2), (restorable.Base, 0, 2)],
)
def test_environments_go_on_with_another_number_of_workers(env: Any, before: int, after: int) -> None:
    limit: dict[str, Any] = dict(max_steps_per_episode=17)
    check_restoring(host_source(env), EnvConfig(workers=before, **limit), EnvConfig(workers=after, **limit))


def pool_of(env: Any, workers: int = 0, **settings: Any) -> AsyncEnvPool:
    pool: AsyncEnvPool = source_of(env).open_envs(4, EnvConfig(workers=workers, **settings))
    return pool


def snapshots(pool: AsyncEnvPool) -> list[Snapshot]:
    states: Any = pool.get_states()
    return [unpack(state) for state in states]


def restored(env: Any, steps: int, workers: int = 0, **settings: Any) -> tuple[Any, Any]:
    """Whether new environments are restored to where others are after some steps, and what is said."""
    with pool_of(env, workers, **settings) as pool:
        pool.reset(3)
        if steps:
            record(pool, steps)
        states: Any = pool.get_states()
    with pool_of(env, workers, **settings) as pool:
        pool.reset(3)
        return pool.set_states(states), pool.notices


def test_environments_that_have_not_been_stepped_are_restored() -> None:
    assert restored("CartPole-v1", 0) == (True, [])


# Environments that cannot.


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "env",
    [
        restorable.Chance,
        restorable.Worn,
        lambda: wrappers.NormalizeObservation(restorable.Base()),
        lambda: wrappers.NormalizeReward(restorable.Base()),
    ],
    ids=["global numbers", "counts resets", "normalized observations", "normalized rewards"],
)
def test_what_its_seed_does_not_set_is_found_out(env: Any, workers: int) -> None:
    exact, notices = restored(env, 1_100, workers)
    assert not exact
    assert len([notice for notice in notices if "cannot be restored" in notice]) == 1
    name = make(env).spec.id
    words = rf"The environment {name} cannot be restored: the same seed and the same [\d,]+ actions lead number \d"
    assert re.match(words, notices[-1])


@pytest.mark.filterwarnings("ignore")
def test_bipedal_walker_says_so() -> None:
    """Its world outlives a reset."""
    said = [restored("BipedalWalker-v3", steps) for steps in (300, 360, 420)]
    assert not all(exact for exact, _ in said)
    for exact, notices in said:
        words = ["The environment BipedalWalker-v3 cannot be restored: the same seed"]
        assert [notice[: len(words[0])] for notice in notices if "restored" in notice] == ([] if exact else words)


@pytest.mark.parametrize("workers", [0, 2])
def test_episodes_beyond_the_limit_are_not_restored(workers: int) -> None:
    assert restored("Pendulum-v1", 12, workers, replay_limit=12)[0]
    exact, notices = restored("Pendulum-v1", 13, workers, replay_limit=12)
    assert not exact
    reason = "an episode is longer than the 12 steps that are replayed (env.replay_limit)"
    assert notices[-1] == f"The environment Pendulum-v1 cannot be restored: {reason}."


def test_replaying_can_be_turned_off() -> None:
    exact, notices = restored("CartPole-v1", 5, replay_limit=0)
    assert not exact
    assert notices[-1].endswith("cannot be restored: replaying is turned off (env.replay_limit=0).")
    assert restored(restorable.Hooked, 5, replay_limit=0)[0], "what has a hook needs no replay"


def test_the_limit_does_not_change_what_happens() -> None:
    with pool_of("CartPole-v1", replay_limit=0) as one, pool_of("CartPole-v1", replay_limit=30) as other:
        one.reset(3), other.reset(3)
        assert same(record(one, 400)[1], record(other, 400)[1])


def test_what_cannot_be_restored_begins_as_after_a_reset() -> None:
    with pool_of(restorable.Chance) as pool:
        pool.reset(5)
        record(pool, 4)
        states: Any = pool.get_states()
        assert not pool.set_states(states)
        assert lanes(pool._all).obs[:, 1].tolist() == [0, 0, 0, 0]
        assert record(pool, 5)[1]["valid"].all()


# Hooks.


class Simulator(restorable.Hooked):
    """As MuJoCo's: its `set_state` is something else."""

    def set_state(self, positions: Any, velocities: Any) -> None:  # type: ignore[override]
        pass


class Optional(restorable.Hooked):
    def set_state(self, state: Any, strict: bool = True) -> None:
        super().set_state(state)


def test_the_hook_is_known_by_its_arguments() -> None:
    assert not has_hook(Simulator())
    assert has_hook(Optional())
    assert not has_hook(restorable.Base())


def test_a_hook_counts_where_nothing_but_bookkeeping_is_around_it() -> None:
    hooked = restorable.Hooked()
    assert find_hook(wrappers.TimeLimit(wrappers.OrderEnforcing(hooked), 9)) is hooked
    assert find_hook(wrappers.FrameStackObservation(hooked, 2)) is None
    assert find_hook(gymnasium.make("CartPole-v1")) is None


def test_environments_with_hooks_are_not_replayed() -> None:
    with pool_of(restorable.Hooked) as pool:
        pool.reset(0)
        record(pool, 400)
        kept = snapshots(pool)
    assert all(one.replay is None and one.hook is not None for one in kept)
    check_restoring(host_source(restorable.Hooked), EnvConfig(workers=0))


def test_a_time_limit_inside_a_hook_is_kept() -> None:
    class Speaking(gymnasium.Wrapper[Any, Any, Any, Any]):
        def get_state(self) -> Any:
            inner: Any = self.unwrapped
            return inner.get_state()

        def set_state(self, state: Any) -> None:
            inner: Any = self.unwrapped
            inner.set_state(state)

    check_restoring(host_source(lambda: Speaking(wrappers.TimeLimit(restorable.Hooked(), 7))), EnvConfig(workers=0))


def test_the_hook_of_the_documentation() -> None:
    page = (Path(__file__).parent.parent / "docs" / "gymnasium.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(import gymnasium\n[^`]*def get_state[^`]*)```", page)
    assert block is not None
    found: dict[str, Any] = {}
    exec(block[1].partition("PPOTrainer(Auction")[0], found)
    assert has_hook(found["Auction"]())
    check_restoring(host_source(found["Auction"]), EnvConfig(workers=0))


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (restorable.Deaf, "set_state() failed: ValueError: get_state() returns something else"),
        (restorable.Mute, "get_state() failed, or returned something other than plain data"),
    ],
)
def test_hooks_that_do_not_work_say_so(env: Any, words: str) -> None:
    exact, notices = restored(env, 5)
    assert not exact
    assert f"The environment {env.__name__} cannot be restored: {words}" in notices[-1]


# Snapshots from elsewhere.


def changed(state: bytes, **parts: Any) -> bytes:
    held = decode(state)
    return encode(held | {name: part(held[name]) for name, part in parts.items()})


def actions_as(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda state: changed(state, replay=lambda replay: [*replay[:3], change(replay[3]), replay[4]])


FORGED: dict[str, Callable[[Any], Any]] = {
    "no bytes": lambda state: None,
    "nothing": lambda state: b"",
    "cut": lambda state: state[:-4],
    "something else seen": lambda state: changed(state, shown=lambda shown: [np.zeros((2, 2))]),
    "another number seen": lambda state: changed(state, shown=lambda shown: [shown[0] + 1]),
    "another length": lambda state: changed(state, length=lambda length: length + 1),
    "another episode": lambda state: changed(state, episode=lambda episode: episode + 1),
    "another seed": lambda state: changed(state, replay=lambda replay: [replay[0], 5, *replay[2:]]),
    "other rewards": lambda state: changed(state, replay=lambda replay: [*replay[:4], replay[4] + 1]),
    "half an action": actions_as(lambda actions: actions[:-3]),
    "an action that there is not": actions_as(lambda actions: (7).to_bytes(8, "little") + actions[8:]),
    "a negative action": actions_as(lambda actions: b"\xff" * 8 + actions[8:]),
    "more actions than are replayed": actions_as(lambda actions: bytes(8 * 20_001)),
    "a state for a hook": lambda state: changed(state, replay=lambda _: None, hook=lambda _: encode([1, None, []])),
    "a reason": lambda state: changed(state, replay=lambda _: None, reason=lambda _: next(iter(REASONS))),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_forged_snapshots_leave_the_environments_as_after_a_reset(name: str, workers: int) -> None:
    with pool_of(restorable.Base, workers) as pool, pool_of(restorable.Base) as fresh:
        pool.reset(5)
        record(pool, 9)
        kept: Any = pool.get_states()
        *states, last = kept
        first = np.copy(lanes(pool.reset(5)).obs)
        pool.notices.clear()
        assert not pool.set_states([*states, FORGED[name](last)])
        (notice,) = pool.notices
        assert notice.startswith("The environment Base cannot be restored: ")
        assert notice.isprintable()
        assert "Error" not in notice
        np.testing.assert_array_equal(lanes(pool._all).obs, first)
        fresh.reset(5)
        assert same(*(record(one, 20)[1] for one in (pool, fresh)))


# Faults.


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_error", ["stop", "restart"])
def test_hang_in_get_state(workers: int, on_error: str, tmp_path: Path) -> None:
    env = partial(restorable.Trapped, str(tmp_path / "armed"), restorable.hang)
    with pool_of(env, workers, timeout=1.0, on_error=on_error) as pool:
        pool.reset(0)
        record(pool, 3)
        (tmp_path / "armed").touch()
        if on_error == "stop":
            with pytest.raises(EnvError, match=r"number 1, when its state was asked.*did not answer within 1 s"):
                pool.get_states()
            return
        states: Any = pool.get_states()
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
def test_worker_that_ends_in_get_state(on_error: str, tmp_path: Path) -> None:
    env = partial(restorable.Trapped, str(tmp_path / "armed"), restorable.die)
    with pool_of(env, 2, on_error=on_error) as pool:
        pool.reset(0)
        (tmp_path / "armed").touch()
        if on_error == "stop":
            with pytest.raises(EnvError, match=r"number 1, when its state was asked.*ended with exit code 3"):
                pool.get_states()
            return
        states: Any = pool.get_states()
        assert [state is None for state in states] == [False, True, False, True]
        record(pool, 2)


@pytest.mark.parametrize("setting", [False, True])
def test_worker_that_is_killed(setting: bool) -> None:
    with pool_of(restorable.Hooked, 2, on_error="restart") as pool:
        pool.reset(0)
        states: Any = pool.get_states()
        assert isinstance(pool._backend, ProcessBackend)
        pool._backend._processes[1].kill()
        if setting:
            assert not pool.set_states(states)
        else:
            assert [state is None for state in pool.get_states()] == [False, True, False, True]
        _, seen = record(pool, 2)
        assert seen["valid"][1].all()


def test_a_failing_hook_does_not_end_the_run(tmp_path: Path) -> None:
    env = partial(restorable.Trapped, str(tmp_path / "armed"), restorable.fail)
    with pool_of(env) as pool:
        pool.reset(0)
        (tmp_path / "armed").touch()
        kept = snapshots(pool)
        assert [one.reason for one in kept] == [None, "no state", None, None]
        assert record(pool, 2)[1]["valid"].all()


def snared(tmp_path: Path, trap: Callable[[], Any], workers: int, **settings: Any) -> tuple[AsyncEnvPool, Any]:
    """Environments that are to be restored by four steps, in each of which `trap` happens."""
    env = partial(restorable.Snare, str(tmp_path / "armed"), trap)
    with pool_of(env, workers) as pool:
        pool.reset(0)
        record(pool, 4)
        states: Any = pool.get_states()
    pool = pool_of(env, workers, timeout=0.5, **settings)
    pool.reset(0)
    (tmp_path / "armed").touch()
    return pool, states


@pytest.mark.parametrize("workers", [0, 2])
def test_an_environment_that_fails_in_a_replay_is_not_restored(workers: int, tmp_path: Path) -> None:
    pool, states = snared(tmp_path, restorable.fail, workers)
    with pool:
        assert not pool.set_states(states)
        assert pool.notices[-1].endswith("replaying failed: RuntimeError: no state today.")
        (tmp_path / "armed").unlink()
        assert record(pool, 3)[1]["valid"].all()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_each_step_of_a_replay_has_the_time_to_itself(workers: int, tmp_path: Path) -> None:
    pool, states = snared(tmp_path, restorable.nap, workers)  # 0.6 seconds for each environment
    with pool:
        assert pool.set_states(states), pool.notices


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_error", ["stop", "restart"])
def test_hang_in_a_replay(workers: int, on_error: str, tmp_path: Path) -> None:
    pool, states = snared(tmp_path, restorable.hang, workers, on_error=on_error, max_restarts=100)
    with pool:
        if on_error == "stop":
            with pytest.raises(
                EnvError, match=r"when its state was .*given back\) failed: .*did not answer within 0\.5 s"
            ):
                pool.set_states(states)
            return
        assert not pool.set_states(states)
        (tmp_path / "armed").unlink()
        record(pool, 1)
        assert record(pool, 3)[1]["valid"].all()


def episodes(pool: AsyncEnvPool) -> list[int]:
    return [snapshot.episode for snapshot in snapshots(pool)]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_number_of_an_episode_goes_on_after_a_restart(workers: int) -> None:
    """Episodes have five steps. Environment 1 fails in its third, which begins its episode number 1."""
    with pool_of(partial(faulty.Faulty, faulty.raises, number=1, at=3), workers, on_error="restart") as pool:
        pool.reset(0)
        record(pool, 4)
        assert episodes(pool) == [0, 1, 0, 0]
        replay = snapshots(pool)[1].replay
        assert replay is not None
        assert replay[:3] == [1_000_004, 1_010_004, 1]
        record(pool, 2)
        states: Any = pool.get_states()
        assert episodes(pool) == [1, 1, 1, 1]
    with pool_of(faulty.Faulty, workers, on_error="restart") as pool:
        pool.reset(0)
        assert pool.set_states(states)
        assert snapshots(pool)[1].restarts == 1


def test_the_number_of_an_episode_goes_on_in_another_process() -> None:
    with pool_of(faulty.Faulty, 2, on_error="restart") as pool:
        pool.reset(0)
        record(pool, 7)
        assert isinstance(pool._backend, ProcessBackend)
        pool._backend._processes[1].kill()
        record(pool, 1)
        assert episodes(pool) == [1, 2, 1, 2]
        states: Any = pool.get_states()
    with pool_of(faulty.Faulty) as pool:
        pool.reset(0)
        assert pool.set_states(states), pool.notices


def test_workers_load_no_jax() -> None:
    code = "import sys, proximo.envs.host.worker_main; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "False"
