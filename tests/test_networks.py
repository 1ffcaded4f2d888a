"""How networks start, what they are made of, and the seam they stand behind."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proximo.config import NetworkConfig
from proximo.policy.networks import PatchConv, build_actor, build_critic, product
from proximo.policy.observation import Features

CONFIG = NetworkConfig(hidden_sizes=(8, 16))
ACTOR, CRITIC = build_actor(CONFIG, 4, 0), build_critic(CONFIG)
KEY = jax.random.key(0)
init_actor, init_critic = jax.jit(ACTOR.init), jax.jit(CRITIC.init)


def features(*image_shape, batch=1):
    """Three numbers, and an image where a shape is given."""
    return Features(jnp.zeros((batch, 3)), (jnp.zeros((batch, *image_shape)),) if image_shape else ())


def kernels(params):
    """Every kernel [inputs, outputs] by its path, in the order of the layers."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
    return {name: leaf for name, leaf in named.items() if name.endswith("kernel")}


def assert_orthogonal(kernel, gain):
    """Rows or columns, whichever are fewer, are perpendicular and `gain` long."""
    kernel = np.asarray(kernel)
    gram = kernel @ kernel.T if kernel.shape[0] < kernel.shape[1] else kernel.T @ kernel
    np.testing.assert_allclose(gram, gain**2 * np.eye(len(gram)), atol=1e-5 * gain**2)


@pytest.mark.parametrize(("init", "num_outputs", "head_gain"), [(init_actor, 4, 0.01), (init_critic, 1, 1.0)])
def test_networks_start_orthogonal(init, num_outputs, head_gain):
    params, _ = init(KEY, features())
    first, second, head = kernels(params).values()
    assert (first.shape, second.shape, head.shape) == ((3, 8), (8, 16), (16, num_outputs))
    assert_orthogonal(first, math.sqrt(2))
    assert_orthogonal(second, math.sqrt(2))
    assert_orthogonal(head, head_gain)
    assert not any(leaf.any() for leaf in jax.tree.leaves(params) if leaf.ndim == 1)  # the biases


def test_keys_decide_the_start():
    first, again, other = (kernels(init_critic(jax.random.key(seed), features())[0]) for seed in (0, 0, 1))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
        assert not np.allclose(first[name], other[name])


def image_kernels(*image_shape):
    """The shapes of the convolutions, and of the first hidden layer."""
    found = kernels(jax.eval_shape(CRITIC.init, KEY, features(*image_shape))[0])
    return [kernel.shape for name, kernel in found.items() if "SmallCNN" in name], found["Dense_0/kernel"].shape


def test_small_images_go_through_one_layer_and_join_the_vector():
    # 3 x 3 patches of 2 channels fit 10 x 16 at 8 x 14 places; 16 channels there, and the 3 numbers.
    assert image_kernels(10, 16, 2) == ([(3 * 3 * 2, 16)], (3 + 8 * 14 * 16, 8))


def test_larger_images_go_through_two_strided_layers():
    # 5 x 5 patches fit 17 x 32 at 13 x 28 places, every second of which makes 7 x 14;
    # 3 x 3 patches of 16 channels fit that at 5 x 12 places, every second of which makes 3 x 6.
    assert image_kernels(17, 32, 1) == ([(5 * 5 * 1, 16), (3 * 3 * 16, 32)], (3 + 3 * 6 * 32, 8))


def test_two_strided_layers_go_up_to_35():
    # 35 -> 31 places, every second: 16 -> 14 places, every second: 7.
    assert image_kernels(35, 84, 3)[1] == (3 + 7 * 19 * 32, 8)


def test_the_largest_images_go_through_the_layers_for_atari():
    # 84 -> (84 - 8) / 4 + 1 = 20 -> (20 - 4) / 2 + 1 = 9 -> 9 - 3 + 1 = 7.
    layers = [(8 * 8 * 4, 32), (4 * 4 * 32, 64), (3 * 3 * 64, 64)]
    assert image_kernels(84, 84, 4) == (layers, (3 + 7 * 7 * 64, 8))
    # 36 -> 8 -> 3 -> 1: the smallest that they fit.
    assert image_kernels(36, 36, 4) == (layers, (3 + 64, 8))


def test_images_too_small_for_a_patch_are_read_as_they_are():
    assert image_kernels(2, 9, 4) == ([], (3 + 2 * 9 * 4, 8))


def test_vectors_go_through_no_convolution():
    assert image_kernels() == ([], (3, 8))


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (5, 2)])
def test_patch_convolution_is_a_convolution(size, stride):
    image = jnp.asarray(np.random.default_rng(0).normal(size=(2, 7, 10, 3)).astype(np.float32))
    module = PatchConv(4, size, stride)
    params = jax.jit(module.init)(KEY, image)
    (kernel,) = kernels(params).values()
    assert_orthogonal(kernel, math.sqrt(2))
    expected = jax.lax.conv_general_dilated(
        image,
        kernel.reshape(size, size, 3, 4),
        (stride, stride),
        "VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    np.testing.assert_allclose(module.apply(params, image), expected, atol=1e-5)


def test_activation_is_the_one_configured():
    # All weights one and inputs 1 + 1 - 5 = -3: relu gives 0; tanh gives tanh(-3) in each of two hidden units.
    given = Features(jnp.array([[1.0, 1.0, -5.0]]), ())
    outputs = {}
    for activation in ("relu", "tanh"):
        network = build_critic(NetworkConfig(hidden_sizes=(2,), activation=activation))
        shapes, _ = jax.eval_shape(network.init, KEY, given)
        params = jax.tree.map(lambda leaf: jnp.full(leaf.shape, leaf.ndim - 1.0), shapes)
        outputs[activation] = network.apply(params, (), given)[1].item()
    assert outputs == {"relu": 0, "tanh": pytest.approx(2 * math.tanh(-3), rel=1e-6)}


def test_log_std_is_a_free_parameter_at_the_end_of_the_output():
    network = build_actor(NetworkConfig(hidden_sizes=(4,), initial_std=0.5), 5, 2)
    params, carry = jax.jit(network.init)(KEY, features())
    np.testing.assert_allclose(params["log_std"], [math.log(0.5)] * 2, rtol=1e-6)
    params["log_std"] = jnp.array([7.0, -7.0])
    given = Features(jnp.arange(12.0).reshape(4, 3), ())
    _, output = network.apply(params, carry, given)
    assert output.shape == (4, 5)
    assert output[:, 3:].tolist() == [[7, -7]] * 4
    assert len(np.unique(output[:, 0])) == 4


def test_a_discrete_actor_has_no_log_std():
    assert "log_std" not in init_actor(KEY, features())[0]


@pytest.mark.parametrize(("network", "init"), [(ACTOR, init_actor), (CRITIC, init_critic)])
def test_memory_of_the_built_in_networks_is_empty(network, init):
    params, carry = init(KEY, features())
    assert carry == ()
    # Whatever memory is handed in comes back.
    assert network.apply(params, ("memory",), features())[0] == ("memory",)


@pytest.mark.parametrize("width", [2, 40])
@pytest.mark.parametrize("batch", [(5,), (3, 4)])
def test_product_has_the_gradient_of_a_matrix_product(width, batch):
    """Both layouts of the gradient, narrow and wide, against JAX's own."""
    x = jax.random.normal(jax.random.key(0), (*batch, 7))
    kernel = jax.random.normal(jax.random.key(1), (7, width))
    slope = jax.random.normal(jax.random.key(2), (*batch, width))
    ours = jax.vjp(product, x, kernel)
    theirs = jax.vjp(lambda a, b: jnp.tensordot(a, b, 1), x, kernel)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
    for mine, right in zip(ours[1](slope), theirs[1](slope), strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-5)
