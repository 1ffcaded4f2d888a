"""Environments and processes that fail: a sentence that names what failed, in time, and nothing left behind."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import faulty
from contracts.host import exchange, lanes
from faulty import Faulty, Replaced
from made import gymnasium_source
from proximo import PPOTrainer
from proximo.config import Config, EnvConfig
from proximo.display.console import Console
from proximo.envs.groups import ONE
from proximo.envs.host.pool import AsyncEnvPool
from proximo.envs.host.workers import ProcessBackend
from proximo.errors import EnvError, UserError
from proximo.multi_agent.team_agent import make_agents
from proximo.policy.behaviour import Learners, actors
from proximo.rollout.host import HostRunner

TESTS = Path(__file__).parent
BOTH = pytest.mark.parametrize("workers", [0, 2])
START_METHODS = pytest.mark.parametrize("start_method", ["forkserver", "spawn", "fork"])
FORKED = pytest.mark.filterwarnings("ignore:os.fork")
TIMEOUT = 1.0
SMALL: dict[str, Any] = dict(
    num_envs=4,
    rollout_length=16,
    minibatch_size=32,
    epochs_per_update=1,
    hidden_sizes=[16],
    total_timesteps=64 * 3,
    eval_frequency=0,
    eval_episodes=1,
    preset=False,
)
COMMAND = [sys.executable, "-c", "from proximo.cli import main; main()", "train"]
BEFORE_THE_HANG = 4  # updates of 16 steps, of which the last before step 80 of the environment is not complete
FLAGS = ["--no-preset", "--set", "env.num_envs=4", "--set", "ppo.rollout_length=16", "--set", "ppo.minibatch_size=32"]
FLAGS += ["--set", "ppo.epochs_per_update=1", "--set", "network.hidden_sizes=[16]", "--set", "eval.frequency=0"]


def running(pid: int) -> bool:
    """Whether a process is there, and no mere entry that its parent has not read yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(true: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not true() and time.monotonic() < until:
        time.sleep(0.02)
    return true()


@pytest.fixture(autouse=True)
def pids(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The processes that a test starts, in order; after it they are gone, as is what they shared."""
    started, start, shared = [], ProcessBackend._start, set(os.listdir("/dev/shm"))
    handler = signal.getsignal(signal.SIGALRM)

    def recorded(self: ProcessBackend, worker: int) -> None:
        start(self, worker)
        started.append(self._processes[worker].pid)

    monkeypatch.setattr(ProcessBackend, "_start", recorded)
    yield started
    assert not [pid for pid in started if running(pid)]
    assert wait_until(lambda: set(os.listdir("/dev/shm")) <= shared, 2)
    assert signal.getsignal(signal.SIGALRM) is handler, "the alarm must be given back"


def pool_of(factory: Callable[[], Any], workers: int, num_envs: int = 4, **settings: Any) -> AsyncEnvPool:
    return gymnasium_source(factory).open_envs(num_envs, EnvConfig(workers=workers, timeout=TIMEOUT, **settings))


def play(pool: AsyncEnvPool, steps: int) -> dict[str, np.ndarray]:
    """Step all environments with the action 1; what they reported, field by field, time first."""
    seen = []
    for _ in range(steps):
        shape = pool.spec.action_space.shape or ()
        exchange(pool, np.ones((pool.num_envs, *shape), np.int64))
        parts = [lanes(pool.recv(part)) for part in range(len(pool.parts))]
        names = ("obs", "reward", "terminated", "truncated", "valid", "final_obs")
        seen.append([np.concatenate([getattr(part, name) for part in parts]) for name in names])
    return dict(zip(names, (np.stack(field) for field in zip(*seen, strict=True)), strict=True))


def failure(pool: AsyncEnvPool, steps: int = 8, seed: int = 0) -> EnvError:
    """The error that resetting and stepping ends in."""
    with pool, pytest.raises(EnvError) as caught:
        pool.reset(seed), play(pool, steps)
    return caught.value


class Notes(Console):
    def __init__(self) -> None:
        self.sentences: list[str] = []

    def note(self, sentence: str) -> None:
        self.sentences.append(sentence)


# What an environment raises.


@BOTH
def test_exception_in_step(workers: int) -> None:
    error = failure(pool_of(partial(Faulty, faulty.raises, number=2, at=7), workers))
    place = "The environment Faulty (number 2, at step 7 (step 2 of its episode))"
    assert error.sentence == f"{place} failed: ValueError: the wheel came off."
    assert error.trace.startswith("Traceback")
    assert 'raise ValueError("the wheel came off")' in error.trace
    assert str(error) == f"{error.sentence}\n\n{error.trace}".rstrip()


@BOTH
def test_the_traceback_is_the_environments_own(workers: int) -> None:
    trace = failure(pool_of(partial(Faulty, faulty.raises), workers)).trace
    assert "faulty.py" in trace
    assert os.path.join("proximo", "envs") not in trace


@BOTH
def test_exception_in_the_first_reset(workers: int) -> None:
    error = failure(pool_of(partial(Faulty, in_reset=faulty.raises, number=3, at=0), workers))
    place = "The environment Faulty (number 3, at a reset after 0 steps)"
    assert error.sentence == f"{place} failed: ValueError: the wheel came off."
    assert "in raises" in error.trace


@BOTH
def test_exception_in_a_later_reset(workers: int) -> None:
    error = failure(pool_of(partial(Faulty, in_reset=faulty.raises, number=3, at=5), workers))
    assert "(number 3, at a reset after 5 steps) failed: ValueError: the wheel came off." in error.sentence
    assert "in raises" in error.trace


@BOTH
def test_exception_in_the_constructor(workers: int, tmp_path: Path) -> None:
    armed = tmp_path / "armed"
    source = gymnasium_source(partial(Faulty, armed=armed, in_making=faulty.raises))
    armed.touch()
    error = failure(source.open_envs(4, EnvConfig(workers=workers, timeout=TIMEOUT)))
    assert error.sentence.startswith("The environment Faulty (number ")
    assert error.sentence.endswith(", when it was made) failed: ValueError: the wheel came off.")
    assert "in raises" in error.trace


def test_exception_in_the_first_constructor(tmp_path: Path) -> None:
    """The one that is made to see what the environment is like."""
    (tmp_path / "armed").touch()
    with pytest.raises(EnvError, match=r"cannot be made: ValueError: the wheel came off"):
        gymnasium_source(partial(Faulty, armed=tmp_path / "armed", in_making=faulty.raises))


@BOTH
def test_exit_in_step(workers: int) -> None:
    error = failure(pool_of(partial(Faulty, faulty.exits, at=4), workers))
    assert error.sentence.endswith("(number 1, at step 4 (step 4 of its episode)) failed: SystemExit.")


@BOTH
def test_exception_without_a_message(workers: int) -> None:
    error = failure(pool_of(partial(Faulty, faulty.raises_without_a_word), workers))
    assert error.sentence.endswith(" failed: NotImplementedError.")


def test_a_report_larger_than_a_pipe_arrives() -> None:
    """The worker cannot be done with sending it before it is read."""
    error = failure(pool_of(partial(Faulty, faulty.raises_at_length), 2))
    assert "failed: ValueError: long long" in error.sentence


@START_METHODS
@FORKED
def test_start_methods(start_method: Any) -> None:
    config = EnvConfig(workers=2, timeout=30, start_method=start_method)
    error = failure(gymnasium_source(partial(Faulty, faulty.raises)).open_envs(4, config))
    assert "(number 1, at step 3 (step 3 of its episode)) failed: ValueError: the wheel came off." in error.sentence


# What takes too long.


@BOTH
def test_hang_in_step(workers: int, pids: list[int]) -> None:
    pool = pool_of(partial(Faulty, faulty.hangs, number=2, at=3), workers)
    started = time.monotonic()
    error = failure(pool)
    assert TIMEOUT <= time.monotonic() - started < 3 * TIMEOUT
    assert "The environment Faulty (number 2, at step 3" in error.sentence
    assert "it did not answer within 1 s (env.timeout)" in error.sentence
    assert len(pids) == workers


@pytest.mark.slow
@BOTH
def test_hang_in_reset(workers: int) -> None:
    error = failure(pool_of(partial(Faulty, in_reset=faulty.hangs, number=2, at=0), workers))
    where = "when it was made or reset" if workers else "at a reset after 0 steps"
    assert f"The environment Faulty (number 2, {where}) failed: " in error.sentence
    assert "it did not answer within 1 s" in error.sentence


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_slow_start(workers: int, tmp_path: Path) -> None:
    armed = tmp_path / "armed"
    source = gymnasium_source(partial(Faulty, armed=armed, in_making=faulty.hangs))
    armed.touch()
    error = failure(source.open_envs(4, EnvConfig(workers=workers, timeout=TIMEOUT)))
    assert re.search(r"The environment Faulty \(number \d.*did not answer within 1 s", error.sentence)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_each_environment_has_the_time_to_itself(workers: int) -> None:
    """Four environments in one process take longer than the limit for one."""
    config = EnvConfig(workers=workers, timeout=0.5, groups=1)
    with gymnasium_source(faulty.Sleepy).open_envs(4 * max(workers, 1), config) as pool:
        pool.reset(0)
        assert play(pool, 1)["valid"].all()


# Processes that go away.


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("idle", [True, False])
def test_killed_worker(workers: int, idle: bool, pids: list[int]) -> None:
    pool = pool_of(Faulty, workers)
    with pool:
        pool.reset(0)
        play(pool, 2)
        pid = pids[-1]
        if not idle:  # it is told before, and stopped so that it cannot answer
            os.kill(pid, signal.SIGSTOP)
            pool.send(1, {ONE: np.ones(2, np.int64)})
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not running(pid), 2)
        if idle:
            pool.send(1, {ONE: np.ones(2, np.int64)})
        with pytest.raises(EnvError) as caught:
            pool.recv(1)
    words = rf"The environment Faulty \(number \d, at step 3\) failed: its worker process \d \(pid {pid}\) was "
    assert re.fullmatch(words + r"killed by SIGKILL\.", caught.value.sentence)


def test_process_that_ends_itself(pids: list[int]) -> None:
    error = failure(pool_of(partial(Faulty, faulty.dies, number=3, at=6), 2))
    said = rf"\(number 3, at step 6\) failed: its worker process 1 \(pid {pids[1]}\) ended with exit code 3\."
    assert re.search(said, error.sentence)


def test_process_that_ends_before_its_first_environment() -> None:
    """Lane 2 is the first of its process, and not in the first group."""
    error = failure(pool_of(faulty.Unpackable(os._exit, (7,)), 4, on_error="restart", max_restarts=1))
    assert re.search(r"The environment Faulty \(number \d, when it .* ended with exit code 7\.", error.sentence)


@pytest.mark.parametrize("on_error", ["stop", "restart"])
def test_factory_that_cannot_be_unpacked(on_error: str) -> None:
    """There are no environments to start anew."""
    pool = pool_of(faulty.Unpackable(faulty.raises, (None,)), 2, on_error=on_error)
    error = failure(pool, steps=0)
    assert error.sentence.startswith("The environment Faulty (when its process started) failed: ValueError: the wheel")


def test_factory_that_cannot_be_packed() -> None:
    lock = threading.Lock()
    source = gymnasium_source(lambda: Faulty() if lock else None)
    with pytest.raises(UserError, match=r"Faulty cannot be sent to another process.*lock.*env.workers=0"):
        source.open_envs(4, EnvConfig(workers=2))


# What environments return.

SPOILT: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "nan obs": ("float", Replaced(0, np.array([0, np.nan, 0], np.float32)), "observation is nan at the index [1]"),
    "inf obs": ("float", Replaced(0, np.array([0, 0, -np.inf], np.float32)), "observation is -inf at the index [2]"),
    "shape": ("float", Replaced(0, np.zeros(4, np.float32)), "observation must have the shape (3,), not (4,)"),
    "no obs": ("float", Replaced(0, None), "observation must have the shape (3,), not ()"),
    "float choice": ("choice", Replaced(0, 1.5), "observation must be of a type like int32, not float64"),
    "float bytes": ("bytes", Replaced(0, np.ones(3)), "observation must be of a type like uint8, not float64"),
    "strings": ("float", Replaced(0, ["a", "b", "c"]), "observation must be of a type like float32, not <U1"),
    "nan reward": ("float", Replaced(1, float("nan")), "the reward is nan"),
    "inf reward": ("float", Replaced(1, float("inf")), "the reward is inf"),
    "large reward": ("float", Replaced(1, 1e300), "the reward is 1e+300"),
    "reward in words": ("float", Replaced(1, "much"), "the reward must be a number, not str much"),
    "reward as text": ("float", Replaced(1, "1.0"), "the reward must be a number, not str 1.0"),
    "reward as an array of text": ("float", Replaced(1, np.array("1.0")), "the reward must be a number, not ndarray"),
    "end as text": ("float", Replaced(2, "False"), "terminated must be True or False, not str False"),
    "no end": ("float", Replaced(2, None), "terminated must be True or False, not NoneType None"),
    "half an end": ("float", Replaced(3, 0.5), "truncated must be True or False, not float 0.5"),
    "two ends": ("float", Replaced(3, np.array([True, False])), "truncated must be True or False, not ndarray"),
    "no reward": ("float", Replaced(1, None), "the reward must be a number, not NoneType None"),
    "four values": ("float", faulty.returns_four, "step must return five values"),
    "not a tuple": ("float", lambda result: 5, "step must return five values"),
}


@BOTH
@pytest.mark.parametrize("name", SPOILT)
def test_spoilt_step(workers: int, name: str) -> None:
    shown, fault, words = SPOILT[name]
    error = failure(pool_of(partial(Faulty, fault, number=2, at=3, shown=shown), workers))
    assert error.sentence.startswith("The environment Faulty (number 2, at step 3 (step 3 of its episode)) failed: ")
    assert words in error.sentence
    assert error.trace == ""


@pytest.mark.parametrize("value", [True, np.True_, np.array(True), np.array([True]), 1, np.int64(1), 1.0])
def test_ends_that_are_meant_are_taken(value: Any) -> None:
    """In environment 2 the episode ends at step 3 instead of 5."""
    seen, _ = recorded(partial(Faulty, Replaced(2, value), number=2), 0, steps=3)
    assert seen["terminated"].tolist() == [[False] * 4, [False] * 4, [False, False, True, False]]


@BOTH
@pytest.mark.parametrize("at", [1, 5])
@pytest.mark.parametrize("name", ["nan obs", "shape", "four values"])
def test_spoilt_step_at_the_ends_of_an_episode(workers: int, at: int, name: str) -> None:
    _, fault, words = SPOILT[name]
    error = failure(pool_of(partial(Faulty, fault, number=2, at=at), workers))
    assert f"(number 2, at step {at} (step {at} of its episode)) failed: {words}" in error.sentence


@BOTH
@pytest.mark.parametrize("at", [0, 5])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (faulty.returns_obs, "reset must return two values (obs, info), not ndarray"),
        (Replaced(0, np.zeros(2, np.float32)), "observation must have the shape (3,), not (2,)"),
        (Replaced(0, np.array([np.nan, 0, 0], np.float32)), "observation is nan at the index [0]"),
        (Replaced(1, None), "with a dictionary as info, not NoneType None"),
    ],
    ids=["obs alone", "shape", "nan", "no info"],
)
def test_spoilt_reset(workers: int, at: int, fault: Callable[[Any], Any], words: str) -> None:
    error = failure(pool_of(partial(Faulty, in_reset=fault, number=2, at=at), workers))
    assert f"(number 2, at a reset after {at} steps) failed: " in error.sentence
    assert words in error.sentence
    assert error.trace == ""


@BOTH
@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({}, "the action mask is missing, which was there at the first reset"),
        ({"action_mask": np.zeros(2, bool)}, "the action mask allows no action"),
        ({"action_mask": np.ones(3, bool)}, "the action mask must have 2 flags for Discrete(2), not the shape (3,)"),
    ],
    ids=["missing", "all false", "size"],
)
def test_spoilt_mask(workers: int, info: dict[str, Any], words: str) -> None:
    error = failure(pool_of(partial(Faulty, Replaced(4, info), number=2, masked=True), workers))
    assert error.sentence.endswith(f"(number 2, at step 3 (step 3 of its episode)) failed: {words}.")


@BOTH
def test_mask_without_a_choice_for_one_of_two(workers: int) -> None:
    info = {"action_mask": np.array([True, True, False, False, False])}
    error = failure(pool_of(partial(faulty.TwoChoices, in_step=Replaced(4, info), number=2), workers))
    assert "(number 2, at step 3 (step 3 of its episode)) failed: the action mask allows no action." in error.sentence


@BOTH
def test_step_without_info(workers: int) -> None:
    error = failure(pool_of(partial(Faulty, Replaced(4, None), number=2, at=5), workers))
    assert "at step 5 (step 5 of its episode)) failed: step must return a dictionary as info, not" in error.sentence
    error = failure(pool_of(partial(Faulty, Replaced(4, None), number=2, at=3, masked=True), workers))
    assert "at step 3 (step 3 of its episode)) failed: the action mask is missing" in error.sentence


@pytest.mark.parametrize(
    ("shown", "value"),
    [("choice", 201), pytest.param("bytes", np.array([0, 255, 0], np.uint8), marks=pytest.mark.slow)],
)
def test_choice_outside_its_space_ends_the_run(shown: str, value: int | np.ndarray, tmp_path: Path) -> None:
    env = partial(Faulty, Replaced(0, value), number=2, shown=shown)
    with pytest.raises(EnvError, match=r"\(number 2, step 4 of a rollout\) gave an observation outside") as caught:
        PPOTrainer(env, out=tmp_path / "run", workers=0, **SMALL).train()
    assert "is 201 at" in str(caught.value) or "is 255 at the index [1]" in str(caught.value)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["stop_reason"] == "failed"


@pytest.mark.slow
def test_number_outside_its_space_is_told_once(tmp_path: Path) -> None:
    console, value = Notes(), np.array([0, 11, 0], np.float32)
    env = partial(Faulty, Replaced(0, value), number=2, shown="bounded")
    result = PPOTrainer(env, out=tmp_path / "run", workers=0, console=console, **SMALL).train()
    assert result["stop_reason"] == "budget"
    told = [note for note in console.sentences if "outside its space" in note]
    assert len(told) == 1
    assert "(number 2, step 4 of a rollout)" in told[0]
    assert "observation is 11.0 at the index [1]" in told[0]


# Closing.


@BOTH
def test_close_twice(workers: int, pids: list[int]) -> None:
    pool = pool_of(Faulty, workers)
    pool.reset(0)
    started = time.monotonic()
    pool.close()
    pool.close()
    assert time.monotonic() - started < 1
    assert len(pids) == workers


@BOTH
def test_close_after_a_failure(workers: int) -> None:
    pool = pool_of(partial(Faulty, faulty.raises), workers)
    failure(pool)  # closes it at the failure, and again when it is left
    pool.close()


@BOTH
@pytest.mark.parametrize("fault", [faulty.raises, faulty.exits, pytest.param(faulty.hangs, marks=pytest.mark.slow)])
def test_environment_that_does_not_close(workers: int, fault: Callable[[Any], Any]) -> None:
    pool = pool_of(partial(Faulty, in_closing=fault), workers)
    pool.reset(0)
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < (4 if fault is faulty.hangs else 1)


@pytest.mark.parametrize("start_method", ["forkserver", "fork"])
@FORKED
def test_closing_one_pool_beside_another(start_method: Any, pids: list[int]) -> None:
    """The younger pool's processes must not hold on to what the older pool's wait for."""
    config = EnvConfig(workers=2, start_method=start_method)
    with (
        gymnasium_source(Faulty).open_envs(4, config) as older,
        gymnasium_source(Faulty).open_envs(4, config) as younger,
    ):
        older.reset(0)
        younger.reset(0)
        assert isinstance(older._backend, ProcessBackend)
        processes = list(older._backend._processes.values())
        started = time.monotonic()
        older.close()
        assert time.monotonic() - started < 1
        assert [process.exitcode for process in processes] == [0, 0]
        assert play(younger, 2)["valid"].all()


@pytest.mark.slow
@START_METHODS
@FORKED
def test_forgotten_pool(start_method: Any, pids: list[int]) -> None:
    pool = gymnasium_source(Faulty).open_envs(4, EnvConfig(workers=2, start_method=start_method))
    pool.reset(0)
    del pool
    gc.collect()
    assert wait_until(lambda: not any(map(running, pids)), 5)


# Restarts.


def recorded(
    factory: Callable[[], Any], workers: int, steps: int = 8, **settings: Any
) -> tuple[dict[str, np.ndarray], list[str]]:
    with pool_of(factory, workers, **settings) as pool:
        pool.reset(0)
        return play(pool, steps), pool.notices


@BOTH
def test_restart_leaves_the_other_environments_alone(workers: int) -> None:
    spoilt, notices = recorded(partial(Faulty, faulty.raises, number=2, at=3), workers, on_error="restart")
    whole, _ = recorded(Faulty, workers)
    others = [0, 1, 3]
    for name in whole:
        np.testing.assert_array_equal(spoilt[name][:, others], whole[name][:, others])
    assert np.argwhere(~spoilt["valid"]).tolist() == [[2, 2]]
    assert [spoilt[name][2, 2] for name in ("truncated", "terminated", "reward")] == [True, False, 0]
    assert spoilt["truncated"][:, 2].tolist() == [False, False, True, False, False, False, False, True]
    np.testing.assert_array_equal(spoilt["final_obs"][2, 2], spoilt["obs"][2, 2])
    assert spoilt["obs"][2:5, 2, 1].tolist() == [0, 1, 2]  # it counts from its new beginning
    assert spoilt["obs"][3, 2, 2] != whole["obs"][0, 2, 2]  # and draws other numbers than at the first
    assert len(notices) == 1
    assert "number 2, at step 3" in notices[0]
    assert notices[0].endswith("It was started anew; that episode is left out.")


def test_restarts_are_the_same_bits_with_and_without_workers() -> None:
    env = partial(Faulty, faulty.raises, number=2, at=3)
    here, there = (recorded(env, workers, on_error="restart")[0] for workers in (0, 2))
    for name in here:
        np.testing.assert_array_equal(here[name], there[name])


@pytest.mark.slow
@BOTH
def test_restart_at_a_hang(workers: int) -> None:
    spoilt, notices = recorded(partial(Faulty, faulty.hangs, number=2, at=3), workers, on_error="restart")
    void = np.argwhere(~spoilt["valid"]).tolist()
    assert [2, 2] in void
    assert all(env % 2 == 0 for _, env in void)  # those of its process
    assert len(notices) == 1
    assert "did not answer within 1 s" in notices[0]


@BOTH
def test_restart_at_a_reset(workers: int) -> None:
    _, notices = recorded(partial(Faulty, in_reset=faulty.raises, number=2, at=0), workers, on_error="restart")
    assert len(notices) == 1
    spoilt, _ = recorded(partial(Faulty, in_reset=faulty.raises, number=2, at=5), workers, on_error="restart")
    assert np.argwhere(~spoilt["valid"]).tolist() == [[4, 2]]


@BOTH
def test_too_many_restarts(workers: int) -> None:
    env = partial(Faulty, faulty.raises, number=2, generations=range(9))
    error = failure(pool_of(env, workers, on_error="restart", max_restarts=2), steps=20)
    assert "number 2, at step 9 (step 3 of its episode)" in error.sentence  # the third one's third step
    assert error.sentence.endswith("It was restart 3, and env.max_restarts allows 2.")
    assert "in raises" in error.trace


@BOTH
def test_constructor_that_fails_again_and_again(workers: int, tmp_path: Path) -> None:
    armed = tmp_path / "armed"
    source = gymnasium_source(partial(Faulty, armed=armed, in_making=faulty.raises))
    armed.touch()
    started = time.monotonic()
    error = failure(source.open_envs(4, EnvConfig(workers=workers, on_error="restart", max_restarts=5)))
    assert time.monotonic() - started < 5
    assert re.search(r"when it was made\) failed: ValueError: the wheel came off.*allows 5\.", error.sentence)


@BOTH
def test_constructor_that_fails_once(workers: int, tmp_path: Path) -> None:
    armed = tmp_path / "armed"
    source = gymnasium_source(partial(Faulty, armed=armed, in_making=faulty.raises_once))
    armed.touch()
    with source.open_envs(4, EnvConfig(workers=workers, on_error="restart")) as pool:
        assert lanes(pool.reset(0)).valid.all()
        assert play(pool, 2)["valid"].all()
        assert len(pool.notices) == 1


def test_processes_that_end_again_and_again(pids: list[int]) -> None:
    env = partial(Faulty, faulty.dies, number=2, generations=range(9))
    error = failure(pool_of(env, 2, on_error="restart", max_restarts=2), steps=20)
    assert "(number 2, at step 9) failed: its worker" in error.sentence
    assert "ended with exit code 3" in error.sentence
    assert error.sentence.endswith("env.max_restarts allows 2.")
    assert len(pids) == 4  # two, and two in their place


def test_restart_of_a_killed_worker(pids: list[int]) -> None:
    with pool_of(Faulty, 2, on_error="restart") as pool:
        pool.reset(0)
        before = play(pool, 2)
        os.kill(pids[1], signal.SIGKILL)
        after = play(pool, 8)
        notices = pool.notices
    whole, _ = recorded(Faulty, 2, steps=10)
    for name in whole:
        np.testing.assert_array_equal(np.concatenate([before[name], after[name]])[:, ::2], whole[name][:, ::2])
    assert np.argwhere(~after["valid"]).tolist() == [[0, 1], [0, 3]]
    assert after["truncated"][0, 1::2].all()
    assert after["truncated"][5, 1::2].all()
    assert len(pids) == 5
    assert len(notices) == 1
    assert "was killed by SIGKILL" in notices[0]


def test_restart_in_a_process_that_replaced_another(pids: list[int]) -> None:
    """The last restart that is allowed is made, and its numbers are not those of the first."""
    env = partial(Faulty, faulty.raises, number=1, generations=range(1, 9))
    with pool_of(env, 2, on_error="restart", max_restarts=2) as pool:
        pool.reset(0)
        os.kill(pids[1], signal.SIGKILL)
        seen = play(pool, 6)
    assert np.argwhere(~seen["valid"][:, 1]).ravel().tolist() == [0, 3]
    assert seen["obs"][:, 1, 1].tolist() == [0, 1, 2, 0, 1, 2]
    assert len(set(seen["obs"][:, 1, 2].tolist())) == 6


def test_process_lost_after_a_restart_draws_new_numbers(pids: list[int]) -> None:
    with pool_of(partial(Faulty, faulty.raises, number=1, at=1), 2, on_error="restart") as pool:
        pool.reset(0)
        first = play(pool, 2)["obs"][:, 1]
        os.kill(pids[1], signal.SIGKILL)
        second = play(pool, 2)["obs"][:, 1]
    assert first[:, 1].tolist() == second[:, 1].tolist() == [0, 1]
    assert not set(first[:, 2].tolist()) & set(second[:, 2].tolist())


def test_voided_episodes_are_left_out() -> None:
    with pool_of(Faulty, 0, num_envs=2) as pool:
        agents = make_agents(pool.spec.groups, Config())
        runner = HostRunner(pool, Learners(agents.policies), 6, actors(agents.groups))
        played = runner.rollout(runner.start(0))
    valid = played.groups[ONE].valid
    valid[...] = True
    played.reset[1, 0] = played.reset[4, 0] = True
    valid[4, 0] = False
    runner.leave_out_voided()
    assert valid[:, 0].tolist() == [True, True, False, False, False, True]
    assert valid[:, 1].all()


@BOTH
def test_training_with_a_restart(workers: int, tmp_path: Path) -> None:
    """Of 64 steps, five episodes' beginning in environment 2 is lost: step 8 and the two before it."""
    console = Notes()
    env = partial(Faulty, faulty.raises, number=2, at=8)
    settings = SMALL | {"total_timesteps": 64}
    run = PPOTrainer(env, out=tmp_path / "run", workers=workers, on_error="restart", console=console, **settings)
    run.train()
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert row["step"] == 64 - 3
    assert row["episode"] == 3 * 3 + 2  # environment 2: steps 1-5, then 9-13
    assert row["rollout/length_mean"] == 5
    assert row["rollout/return_mean"] == 5
    assert len([note for note in console.sentences if "started anew" in note]) == 1


# Whole runs.


@BOTH
def test_training_that_fails(workers: int, tmp_path: Path) -> None:
    """The fifth rollout is not finished; the four before it are kept."""
    env, path = partial(Faulty, faulty.raises, number=2, at=75), tmp_path / "run"
    run = PPOTrainer(env, out=path, workers=workers, **SMALL | {"total_timesteps": 6400})
    with pytest.raises(EnvError) as caught:
        run.train()
    assert "(number 2, at step 75 (step 5 of its episode)) failed: ValueError: the wheel" in caught.value.sentence
    assert f"What was trained before is in {path / 'models'}; `proximo resume {path}` goes on." in caught.value.sentence
    assert "in raises" in caught.value.trace
    assert (path / "models" / "final_actor.safetensors").stat().st_size > 0
    result = json.loads((path / "result.json").read_text())
    assert (result["stop_reason"], result["updates"], result["total_steps"]) == ("failed", 4, 256)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_final_evaluation_that_fails(workers: int, tmp_path: Path) -> None:
    """Its environments are seeded 999 further on; training is over, and its result stands."""
    console, env = Notes(), partial(Faulty, faulty.raises, number=999)
    result = PPOTrainer(env, out=tmp_path / "run", workers=workers, console=console, **SMALL).train()
    assert (result["stop_reason"], result["final_eval"]) == ("budget", None)
    (told,) = [note for note in console.sentences if "There is no final evaluation" in note]
    assert "(number 0, at step 3 (step 3 of its episode)) failed: ValueError: the wheel came off." in told


@pytest.mark.slow
def test_periodic_evaluation_that_fails(tmp_path: Path) -> None:
    env = partial(Faulty, faulty.raises, number=999)
    run = PPOTrainer(env, out=tmp_path / "run", workers=2, **SMALL | {"eval_frequency": 1})
    with pytest.raises(EnvError, match=r"number 0, at step 3 .* What was trained before is in"):
        run.train()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["stop_reason"] == "failed"


def command(
    env: str, path: Path, *flags: object, workers: int = 2, steps: int = 10_000_000, **keywords: Any
) -> subprocess.Popen[str]:
    """A process of the command line, in a session of its own; it can import `faulty`."""
    places = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    args = [env, "--out", path, "--steps", steps, "--set", f"env.workers={workers}", *FLAGS, *flags]
    return subprocess.Popen(
        [*COMMAND, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": places},
        start_new_session=True,
    )


def session(pid: int) -> list[int]:
    """The running processes of the session that `pid` began, itself left out."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == pid and fields[0] not in "ZX" and int(folder.name) != pid:
            found.append(int(folder.name))
    return found


@pytest.fixture
def commands() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts command lines; whatever is left of them at the end is killed."""
    started = []

    def start(*args: Any, **keywords: Any) -> subprocess.Popen[str]:
        started.append(command(*args, **keywords))
        return started[-1]

    yield start
    for process in started:
        for pid in [*session(process.pid), process.pid]:
            if running(pid):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def wait_for_rows(path: Path, process: subprocess.Popen[str], number: int = 1) -> None:
    rows = path / "metrics.jsonl"

    def there() -> bool:
        return rows.exists() and rows.read_bytes().count(b"\n") >= number

    assert wait_until(lambda: process.poll() is not None or there(), 60)
    assert process.stderr is not None
    assert process.poll() is None, process.stderr.read()


@pytest.mark.slow
@BOTH
def test_command_line_says_what_failed(
    workers: int, tmp_path: Path, commands: Callable[..., subprocess.Popen[str]]
) -> None:
    path = tmp_path / "run"
    process = commands("faulty:Crash-v0", path, workers=workers)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "Error: The environment faulty:Crash-v0 (number 2, at step 80 (step 5 of its episode)) failed: " in said
    assert "ValueError: the wheel came off. What was trained before is in" in said
    assert said.count("Traceback") == 1
    assert "in raises" in said
    assert "trainer.py" not in said
    assert os.path.join("proximo", "envs") not in said
    assert json.loads((path / "result.json").read_text())["stop_reason"] == "failed"
    assert wait_until(lambda: not session(process.pid), 5)  # the fork server goes a moment later


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "start_method"),
    [
        ("Fine-v0", "forkserver"),
        ("Hang-v0", "forkserver"),
        pytest.param("Hang-v0", "spawn", marks=pytest.mark.learning),
        pytest.param("Hang-v0", "fork", marks=pytest.mark.learning),
    ],
)
def test_workers_end_with_a_killed_trainer(
    env: str, start_method: Any, tmp_path: Path, commands: Callable[..., subprocess.Popen[str]]
) -> None:
    process = commands(f"faulty:{env}", tmp_path / "run", "--set", f"env.start_method={start_method}")
    wait_for_rows(tmp_path / "run", process, BEFORE_THE_HANG if env == "Hang-v0" else 1)
    if env == "Hang-v0":
        time.sleep(0.5)
    children = session(process.pid)
    assert len(children) >= 2
    os.kill(process.pid, signal.SIGKILL)
    process.wait(5)
    assert wait_until(lambda: not any(map(running, children)), 10)
    assert wait_until(lambda: not session(process.pid), 5)  # the fork server goes a moment later


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "everyone"),
    [(signal.SIGINT, 130, True), (signal.SIGTERM, 143, False)],
    ids=["ctrl-c", "sigterm"],
)
def test_interrupted_command(
    number: int, code: int, everyone: bool, tmp_path: Path, commands: Callable[..., subprocess.Popen[str]]
) -> None:
    """A terminal sends Ctrl-C to the workers too."""
    path = tmp_path / "run"
    process = commands("faulty:Fine-v0", path)
    wait_for_rows(path, process)
    (os.killpg if everyone else os.kill)(process.pid, number)
    said, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert errors == ""
    assert "Interrupted" in said
    assert json.loads((path / "result.json").read_text())["stop_reason"] == "interrupted"
    assert (path / "models" / "final_actor.safetensors").stat().st_size > 0
    assert wait_until(lambda: not session(process.pid), 5)


@pytest.mark.slow
def test_ctrl_c_twice_at_a_hang(tmp_path: Path, commands: Callable[..., subprocess.Popen[str]]) -> None:
    """The first waits for the step at hand, which never ends; the second does not."""
    path = tmp_path / "run"
    process = commands("faulty:Hang-v0", path)
    wait_for_rows(path, process, BEFORE_THE_HANG)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert errors == ""
    assert json.loads((path / "result.json").read_text())["stop_reason"] == "interrupted"
    assert wait_until(lambda: not session(process.pid), 5)


SCRIPT = """
import sys
import gymnasium
from proximo import PPOTrainer
print("the body runs")
class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {{}}
    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps % 5 == 0, False, {{}}
result = PPOTrainer(Mine, out=sys.argv[1], workers=2, start_method="{}", **{}).train()
print(result["stop_reason"], result["total_steps"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["spawn", pytest.param("forkserver", marks=pytest.mark.learning)])
def test_script_without_a_guard(start_method: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(start_method, SMALL))
    done = subprocess.run(
        [sys.executable, script, tmp_path / "run"], capture_output=True, text=True, timeout=100, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["the body runs", "budget 192"]
