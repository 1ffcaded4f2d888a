"""The Beta distribution: continuous actions that end at their bounds by nature, neither clipped nor squashed."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.scipy.special import betaln, digamma
from jaxtyping import Array, Float, Key, Shaped

from proximo.policy.distributions.gaussian import Bounds

ATTEMPTS = 8
"""Of each gamma variate. One fails in 4.9 % of the cases at most, all of them in less than 4e-11."""
EDGE = 1e-6
"""How near actions come to the ends of 0..1, where their density may be 0 and its logarithm is not finite."""


def gamma_sample(
    shape: Float[Array, "*B"], normal: Float[Array, "*B A"], uniform: Float[Array, "*B A"]
) -> Float[Array, "*B"]:
    """Gamma(shape, 1) variates for shapes of 1 or more, by Marsaglia and Tsang (2000):

        d v with v = (1 + x / (3 sqrt(d)))^3 and d = shape - 1/3, if v > 0 and log u < x^2/2 + d - d v + d log v

    for the first of A pairs (x, u) that is accepted. Where none is, d: close to the median.
    """
    d = (shape - 1 / 3)[..., None]
    v = (1 + normal / (3 * jnp.sqrt(d))) ** 3
    safe = jnp.where(v > 0, v, 1.0)
    accepted = (v > 0) & (jnp.log1p(-uniform) < 0.5 * jnp.square(normal) + d * (1 - safe + jnp.log(safe)))
    first = accepted & (jnp.cumsum(accepted, axis=-1) == 1)
    return d[..., 0] * jnp.where(accepted.any(-1), jnp.where(first, safe, 0.0).sum(-1), 1.0)


@dataclass(frozen=True)
class Beta:
    """Independent Beta distributions on 0..1, which is stretched onto the bounds.

        p(x) = x^(a-1) (1-x)^(b-1) / B(a, b),    a, b = 1 + (z + sqrt(z^2 + 4)) / 2 for the two halves z of the output

    With a, b > 1 there is one peak, never at an end. Not 1 + softplus(z), whose slope vanishes so fast that a shape
    which has come close to 1 stays there. Actions are kept as x; the density is that of x.
    """

    bounds: Bounds
    num_log_std: int = 0

    @property
    def num_params(self) -> int:
        return 2 * self.bounds.size

    def _shapes(self, params: Float[Array, "*B P"]) -> tuple[Array, Array]:
        a, b = jnp.split(1 + jax.nn.squareplus(params), 2, axis=-1)
        return a, b

    def noise(self, key: Key[Array, ""], shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Normal and uniform numbers [..., 2, K, A]: for two gamma variates of each entry."""
        normal, uniform = jax.random.split(key)
        shape = (*shape, 2, self.bounds.size, ATTEMPTS)
        return jax.random.normal(normal, shape, jnp.float32), jax.random.uniform(uniform, shape, jnp.float32)

    def sample(
        self, params: Float[Array, "*B P"], noise: tuple[Array, Array], mask: None = None
    ) -> Float[Array, "*B K"]:
        """x / (x + y) with x ~ Gamma(a) and y ~ Gamma(b)."""
        x, y = jnp.moveaxis(gamma_sample(jnp.stack(self._shapes(params), axis=-2), *noise), -2, 0)
        return jnp.clip(x / (x + y), EDGE, 1 - EDGE)

    def mode(self, params: Float[Array, "*B P"], mask: None = None) -> Float[Array, "*B K"]:
        """The mean a / (a + b), not the peak: where a shape is close to 1, that is at an end, far from most actions."""
        a, b = self._shapes(params)
        return jnp.clip(a / (a + b), EDGE, 1 - EDGE)

    def log_prob(
        self, params: Float[Array, "*B P"], action: Float[Array, "*B K"], mask: None = None
    ) -> Float[Array, "*B"]:
        """Sum of (a-1) log x + (b-1) log(1-x) - log B(a, b)."""
        a, b = self._shapes(params)
        return ((a - 1) * jnp.log(action) + (b - 1) * jnp.log1p(-action) - betaln(a, b)).sum(-1)

    def entropy(self, params: Float[Array, "*B P"], mask: None = None) -> Float[Array, "*B"]:
        """Sum of log B(a, b) - (a-1) psi(a) - (b-1) psi(b) + (a+b-2) psi(a+b)."""
        a, b = self._shapes(params)
        spread = (a - 1) * digamma(a) + (b - 1) * digamma(b) - (a + b - 2) * digamma(a + b)
        return (betaln(a, b) - spread).sum(-1)

    def to_env(self, action: Float[Array, "*B K"]) -> Shaped[Array, "..."]:
        return self.bounds.from_unit(2 * action - 1)
