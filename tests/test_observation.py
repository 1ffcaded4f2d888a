"""What a network reads of every kind of observation space."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from proximo.errors import UserError
from proximo.policy.observation import ObservationAdapter

BOOL: Any = bool  # a dtype that Gymnasium takes, and its annotations do not


def vector(space: spaces.Space[Any], obs: Any) -> jax.Array:
    return ObservationAdapter(space)(obs).vector


def test_box_is_flattened_unchanged() -> None:
    features = ObservationAdapter(spaces.Box(-5, 5, (2, 2)))(jnp.array([[[1.0, 2.0], [3.0, 4.0]]]))
    assert features.vector.tolist() == [[1, 2, 3, 4]]
    assert features.images == ()


def test_scalar_box() -> None:
    assert vector(spaces.Box(-5, 5, ()), jnp.array([1.0, 2.0])).tolist() == [[1], [2]]


def test_double_precision_becomes_single() -> None:
    assert vector(spaces.Box(-5, 5, (1,), np.float64), np.array([[0.5]])).dtype == jnp.float32


@pytest.mark.slow
def test_whole_numbers_are_scaled_to_their_bounds() -> None:
    space = spaces.Box(np.array([0, -10, 7]), np.array([4, 10, 7]), dtype=np.int32)
    assert vector(space, np.array([[1, -10, 7], [4, 5, 7]], np.int32)).tolist() == [[0.25, 0, 0], [1, 0.75, 0]]


def test_bytes_in_a_vector_are_scaled() -> None:
    assert vector(spaces.Box(0, 255, (2,), np.uint8), np.array([[0, 255]], np.uint8)).tolist() == [[0, 1]]


def test_whole_numbers_without_bounds_stay_and_are_measurements() -> None:
    space = spaces.Box(np.iinfo(np.int32).min, np.iinfo(np.int32).max, (2,), np.int32)
    assert vector(space, np.array([[-3, 1000]], np.int32)).tolist() == [[-3, 1000]]
    assert ObservationAdapter(space).continuous.tolist() == [True, True]


def test_bounds_count_entry_by_entry() -> None:
    space = spaces.Box(np.array([0, 0]), np.array([4, 2**62]), dtype=np.int64)
    assert vector(space, np.array([[1, 2**40]])).tolist() == [[0.25, 2**40]]
    assert ObservationAdapter(space).continuous.tolist() == [False, True]


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_bounds_are_met_that_single_precision_would_miss(dtype: Any) -> None:
    low = 2**30 + 1 if np.dtype(dtype).itemsize == 4 else 2**40 + 1
    space = spaces.Box(low, low + 4, (2,), dtype)
    assert vector(space, np.array([[low, low + 3]], dtype)).tolist() == [[0, 0.75]]


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int64, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (2,), (2, 2), (2, 1, 2, 1)])
def test_boxes_of_every_dtype_and_rank_are_vectors(dtype: Any, shape: tuple[int, ...]) -> None:
    space = spaces.Box(0, 1, shape, dtype)
    zero_one = np.stack([np.zeros(shape, dtype), np.ones(shape, dtype)])
    given = ObservationAdapter(space)(zero_one)
    size = int(np.prod(shape))
    assert given.vector.dtype == jnp.float32
    assert given.vector.tolist() == [[0] * size, [1] * size]
    assert given.images == ()
    is_float = np.issubdtype(dtype, np.floating)
    assert ObservationAdapter(space).continuous.tolist() == [is_float] * size


def test_discrete_is_one_hot_from_its_start() -> None:
    assert vector(spaces.Discrete(3, start=-1), np.array([-1, 0, 1])).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize(("start", "dtype"), [(-100, np.int8), (-(2**40), np.int64)])
def test_discrete_starts_far_away(start: int, dtype: Any) -> None:
    space: spaces.Space[Any] = spaces.Discrete(120, start=start, dtype=dtype)
    assert np.argmax(vector(space, np.array([start, start + 119], dtype)), axis=-1).tolist() == [0, 119]


def test_multi_discrete_is_one_hot_by_component() -> None:
    space = spaces.MultiDiscrete(np.array([[2], [3]]), start=np.array([[0], [5]]))
    assert vector(space, np.array([[[1], [5]], [[0], [7]]])).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_multi_binary_is_bits() -> None:
    assert vector(spaces.MultiBinary((2, 2)), np.array([[[1, 0], [1, 1]]], np.int8)).tolist() == [[1, 0, 1, 1]]


def test_bytes_of_an_image_are_scaled() -> None:
    adapter = ObservationAdapter(spaces.Box(0, 255, (3, 3, 1), np.uint8))
    features = adapter(np.array([0, 51, 102, 153, 204, 255, 0, 0, 0], np.uint8).reshape(1, 3, 3, 1))
    assert features.vector.shape == (1, 0)
    assert adapter.vector_size == 0
    (image,) = features.images
    assert image.shape == (1, 3, 3, 1)
    np.testing.assert_allclose(image.reshape(-1), [0, 0.2, 0.4, 0.6, 0.8, 1, 0, 0, 0], rtol=1e-6)


def test_whole_numbers_of_an_image_are_scaled_to_their_bounds() -> None:
    low, high = np.zeros((4, 3, 2), np.int16), np.full((4, 3, 2), 4, np.int16)
    low[..., 1], high[..., 1] = -10, 10
    (image,) = ObservationAdapter(spaces.Box(low, high, dtype=np.int16))(np.full((1, 4, 3, 2), 3, np.int16)).images
    np.testing.assert_allclose(image, np.broadcast_to([0.75, 0.65], (1, 4, 3, 2)), rtol=1e-6)


def test_bits_of_an_image_are_zeros_and_ones() -> None:
    bits = np.arange(36).reshape(1, 3, 3, 4) % 2 == 0
    (image,) = ObservationAdapter(spaces.Box(0, 1, (3, 3, 4), BOOL))(bits).images
    np.testing.assert_array_equal(image, bits.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_other_images_stay(dtype: Any) -> None:
    given = np.arange(9, dtype=dtype).reshape(1, 3, 3, 1) - 4
    (image,) = ObservationAdapter(spaces.Box(-9, 9, (3, 3, 1), dtype))(given).images
    np.testing.assert_array_equal(image, given)


@pytest.mark.parametrize(
    "shape", [(84, 84, 4), (84, 84, 3), (7, 7, 3), (10, 10, 7), (5, 5, 5), (8, 8, 111), (6, 7, 20), (210, 160, 3)]
)
def test_images_with_channels_last_stay(shape: tuple[int, int, int]) -> None:
    given = np.random.default_rng(0).random((2, *shape), np.float32)
    (image,) = ObservationAdapter(spaces.Box(0, 1, shape))(given).images
    np.testing.assert_array_equal(image, given)


@pytest.mark.parametrize("shape", [(4, 84, 84), (3, 64, 64), (1, 28, 28), (3, 10, 10), (3, 210, 160), (2, 3, 3)])
def test_channels_that_come_first_are_moved(shape: tuple[int, int, int]) -> None:
    given = np.random.default_rng(0).integers(0, 256, (2, *shape)).astype(np.uint8)
    (image,) = ObservationAdapter(spaces.Box(0, 255, shape, np.uint8))(given).images
    assert image.shape == (2, *shape[1:], shape[0])
    assert image[1, 2, 1, shape[0] - 1] == pytest.approx(given[1, shape[0] - 1, 2, 1] / 255)


def test_bounds_move_with_the_channels() -> None:
    high = np.ones((2, 3, 3), np.int32)
    high[1] = 10
    (image,) = ObservationAdapter(spaces.Box(np.zeros_like(high), high, dtype=np.int32))(
        np.ones((1, 2, 3, 3), int)
    ).images
    np.testing.assert_allclose(image, np.broadcast_to([1, 0.1], (1, 3, 3, 2)), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 3, 1), (3, 2, 5), (1, 1, 40), (4, 1, 1), (2, 9, 16)])
def test_images_too_small_for_a_patch_are_vectors(shape: tuple[int, int, int]) -> None:
    adapter = ObservationAdapter(spaces.Box(0, 1, shape))
    given = np.random.default_rng(0).random((2, *shape), np.float32)
    assert adapter(given).images == ()
    np.testing.assert_array_equal(adapter(given).vector, given.reshape(2, -1))
    assert adapter.continuous.all()


NESTED = spaces.Dict(
    {
        "b": spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,)), spaces.Box(0, 255, (3, 3, 1), np.uint8)]),
        "a": spaces.Dict(z=spaces.MultiBinary(1), y=spaces.Box(0, 1, (3, 3, 2))),
        "c": spaces.Box(0, 4, (1,), np.int32),
    }
)
NESTED_OBS: dict[str, Any] = {
    "a": {"y": np.full((1, 3, 3, 2), [0.5, 0.75], np.float32), "z": np.array([[1]], np.int8)},
    "b": (np.array([1]), np.array([[0.1, 0.2]], np.float32), np.full((1, 3, 3, 1), 255, np.uint8)),
    "c": np.array([[3]], np.int32),
}


def test_nested_entries_come_in_the_order_of_the_space() -> None:
    # Gymnasium sorts the keys of a plain mapping: a, b, c.
    features = ObservationAdapter(NESTED)(NESTED_OBS)
    np.testing.assert_allclose(features.vector, [[1, 0, 1, 0.1, 0.2, 0.75]], rtol=1e-6)
    assert [image[0, 0, 0].tolist() for image in features.images] == [[0.5, 0.75], [1]]


def test_only_measurements_are_continuous() -> None:
    adapter = ObservationAdapter(NESTED)
    assert adapter.vector_size == 6
    assert adapter.continuous.tolist() == [False, False, False, True, True, False]


@pytest.mark.parametrize("inner", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2))], ids=["Text", "Sequence"])
def test_unsupported_entries_are_named(inner: spaces.Space[Any]) -> None:
    space = spaces.Dict(good=spaces.Discrete(2), bad=spaces.Tuple([spaces.Discrete(2), inner]))
    with pytest.raises(UserError) as error:
        ObservationAdapter(space)
    assert "['bad'][1]" in str(error.value)
    assert str(inner) in str(error.value)


def test_an_empty_space_is_refused() -> None:
    with pytest.raises(UserError, match="nothing to learn from"):
        ObservationAdapter(spaces.Dict())


# batch


def test_a_single_observation_gets_a_batch_axis() -> None:
    obs, single = ObservationAdapter(spaces.Box(-1, 1, (2,))).batch(np.array([0.1, 0.2], np.float32))
    assert single
    assert obs.shape == (1, 2)


def test_a_batch_stays() -> None:
    obs, single = ObservationAdapter(spaces.Box(-1, 1, (2,))).batch(np.zeros((5, 2), np.float32))
    assert not single
    assert obs.shape == (5, 2)


def test_lists_are_observations() -> None:
    adapter = ObservationAdapter(spaces.Box(-1, 1, (2,)))
    obs, single = adapter.batch([0.25, 0.5])
    assert single
    assert adapter(obs).vector.tolist() == [[0.25, 0.5]]
    assert not adapter.batch([[0.25, 0.5]])[1]


def test_a_single_number_of_a_discrete_space() -> None:
    adapter = ObservationAdapter(spaces.Discrete(3))
    obs, single = adapter.batch(2)
    assert single
    assert adapter(obs).vector.tolist() == [[0, 0, 1]]
    assert not adapter.batch(np.array([2, 0]))[1]


def test_nested_observations_are_batched_in_every_entry() -> None:
    adapter = ObservationAdapter(NESTED)
    first = {
        "a": {"y": NESTED_OBS["a"]["y"][0], "z": NESTED_OBS["a"]["z"][0]},
        "b": tuple(entry[0] for entry in NESTED_OBS["b"]),
        "c": NESTED_OBS["c"][0],
    }
    obs, single = adapter.batch(first)
    assert single
    np.testing.assert_array_equal(adapter(obs).vector, adapter(NESTED_OBS).vector)
    obs, single = adapter.batch(NESTED_OBS)
    assert not single
    np.testing.assert_array_equal(adapter(obs).vector, adapter(NESTED_OBS).vector)


@pytest.mark.parametrize("shape", [(), (3,), (4, 3), (2, 4, 2)])
def test_a_wrong_shape_is_told(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError) as error:
        ObservationAdapter(spaces.Box(-1, 1, (2,))).batch(np.zeros(shape, np.float32))
    assert "(2,)" in str(error.value)
    assert str(shape) in str(error.value)


def test_a_wrong_shape_is_told_in_any_entry() -> None:
    adapter = ObservationAdapter(spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1, (2,))))
    for b in (np.zeros(3), np.zeros((4, 2))):
        with pytest.raises(UserError, match=r"\['b'\] must have the shape \(2,\)"):
            adapter.batch({"a": 1, "b": b})


@pytest.mark.parametrize(
    ("space", "obs", "told"),
    [
        (NESTED, {"a": {"y": 0, "z": 0}, "c": 0}, r"The observation lacks the entry 'b'; it has \['a', 'c'\]"),
        (NESTED, {"a": {"y": 0}, "b": (), "c": 0}, r"The observation\['a'\] lacks the entry 'z'"),
        (NESTED, {**NESTED_OBS, "b": (1, 2)}, r"\['b'\] must be a tuple of 3 entries; not tuple of 2"),
        (NESTED, np.zeros(3), r"must be a dictionary with the entries \['a', 'b', 'c'\]; not ndarray"),
        (NESTED, {**NESTED_OBS, "c": "text"}, r"\['c'\] must hold numbers; not str"),
        (NESTED, {**NESTED_OBS, "c": None}, r"\['c'\] must hold numbers; not NoneType"),
        (spaces.Box(-1, 1, (2,)), {"a": 1}, "The observation must hold numbers; not dict"),
        (spaces.Box(-1, 1, (2,)), [[1, 2], [3]], "is ragged"),
    ],
    ids=range(8),
)
def test_a_wrong_structure_is_told(space: spaces.Space[Any], obs: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        ObservationAdapter(space).batch(obs)


def test_entries_that_the_space_does_not_have_are_left_out() -> None:
    obs, single = ObservationAdapter(spaces.Dict(a=spaces.Discrete(2))).batch({"a": 1, "mission": "go", "b": None})
    assert single
    assert list(obs) == ["a"]


def test_wide_numbers_survive_the_way_to_the_device() -> None:
    adapter = ObservationAdapter(spaces.Box(-np.inf, np.inf, (1,), np.int64))
    obs, _ = adapter.batch(np.array([2**40]))
    assert adapter(jnp.asarray(obs)).vector.tolist() == [[2**40]]


# Embeddings


def test_discrete_values_are_numbered_through_to_be_embedded() -> None:
    space = spaces.Dict(
        a=spaces.Discrete(3, start=-1),
        b=spaces.MultiDiscrete(np.array([[2, 5]]), start=np.array([[10, 0]])),
        c=spaces.MultiBinary(2),
    )
    adapter = ObservationAdapter(space, embed=True)
    obs = {"a": np.array([-1, 1]), "b": np.array([[[11, 4]], [[10, 0]]]), "c": np.array([[0, 1], [1, 1]], np.int8)}
    features = adapter(obs)
    # The values of a are 0 to 2, those of b's parts 3 to 4 and 5 to 9. Bits are numbers already.
    assert features.codes is not None
    assert features.codes.tolist() == [[0, 4, 9], [2, 3, 5]]
    assert features.num_codes == 10
    assert features.vector.tolist() == [[0, 1], [1, 1]]
    assert adapter.vector_size == 2


def test_a_value_outside_its_space_gets_the_nearest_code() -> None:
    adapter = ObservationAdapter(spaces.MultiDiscrete([2, 3]), embed=True)
    codes = adapter(np.array([[5, -1]])).codes
    assert codes is not None
    assert codes.tolist() == [[1, 2]]


def test_without_embedding_there_are_no_codes() -> None:
    features = ObservationAdapter(spaces.Discrete(3))(np.array([1]))
    assert features.codes is None
    assert features.vector.tolist() == [[0, 1, 0]]
