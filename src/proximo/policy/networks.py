"""Networks behind one seam: two pure functions.

    params, carry = network.init(key, features)           # features with a batch axis of 1
    carry, output = network.apply(params, carry, features)

`carry` is the network's memory, leaves [B, ...]; it is all zeros where an episode starts, and an empty tuple
for a network without memory. Any such pair can be a policy; the built-in ones are Linen modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from proximo.config import NetworkConfig
from proximo.policy.encoders import Embedding, image_encoder
from proximo.policy.layers import dense
from proximo.policy.observation import Features
from proximo.types import AnyArray, PyTree

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "elu": nn.elu,
    "gelu": nn.gelu,
    "silu": nn.silu,
}


class Network(NamedTuple):
    """The seam: `init(key, features) -> (params, carry)`, `apply(params, carry, features) -> (carry, output)`.

    A network with memory may say how it goes through a sequence faster than step by step: `unroll(params, carry,
    features, episode_start)` with features [T, B, ...] gives the memory after each step and the outputs, both
    [T, B, ...]; memory is empty before the steps where `episode_start` [T, B] is true.
    """

    init: Callable[[jax.Array, Any], tuple[PyTree, PyTree]]
    apply: Callable[[PyTree, PyTree, Any], tuple[PyTree, jax.Array]]
    unroll: Callable[[PyTree, PyTree, Any, jax.Array], tuple[PyTree, jax.Array]] | None = None


class Head(NamedTuple):
    """What a network ends with: a linear layer, and numbers that do not depend on the state."""

    num_outputs: int
    gain: float
    num_log_std: int = 0
    log_std: float = 0.0


class Layers(nn.Module):
    """Encoders and hidden layers as `network` says, where it is given; then a `head`, where there is one.

    Orthogonal initialisation: gain sqrt(2) inside, the head's own there, biases zero.
    """

    network: NetworkConfig | None
    head: Head | None

    @nn.compact
    def __call__(self, given: Features | Float[Array, "B H"]) -> Float[Array, "B _"]:
        """From `Features`, or where there is no `network` from what another one's hidden layers gave."""
        if isinstance(given, Features):
            assert self.network is not None
            hidden = hidden_layers(encoded(given, self.network), self.network)
        else:
            hidden = given
        if self.head is None:
            return hidden
        output = dense(self.head.num_outputs, self.head.gain)(hidden)
        if self.head.num_log_std:
            start = nn.initializers.constant(self.head.log_std)
            log_std = self.param("log_std", start, (self.head.num_log_std,))
            wide = jnp.broadcast_to(log_std[None], (output.shape[0], self.head.num_log_std))
            output = jnp.concatenate([output, wide], axis=-1)
        return output


def encoded(features: Features, network: NetworkConfig) -> Float[Array, "B D"]:
    """Everything as one vector: each image through a CNN of its own, each discrete value through its embedding."""
    parts = [features.vector]
    parts += [image_encoder(network.cnn, ACTIVATIONS[network.activation])(image) for image in features.images]
    if features.codes is not None and network.embed is not None:
        parts.append(Embedding(features.num_codes, network.embed)(features.codes))
    return jnp.concatenate(parts, axis=-1) if len(parts) > 1 else features.vector


def hidden_layers(hidden: Float[Array, "B D"], network: NetworkConfig) -> Float[Array, "B H"]:
    """Linear layers, each followed by the activation."""
    for size in network.hidden_sizes:
        hidden = dense(size, math.sqrt(2))(hidden)
        if network.layer_norm:
            hidden = nn.LayerNorm()(hidden)
        hidden = ACTIVATIONS[network.activation](hidden)
    return hidden


def linen_network(module: nn.Module) -> Network:
    """A Linen module without memory as a `Network`."""

    def init(key: jax.Array, features: Any) -> tuple[PyTree, PyTree]:
        return module.init(key, features).get("params", {}), ()

    def apply(params: PyTree, carry: PyTree, features: Any) -> tuple[PyTree, Any]:
        return carry, module.apply({"params": params}, features)

    return Network(init, apply)


def flatten_time(tree: PyTree[Shaped[AnyArray, "T B ..."]]) -> PyTree[Shaped[AnyArray, "T*B ..."]]:
    """Steps and lanes as one axis, in every leaf."""
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree)


def split_time(
    tree: PyTree[Shaped[Array, "N ..."]], steps: int, batch: int
) -> PyTree[Shaped[Array, "{steps} {batch} ..."]]:
    """Steps and lanes as two axes again, in every leaf."""
    return jax.tree.map(lambda leaf: leaf.reshape(steps, batch, *leaf.shape[1:]), tree)


def flat_apply(
    network: Network, params: PyTree[Float[Array, "..."]], inputs: PyTree[Shaped[Array, "T B ..."]]
) -> PyTree[Shaped[Array, "T B ..."]]:
    """A network without memory on inputs of T steps, all at once."""
    steps, batch = jax.tree.leaves(inputs)[0].shape[:2]
    return split_time(network.apply(params, (), flatten_time(inputs))[1], steps, batch)


CRITIC_HEAD = Head(num_outputs=1, gain=1.0)


def actor_head(network: NetworkConfig, num_outputs: int, num_log_std: int) -> Head:
    return Head(num_outputs - num_log_std, 0.01, num_log_std, math.log(network.initial_std))
