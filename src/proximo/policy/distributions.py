"""Action distributions: what a network's numbers mean as actions.

Each distribution reads the actor's output [..., P] and works on actions in coordinates of its own: for
discrete spaces the indices, for continuous ones the Gaussian sample before clipping or squashing, so that
its log-probability never has to be inverted. `to_env` turns them into members of the action space.

Sampling takes noise that was drawn beforehand (`noise`), so a whole rollout's noise is one call. Masks are
true for allowed actions; every discrete distribution takes one, and the value None for no mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int, Integer, Shaped

from proximo.errors import UserError

LOG_2PI = math.log(2 * math.pi)
LOG_2 = math.log(2)
# Far below every logit a network emits, and finite: sums and gradients of masked actions stay finite.
MASKED = -1e9


@runtime_checkable
class Distribution(Protocol):
    """What every distribution offers. `num_params` is P; the last `num_log_std` of them do not depend on the state."""

    @property
    def num_params(self) -> int: ...
    @property
    def num_log_std(self) -> int: ...
    def noise(self, key: Any, shape: tuple[int, ...]) -> Any: ...
    def sample(self, params: Any, noise: Any, mask: Any = None) -> Any: ...
    def mode(self, params: Any, mask: Any = None) -> Any: ...
    def log_prob(self, params: Any, action: Any, mask: Any = None) -> Any: ...
    def entropy(self, params: Any, mask: Any = None) -> Any: ...
    def to_env(self, action: Any) -> Any: ...


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

    def noise(self, key: Any, shape: tuple[int, ...]) -> Float[Array, ...]:
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
    def _slots(self) -> np.ndarray:
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

    def noise(self, key: Any, shape: tuple[int, ...]) -> Float[Array, ...]:
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

    def to_env(self, action: Int[Array, "*B K"]) -> Int[Array, ...]:
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

    def noise(self, key: Any, shape: tuple[int, ...]) -> Float[Array, ...]:
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

    def to_env(self, action: Int[Array, "*B K"]) -> Int[Array, ...]:
        return action.astype(jnp.int8).reshape(action.shape[:-1] + self.shape)


def _inside(bound: np.ndarray, inward: float) -> np.ndarray:
    """A bound in single precision, rounded into the box: the nearest number may lie outside, and numbers too small
    to be normal are zero on the device."""
    with np.errstate(over="ignore", under="ignore"):
        single = bound.reshape(-1).astype(np.float32)
    outside = np.isfinite(single) & ((single < bound.reshape(-1)) if inward > 0 else (single > bound.reshape(-1)))
    single = np.where(outside, np.nextafter(single, np.float32(inward)), single)
    tiny = np.float32(math.copysign(np.finfo(np.float32).tiny, inward))
    return np.where(np.abs(single) >= abs(tiny), single, np.where(single * np.sign(tiny) > 0, tiny, np.float32(0)))


def _whole(bound: np.ndarray, side: int) -> list[float | int]:
    """A bound of whole numbers, exactly; the end of a wide dtype's range is what Gymnasium makes of infinity."""
    numbers = [int(number) for number in bound.reshape(-1)]
    if bound.dtype.itemsize < 4 or (side < 0 and bound.dtype.kind == "u"):
        return [*numbers]
    end = np.iinfo(bound.dtype).min if side < 0 else np.iinfo(bound.dtype).max
    return [side * math.inf if number == end else number for number in numbers]


def _limits(dtype: str) -> tuple[float | int, float | int]:
    """The least and the greatest number of a dtype."""
    if dtype == "bool":
        return 0, 1
    if dtype.startswith("float"):
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


@dataclass(frozen=True)
class Bounds:
    """The box that Gaussian actions end in; flat, as tuples, so that it can be compared and hashed."""

    low: tuple[float | int, ...]  # -inf where there is no bound
    high: tuple[float | int, ...]
    shape: tuple[int, ...]
    dtype: str = "float32"
    """Of the actions: the space's, as far as JAX has it."""

    @classmethod
    def of(cls, space: spaces.Box) -> Bounds:
        low: list[float | int]
        high: list[float | int]
        if np.issubdtype(space.dtype, np.floating):
            low, high = _inside(space.low, np.inf).tolist(), _inside(space.high, -np.inf).tolist()
            dtype = "float16" if space.dtype == np.float16 else "float32"
        else:
            low, high = _whole(space.low, -1), _whole(space.high, 1)
            dtype = jax.dtypes.canonicalize_dtype(space.dtype).name
        least, most = _limits(dtype)
        if any(below > most or above < least for below, above in zip(low, high, strict=True)):
            raise UserError(f"Actions of the space {space} cannot be trained: they lie beyond the range of {dtype}.")
        low = [max(bound, least) if math.isfinite(bound) else bound for bound in low]
        high = [min(bound, most) if math.isfinite(bound) else bound for bound in high]
        return cls(tuple(low), tuple(high), tuple(space.shape), dtype)

    @property
    def size(self) -> int:
        return len(self.low)

    @property
    def bounded(self) -> bool:
        """Whether every entry has two finite bounds."""
        return bool(np.all(np.isfinite(self.low)) and np.all(np.isfinite(self.high)))

    def from_unit(self, unit: Float[Array, "*B K"]) -> Shaped[Array, ...]:
        """-1..1 exactly onto low..high where both are finite, clipped into the box everywhere; rounded where the
        space is one of whole numbers."""
        row = (1,) * (unit.ndim - 1) + (-1,)
        low, high = (np.array(bound, np.float32).reshape(row) for bound in (self.low, self.high))
        both = np.isfinite(low) & np.isfinite(high)
        share = (jnp.clip(unit, -1.0, 1.0) + 1) / 2
        inside = np.where(both, low, 0) * (1 - share) + np.where(both, high, 0) * share
        value = jnp.where(both, inside, unit)
        least, most = _limits(self.dtype)
        if self.dtype.startswith("float"):
            value = jnp.clip(value, np.maximum(low, np.float32(least)), np.minimum(high, np.float32(most)))
        else:
            value = self._rounded(value)
        return value.astype(self.dtype).reshape(unit.shape[:-1] + self.shape)

    def _rounded(self, value: Float[Array, "*B K"]) -> Integer[Array, "*B K"]:
        """Whole numbers, clipped as such: past 2^24 single precision does not meet every bound."""
        dtype, row = np.dtype("int32" if self.dtype == "bool" else self.dtype), (1,) * (value.ndim - 1) + (-1,)
        least, most = _limits(self.dtype)
        low = np.array([max(bound, least) for bound in self.low], dtype).reshape(row)
        high = np.array([min(bound, most) for bound in self.high], dtype).reshape(row)
        # What is cast must have a place in the dtype, or the cast is undefined.
        castable = (float(_inside(np.array(end), inward)[0]) for end, inward in ((least, np.inf), (most, -np.inf)))
        return jnp.clip(jnp.clip(jnp.round(value), *castable).astype(dtype), low, high)


@dataclass(frozen=True)
class Gaussian:
    """A diagonal Gaussian whose samples are clipped: -1..1 is stretched onto the bounds, where there are two.

    Whole-number actions are its samples, rounded; the density stays that of the sample.
    """

    bounds: Bounds

    @property
    def num_params(self) -> int:
        return 2 * self.bounds.size

    @property
    def num_log_std(self) -> int:
        return self.bounds.size

    def noise(self, key: Any, shape: tuple[int, ...]) -> Float[Array, ...]:
        return jax.random.normal(key, (*shape, self.bounds.size), jnp.float32)

    def sample(
        self, params: Float[Array, "*B P"], noise: Float[Array, "*B K"], mask: None = None
    ) -> Float[Array, "*B K"]:
        mean, log_std = jnp.split(params, 2, axis=-1)
        return mean + jnp.exp(log_std) * noise

    def mode(self, params: Float[Array, "*B P"], mask: None = None) -> Float[Array, "*B K"]:
        return jnp.split(params, 2, axis=-1)[0]

    def log_prob(
        self, params: Float[Array, "*B P"], action: Float[Array, "*B K"], mask: None = None
    ) -> Float[Array, "*B"]:
        """-sum of ((x - mean)/std)^2 / 2 + log std + log(2 pi)/2."""
        mean, log_std = jnp.split(params, 2, axis=-1)
        scaled = (action - mean) * jnp.exp(-log_std)
        return -(0.5 * jnp.square(scaled) + log_std + 0.5 * LOG_2PI).sum(-1)

    def entropy(self, params: Float[Array, "*B P"], mask: None = None) -> Float[Array, "*B"]:
        """Sum of log std + log(2 pi e)/2."""
        return (jnp.split(params, 2, axis=-1)[1] + 0.5 * (1 + LOG_2PI)).sum(-1)

    def to_env(self, action: Float[Array, "*B K"]) -> Shaped[Array, ...]:
        return self.bounds.from_unit(action)


def log_tanh_slope(x: Float[Array, ...]) -> Float[Array, ...]:
    """log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2x)): exact where 1 - tanh^2 would round to zero."""
    return 2 * (LOG_2 - x - jax.nn.softplus(-2 * x))


HERMITE_NODES, HERMITE_WEIGHTS = (part.astype(np.float32) for part in np.polynomial.hermite_e.hermegauss(32))
HERMITE_WEIGHTS = HERMITE_WEIGHTS / HERMITE_WEIGHTS.sum()


@dataclass(frozen=True)
class TanhGaussian(Gaussian):
    """A Gaussian squashed by tanh onto the bounds: every action lies inside, and the density is that of the
    squashed action. Actions are kept as the Gaussian's own sample x; the action is tanh(x), rescaled."""

    def log_prob(
        self, params: Float[Array, "*B P"], action: Float[Array, "*B K"], mask: None = None
    ) -> Float[Array, "*B"]:
        """log N(x) - sum log(1 - tanh(x)^2): the density of tanh(x) in -1..1."""
        return super().log_prob(params, action) - log_tanh_slope(action).sum(-1)

    def entropy(self, params: Float[Array, "*B P"], mask: None = None) -> Float[Array, "*B"]:
        """H(N) + E[log(1 - tanh(x)^2)]; the expectation by Gauss-Hermite quadrature, so no noise enters."""
        mean, log_std = jnp.split(params, 2, axis=-1)
        row = (1,) * mean.ndim + (-1,)
        nodes = mean[..., None] + jnp.exp(log_std)[..., None] * HERMITE_NODES.reshape(row)
        slopes = (log_tanh_slope(nodes) * HERMITE_WEIGHTS.reshape(row)).sum(-1)
        return super().entropy(params) + slopes.sum(-1)

    def to_env(self, action: Float[Array, "*B K"]) -> Shaped[Array, ...]:
        return self.bounds.from_unit(jnp.tanh(action))
