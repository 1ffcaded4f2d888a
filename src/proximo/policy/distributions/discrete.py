"""Distributions of discrete actions. Each takes a mask, and the value None for no mask."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from numpy.typing import NDArray

# Far below every logit a network emits, and finite: sums and gradients of masked actions stay finite.
MASKED = -1e9


def masked_log_softmax(logits: Float[Array, "*B n"], mask: Bool[Array, "*B n"] | None) -> Float[Array, "*B n"]:
    """Log-probabilities over the allowed actions; about -1e9, never -inf, for the others."""
    return jax.nn.log_softmax(logits if mask is None else jnp.where(mask, logits, MASKED), axis=-1)


def categorical_sample(
    logits: Float[Array, "*B n"], uniform: Float[Array, "*B"], mask: Bool[Array, "*B n"] | None
) -> Int[Array, "*B"]:
    """The first allowed action whose cumulative probability exceeds `uniform`: one number of noise per sample."""
    weights = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    if mask is not None:
        weights = jnp.exp(masked_log_softmax(logits, mask))
    cumulative = jnp.cumsum(weights, axis=-1)
    passed = cumulative <= uniform[..., None] * cumulative[..., -1:]
    if mask is None:
        return passed[..., :-1].sum(axis=-1, dtype=jnp.int32)
    # Rounding may leave no allowed action beyond; the likeliest one is then as good as any, and always allowed.
    beyond = ~passed & mask
    return jnp.where(beyond.any(-1), jnp.argmax(beyond, axis=-1), jnp.argmax(weights, axis=-1)).astype(jnp.int32)


def categorical_log_prob(log_probs: Float[Array, "*B n"], action: Int[Array, "*B"]) -> Float[Array, "*B"]:
    """log p[action], as a sum over a one-hot: a gather is slow to differentiate."""
    chosen = jax.nn.one_hot(action, log_probs.shape[-1], dtype=bool)
    return jnp.where(chosen, log_probs, 0.0).sum(-1)


def categorical_entropy(log_probs: Float[Array, "*B n"]) -> Float[Array, "*B"]:
    """-sum p log p; masked actions add exactly zero."""
    return -(jnp.exp(log_probs) * log_probs).sum(-1)


@dataclass(frozen=True)
class Categorical:
    """One of n actions, numbered from `start`."""

    n: int
    start: int = 0
    num_log_std: int = 0

    @property
    def num_params(self) -> int:
        return self.n

    def noise(self, key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, "..."]:
        return jax.random.uniform(key, shape, jnp.float32)

    def sample(
        self, params: Float[Array, "*B n"], noise: Float[Array, "*B"], mask: Bool[Array, "*B n"] | None = None
    ) -> Int[Array, "*B"]:
        return categorical_sample(params, noise, mask)

    def mode(self, params: Float[Array, "*B n"], mask: Bool[Array, "*B n"] | None = None) -> Int[Array, "*B"]:
        return jnp.argmax(masked_log_softmax(params, mask), axis=-1).astype(jnp.int32)

    def log_prob(
        self, params: Float[Array, "*B n"], action: Int[Array, "*B"], mask: Bool[Array, "*B n"] | None = None
    ) -> Float[Array, "*B"]:
        return categorical_log_prob(masked_log_softmax(params, mask), action)

    def entropy(self, params: Float[Array, "*B n"], mask: Bool[Array, "*B n"] | None = None) -> Float[Array, "*B"]:
        return categorical_entropy(masked_log_softmax(params, mask))

    def to_env(self, action: Int[Array, "*B"]) -> Int[Array, "*B"]:
        return action + self.start if self.start else action


@dataclass(frozen=True)
class MultiCategorical:
    """Several independent choices; component i has `sizes[i]` actions. Masks are concatenated over the components.

    Choices are padded to the longest one and handled in one go, however many there are.
    """

    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    shape: tuple[int, ...]
    num_log_std: int = 0

    @property
    def num_params(self) -> int:
        return sum(self.sizes)

    @property
    def _slots(self) -> NDArray[Any]:
        """[K, longest] where each component's numbers stand in the concatenation; -1 for padding."""
        slots = np.full((len(self.sizes), max(self.sizes)), -1)
        offsets = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        for row, (offset, size) in enumerate(zip(offsets, self.sizes, strict=True)):
            slots[row, :size] = offset + np.arange(size)
        return slots

    def _log_probs(self, params: Float[Array, "*B P"], mask: Bool[Array, "*B P"] | None) -> tuple[Array, Array]:
        slots = self._slots
        real = jnp.broadcast_to(jnp.asarray(slots >= 0), params.shape[:-1] + slots.shape)
        allowed = real if mask is None else real & mask[..., slots]
        return masked_log_softmax(params[..., slots], allowed), allowed

    def noise(self, key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, "..."]:
        return jax.random.uniform(key, (*shape, len(self.sizes)), jnp.float32)

    def sample(
        self, params: Float[Array, "*B P"], noise: Float[Array, "*B K"], mask: Bool[Array, "*B P"] | None = None
    ) -> Int[Array, "*B K"]:
        log_probs, allowed = self._log_probs(params, mask)
        return categorical_sample(log_probs, noise, allowed)

    def mode(self, params: Float[Array, "*B P"], mask: Bool[Array, "*B P"] | None = None) -> Int[Array, "*B K"]:
        return jnp.argmax(self._log_probs(params, mask)[0], axis=-1).astype(jnp.int32)

    def log_prob(
        self, params: Float[Array, "*B P"], action: Int[Array, "*B K"], mask: Bool[Array, "*B P"] | None = None
    ) -> Float[Array, "*B"]:
        return categorical_log_prob(self._log_probs(params, mask)[0], action).sum(-1)

    def entropy(self, params: Float[Array, "*B P"], mask: Bool[Array, "*B P"] | None = None) -> Float[Array, "*B"]:
        return categorical_entropy(self._log_probs(params, mask)[0]).sum(-1)

    def to_env(self, action: Int[Array, "*B K"]) -> Int[Array, "..."]:
        shifted = action + jnp.asarray(self.starts, action.dtype).reshape((1,) * (action.ndim - 1) + (-1,))
        return shifted.reshape(action.shape[:-1] + self.shape)


@dataclass(frozen=True)
class Bernoulli:
    """Independent bits; the parameters are the logits of a one. A mask is [..., K, 2]: may it be 0, may it be 1."""

    shape: tuple[int, ...]
    num_log_std: int = 0

    @property
    def num_params(self) -> int:
        return math.prod(self.shape)

    def _log_probs(self, params: Float[Array, "*B K"], mask: Bool[Array, "*B K 2"] | None) -> Float[Array, "*B K 2"]:
        return masked_log_softmax(jnp.stack([jnp.zeros_like(params), params], axis=-1), mask)

    def noise(self, key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, "..."]:
        return jax.random.uniform(key, (*shape, self.num_params), jnp.float32)

    def sample(
        self, params: Float[Array, "*B K"], noise: Float[Array, "*B K"], mask: Bool[Array, "*B K 2"] | None = None
    ) -> Int[Array, "*B K"]:
        return categorical_sample(self._log_probs(params, mask), noise, mask)

    def mode(self, params: Float[Array, "*B K"], mask: Bool[Array, "*B K 2"] | None = None) -> Int[Array, "*B K"]:
        return jnp.argmax(self._log_probs(params, mask), axis=-1).astype(jnp.int32)

    def log_prob(
        self, params: Float[Array, "*B K"], action: Int[Array, "*B K"], mask: Bool[Array, "*B K 2"] | None = None
    ) -> Float[Array, "*B"]:
        return categorical_log_prob(self._log_probs(params, mask), action).sum(-1)

    def entropy(self, params: Float[Array, "*B K"], mask: Bool[Array, "*B K 2"] | None = None) -> Float[Array, "*B"]:
        return categorical_entropy(self._log_probs(params, mask)).sum(-1)

    def to_env(self, action: Int[Array, "*B K"]) -> Int[Array, "..."]:
        return action.astype(jnp.int8).reshape(action.shape[:-1] + self.shape)
