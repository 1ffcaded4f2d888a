"""The one cache: what is kept in it, by what, and what several threads get from it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

import proximo.compile
from proximo.compile import cached, key_of, settings_key
from proximo.config import AgentsConfig, NetworkConfig


def in_threads(function: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=function, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_what_several_threads_want_is_made_once() -> None:
    made, found, barrier = [], [], threading.Barrier(4)

    def make() -> object:
        time.sleep(0.05)
        made.append(1)
        return object()

    def want(_: int) -> None:
        barrier.wait()
        found.append(cached(("test", barrier), make))

    in_threads(want, 4)
    assert len(made) == 1
    assert len(set(map(id, found))) == 1


class Unhurried:
    """Part of a key; whoever looks it up lets other threads go first."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        time.sleep(1e-4)
        return self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unhurried) and self.number == other.number


def test_threads_get_what_they_ask_for_while_others_push_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one: whatever a thread finds is pushed out by the next."""
    monkeypatch.setattr(proximo.compile, "MOST_KEPT", 1)
    right: list[int] = []
    wrong: list[object] = []

    def want(number: int) -> None:
        for turn in range(30):
            key = (turn + number) % 3
            try:
                found = cached(("race", Unhurried(key)), partial(int, key))
                (right if found == key else wrong).append(key)
            except Exception as error:
                wrong.append(error)

    in_threads(want, 4)
    assert wrong == []
    assert len(right) == 4 * 30
    assert len(proximo.compile._kept) == 1


def test_what_was_asked_for_longest_ago_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proximo.compile, "MOST_KEPT", 2)
    made: list[str] = []
    for name in ("a", "b", "a", "c", "a", "b"):
        cached(("oldest", name), partial(made.append, name))
    assert made == ["a", "b", "c", "b"]


def test_a_maker_that_fails_is_asked_again() -> None:
    key = ("test", object())
    with pytest.raises(ZeroDivisionError):
        cached(key, lambda: 1 // 0)
    assert cached(key, lambda: 3) == 3


def test_without_a_key_everything_is_made_anew() -> None:
    before = len(proximo.compile._kept)
    assert [cached(None, iter([number]).__next__) for number in (1, 2)] == [1, 2]
    assert len(proximo.compile._kept) == before


def test_what_has_no_key_is_part_of_none() -> None:
    assert key_of("program", ("policy",), (None, 3)) == ("program", ("policy",), (None, 3))
    assert key_of("program", None) is None


def test_settings_are_keys_with_every_value_in_order() -> None:
    members = [("a", ("x",)), ("b", ("y",))]
    one, other = (AgentsConfig(members=dict(pairs)) for pairs in (members, members[::-1]))
    assert one == other
    assert settings_key(one) != settings_key(other)
    assert settings_key(NetworkConfig()) == settings_key(NetworkConfig())
    assert settings_key(NetworkConfig()) != settings_key(NetworkConfig(hidden_sizes=(3,)))


LISTEN = """
import os, sys
import jax
import proximo, proximo.config, proximo.envs, proximo.experiment.runner, proximo.train.load, proximo.train.trainer
from jax._src.xla_bridge import backends_are_initialized

heard, update = [], jax.config.update

def listen(name, value):
    heard.append((name, value, backends_are_initialized()))
    update(name, value)

jax.config.update = listen
assert not backends_are_initialized()
for first in sys.argv[1:]:  # each in a process that has loaded everything, and computed nothing
    if pid := os.fork():
        assert os.waitpid(pid, 0)[1] == 0, first
    else:
        exec(first)
        assert ("jax_cpu_enable_async_dispatch", False, False) in heard, heard
        os._exit(0)
"""
FIRST = {
    "trainer": "import proximo; proximo.PPOTrainer('jumanji/Maze-v0', preset=False)",
    "agent": "import proximo; proximo.PPOAgent(observation_dim=4, action_dim=2).act([0.0] * 4)",
    "experiment": "from proximo.fleet import jobs, local; local.find_compiled([], jobs.HandedIn())",
    "run": "from pathlib import Path; from proximo.config import Config, EnvConfig; "
    "from proximo.train.load import make_environment; "
    "make_environment(Path('run'), Config(env=EnvConfig(id='jumanji/Maze-v0')))",
}


@pytest.mark.slow
def test_jax_is_set_up_before_it_starts() -> None:
    """The option is read once, when JAX first computes something in a process."""
    own = {name: value for name, value in os.environ.items() if name != "JAX_CPU_ENABLE_ASYNC_DISPATCH"}
    given = [sys.executable, "-c", LISTEN, *FIRST.values()]
    done = subprocess.run(given, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
