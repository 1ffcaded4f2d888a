"""Distributions of continuous actions, and the boxes that they end in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float, Integer, Key, Shaped
from numpy.typing import NDArray

from proximo.errors import UserError

LOG_2PI = math.log(2 * math.pi)
LOG_2 = math.log(2)
LOG_STD_RANGE = (-10.0, 5.0)
"""Where the state decides it: a network may say anything of a state that it has not seen."""
WIDEST = 1e18
"""How far apart two bounds may be: its square still fits single precision. Wider ones, such as plus and minus the
largest float, say that there is no bound, and stretching -1..1 onto them would make 3e37 of 0.1."""


def _inside(bound: NDArray[Any], inward: float) -> NDArray[Any]:
    """A bound in single precision, rounded into the box: the nearest number may lie outside, and numbers too small
    to be normal are zero on the device."""
    with np.errstate(over="ignore", under="ignore"):
        single = bound.reshape(-1).astype(np.float32)
    outside = np.isfinite(single) & ((single < bound.reshape(-1)) if inward > 0 else (single > bound.reshape(-1)))
    with np.errstate(over="ignore"):  # of those beyond, which are not taken
        single = np.where(outside, np.nextafter(single, np.float32(inward)), single)
    tiny = np.float32(math.copysign(np.finfo(np.float32).tiny, inward))
    return np.where(np.abs(single) >= abs(tiny), single, np.where(single * np.sign(tiny) > 0, tiny, np.float32(0)))


def _whole(bound: NDArray[Any], side: int) -> list[float | int]:
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
    def between(self) -> NDArray[Any]:
        """[K] which entries lie between two bounds: both finite, and less than `WIDEST` apart (and than the dtype's
        greatest number, where that is less)."""
        low, high = np.array(self.low, np.float64), np.array(self.high, np.float64)
        widest = min(WIDEST, float(np.finfo(self.dtype).max)) if self.dtype.startswith("float") else WIDEST
        return np.isfinite(low) & np.isfinite(high) & (high - low <= widest)

    @property
    def bounded(self) -> bool:
        """Whether every entry lies between two bounds."""
        return bool(self.between.all())

    def from_unit(self, unit: Float[Array, "*B K"]) -> Shaped[Array, "..."]:
        """-1..1 exactly onto low..high where there are two bounds, clipped into the box everywhere; rounded where the
        space is one of whole numbers."""
        row = (1,) * (unit.ndim - 1) + (-1,)
        low, high = (np.array(bound, np.float32).reshape(row) for bound in (self.low, self.high))
        both = self.between.reshape(row)
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
    state_std: float | None = None
    """Where the state decides the standard deviation: what it is multiplied with. None: it is a free parameter."""

    @property
    def num_params(self) -> int:
        return 2 * self.bounds.size

    @property
    def num_log_std(self) -> int:
        return self.bounds.size if self.state_std is None else 0

    def _mean_and_log_std(self, params: Float[Array, "*B P"]) -> tuple[Array, Array]:
        mean, log_std = jnp.split(params, 2, axis=-1)
        if self.state_std is not None:
            log_std = jnp.clip(log_std + math.log(self.state_std), *LOG_STD_RANGE)
        return mean, log_std

    def noise(self, key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, "..."]:
        return jax.random.normal(key, (*shape, self.bounds.size), jnp.float32)

    def sample(
        self, params: Float[Array, "*B P"], noise: Float[Array, "*B K"], mask: None = None
    ) -> Float[Array, "*B K"]:
        mean, log_std = self._mean_and_log_std(params)
        return mean + jnp.exp(log_std) * noise

    def mode(self, params: Float[Array, "*B P"], mask: None = None) -> Float[Array, "*B K"]:
        return jnp.split(params, 2, axis=-1)[0]

    def log_prob(
        self, params: Float[Array, "*B P"], action: Float[Array, "*B K"], mask: None = None
    ) -> Float[Array, "*B"]:
        """-sum of ((x - mean)/std)^2 / 2 + log std + log(2 pi)/2."""
        mean, log_std = self._mean_and_log_std(params)
        scaled = (action - mean) * jnp.exp(-log_std)
        return -(0.5 * jnp.square(scaled) + log_std + 0.5 * LOG_2PI).sum(-1)

    def entropy(self, params: Float[Array, "*B P"], mask: None = None) -> Float[Array, "*B"]:
        """Sum of log std + log(2 pi e)/2."""
        return (self._mean_and_log_std(params)[1] + 0.5 * (1 + LOG_2PI)).sum(-1)

    def to_env(self, action: Float[Array, "*B K"]) -> Shaped[Array, "..."]:
        return self.bounds.from_unit(action)


def log_tanh_slope(x: Float[Array, "..."]) -> Float[Array, "..."]:
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
        mean, log_std = self._mean_and_log_std(params)
        row = (1,) * mean.ndim + (-1,)
        nodes = mean[..., None] + jnp.exp(log_std)[..., None] * HERMITE_NODES.reshape(row)
        slopes = (log_tanh_slope(nodes) * HERMITE_WEIGHTS.reshape(row)).sum(-1)
        return super().entropy(params) + slopes.sum(-1)

    def to_env(self, action: Float[Array, "*B K"]) -> Shaped[Array, "..."]:
        return self.bounds.from_unit(jnp.tanh(action))
