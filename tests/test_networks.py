"""How networks start, what they are made of, and the seam they stand behind."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proximo.config import NetworkConfig
from proximo.errors import UserError
from proximo.policy.build import build_networks
from proximo.policy.encoders import PatchConv, max_pool
from proximo.policy.layers import product
from proximo.policy.networks import Network
from proximo.policy.observation import Features

CONFIG = NetworkConfig(hidden_sizes=(8, 16))


def build_actor(network: NetworkConfig, num_outputs: int, num_log_std: int) -> Network:
    return build_networks(network, num_outputs, num_log_std)["actor"]


def build_critic(network: NetworkConfig) -> Network:
    return build_networks(network, 1, 0)["critic"]


ACTOR, CRITIC = build_actor(CONFIG, 4, 0), build_critic(CONFIG)
KEY = jax.random.key(0)
init_actor, init_critic = jax.jit(ACTOR.init), jax.jit(CRITIC.init)


def features(*image_shape: int, batch: int = 1) -> Features:
    """Three numbers, and an image where a shape is given."""
    return Features(jnp.zeros((batch, 3)), (jnp.zeros((batch, *image_shape)),) if image_shape else ())


def kernels(params: Any) -> dict[str, Any]:
    """Every kernel [inputs, outputs] by its path, in the order of the layers."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
    return {name: leaf for name, leaf in named.items() if name.endswith("kernel")}


def assert_orthogonal(kernel: Any, gain: float) -> None:
    """Rows or columns, whichever are fewer, are perpendicular and `gain` long."""
    kernel = np.asarray(kernel)
    gram = kernel @ kernel.T if kernel.shape[0] < kernel.shape[1] else kernel.T @ kernel
    np.testing.assert_allclose(gram, gain**2 * np.eye(len(gram)), atol=1e-5 * gain**2)


@pytest.mark.parametrize(("init", "num_outputs", "head_gain"), [(init_actor, 4, 0.01), (init_critic, 1, 1.0)])
def test_networks_start_orthogonal(init: Callable[..., Any], num_outputs: int, head_gain: float) -> None:
    params, _ = init(KEY, features())
    first, second, head = kernels(params).values()
    assert (first.shape, second.shape, head.shape) == ((3, 8), (8, 16), (16, num_outputs))
    assert_orthogonal(first, math.sqrt(2))
    assert_orthogonal(second, math.sqrt(2))
    assert_orthogonal(head, head_gain)
    assert not any(leaf.any() for leaf in jax.tree.leaves(params) if leaf.ndim == 1)  # the biases


def test_keys_decide_the_start() -> None:
    first, again, other = (kernels(init_critic(jax.random.key(seed), features())[0]) for seed in (0, 0, 1))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
        assert not np.allclose(first[name], other[name])


def image_kernels(*image_shape: int, cnn: Any = "auto") -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """The shapes of the convolutions, and of the first hidden layer."""
    critic = build_critic(dataclasses.replace(CONFIG, cnn=cnn))
    found = kernels(jax.eval_shape(critic.init, KEY, features(*image_shape))[0])
    return [kernel.shape for name, kernel in found.items() if "CNN" in name or "Impala" in name], found[
        "Dense_0/kernel"
    ].shape


def test_small_images_go_through_one_layer_and_join_the_vector() -> None:
    # 3 x 3 patches of 2 channels fit 10 x 16 at 8 x 14 places; 16 channels there, and the 3 numbers.
    assert image_kernels(10, 16, 2) == ([(3 * 3 * 2, 16)], (3 + 8 * 14 * 16, 8))


def test_larger_images_go_through_two_strided_layers() -> None:
    # 5 x 5 patches fit 17 x 32 at 13 x 28 places, every second of which makes 7 x 14;
    # 3 x 3 patches of 16 channels fit that at 5 x 12 places, every second of which makes 3 x 6.
    assert image_kernels(17, 32, 1) == ([(5 * 5 * 1, 16), (3 * 3 * 16, 32)], (3 + 3 * 6 * 32, 8))


def test_two_strided_layers_go_up_to_35() -> None:
    # 35 -> 31 places, every second: 16 -> 14 places, every second: 7.
    assert image_kernels(35, 84, 3)[1] == (3 + 7 * 19 * 32, 8)


def test_the_largest_images_go_through_the_layers_for_atari() -> None:
    # 84 -> (84 - 8) / 4 + 1 = 20 -> (20 - 4) / 2 + 1 = 9 -> 9 - 3 + 1 = 7.
    layers = [(8 * 8 * 4, 32), (4 * 4 * 32, 64), (3 * 3 * 64, 64)]
    assert image_kernels(84, 84, 4) == (layers, (3 + 7 * 7 * 64, 8))
    # 36 -> 8 -> 3 -> 1: the smallest that they fit.
    assert image_kernels(36, 36, 4) == (layers, (3 + 64, 8))


def test_images_too_small_for_a_patch_are_read_as_they_are() -> None:
    assert image_kernels(2, 9, 4) == ([], (3 + 2 * 9 * 4, 8))


def test_the_cnn_can_be_chosen() -> None:
    assert image_kernels(10, 10, 4, cnn="small") == image_kernels(10, 10, 4)
    assert image_kernels(84, 84, 4, cnn="nature") == image_kernels(84, 84, 4)
    # 84 -> 80 places, every second: 40 -> 38 places, every second: 19.
    assert image_kernels(84, 84, 4, cnn="small") == ([(5 * 5 * 4, 16), (3 * 3 * 16, 32)], (3 + 19 * 19 * 32, 8))


@pytest.mark.parametrize(("side", "left"), [(84, 11), (10, 2), (8, 1), (3, 1)])
def test_impala_halves_the_image_three_times(side: int, left: int) -> None:
    # 84 -> 42 -> 21 -> 11; each section has one convolution before its pool and four in its residual blocks.
    sections = [(9 * 3, 16), *[(9 * 16, 16)] * 4, (9 * 16, 32), *[(9 * 32, 32)] * 4, *[(9 * 32, 32)] * 5]
    shapes, hidden = image_kernels(side, side, 3, cnn="impala")
    assert sorted(shapes) == sorted(sections)
    assert hidden == (3 + left * left * 32, 8)


@pytest.mark.slow
def test_impala_blocks_are_residual() -> None:
    """With all kernels zero but the sections' own, which take the middle of their patch, only pools are left."""
    network = build_critic(NetworkConfig(hidden_sizes=(), activation="relu", cnn="impala"))
    given = Features(jnp.zeros((1, 0)), (jnp.asarray(np.random.default_rng(0).random((1, 8, 8, 1)), jnp.float32),))
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), jax.eval_shape(network.init, KEY, given)[0])
    for number in (0, 5, 10):
        layer = params["Impala_0"][f"PatchConv_{number}"]["Dense_0"]
        layer["kernel"] = layer["kernel"].at[4 * layer["kernel"].shape[0] // 9, 0].set(1.0)
    params["Dense_0"]["kernel"] = params["Dense_0"]["kernel"].at[0, 0].set(1.0)
    # Three pools of 3 x 3 at every second place, from the first on, look at all 8 x 8.
    assert network.apply(params, (), given)[1].item() == given.images[0].max()


def test_nature_refuses_images_that_are_too_small() -> None:
    with pytest.raises(UserError, match=r"at least 36 x 36, and one here is 35 x 84; use auto, small or impala\."):
        image_kernels(35, 84, 3, cnn="nature")


@pytest.mark.slow
@pytest.mark.parametrize("side", [7, 8])
def test_max_pool_is_a_max_pool(side: int) -> None:
    image = jnp.asarray(np.random.default_rng(0).normal(size=(2, side, 5, 3)).astype(np.float32))

    def right(image: jax.Array) -> Any:
        return jax.lax.reduce_window(image, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    ours, theirs = jax.vjp(max_pool, image), jax.vjp(right, image)
    np.testing.assert_array_equal(ours[0], theirs[0])
    slope = jnp.arange(1.0, ours[0].size + 1).reshape(ours[0].shape)
    np.testing.assert_array_equal(ours[1](slope)[0], theirs[1](slope)[0])


def test_every_image_has_a_cnn_of_its_own() -> None:
    given = Features(jnp.zeros((1, 0)), (jnp.zeros((1, 10, 10, 1)), jnp.zeros((1, 20, 20, 2))))
    found = kernels(jax.eval_shape(CRITIC.init, KEY, given)[0])
    assert [shape.shape for name, shape in found.items() if name.startswith("CNN_0")] == [(9, 16)]
    assert [shape.shape for name, shape in found.items() if name.startswith("CNN_1")] == [(50, 16), (144, 32)]
    # 8 x 8 x 16, and 20 -> 8 -> 3: 3 x 3 x 32.
    assert found["Dense_0/kernel"].shape == (8 * 8 * 16 + 3 * 3 * 32, 8)


def test_codes_are_looked_up_in_a_table() -> None:
    network = build_critic(NetworkConfig(hidden_sizes=(), embed=2))
    given = Features(jnp.array([[5.0], [7.0]]), (), jnp.array([[0, 4], [3, 1]]), 5)
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), jax.eval_shape(network.init, KEY, given)[0])
    assert params["Embedding_0"]["embedding"].shape == (5, 2)
    params["Embedding_0"]["embedding"] = jnp.arange(10.0).reshape(5, 2)
    params["Dense_0"]["kernel"] = jnp.array([[1e4], [1e3], [1e2], [1e1], [1.0]])
    # The vector, then rows 0 and 4 of the table, or 3 and 1, side by side: 5 | 0 1 | 8 9, and 7 | 6 7 | 2 3.
    assert network.apply(params, (), given)[1].tolist() == [[50189], [76723]]


def test_layer_norm_standardises_before_each_activation() -> None:
    network = build_critic(NetworkConfig(hidden_sizes=(2,), activation="relu", layer_norm=True))
    given = Features(jnp.array([[1.0, 3.0]]), ())
    params = jax.jit(network.init)(KEY, given)[0]
    params["Dense_0"]["kernel"] = jnp.eye(2)
    params["Dense_1"]["kernel"] = jnp.array([[1.0], [10.0]])
    # 1 and 3 have mean 2 and deviation 1: -1 and 1, of which relu leaves 0 and 1.
    assert network.apply(params, (), given)[1].item() == pytest.approx(10, rel=1e-5)


def test_vectors_go_through_no_convolution() -> None:
    assert image_kernels() == ([], (3, 8))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "stride", "pad"), [(3, 1, False), (5, 2, False), (3, 1, True), (5, 2, True)])
def test_patch_convolution_is_a_convolution(size: int, stride: int, pad: bool) -> None:
    image = jnp.asarray(np.random.default_rng(0).normal(size=(2, 7, 10, 3)).astype(np.float32))
    module = PatchConv(4, size, stride, pad)
    params = jax.jit(module.init)(KEY, image)
    (kernel,) = kernels(params).values()
    assert_orthogonal(kernel, math.sqrt(2))
    expected = jax.lax.conv_general_dilated(
        image,
        kernel.reshape(size, size, 3, 4),
        (stride, stride),
        "SAME" if pad else "VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    found: Any = module.apply(params, image)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_activation_is_the_one_configured() -> None:
    # All weights one and inputs 1 + 1 - 5 = -3: relu gives 0; tanh gives tanh(-3) in each of two hidden units.
    given = Features(jnp.array([[1.0, 1.0, -5.0]]), ())
    outputs = {}
    for activation in ("relu", "tanh"):
        network = build_critic(NetworkConfig(hidden_sizes=(2,), activation=activation))
        shapes, _ = jax.eval_shape(network.init, KEY, given)
        params = jax.tree.map(lambda leaf: jnp.full(leaf.shape, leaf.ndim - 1.0), shapes)
        outputs[activation] = network.apply(params, (), given)[1].item()
    assert outputs == {"relu": 0, "tanh": pytest.approx(2 * math.tanh(-3), rel=1e-6)}


def test_log_std_is_a_free_parameter_at_the_end_of_the_output() -> None:
    network = build_actor(NetworkConfig(hidden_sizes=(4,), initial_std=0.5), 5, 2)
    params, carry = jax.jit(network.init)(KEY, features())
    np.testing.assert_allclose(params["log_std"], [math.log(0.5)] * 2, rtol=1e-6)
    params["log_std"] = jnp.array([7.0, -7.0])
    given = Features(jnp.arange(12.0).reshape(4, 3), ())
    _, output = network.apply(params, carry, given)
    assert output.shape == (4, 5)
    assert output[:, 3:].tolist() == [[7, -7]] * 4
    assert len(np.unique(output[:, 0])) == 4


def test_a_discrete_actor_has_no_log_std() -> None:
    assert "log_std" not in init_actor(KEY, features())[0]


@pytest.mark.parametrize(("network", "init"), [(ACTOR, init_actor), (CRITIC, init_critic)])
def test_memory_of_the_built_in_networks_is_empty(network: Network, init: Callable[..., Any]) -> None:
    params, carry = init(KEY, features())
    assert carry == ()
    # Whatever memory is handed in comes back.
    assert network.apply(params, ("memory",), features())[0] == ("memory",)


@pytest.mark.slow
@pytest.mark.parametrize("width", [2, 40])
@pytest.mark.parametrize("batch", [(5,), (3, 4)])
def test_product_has_the_gradient_of_a_matrix_product(width: int, batch: tuple[Any, ...]) -> None:
    """Both layouts of the gradient, narrow and wide, against JAX's own."""
    x = jax.random.normal(jax.random.key(0), (*batch, 7))
    kernel = jax.random.normal(jax.random.key(1), (7, width))
    slope = jax.random.normal(jax.random.key(2), (*batch, width))
    ours = jax.vjp(product, x, kernel)
    theirs = jax.vjp(lambda a, b: jnp.tensordot(a, b, 1), x, kernel)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
    for mine, right in zip(ours[1](slope), theirs[1](slope), strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-5)
