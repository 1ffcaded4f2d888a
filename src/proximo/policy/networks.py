"""Networks behind one seam: two pure functions.

    params, carry = network.init(key, features)           # features with a batch axis of 1
    carry, output = network.apply(params, carry, features)

`carry` is the network's memory, leaves [B, ...]; it is all zeros where an episode starts, and an empty tuple
for a network without memory. Any such pair can be a policy; the built-in ones are Linen modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from proximo.config import NetworkConfig
from proximo.policy.observation import Features

Tree = Any

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "elu": nn.elu,
    "gelu": nn.gelu,
    "silu": nn.silu,
}


class Network(NamedTuple):
    """The seam: `init(key, features) -> (params, carry)`, `apply(params, carry, features) -> (carry, output)`."""

    init: Callable[[jax.Array, Features], tuple[Tree, Tree]]
    apply: Callable[[Tree, Tree, Features], tuple[Tree, jax.Array]]


def orthogonal(gain: float) -> Callable[..., jax.Array]:
    """Orthonormal rows or columns, whichever fit, times `gain`; made on the host, because compiling JAX's own
    takes four seconds of every start."""

    def on_host(key: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        rows, columns = math.prod(shape[:-1]), shape[-1]
        normal = np.random.Generator(np.random.Philox(key=np.asarray(key).astype(np.uint64)))
        q, r = np.linalg.qr(normal.standard_normal((max(rows, columns), min(rows, columns))))
        q *= np.sign(np.diag(r))  # makes the distribution uniform over orthogonal matrices
        return (gain * (q if rows >= columns else q.T)).reshape(shape).astype(np.float32)

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        result = jax.ShapeDtypeStruct(shape, dtype)
        return jax.pure_callback(
            partial(on_host, shape=shape), result, jax.random.key_data(key), vmap_method="sequential"
        )

    return init


@jax.custom_vjp
def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x @ kernel, with a gradient that is laid out for CPU: XLA folds the transposition in x^T dy into a product that
    is slower, by far for narrow heads; the barriers make it transpose first (`python bench/dense.py`)."""
    return x @ kernel


def _product_forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x @ kernel, (x, kernel)


def _product_backward(saved: tuple[jax.Array, jax.Array], slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    rows, slopes = x.reshape(-1, x.shape[-1]), slope.reshape(-1, slope.shape[-1])
    laid_out = jax.lax.optimization_barrier
    narrow = slopes.shape[1] < 16
    change = laid_out(laid_out(slopes.T) @ rows).T if narrow else laid_out(rows.T) @ slopes
    return slope @ kernel.T, change


product.defvjp(_product_forward, _product_backward)


def dense(width: int, gain: float) -> nn.Dense:
    """A linear layer with orthogonal kernel and zero bias."""

    def dot(x: jax.Array, kernel: jax.Array, dimensions: Any, precision: Any = None, **_: Any) -> jax.Array:
        return product(x, kernel)

    return nn.Dense(width, kernel_init=orthogonal(gain), dot_general=dot)


class PatchConv(nn.Module):
    """A convolution as one matrix product over patches: on CPU, inside a compiled loop, XLA's own convolution
    and above all its gradient are slower by an order of magnitude (`python bench/convolution.py`)."""

    width: int
    size: int
    stride: int

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        height, width = (size - self.size + 1 for size in image.shape[1:3])
        shifts = [
            image[:, row : row + height : self.stride, column : column + width : self.stride]
            for row in range(self.size)
            for column in range(self.size)
        ]
        return dense(self.width, math.sqrt(2))(jnp.concatenate(shifts, axis=-1))


def _layers(smaller_side: int) -> list[tuple[int, int, int]]:
    """Width, patch size and stride of each layer."""
    if smaller_side >= 36:
        return [(32, 8, 4), (64, 4, 2), (64, 3, 1)]
    if smaller_side >= 17:
        return [(16, 5, 2), (32, 3, 2)]
    return [(16, 3, 1)] if smaller_side >= 3 else []


class SmallCNN(nn.Module):
    """By the smaller side: one 3x3 layer for grids up to 16, two strided layers up to 35, from 36 on the three layers
    that read Atari's screens (Mnih et al., Nature 2015); none below 3, where no patch would fit and nothing be seen."""

    activation: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        for width, size, stride in _layers(min(image.shape[1:3])):
            image = self.activation(PatchConv(width, size, stride)(image))
        return image.reshape(image.shape[0], -1)


class MLP(nn.Module):
    """Images through a small CNN, joined with the vector, through hidden layers to a linear head.

    Orthogonal initialisation: gain sqrt(2) inside, `head_gain` at the head, biases zero.
    """

    hidden_sizes: tuple[int, ...]
    activation: Callable[[jax.Array], jax.Array]
    num_outputs: int
    head_gain: float
    log_std: float = 0.0
    num_log_std: int = 0

    @nn.compact
    def __call__(self, features: Features) -> jax.Array:
        parts = [features.vector, *(SmallCNN(self.activation)(image) for image in features.images)]
        hidden = jnp.concatenate(parts, axis=-1) if features.images else features.vector
        for size in self.hidden_sizes:
            hidden = self.activation(dense(size, math.sqrt(2))(hidden))
        output = dense(self.num_outputs, self.head_gain)(hidden)
        if self.num_log_std:
            log_std = self.param("log_std", nn.initializers.constant(self.log_std), (self.num_log_std,))
            wide = jnp.broadcast_to(log_std[None], (output.shape[0], self.num_log_std))
            output = jnp.concatenate([output, wide], axis=-1)
        return output


def linen_network(module: nn.Module) -> Network:
    """A Linen module without memory as a `Network`."""

    def init(key: jax.Array, features: Features) -> tuple[Tree, Tree]:
        return module.init(key, features)["params"], ()

    def apply(params: Tree, carry: Tree, features: Features) -> tuple[Tree, Any]:
        return carry, module.apply({"params": params}, features)

    return Network(init, apply)


def build_actor(network: NetworkConfig, num_outputs: int, num_log_std: int) -> Network:
    """The actor: `num_outputs` numbers per lane, of which the last `num_log_std` are free parameters."""
    return linen_network(
        MLP(
            hidden_sizes=network.hidden_sizes,
            activation=ACTIVATIONS[network.activation],
            num_outputs=num_outputs - num_log_std,
            head_gain=0.01,
            log_std=math.log(network.initial_std),
            num_log_std=num_log_std,
        )
    )


def build_critic(network: NetworkConfig) -> Network:
    """The critic: one number per lane."""
    return linen_network(MLP(network.hidden_sizes, ACTIVATIONS[network.activation], num_outputs=1, head_gain=1.0))
