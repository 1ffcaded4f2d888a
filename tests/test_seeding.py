import itertools

import jax
import numpy as np
import pytest

from proximo.config import MAX_SEED
from proximo.seeding import RESET_OFFSET, evaluation_action_key, evaluation_key, network_key, reset_key, training_keys
from proximo.settings import SETTINGS


def words(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def streams(seed):
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
def test_offsets_are_fixed_for_ever(stream, number):
    assert words(streams(7)[stream]) == words(jax.random.key(number))


@pytest.mark.parametrize("seed", [0, 1, 999, 10_000, 0xAC7, 0xA11CE, MAX_SEED])
def test_streams_of_a_run_are_pairwise_different(seed):
    for (one, key), (other, other_key) in itertools.combinations(streams(seed).items(), 2):
        assert words(key) != words(other_key), f"{one} and {other} draw the same numbers with seed {seed}"


def test_another_seed_changes_every_stream():
    one, other = streams(0), streams(1)
    assert all(words(one[name]) != words(other[name]) for name in one)


def test_same_seed_gives_same_keys():
    assert {name: words(key) for name, key in streams(3).items()} == {
        name: words(key) for name, key in streams(3).items()
    }


def test_the_largest_seed_leaves_room_for_every_derived_one():
    assert MAX_SEED + RESET_OFFSET == 2**31 - 1
    assert SETTINGS["seed"].metadata["at_most"] == MAX_SEED
