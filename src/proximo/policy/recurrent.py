"""Networks that remember: a recurrent cell between the hidden layers and the head."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Key, Shaped

from proximo.policy.layers import orthogonal
from proximo.policy.networks import Network, flat_apply, flatten_time, split_time
from proximo.types import AnyArray, PyTree

Carry = tuple[Float[Array, "B H"], ...]
"""What a cell remembers."""
LONGEST = 128
"""Steps over which the slowest units of a new cell forget."""
INPUT_GAIN = 2.0
"""Of the kernels that read the input: gates that mostly keep take in little, and must feel what is worth more."""


def gates(num: int, gain: float) -> Callable[..., Float32[Array, "D H"]]:
    """An initialiser of `num` orthogonal kernels side by side, one for each gate, times `gain`."""

    def init(key: Key[Array, ""], shape: tuple[int, ...], dtype: Any = jnp.float32) -> Float32[Array, "D H"]:
        one = (shape[0], shape[1] // num)
        return jnp.concatenate([orthogonal(gain)(own, one, dtype) for own in jax.random.split(key, num)], axis=-1)

    return init


def lasting(key: Key[Array, ""], size: int) -> Float32[Array, " {size}"]:
    """Biases [size] of gates that keep a share sigmoid(b) of what is remembered at each step: b uniform on 0 ..
    log(`LONGEST` - 1), so that units forget over 1 + e^b steps, as many soon as late ("chrono" initialisation, Tallec
    and Ollivier 2018, with times spread by their logarithm: control needs units that react at once). With a bias of 1
    for all, 0.73^40 = 4e-6 is left after 40 steps, and no gradient."""
    return jax.random.uniform(key, (size,), minval=0.0, maxval=math.log(LONGEST - 1))


class GRU(nn.Module):
    """A gated recurrent unit (Cho et al. 2014), the reset gate after the product:

        r, z = sigmoid(W x + U h + b),  n = tanh(W x + b + r (U h + c)),  h' = (1 - z) n + z h

    The gate z starts with the biases of `lasting`: what is remembered stays, each unit's for a time of its own.
    What depends on x alone is a method of its own: for a whole sequence it is one product.
    """

    size: int

    def setup(self) -> None:
        self.inner = nn.Dense(3 * self.size, kernel_init=gates(3, INPUT_GAIN), bias_init=self._first_bias)
        self.recurrent = nn.Dense(3 * self.size, use_bias=False, kernel_init=gates(3, 1.0))
        self.bias = self.param("bias", nn.initializers.zeros, (self.size,))

    def project(self, x: Float[Array, "*B D"]) -> Float[Array, "*B G"]:
        return self.inner(x)

    def step(self, carry: Carry, projected: Float[Array, "B G"]) -> tuple[Carry, Float[Array, "B H"]]:
        (h,) = carry
        seen_r, seen_z, seen_n = jnp.split(projected, 3, axis=-1)
        held_r, held_z, held_n = jnp.split(self.recurrent(h), 3, axis=-1)
        r, z = nn.sigmoid(seen_r + held_r), nn.sigmoid(seen_z + held_z)
        n = jnp.tanh(seen_n + r * (held_n + self.bias[None]))
        h = (1 - z) * n + z * h
        return (h,), h

    def start(self, batch: int) -> Carry:
        return (jnp.zeros((batch, self.size), jnp.float32),)

    def __call__(self, x: Float[Array, "B D"]) -> tuple[Carry, Float[Array, "B H"]]:
        return self.step(self.start(x.shape[0]), self.project(x))

    def _first_bias(
        self, key: Key[Array, ""], shape: tuple[int, ...], dtype: Any = jnp.float32
    ) -> Float32[Array, " G"]:
        return jnp.zeros(shape, dtype).at[self.size : 2 * self.size].set(lasting(key, self.size))


class LSTM(nn.Module):
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000):

        i, f, o = sigmoid(W x + U h + b),  g = tanh(W x + U h + b),  c' = f c + i g,  h' = o tanh(c')

    The forget gate f starts with the biases of `lasting`, the input gate i with their negatives: i = 1 - f, so that
    what is remembered stays, each unit's for a time of its own, and does not pile up.
    """

    size: int

    def setup(self) -> None:
        self.inner = nn.Dense(4 * self.size, use_bias=False, kernel_init=gates(4, INPUT_GAIN))
        self.recurrent = nn.Dense(4 * self.size, use_bias=False, kernel_init=gates(4, 1.0))
        self.bias = self.param("bias", self._first_bias, (4 * self.size,))

    def project(self, x: Float[Array, "*B D"]) -> Float[Array, "*B G"]:
        return self.inner(x) + self.bias.reshape((1,) * (x.ndim - 1) + (-1,))

    def step(self, carry: Carry, projected: Float[Array, "B G"]) -> tuple[Carry, Float[Array, "B H"]]:
        c, h = carry
        i, f, g, o = jnp.split(projected + self.recurrent(h), 4, axis=-1)
        c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
        h = nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h

    def start(self, batch: int) -> Carry:
        zeros = jnp.zeros((batch, self.size), jnp.float32)
        return zeros, zeros

    def __call__(self, x: Float[Array, "B D"]) -> tuple[Carry, Float[Array, "B H"]]:
        return self.step(self.start(x.shape[0]), self.project(x))

    def _first_bias(self, key: Key[Array, ""], shape: tuple[int, ...]) -> Float32[Array, " G"]:
        keep = lasting(key, self.size)
        return jnp.concatenate([-keep, keep, jnp.zeros(2 * self.size, jnp.float32)])


CELLS = {"gru": GRU, "lstm": LSTM}


def remembering(before: Network, kind: str, size: int, after: Network | None) -> Network:
    """`before`, a recurrent cell, and `after` one after the other. Of a sequence, only the cell goes step by step."""
    cell: Any = CELLS[kind](size)

    def init(key: jax.Array, features: Any) -> tuple[PyTree, PyTree]:
        first, middle, last = jax.random.split(key, 3)
        params = {}
        params["before"], _ = before.init(first, features)
        _, hidden = before.apply(params["before"], (), features)
        params["memory"] = cell.init(middle, hidden)["params"]
        carry, hidden = cell.apply({"params": params["memory"]}, hidden)
        if after is not None:
            params["after"], _ = after.init(last, hidden)
        return params, carry

    def apply(params: PyTree, carry: PyTree, features: Any) -> tuple[PyTree, jax.Array]:
        _, hidden = before.apply(params["before"], (), features)
        held = {"params": params["memory"]}
        carry, hidden = cell.apply(held, carry, cell.apply(held, hidden, method="project"), method="step")
        return carry, hidden if after is None else after.apply(params["after"], (), hidden)[1]

    def unroll(params: PyTree, carry: PyTree, features: Any, episode_start: jax.Array) -> tuple[PyTree, jax.Array]:
        hidden = flat_apply(before, params["before"], features)
        held = {"params": params["memory"]}
        projected = cell.apply(held, flatten_time(hidden), method="project")
        step = lambda carry, now: cell.apply(held, carry, now, method="step")  # noqa: E731
        memory, hidden = through_time(step, carry, split_time(projected, *episode_start.shape), episode_start)
        return memory, hidden if after is None else flat_apply(after, params["after"], hidden)

    return Network(init, apply, unroll)


def through_time(
    step: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    carry: PyTree[Shaped[Array, "B ..."]],
    inputs: PyTree[Shaped[Array, "T B ..."]],
    episode_start: Bool[Array, "T B"],
) -> tuple[PyTree[Shaped[Array, "T B ..."]], PyTree[Shaped[Array, "T B ..."]]]:
    """`step(carry, input)` for each of the inputs; the memory after each of them, and the outputs.

    Memory is empty before the steps where `episode_start` is true.
    """

    def one(carry: PyTree, now: tuple[PyTree, jax.Array]) -> tuple[PyTree, tuple[PyTree, Any]]:
        given, reset_mask = now
        carry = forget(carry, reset_mask)
        carry, output = step(carry, given)
        return carry, (carry, output)

    return jax.lax.scan(one, carry, (inputs, episode_start))[1]


def forget(carry: PyTree[Shaped[Array, "B ..."]], reset_mask: Bool[AnyArray, " B"]) -> PyTree[Shaped[Array, "B ..."]]:
    """Empty memory where `reset_mask` is true."""

    def kept(leaf: Shaped[Array, "*S"]) -> Shaped[Array, "*S"]:
        return jnp.where(reset_mask.reshape(reset_mask.shape + (1,) * (leaf.ndim - 1)), jnp.zeros_like(leaf), leaf)

    return jax.tree.map(kept, carry)


def unrolled(
    network: Network,
    params: PyTree[Float[Array, "..."]],
    carry: PyTree[Shaped[Array, "B ..."]],
    inputs: PyTree[Shaped[Array, "T B ..."]],
    episode_start: Bool[Array, "T B"],
) -> tuple[PyTree[Shaped[Array, "T B ..."]], PyTree[Shaped[Array, "T B ..."]]]:
    """A network over inputs of T steps: its memory after each step, and its outputs."""
    if not jax.tree.leaves(carry):
        return carry, flat_apply(network, params, inputs)
    if network.unroll is not None:
        return network.unroll(params, carry, inputs, episode_start)
    return through_time(lambda carry, now: network.apply(params, carry, now), carry, inputs, episode_start)
