"""What a network reads of every kind of observation space."""

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from proximo.errors import UserError
from proximo.policy.observation import ObservationAdapter


def vector(space, obs):
    return ObservationAdapter(space)(obs).vector


def test_box_is_flattened_unchanged():
    features = ObservationAdapter(spaces.Box(-5, 5, (2, 2)))(jnp.array([[[1.0, 2.0], [3.0, 4.0]]]))
    assert features.vector.tolist() == [[1, 2, 3, 4]]
    assert features.images == ()


def test_scalar_box():
    assert vector(spaces.Box(-5, 5, ()), jnp.array([1.0, 2.0])).tolist() == [[1], [2]]


def test_double_precision_becomes_single():
    assert vector(spaces.Box(-5, 5, (1,), np.float64), np.array([[0.5]])).dtype == jnp.float32


def test_whole_numbers_are_scaled_to_their_bounds():
    space = spaces.Box(np.array([0, -10, 7]), np.array([4, 10, 7]), dtype=np.int32)
    assert vector(space, np.array([[1, -10, 7], [4, 5, 7]], np.int32)).tolist() == [[0.25, 0, 0], [1, 0.75, 0]]


def test_bytes_in_a_vector_are_scaled():
    assert vector(spaces.Box(0, 255, (2,), np.uint8), np.array([[0, 255]], np.uint8)).tolist() == [[0, 1]]


def test_whole_numbers_without_bounds_stay():
    space = spaces.Box(np.iinfo(np.int32).min, np.iinfo(np.int32).max, (2,), np.int32)
    assert vector(space, np.array([[-3, 1000]], np.int32)).tolist() == [[-3, 1000]]


def test_discrete_is_one_hot_from_its_start():
    assert vector(spaces.Discrete(3, start=-1), np.array([-1, 0, 1])).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_multi_discrete_is_one_hot_by_component():
    space = spaces.MultiDiscrete(np.array([[2], [3]]), start=np.array([[0], [5]]))
    assert vector(space, np.array([[[1], [5]], [[0], [7]]])).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_multi_binary_is_bits():
    assert vector(spaces.MultiBinary((2, 2)), np.array([[[1, 0], [1, 1]]], np.int8)).tolist() == [[1, 0, 1, 1]]


def test_bytes_of_an_image_are_scaled():
    adapter = ObservationAdapter(spaces.Box(0, 255, (2, 3, 1), np.uint8))
    features = adapter(np.array([[[[0], [51], [102]], [[153], [204], [255]]]], np.uint8))
    assert features.vector.shape == (1, 0)
    assert adapter.vector_size == 0
    (image,) = features.images
    assert image.shape == (1, 2, 3, 1)
    np.testing.assert_allclose(image.reshape(-1), [0, 0.2, 0.4, 0.6, 0.8, 1], rtol=1e-6)


def test_other_images_stay():
    (image,) = ObservationAdapter(spaces.Box(-9, 9, (1, 2, 1)))(jnp.array([[[[3.0], [-7.0]]]])).images
    assert image.tolist() == [[[[3], [-7]]]]


NESTED = spaces.Dict(
    {
        "b": spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,)), spaces.Box(0, 255, (1, 1, 1), np.uint8)]),
        "a": spaces.Dict(z=spaces.MultiBinary(1), y=spaces.Box(0, 1, (1, 1, 2))),
        "c": spaces.Box(0, 4, (1,), np.int32),
    }
)
NESTED_OBS = {
    "a": {"y": np.float32([[[[0.5, 0.75]]]]), "z": np.array([[1]], np.int8)},
    "b": (np.array([1]), np.float32([[0.1, 0.2]]), np.array([[[[255]]]], np.uint8)),
    "c": np.array([[3]], np.int32),
}


def test_nested_entries_come_in_the_order_of_the_space():
    # Gymnasium sorts the keys of a plain mapping: a, b, c.
    features = ObservationAdapter(NESTED)(NESTED_OBS)
    np.testing.assert_allclose(features.vector, [[1, 0, 1, 0.1, 0.2, 0.75]], rtol=1e-6)
    assert [image.tolist() for image in features.images] == [[[[[0.5, 0.75]]]], [[[[1]]]]]


def test_only_measurements_are_continuous():
    adapter = ObservationAdapter(NESTED)
    assert adapter.vector_size == 6
    assert adapter.continuous.tolist() == [False, False, False, True, True, False]


@pytest.mark.parametrize("inner", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2))], ids=["Text", "Sequence"])
def test_unsupported_entries_are_named(inner):
    space = spaces.Dict(good=spaces.Discrete(2), bad=spaces.Tuple([spaces.Discrete(2), inner]))
    with pytest.raises(UserError) as error:
        ObservationAdapter(space)
    assert "['bad'][1]" in str(error.value)
    assert str(inner) in str(error.value)


def test_an_empty_space_is_refused():
    with pytest.raises(UserError, match="nothing to learn from"):
        ObservationAdapter(spaces.Dict())


# batch


def test_a_single_observation_gets_a_batch_axis():
    obs, single = ObservationAdapter(spaces.Box(-1, 1, (2,))).batch(np.float32([0.1, 0.2]))
    assert single
    assert obs.shape == (1, 2)


def test_a_batch_stays():
    obs, single = ObservationAdapter(spaces.Box(-1, 1, (2,))).batch(np.zeros((5, 2), np.float32))
    assert not single
    assert obs.shape == (5, 2)


def test_lists_are_observations():
    adapter = ObservationAdapter(spaces.Box(-1, 1, (2,)))
    obs, single = adapter.batch([0.25, 0.5])
    assert single
    assert adapter(obs).vector.tolist() == [[0.25, 0.5]]
    assert not adapter.batch([[0.25, 0.5]])[1]


def test_a_single_number_of_a_discrete_space():
    adapter = ObservationAdapter(spaces.Discrete(3))
    obs, single = adapter.batch(2)
    assert single
    assert adapter(obs).vector.tolist() == [[0, 0, 1]]
    assert not adapter.batch(np.array([2, 0]))[1]


def test_nested_observations_are_batched_in_every_entry():
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
def test_a_wrong_shape_is_told(shape):
    with pytest.raises(UserError) as error:
        ObservationAdapter(spaces.Box(-1, 1, (2,))).batch(np.zeros(shape, np.float32))
    assert "(2,)" in str(error.value)
    assert str(shape) in str(error.value)


def test_a_wrong_shape_is_told_in_any_entry():
    adapter = ObservationAdapter(spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1, (2,))))
    for b in (np.zeros(3), np.zeros((4, 2))):
        with pytest.raises(UserError, match=r"\['b'\] must have the shape \(2,\)"):
            adapter.batch({"a": 1, "b": b})
