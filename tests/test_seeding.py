from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest

from proximo import PPOTrainer
from proximo.config import MAX_SEED
from proximo.host_seeds import RESET_OFFSET, episode_seed, restart_seed
from proximo.seeding import (
    evaluation_action_key,
    evaluation_key,
    network_key,
    reset_key,
    shared_with_evaluation,
    training_keys,
)
from proximo.settings import SETTINGS


def words(key: jax.Array) -> tuple[int, ...]:
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def streams(seed: int) -> dict[str, Any]:
    keys = training_keys(seed)
    return {
        "network": network_key(seed),
        "env": keys.env,
        "action": keys.action,
        "shuffle": keys.shuffle,
        "reset": reset_key(seed),
        "evaluation": evaluation_key(seed),
        "evaluation's actions": evaluation_action_key(seed),
    }


@pytest.mark.parametrize(
    ("stream", "number"),
    [
        ("network", 7),
        ("reset", 10_007),
        ("evaluation", 1_006),
        ("evaluation's actions", 1_006 ^ 0xAC7),
        ("shuffle", 7 ^ 0xA11CE),
        ("action", 7 ^ 0xAC7),
    ],
)
def test_offsets_are_fixed_for_ever(stream: str, number: int) -> None:
    assert words(streams(7)[stream]) == words(jax.random.key(number))


def test_seeds_of_later_episodes_are_fixed_for_ever() -> None:
    assert [episode_seed(10_003, episode) for episode in range(4)] == [
        10_003,
        1_327_227_888,
        506_962_125,
        1_834_180_010,
    ]
    assert episode_seed(2**31 - 1, 0) == 2**31 - 1
    assert restart_seed(3, 2) == 2_000_009


def test_environments_side_by_side_share_no_seed() -> None:
    numbers = np.arange(1, 400_000) * 1_327_217_885 % 2**31
    assert np.minimum(numbers, 2**31 - numbers).min() >= 1_000


@pytest.mark.parametrize("seed", [0, 1, 999, 10_000, 0xAC7, 0xA11CE, MAX_SEED])
def test_streams_of_a_run_are_pairwise_different(seed: int) -> None:
    for (one, key), (other, other_key) in itertools.combinations(streams(seed).items(), 2):
        assert words(key) != words(other_key), f"{one} and {other} draw the same numbers with seed {seed}"


def test_another_seed_changes_every_stream() -> None:
    one, other = streams(0), streams(1)
    assert all(words(one[name]) != words(other[name]) for name in one)


def test_same_seed_gives_same_keys() -> None:
    assert {name: words(key) for name, key in streams(3).items()} == {
        name: words(key) for name, key in streams(3).items()
    }


@pytest.mark.parametrize(
    ("num_envs", "episodes", "shared"),
    [(8, 10, None), (999, 10, None), (1_000, 10, "Environment 999"), (1_005, 3, "Environments 999 to 1001")],
)
def test_environments_that_start_as_those_of_the_evaluation_do_are_told(
    num_envs: int, episodes: int, shared: str | None
) -> None:
    """Environment i has the seed s + i, and that of the evaluation s + 999 + i."""
    said = shared_with_evaluation(num_envs, episodes)
    assert [sentence.partition(" start")[0] for sentence in said] == ([shared] if shared else [])


@pytest.mark.slow
def test_a_run_with_as_many_environments_says_so() -> None:
    given: dict[str, Any] = {"num_envs": 1_001, "rollout_length": 2, "minibatch_size": 1_001, "preset": False}
    assert "Environments 999 to 1000 start" in PPOTrainer("CartPole-v1", **given).program.notices[0]
    assert not PPOTrainer("gymnax/CartPole-v1", **given).program.notices, "its environments have one stream of keys"


def test_the_largest_seed_leaves_room_for_every_derived_one() -> None:
    assert MAX_SEED + RESET_OFFSET == 2**31 - 1
    assert SETTINGS["seed"].metadata["at_most"] == MAX_SEED
