"""Nested spaces taken apart and put together, and masks in every form that environments give."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from proximo.spaces import build, cast, has_continuous, leaves, mask_shape, pick, shown, space_key, to_mask

NESTED = spaces.Dict(
    [
        ("z", spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))])),
        ("a", spaces.Dict(bits=spaces.MultiBinary(2), many=spaces.MultiDiscrete([2, 3]))),
    ]
)


def test_leaves_come_in_the_space_s_own_order() -> None:
    assert [path for path, _ in leaves(NESTED)] == [("z", 0), ("z", 1), ("a", "bits"), ("a", "many")]
    assert list(leaves(spaces.Discrete(3))) == [((), spaces.Discrete(3))]


def test_paths_lead_to_the_leaves() -> None:
    names = build(NESTED, lambda path, leaf: shown(path))
    assert names == {"z": ("['z'][0]", "['z'][1]"), "a": {"bits": "['a']['bits']", "many": "['a']['many']"}}
    assert all(pick(names, path) == shown(path) for path, _ in leaves(NESTED))


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (spaces.Discrete(3, start=5), (3,)),
        (spaces.MultiDiscrete(np.array([[2, 4], [3, 1]])), (10,)),
        (spaces.MultiBinary((2, 2)), (4, 2)),
        (spaces.Box(-1, 1, (3,)), (0,)),
        (NESTED, (2 + 2 * 2 + 5,)),
    ],
    ids=str,
)
def test_a_mask_has_a_flag_per_choice(space: spaces.Space[Any], shape: tuple[Any, ...]) -> None:
    assert mask_shape(space) == shape


def test_masks_are_taken_flat_or_nested() -> None:
    flat = np.array([*[1, 0], *[1, 1, 0, 1], *[0, 1, 1, 0, 0]], np.int8)
    nested = {
        "a": {"bits": [[1, 1], [0, 1]], "many": ([0, 1], [1, 0, 0])},
        "z": ([1, 0], None),
    }
    for given in (flat, nested):
        mask = to_mask(NESTED, given)
        assert mask.dtype == bool
        assert mask.tolist() == flat.astype(bool).tolist()
    assert to_mask(spaces.MultiBinary(2), [1, 1, 0, 1]).tolist() == [[True, True], [False, True]]


@pytest.mark.parametrize(
    ("space", "given"), [(spaces.Discrete(3), [1, 0]), (NESTED, {"z": ([1, 1],)}), (NESTED, np.ones(4))], ids=str
)
def test_masks_that_do_not_fit_are_told(space: spaces.Space[Any], given: Any) -> None:
    with pytest.raises(ValueError, match="the action mask must have"):
        to_mask(space, given)


def test_cast_gives_members() -> None:
    space = spaces.Dict(
        a=spaces.Discrete(3), b=spaces.Box(0.1, 0.1, (), np.float64), c=spaces.Tuple([spaces.Box(0, 9, (1,), np.int64)])
    )
    actions = {
        "a": np.array([2, 0], np.int32),
        "b": np.array([0.1, 0.1], np.float32),
        "c": (np.array([[9], [0]], np.int32),),
    }
    one = cast(space, actions, single=True)
    assert space.contains(one)
    assert {type(one["a"]), one["b"].dtype.type, one["c"][0].dtype.type} == {np.int64, np.float64}
    many = cast(space, actions)
    assert (many["a"].tolist(), many["b"].tolist(), many["c"][0].tolist()) == ([2, 0], [0.1, 0.1], [[9], [0]])


FLAGS: spaces.Space[Any] = spaces.Discrete(2)
LEVELS: spaces.Space[Any] = spaces.Discrete(3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (spaces.Box(0, 1e-9, (2,)), spaces.Box(0, 5e-9, (2,))),
        (spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (2, 1))),
        (spaces.Box(0, 1, (2,), np.float32), spaces.Box(0, 1, (2,), np.float64)),
        (spaces.Discrete(2), spaces.Discrete(2, start=1)),
        (spaces.Discrete(2, dtype=np.int32), spaces.Discrete(2, dtype=np.int64)),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([3, 2])),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 3], start=[0, 1])),
        (spaces.MultiBinary(4), spaces.MultiBinary([2, 2])),
        (spaces.Dict([("a", FLAGS), ("b", LEVELS)]), spaces.Dict([("b", LEVELS), ("a", FLAGS)])),
        (spaces.Tuple([FLAGS, LEVELS]), spaces.Tuple([LEVELS, FLAGS])),
        (spaces.Tuple([FLAGS]), FLAGS),
        (spaces.Dict({"a": spaces.Dict([("x", FLAGS)])}), spaces.Dict({"a": spaces.Dict([("y", FLAGS)])})),
    ],
)
def test_spaces_that_differ_in_anything_have_different_keys(one: spaces.Space[Any], other: spaces.Space[Any]) -> None:
    assert space_key(one) != space_key(other)
    assert hash(space_key(one)) != hash(space_key(other))
    assert space_key(one) == space_key(copy.deepcopy(one))


def test_a_space_of_another_kind_has_no_key() -> None:
    assert space_key(spaces.Text(3)) is None
    assert space_key(spaces.Dict({"a": spaces.Tuple([FLAGS, spaces.Text(3)])})) is None


@pytest.mark.parametrize(
    ("space", "found"),
    [
        (spaces.Discrete(3), False),
        (spaces.Box(-1, 1, (2,)), True),
        (spaces.Dict({"a": spaces.MultiDiscrete([2, 2]), "b": spaces.MultiBinary(3)}), False),
        (spaces.Tuple((spaces.Discrete(2), spaces.Dict({"c": spaces.Box(0, 1, (1,))}))), True),
    ],
)
def test_continuous_actions_are_found_wherever_they_are(space: spaces.Space[Any], found: bool) -> None:
    assert has_continuous(space) is found
