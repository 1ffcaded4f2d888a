"""A factory must make a new environment each time: one object behind several is refused."""

import os

import gymnasium
import pytest

import zoo_probes
from host_probes import Walk
from proximo import PPOTrainer, envs
from proximo.config import EnvConfig
from proximo.envs.host.fresh import Fresh, named
from proximo.errors import EnvError, UserError


@pytest.mark.parametrize("workers", [0, 2])
def test_a_factory_that_returns_one_object_is_refused(tmp_path, workers):
    env = Walk()
    with pytest.raises(UserError, match=r"factory .*<lambda> \(line \d+ of .*test_fresh.py\) returned the same Walk"):
        PPOTrainer(env=lambda: env, out=tmp_path / "run", num_envs=2, workers=workers, preset=False)


def test_a_new_wrapper_around_one_object_is_no_new_environment():
    env = Walk()
    with pytest.raises(UserError, match="returned the same Walk twice"):
        envs.make(lambda: gymnasium.wrappers.TimeLimit(env, 5))


def test_pettingzoo_s_factories_too():
    env = zoo_probes.Lifetimes()
    with pytest.raises(UserError, match="returned the same Lifetimes twice"):
        envs.make(lambda: env)


def test_a_few_objects_by_turns_are_refused_when_one_comes_again():
    turns = [Walk() for _ in range(3)]
    source = envs.make(lambda: turns.append(turns.pop(0)) or turns[-1])
    with (
        source.open_envs(2, EnvConfig(workers=0)) as pool,
        pytest.raises(EnvError, match="returned the same Walk twice"),
    ):
        pool.reset(0)


def test_an_object_that_serves_several_environments_of_a_worker_is_refused():
    here, env = os.getpid(), Walk()
    source = envs.make(lambda: Walk() if os.getpid() == here else env)
    with (
        source.open_envs(4, EnvConfig(workers=2)) as pool,
        pytest.raises(EnvError, match="returned the same Walk twice"),
    ):
        pool.reset(0)


def test_new_objects_are_given_out():
    made = []

    def factory():
        made.append(Walk())
        return made[-1]

    with envs.make(factory).open_envs(3, EnvConfig(workers=0)) as pool:
        pool.reset(0)
    assert len(made) >= 3
    assert envs.make(Walk).spec.id == "Walk"


def test_what_is_gone_is_forgotten():
    """A later object may get the place in memory, and so the identity, of one that is gone."""
    fresh = Fresh(Walk)
    for _ in range(100):
        fresh()
    assert len(fresh._given) <= 2


def test_factories_are_named():
    assert named(Walk) == "Walk"
    assert named(gymnasium.make).startswith("make (line ")
