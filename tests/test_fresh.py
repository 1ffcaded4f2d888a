"""A factory must make a new environment each time: one object behind several is refused."""

from __future__ import annotations

import os
from pathlib import Path

import gymnasium
import pytest

import zoo_probes
from host_probes import Walk
from made import gymnasium_source
from proximo import PPOTrainer
from proximo.config import EnvConfig
from proximo.envs.host.fresh import Fresh, named
from proximo.errors import EnvError, UserError


@pytest.mark.parametrize("workers", [0, 2])
def test_a_factory_that_returns_one_object_is_refused(tmp_path: Path, workers: int) -> None:
    env = Walk()
    with pytest.raises(UserError, match=r"factory .*<lambda> \(line \d+ of .*test_fresh.py\) returned the same Walk"):
        PPOTrainer(env=lambda: env, out=tmp_path / "run", num_envs=2, workers=workers, preset=False)


def test_a_new_wrapper_around_one_object_is_no_new_environment() -> None:
    env = Walk()
    with pytest.raises(UserError, match="returned the same Walk twice"):
        gymnasium_source(lambda: gymnasium.wrappers.TimeLimit(env, 5))


def test_pettingzoo_s_factories_too() -> None:
    env = zoo_probes.Lifetimes()
    with pytest.raises(UserError, match="returned the same Lifetimes twice"):
        gymnasium_source(lambda: env)


def test_a_few_objects_by_turns_are_refused_when_one_comes_again() -> None:
    turns = [Walk() for _ in range(3)]

    def next_in_turn() -> Walk:
        turns.append(turns.pop(0))
        return turns[-1]

    source = gymnasium_source(next_in_turn)
    with (
        source.open_envs(2, EnvConfig(workers=0)) as pool,
        pytest.raises(EnvError, match="returned the same Walk twice"),
    ):
        pool.reset(0)


def test_an_object_that_serves_several_environments_of_a_worker_is_refused() -> None:
    here, env = os.getpid(), Walk()
    source = gymnasium_source(lambda: Walk() if os.getpid() == here else env)
    with (
        source.open_envs(4, EnvConfig(workers=2)) as pool,
        pytest.raises(EnvError, match="returned the same Walk twice"),
    ):
        pool.reset(0)


def test_new_objects_are_given_out() -> None:
    made = []

    def factory() -> Walk:
        made.append(Walk())
        return made[-1]

    with gymnasium_source(factory).open_envs(3, EnvConfig(workers=0)) as pool:
        pool.reset(0)
    assert len(made) >= 3
    assert gymnasium_source(Walk).spec.id == "Walk"


def test_what_is_gone_is_forgotten() -> None:
    """A later object may get the place in memory, and so the identity, of one that is gone."""
    fresh = Fresh(Walk)
    for _ in range(100):
        fresh()
    assert len(fresh._given) <= 2


@pytest.mark.slow
def test_factories_are_named() -> None:
    assert named(Walk) == "Walk"
    assert named(gymnasium.make).startswith("make (line ")
